// The one exception of core/chat/jinja_*.
//
// Thread: any.
#pragma once

#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace tailrace::chat::jinja {

// Why a template cannot be read, or why it refuses. ChatTemplate, which knows the file, makes a
// UserError of it.
class Error : public std::runtime_error {
 public:
  template <class... Args>
  explicit Error(fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}

  int line = 0;  // from 1; 0: whoever catches it knows
};

}  // namespace tailrace::chat::jinja
