// A person's mistake at start: a bad key, a missing file, a model that does not fit. Caught once,
// in main, which prints "error: " and the message and ends with exit code 2.
//
// The message says where, what was found, what is accepted and what to try. A NUL in it, of a value
// that is quoted, is written as \x00, or what() would end there.
//
// Who finds a mistake in the value of a config's key says which key; ConfigKeys (yaml_config.h),
// which knows where it was given, puts file and line in front.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace tailrace {

class UserError : public std::runtime_error {
 public:
  template <class... Args>
  explicit UserError(fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(without_nul(fmt::format(format, std::forward<Args>(args)...))) {}

  // A sentence that begins with the key that it is about:
  //   throw UserError::at("rollout.group_size", "is {}; it must be at least 1", size);
  template <class... Args>
  static UserError at(std::string_view key, fmt::format_string<Args...> format, Args&&... args) {
    return UserError("{} {}", key, fmt::format(format, std::forward<Args>(args)...)).about(key);
  }

  // The same message, as one about `key`; what is about a key already stays so.
  UserError about(std::string_view key) const {
    UserError error = *this;
    if (error.key_.empty()) error.key_ = key;
    return error;
  }

  const std::string& key() const { return key_; }  // full and dotted; empty: about none

 private:
  static std::string without_nul(std::string text) {
    for (size_t at = 0; (at = text.find('\0', at)) != std::string::npos;)
      text.replace(at, 1, "\\x00");
    return text;
  }

  std::string key_;
};

}  // namespace tailrace
