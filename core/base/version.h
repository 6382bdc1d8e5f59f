// Which build this is; goes into every run's config.yaml and every report.
#pragma once

#include <string_view>

namespace tailrace {

std::string_view version();  // "0.1.0"

}  // namespace tailrace
