// One request to a server of somebody else: a JSON body posted, and its whole answer.
//
// Thread: any; the caller waits, for no longer than it says (PostOptions::wait).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "core/base/time.h"

namespace tailrace::http {

// "http://host:port/path", without a blank at its end.
struct Url {
  std::string host = {};
  std::string port = "80";
  std::string path = {};  // "/v1"; empty: none

  std::string text() const;  // with `port`, if it is not 80
};
// A Failure says what is wrong with it. There is no https: a proxy of one's own speaks it.
Result<Url> parse_url(std::string_view text);

struct PostOptions {
  // For all of it, from the name to the last byte; but a name server that does not answer is waited
  // for as long as the system does.
  Time wait = std::chrono::seconds(60);
  std::string bearer = {};  // of the header Authorization; empty: none
  int64_t max_body_bytes = int64_t{16} << 20;
};

struct Posted {
  int status = 0;
  std::string body = {};
};

// POST url.path + `target`. A Failure: nobody is there, the answer is none of HTTP, or too long, or
// the time was over; the url is in it.
Result<Posted> post_json(const Url& url, std::string_view target, std::string body,
                         const PostOptions& options);

}  // namespace tailrace::http
