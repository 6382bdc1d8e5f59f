// Named numbers that one update or step reports, under the names of the metrics file.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tailrace {

using Metrics = std::vector<std::pair<std::string, double>>;

}  // namespace tailrace
