#include "cli/view/metrics_tail.h"

#include <string>

namespace tailrace {

std::vector<MetricsRow> MetricsTail::poll() {
  std::vector<MetricsRow> rows;
  for (const std::string& line : lines_.poll()) {
    if (auto row = parse_metrics_row(line))
      rows.push_back(std::move(row).value());
    else
      ++damaged_;
  }
  return rows;
}

}  // namespace tailrace
