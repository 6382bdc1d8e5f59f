// The few things that both ends want from ZeroMQ, with the traps avoided that were measured: frames
// are aligned, a socket file is not stolen from a live process, nothing is queued for a peer that
// is not there, every socket has a bound on the size of a message, and a closed one does not
// linger.
//
// Thread: the owner's thread only.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/wire/frame.h"

namespace tailrace::wire {

class Socket {
 public:
  enum class Kind { kRouter, kDealer };
  explicit Socket(Kind kind);
  ~Socket();
  Socket(const Socket&) = delete;

  // Throws UserError: a path beyond 107 characters, a live process at that path, an address that
  // cannot be used.
  void bind(const std::string& endpoint);
  void connect(const std::string& endpoint);

  // Whether the file of the bound ipc endpoint lies there still. Who is connected does not notice
  // that it was taken away, and nobody else can connect. It is bound anew by two calls, a moment
  // apart: ZeroMQ gives the old listener up on a thread of its own, connections and all, and then
  // unlinks the path, whosever it is by then. Peers connect again by themselves.
  enum class File {
    kThere,
    kGone,  // and not back yet: ask again. `trouble`, if that is why
    kBack,
  };
  File look_after_file(std::string& trouble);

  // `frame` with this header. The router's `peer` is the routing id that receive() gave. False:
  // nothing was sent, because the peer is gone or its queue is full.
  bool send(std::string_view peer, std::span<const std::byte> frame, const Header& header);

  // One message without waiting, or nothing. Its frame stays valid until the next receive().
  struct Received {
    std::string_view peer;             // router only
    std::span<const std::byte> frame;  // empty: not one frame, thus not ours
  };
  std::optional<Received> receive();

  // Waits for a message, for room to send (if wanted), for `extra_descriptor` to be readable (-1:
  // none), or for the time to pass.
  void wait(std::chrono::nanoseconds timeout, bool for_room = false, int extra_descriptor = -1);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tailrace::wire
