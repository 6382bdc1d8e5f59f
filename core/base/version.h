// Which build this is; goes into every run's config.yaml and every report.
#pragma once

#include <string>
#include <string_view>

namespace tailrace {

std::string_view version();  // "0.2.0"

// Names this very binary, by what it is made of: the build ID that the linker has given it, in
// hexadecimal digits. Empty where it has given none.
std::string build_id();

}  // namespace tailrace
