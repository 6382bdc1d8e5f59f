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

#include <fmt/format.h>

namespace tailrace {

class UserError : public std::runtime_error {
 public:
  template <class... Args>
  explicit UserError(fmt::format_string<Args...> format, Args&&... args)
      : UserError(Message{format, fmt::make_format_args(args...)}) {}
  UserError(const UserError&);
  UserError& operator=(const UserError&);
  ~UserError() override;

  // A sentence that begins with the key that it is about:
  //   throw UserError::at("rollout.group_size", "is {}; it must be at least 1", size);
  template <class... Args>
  static UserError at(std::string_view key, fmt::format_string<Args...> format, Args&&... args) {
    return sentence_at(key, {format, fmt::make_format_args(args...)});
  }

  // The same message, as one about `key`; what is about a key already stays so.
  UserError about(std::string_view key) const;

  const std::string& key() const { return key_; }  // full and dotted; empty: about none

 private:
  // Made in error.cc, and not anew for each list of types.
  struct Message {
    fmt::string_view format;
    fmt::format_args args;
  };
  explicit UserError(const Message& message);
  static UserError sentence_at(std::string_view key, const Message& message);

  std::string key_;
};

}  // namespace tailrace
