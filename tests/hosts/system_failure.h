// How the fixture says what the system refuses.
#pragma once

#include <stdexcept>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

namespace tailrace {

// Throws "cannot open /dev/net/tun: No such file or directory".
[[noreturn]] inline void fail_with(int error, std::string_view action, std::string_view what) {
  throw std::runtime_error(
      fmt::format("{} {}: {}", action, what, std::generic_category().message(error)));
}

}  // namespace tailrace
