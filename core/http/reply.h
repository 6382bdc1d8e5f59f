// The answer to one request: whole, or as server-sent events. Copies are cheap and give the same
// answer. An answer that nobody gives (its last copy is destroyed) is a 500, and a stream that
// nobody ends is cut, so that the client sees that it is not whole. Calls behind the end, or to a
// client that has gone, do nothing. A Reply may outlive its server.
//
// Thread: any. Callbacks run on the server's thread, without a lock held, and return soon; where
// the server has ended, they run at once on the caller's. They must not throw, nor hold a copy
// of the Reply.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/http/request.h"

namespace tailrace::http {

class Exchange;

class Reply {
 public:
  // The server makes it.
  explicit Reply(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}

  // A whole answer. A status of 204 has no body.
  void send(int status, std::string body, std::string_view content_type = "application/json",
            Headers headers = {});

  // The first chunk begins an answer of status 200 and type text/event-stream. A chunk is written
  // as it is: the caller gives "data: ...\n\n".
  void stream(std::string chunk);
  void end();

  // The client hung up or does not read, or the server ends. One of HTTP/1.0 that ends its sending
  // side before the answer begins counts as gone, too.
  bool is_gone() const;

  // Called once when the client goes before its whole answer was written; also where it has gone
  // already. One callback: a second one takes the place of the first.
  void when_gone(std::function<void()> tell);

  // Called once, behind when_gone(). True: the whole answer was handed to the kernel. False: the
  // client went before, or nobody gave the answer.
  void when_written(std::function<void(bool)> tell);

 private:
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace tailrace::http
