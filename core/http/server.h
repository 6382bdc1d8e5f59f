// An HTTP/1.1 server that answers later: a request is handed to a handler, and its answer comes
// from any thread, whole or as server-sent events.
//
// One thread does all input and output, however many connections there are. It waits for the
// client even while an answer is computed, so a client that hangs up is noticed at once. One that
// only ends its sending side gets its answer; it may see a "100 Continue" before. What comes in is
// bounded (header, body, connections, time), and so is what waits to be read by a client.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/base/file_descriptor.h"
#include "core/base/time.h"
#include "core/http/reply.h"
#include "core/http/request.h"

namespace tailrace::http {

struct ServerOptions {
  std::string address = "127.0.0.1";  // of IPv4 or IPv6, in digits
  uint16_t port = 0;                  // 0: any that is free
  int64_t max_body_bytes = int64_t{64} << 20;
  std::string body_limit = {};  // the key or option that says it, for the refusal (413)
  // The limit on all bodies together that are being read; a request beyond it gets 503.
  int64_t max_reading_bytes = int64_t{1} << 30;
  int64_t max_header_bytes = int64_t{64} << 10;
  int64_t max_unsent_bytes = int64_t{8} << 20;  // of a stream that its client does not read
  // 0: 131,072, or three quarters of the files that the process may open if that is less.
  int64_t max_connections = 0;
  // A client that sends slowly: for the whole header, and for each 64 KiB of the body. Also for one
  // that reads slowly: between two reads of its answer.
  Time header_patience = std::chrono::seconds(30);
  Time idle = std::chrono::seconds(75);  // a connection kept alive without a request
  // The server refuses some requests before a handler sees them (400, 408, 413, 431, 501, 503,
  // 505): this hears the request as far as it was read, without its body, and what its client is
  // told, on the server's thread; it returns soon and does not throw.
  std::function<void(const Request&, int status, const std::string& message)> on_refusal = {};
};

// Thread: owns one; any thread may call, but none of the server's own callbacks may destroy it.
// Close: all connections end (their replies are gone), then its thread is joined.
class Server {
 public:
  // Runs on the server's thread and returns soon. What it throws becomes a 500 that says it, where
  // no answer was given yet.
  using Handler = std::function<void(Request, Reply)>;

  // Throws UserError where the address cannot be had: which one, and what to do.
  Server(const ServerOptions& options, Handler handler);
  ~Server();
  Server(const Server&) = delete;

  uint16_t port() const;

  // Blocks until the server's thread has done what is waiting for it: behind it, an answer that its
  // client has read is told as written (Reply::when_written). Not to be called on that thread.
  void catch_up();

  // Accepts also from a socket that listens already, perhaps in another network namespace, until
  // stop_listening() with its number or the end of the server. Its connections live on behind that.
  void listen_on(FileDescriptor listening);
  void stop_listening(int listening);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tailrace::http
