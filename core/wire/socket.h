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

#include "core/wire/endpoint.h"
#include "core/wire/frame.h"
#include "core/wire/socket_context.h"

namespace tailrace::wire {

class Doorkeeper;

class Socket {
 public:
  enum class Kind { kRouter, kDealer };
  explicit Socket(Kind kind);  // with a context of its own
  Socket(Kind kind, SocketContext& context);
  ~Socket();
  Socket(const Socket&) = delete;

  // Throws UserError: a path beyond 107 characters, a live process at that path, an address that
  // cannot be used.
  void bind(const std::string& endpoint);
  // Binds a tcp:// address under CURVE with this server key. The Doorkeeper of the same context
  // decides who may connect, and must outlive the socket: ZeroMQ lets everybody in where none
  // answers.
  void bind(const std::string& endpoint, const KeyPair& server, const Doorkeeper& doorkeeper);
  void connect(const Endpoint& endpoint);

  // The fate of a connection under CURVE. Told from watch() on, oldest first.
  enum class Contact {
    kReady,         // both ends know each other
    kNobody,        // nothing listens at the address, or it cannot be reached
    kNotAllowed,    // the server does not know the client's key
    kWrongServer,   // the other end has another server key; told to a server: the client has
    kNotEncrypted,  // the other end speaks something else, or no CURVE; or a client has hung up
    kClosed,        // a connection that was ready has ended
  };
  void watch();
  std::optional<Contact> contact();
  // ZeroMQ gives a connection up for good whose handshake was refused. This connects again, at most
  // once a second, where contact() has told of a refusal: a key may be put back, and a gate may
  // have been in the middle of its end.
  void revive();

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
  // The same of bytes that go as they are.
  bool send(std::string_view peer, std::span<const std::byte> frame);

  // One message without waiting, or nothing. Its frame stays valid until the next receive().
  struct Received {
    std::string_view peer;             // router only
    std::string_view user;             // whom the Doorkeeper has let in; empty over ipc
    std::span<const std::byte> frame;  // empty: not one frame, thus not ours
  };
  std::optional<Received> receive();

  // Waits for a message, for room to send (if wanted), for `extra_descriptor` to be readable (-1:
  // none), or for the time to pass.
  void wait(std::chrono::nanoseconds timeout, bool for_room = false, int extra_descriptor = -1);
  // Waits for a message at one of these, or for `extra_descriptor`.
  static void wait_for_any(std::span<Socket* const> sockets, std::chrono::nanoseconds timeout,
                           int extra_descriptor = -1);

 private:
  struct Impl;
  void set_up();
  std::unique_ptr<Impl> impl_;
};

}  // namespace tailrace::wire
