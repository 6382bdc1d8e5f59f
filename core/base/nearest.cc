#include "core/base/nearest.h"

#include <algorithm>
#include <cctype>
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

// One slip in any name ("rl" for "lr"), two from six letters on ("gruop_sise"), then one for every
// four letters. A limit of two for short names would take "cispo" for "gspo".
int most_slips(std::string_view name) {
  const int letters = static_cast<int>(name.size());
  return std::max({1, std::min(letters / 3, 2), letters / 4});
}

// The right key in the wrong section costs two: worse than one typo, better than another key.
int key_distance(std::string_view name, std::string_view candidate) {
  return std::min(edit_distance(name, candidate),
                  2 + 2 * edit_distance(last_part(name), last_part(candidate)));
}

using Distance = int (*)(std::string_view, std::string_view);

// "max" is in too many keys to say much alone, "lr" in no word but itself.
constexpr size_t kLeastPart = 3, kMostKeys = 4;

// "advant" in "whiten_advantages", but not "vantages".
bool has_from_word_on(std::string_view name, std::string_view part) {
  for (size_t at = name.find(part); at != std::string_view::npos; at = name.find(part, at + 1))
    if (at == 0 || name[at - 1] == '_') return true;
  return false;
}

// Empty when `names` is.
std::string nearest(std::string_view name, std::span<const std::string> names, Distance distance) {
  std::string best;
  int best_distance = std::numeric_limits<int>::max();
  for (const std::string& candidate : names) {
    const int far = distance(name, candidate);
    // Among candidates as near the least deep one wins: "optim.lr" before "sft.optim.lr".
    if (far < best_distance || (far == best_distance && candidate.size() < best.size())) {
      best_distance = far;
      best = candidate;
    }
  }
  return best;
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string> names) {
  const std::string best = nearest(name, names, key_distance);
  // However short it is, a key that stands in another section is near: "lr" for "optim.lr".
  const bool near =
      last_part(name) == last_part(best) || key_distance(name, best) <= most_slips(name);
  return near ? best : "";
}

std::vector<std::string> nearest_keys(std::string_view name, std::span<const std::string> names) {
  const std::string_view part = last_part(name);
  const std::string_view section = name.substr(0, name.size() - part.size());
  std::vector<std::string> within, elsewhere;
  for (const std::string& candidate : names) {
    const std::string_view last = last_part(candidate);
    if (part.size() < kLeastPart || !has_from_word_on(last, part)) continue;
    const bool is_within = candidate.substr(0, candidate.size() - last.size()) == section;
    (is_within ? within : elsewhere).push_back(candidate);
  }
  std::vector<std::string>& found = within.empty() ? elsewhere : within;
  const std::string best = nearest_name(name, names);
  // "algo.clip" is as near to clip_c as to clip_low, though letters say otherwise.
  const bool is_among = std::ranges::find(found, best) != found.end();
  if (!found.empty() && found.size() <= kMostKeys && (best.empty() || is_among)) return found;
  return best.empty() ? std::vector<std::string>() : std::vector{best};
}

std::string did_you_mean(std::string_view name, std::span<const std::string> names) {
  const std::string near = nearest_name(name, names);
  return near.empty() ? "." : fmt::format("; did you mean '{}'?", near);
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
  // Not by the part behind a dot: files of one kind share it.
  const std::string best = nearest(missing.string(), names, edit_distance);
  const bool near = edit_distance(missing.string(), best) <= most_slips(missing.string());
  return near && !best.empty() ? fmt::format("; the nearest is {}", (there / best).string()) : "";
}

std::string missing_file_hint(const std::filesystem::path& path, std::string_view otherwise) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return "";
  std::string near = nearest_path_hint(path);
  return near.empty() ? std::string(otherwise) : near;
}

std::string hub_id_hint(const std::filesystem::path& path) {
  const auto is_name = [](const std::string& part) {
    return !part.empty() && part.front() != '.' && std::ranges::all_of(part, [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
    });
  };
  const std::filesystem::path owner = path.parent_path(), folder = owner.parent_path();
  const std::string id = (owner.filename() / path.filename()).string();
  if (!is_name(owner.filename().string()) || !is_name(path.filename().string())) return "";
  std::error_code ignored;
  // A config's path has been made absolute, against the folder that it was relative to.
  const bool may_be_relative = folder.empty() || (folder.is_absolute() && folder.has_filename() &&
                                                  std::filesystem::exists(folder, ignored));
  if (!may_be_relative || std::filesystem::exists(owner, ignored) ||
      !nearest_path_hint(path).empty())
    return "";
  return fmt::format(
      "\n       Nothing is fetched from a hub. If {0} is an id of the Hugging Face hub, try "
      "hf download {0} --local-dir DIR, and name DIR.",
      id);
}

}  // namespace tailrace
