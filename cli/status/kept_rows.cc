#include "cli/status/kept_rows.h"

#include <algorithm>
#include <utility>

#include "core/run/stage_row.h"

namespace tailrace {
namespace {

size_t kind_of(const MetricsRow& row) {
  const auto has = [&](const char* section) {
    return std::ranges::any_of(row.values,
                               [&](const auto& value) { return value.first.starts_with(section); });
  };
  return stage_row(row) ? 0 : has("eval/") ? 1 : 2;
}

// Every second from the first on.
template <class T>
void halve(std::vector<T>& all) {
  size_t left = 0;
  for (size_t i = 0; i < all.size(); i += 2, ++left)
    if (left != i) all[left] = std::move(all[i]);
  all.resize(left);
}

}  // namespace

void KeptRows::add(const MetricsRow& row) {
  Kind& kind = kinds_[kind_of(row)];
  Line line{rows_++, format_metrics_row(row)};
  if (kind.seen++ % kind.stride != 0) {
    kind.last = std::move(line);
    return;
  }
  kind.last.reset();
  kind.kept.push_back(std::move(line));
  if (kind.kept.size() <= kMost) return;
  // kMost is even, so that the last one stays, and the next comes at the double stride.
  static_assert(kMost % 2 == 0);
  kind.stride *= 2;
  halve(kind.kept);
}

std::vector<std::string> KeptRows::lines(size_t bytes) const {
  std::vector<const Line*> all;
  for (const Kind& kind : kinds_) {
    for (const Line& line : kind.kept) all.push_back(&line);
    if (kind.last) all.push_back(&*kind.last);
  }
  std::ranges::sort(all, {}, &Line::number);
  const auto size = [&] {
    size_t sum = 0;
    for (const Line* line : all) sum += line->text.size() + 1;
    return sum;
  };
  while (all.size() > 1 && size() > bytes) {
    const Line* last = all.back();
    all.pop_back();
    if (all.size() == 1)
      all.clear();
    else
      halve(all);
    all.push_back(last);
  }
  std::vector<std::string> lines;
  for (const Line* line : all) lines.push_back(line->text);
  return lines;
}

}  // namespace tailrace
