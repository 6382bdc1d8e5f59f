// Named numbers that somebody reports, under the names of docs/metrics.md, in the order of writing.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tailrace {

using MetricList = std::vector<std::pair<std::string, double>>;

}  // namespace tailrace
