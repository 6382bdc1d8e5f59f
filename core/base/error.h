// A person's mistake at start: a bad key, a missing file, a model that does not fit. Caught once,
// in main, which prints "error: " and the message and ends with exit code 2.
//
// The message says where, what was found, what is accepted and what to try.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace tailrace {

class UserError : public std::runtime_error {
 public:
  template <class... Args>
  explicit UserError(fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
};

}  // namespace tailrace
