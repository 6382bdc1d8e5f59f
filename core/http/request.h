// What a client asks.
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
  std::string method, target;  // "POST", "/v1/chat/completions?x=y" as sent; HEAD comes as GET
  Headers headers;             // names in lower case, values without blanks around them
  std::string body;            // decoded, if it came in chunks

  // Value of the first header of this name (in lower case); "" where there is none.
  std::string_view header(std::string_view name) const {
    for (const auto& [key, value] : headers)
      if (key == name) return value;
    return {};
  }
};

}  // namespace tailrace::http
