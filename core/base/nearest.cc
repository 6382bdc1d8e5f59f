#include "core/base/nearest.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <fmt/format.h>

namespace tailrace {
namespace {

std::string_view last_part(std::string_view name) {
  size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table: a swap of neighbours looks back two.
  std::vector<int> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      int substitution = previous[j - 1] + (a[i - 1] != b[j - 1]);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        current[j] = std::min(current[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

namespace {

// The right key in the wrong section costs two: worse than one typo, better than another key.
int distance(std::string_view name, std::string_view candidate) {
  return std::min(edit_distance(name, candidate),
                  2 + 2 * edit_distance(last_part(name), last_part(candidate)));
}

}  // namespace

bool is_near(std::string_view name, std::string_view candidate) {
  // One slip in four letters, and two in any name: "lr" for "rl", "gruop_sise".
  return distance(name, candidate) <= std::max<int>(2, static_cast<int>(name.size()) / 4);
}

std::string nearest_name(std::string_view name, std::span<const std::string> names) {
  std::string best;
  int best_distance = std::numeric_limits<int>::max();
  for (const std::string& candidate : names) {
    const int far = distance(name, candidate);
    // Of several as near the one that is least deep: "optim.lr" before "sft.optim.lr".
    if (far < best_distance || (far == best_distance && candidate.size() < best.size())) {
      best_distance = far;
      best = candidate;
    }
  }
  return best;
}

std::string nearest_path_hint(const std::filesystem::path& path) {
  std::error_code ignored;
  std::filesystem::path there = path.lexically_normal(), missing;
  if (!there.has_filename()) there = there.parent_path();  // "models/x/"
  // Up to the first folder that exists: what is in it can be compared with the part that is
  // missing.
  while (!there.empty() && !std::filesystem::exists(there, ignored)) {
    missing = there.filename();
    there = there.parent_path();
  }
  if (missing.empty()) return "";
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(there.empty() ? "." : there, ignored))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());  // the folder's own order is chance
  const std::string nearest = nearest_name(missing.string(), names);
  // A typo for every five letters and one more; beyond that the nearest name is no help.
  const int typos = 1 + static_cast<int>(missing.string().size()) / 5;
  if (nearest.empty() || edit_distance(nearest, missing.string()) > typos) return "";
  return fmt::format("; the nearest is {}", (there / nearest).string());
}

}  // namespace tailrace
