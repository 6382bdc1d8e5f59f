#include "core/base/error.h"

namespace tailrace {
namespace {

std::string without_nul(std::string text) {
  for (size_t at = 0; (at = text.find('\0', at)) != std::string::npos;)
    text.replace(at, 1, "\\x00");
  return text;
}

}  // namespace

UserError::UserError(const Message& message)
    : std::runtime_error(without_nul(fmt::vformat(message.format, message.args))) {}

UserError::UserError(const UserError&) = default;
UserError& UserError::operator=(const UserError&) = default;
UserError::~UserError() = default;

UserError UserError::sentence_at(std::string_view key, const Message& message) {
  return UserError("{} {}", key, fmt::vformat(message.format, message.args)).about(key);
}

UserError UserError::about(std::string_view key) const {
  UserError error = *this;
  if (error.key_.empty()) error.key_ = key;
  return error;
}

}  // namespace tailrace
