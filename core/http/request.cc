#include "core/http/request.h"

#include <algorithm>
#include <cctype>

namespace tailrace::http {
namespace {

// Whether `text` begins with `word`, which is in lower case.
bool begins_with(std::string_view text, std::string_view word) {
  return text.size() >= word.size() &&
         std::ranges::equal(text.substr(0, word.size()), word, [](char a, char b) {
           return std::tolower(static_cast<unsigned char>(a)) == b;
         });
}

}  // namespace

bool take_absolute_form(Request& request) {
  std::string_view rest = request.target;
  size_t scheme = 0;
  for (const std::string_view known : {"http://", "https://"})
    if (begins_with(rest, known)) scheme = known.size();
  if (scheme == 0) return true;
  rest.remove_prefix(scheme);
  const size_t end = std::min(rest.find_first_of("/?"), rest.size());
  const std::string authority(rest.substr(0, end));
  rest.remove_prefix(end);
  // A name of a user in it would be one that the server is asked to forward.
  if (authority.empty() || authority.front() == ':' || authority.find('@') != std::string::npos)
    return false;
  std::string target = rest.starts_with('/') ? std::string(rest) : "/" + std::string(rest);
  std::erase_if(request.headers, [](const auto& header) { return header.first == "host"; });
  request.headers.emplace_back("host", authority);
  request.target = std::move(target);
  return true;
}

}  // namespace tailrace::http
