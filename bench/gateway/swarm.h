// Clients of an HTTP server of this machine, all driven by the caller's thread: each has one
// connection and asks one thing at a time.
//
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/file_descriptor.h"

namespace tailrace {

struct HttpAnswer {
  int status = 0;
  std::string body = {};  // without its chunks
  double seconds = 0;  // since the request began to be sent; of a fresh connection with connecting
};

// A request of HTTP/1.1 with a body of JSON.
std::string http_post(std::string_view target, std::string_view body);
std::string http_get(std::string_view target);

// Of a whole answer at the beginning of `bytes`; nothing: it is not whole yet. Takes it away.
std::optional<HttpAnswer> take_answer(std::string& bytes);

// A connection to 127.0.0.1 from that address of it (127.0.0.x), blocking. Throws WrongResult.
FileDescriptor connect_to(uint16_t port, uint32_t from = 1);

// Asks for all clients until each is done. `next`: what client `i` asks next, after the answer to
// what it asked before (nullptr: it begins); nothing: it is done. `keeps`: a client has one
// connection for all that it asks, else one for each. Throws WrongResult where nothing comes for
// 30 s or the server ends a connection within an answer.
void ask_all(uint16_t port, size_t clients, bool keeps,
             const std::function<std::optional<std::string>(size_t, const HttpAnswer*)>& next);

}  // namespace tailrace
