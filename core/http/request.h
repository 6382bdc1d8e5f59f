// A client's request.
//
// Thread: any.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tailrace::http {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Request {
  // "POST", "/v1/chat/completions?x=y" as sent, without the server's name; HEAD comes as GET.
  std::string method, target;
  Headers headers;             // names in lower case, values without blanks around them
  std::string body;            // decoded, if it came in chunks

  // Value of the first header of this name (in lower case); "" where there is none.
  std::string_view header(std::string_view name) const {
    for (const auto& [key, value] : headers)
      if (key == name) return value;
    return {};
  }
};

// A target in absolute form, "http://host:port/path", as clients of a proxy send it: the path
// becomes the target, and what stood before it the header "host" (RFC 9112, 3.2.2). Other targets
// stay. False: it names no host, or a user.
[[nodiscard]] bool take_absolute_form(Request& request);

}  // namespace tailrace::http
