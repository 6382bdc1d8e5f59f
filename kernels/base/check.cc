#include "kernels/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace tailrace {

void check_failed(const char* file, int line, const char* condition, std::string_view message) {
  fmt::print(stderr, "{}:{}: check failed: {}{}{}\n", file, line, condition,
             message.empty() ? "" : ": ", message);
  std::fflush(stderr);
  // abort() and not exit(): no destructor runs over a state that is known to be wrong, and a core
  // dump shows the place.
  std::abort();
}

void check_failed_as(const char* file, int line, const char* condition, fmt::string_view format,
                     fmt::format_args args) {
  check_failed(file, line, condition, fmt::vformat(format, args));
}

}  // namespace tailrace
