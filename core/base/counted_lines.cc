#include "core/base/counted_lines.h"

#include <utility>

#include <fmt/format.h>

namespace tailrace {
namespace {

// Names of kinds may be somebody else's: beyond so many all are one.
constexpr size_t kMostKinds = 64;

}  // namespace

void CountedLines::note(std::string kind, std::string line) {
  MutexLock lock(mutex_);
  if (!kinds_.contains(kind) && kinds_.size() >= kMostKinds) kind = "others";
  Kind& own = kinds_[std::move(kind)];
  ++own.count;
  own.latest = std::move(line);
  if (own.told > 0 && own.count < 10 * own.told) return;
  own.told = own.count;
  lines_.push_back(own.count == 1
                       ? own.latest
                       : fmt::format("{} (the like {} times so far)", own.latest, own.count));
}

std::vector<std::string> CountedLines::take() {
  MutexLock lock(mutex_);
  return std::exchange(lines_, {});
}

std::vector<std::string> CountedLines::take_totals() {
  MutexLock lock(mutex_);
  std::vector<std::string> lines = std::exchange(lines_, {});
  for (const auto& [name, kind] : kinds_)
    if (kind.count > kind.told)
      lines.push_back(fmt::format("{} (the like {} times in all)", kind.latest, kind.count));
  kinds_.clear();
  return lines;
}

}  // namespace tailrace
