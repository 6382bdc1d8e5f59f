#include "core/wire/socket.h"

#include <cerrno>
#include <cstring>
#include <memory>

#include <poll.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/machine.h"
#include "core/base/unique_number.h"
#include "core/wire/ipc_file.h"

#include <zmq.hpp>

#if defined(__SANITIZE_THREAD__)
// libzmq and libsodium, by which it decrypts, are not built with the thread sanitizer. It thus
// cannot see how they hand memory from thread to thread, and takes every frame for a race.
extern "C" const char* __tsan_default_suppressions() {
  // "race" for programs that bring the allocation operators and strings that libzmq links with.
  return "called_from_lib:libzmq.so\nrace:libzmq.so\n"
         "called_from_lib:libsodium.so\nrace:libsodium.so\n";
}
#endif

namespace tailrace::wire {
namespace {

// Frames of a connection, of kMaxFrameBytes at most: what a peer can make the router hold. To it
// there are more, since a burst of small ones beyond them waits for kBlockedRetry of the server;
// its link bounds their bytes.
constexpr int kMaxReceived = 32, kMaxToSend = 128;
// To a peer of another host, which may ask for large ones and take none. ZeroMQ counts a queue as
// free again by halves, so a fetch may have half as many chunks on their way (FetchOptions).
constexpr int kMaxToSendFar = 64;
// The files of a socket and its context, with a few connections. ZeroMQ ends the process when there
// is none left.
constexpr int64_t kFiles = 12;

// ZeroMQ throws what nobody understands.
void require_files() {
  if (const int64_t left = files_left(); left < kFiles)
    throw UserError(
        "a connection needs {} files, and {} are left of the limit of open files. Raise it (ulimit "
        "-n).",
        kFiles, left);
}

// ZMQ_ZERO_COPY_RECV, which zmq.h hides behind the draft switch. 0: every frame is aligned.
constexpr int kZeroCopyReceive = 10;

constexpr int kReconnectMilliseconds = 20;
constexpr int kMaxReconnectMilliseconds = 200;
// Between hosts. What is sent and not acknowledged for 2.5 s ends a connection, which is then made
// anew, so that a cut of 3 s is over before the session is (LinkOptions::timeout): TCP alone would
// wait ever longer before it tries again. Links say something twice a second; the kernel's
// keepalive is for connections that are idle. ZeroMQ's own heartbeats end the process (4.3.4:
// "!_io_error") where a connection breaks whose frames nobody takes, and count large frames on slow
// links as silence.
constexpr int kReconnectTcpMilliseconds = 100;
constexpr int kMaxReconnectTcpMilliseconds = 1000;
constexpr int kTcpUnacknowledgedMilliseconds = 2500;
constexpr int kTcpIdleSeconds = 1, kTcpProbes = 3;
constexpr int kTcpConnectMilliseconds = 1000;
constexpr std::chrono::seconds kRevive{1};
constexpr int kHandshakeMilliseconds = 5000;
// Connections that wait for the handshake.
constexpr int kBacklog = 64;
// The domain of the handshakes that the Doorkeeper decides on.
constexpr char kZapDomain[] = "tailrace";

void set_tcp_options(zmq::socket_t& socket) {
  socket.set(zmq::sockopt::tcp_keepalive, 1);
  socket.set(zmq::sockopt::tcp_keepalive_idle, kTcpIdleSeconds);
  socket.set(zmq::sockopt::tcp_keepalive_intvl, kTcpIdleSeconds);
  socket.set(zmq::sockopt::tcp_keepalive_cnt, kTcpProbes);
  socket.set(zmq::sockopt::tcp_maxrt, kTcpUnacknowledgedMilliseconds);
  socket.set(zmq::sockopt::handshake_ivl, kHandshakeMilliseconds);
  socket.set(zmq::sockopt::backlog, kBacklog);
  // A host may have a name that both families know.
  socket.set(zmq::sockopt::ipv6, true);
}

// Nothing: an event that says nothing new. `value`: the event's own.
std::optional<Socket::Contact> contact_of(int event, uint32_t value, bool is_server) {
  switch (event) {
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
      return Socket::Contact::kReady;
    case ZMQ_EVENT_CONNECT_RETRIED:
      return Socket::Contact::kNobody;
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
      return Socket::Contact::kNotAllowed;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
      // The other end has hung up without a word: a server does so that cannot read what was
      // encrypted for another one. A client has its own reasons, and is mostly none of ours.
      return is_server ? Socket::Contact::kNotEncrypted : Socket::Contact::kWrongServer;
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
      // A message that a client has encrypted for another server cannot be opened.
      return value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC ? Socket::Contact::kWrongServer
                                                            : Socket::Contact::kNotEncrypted;
    case ZMQ_EVENT_DISCONNECTED:
      return Socket::Contact::kClosed;
    default:
      return std::nullopt;
  }
}

bool is_refusal(Socket::Contact contact) {
  return contact == Socket::Contact::kNotAllowed || contact == Socket::Contact::kWrongServer ||
         contact == Socket::Contact::kNotEncrypted;
}

}  // namespace

struct SocketContext::Impl {
  // No context_t(int): the option must be set before the first socket starts the I/O threads.
  struct Context : zmq::context_t {
    Context() { TR_CHECK(zmq_ctx_set(handle(), kZeroCopyReceive, 0) == 0); }
  } zmq;
};

struct Socket::Impl {
  Impl(Kind kind, SocketContext& shared)
      : router(kind == Kind::kRouter),
        zmq(shared.impl_->zmq),
        socket(zmq, router ? zmq::socket_type::router : zmq::socket_type::dealer) {}
  Impl(Kind kind, std::unique_ptr<SocketContext> own) : Impl(kind, *own) {
    context = std::move(own);
  }
  // Before the context: a context waits for its sockets. And no event may be told to a monitor that
  // is gone: ZeroMQ would wait for another one.
  ~Impl() {
    if (monitor) zmq_socket_monitor(socket.handle(), nullptr, 0);
    monitor.close();
    socket.close();
  }

  bool send(std::string_view to, zmq::message_t message) {
    try {
      // MANDATORY makes the first part fail when the peer is unknown (an error) or its queue is
      // full (nothing sent); the rest then follows.
      if (router &&
          !socket.send(zmq::buffer(to), zmq::send_flags::sndmore | zmq::send_flags::dontwait))
        return false;
      return socket.send(std::move(message), zmq::send_flags::dontwait).has_value();
    } catch (const zmq::error_t&) {
      return false;
    }
  }

  std::unique_ptr<SocketContext> context;  // null: somebody else's
  bool router;
  zmq::context_t& zmq;
  zmq::socket_t socket;
  zmq::socket_t monitor;  // of watch()
  zmq::message_t peer, frame;
  std::optional<IpcFile> file;  // of an ipc endpoint that was bound
  std::string bound;            // the endpoint while it is bound
  std::string connected;
  bool refused = false;  // the latest handshake
  Time revive_at{};
};

SocketContext::SocketContext() {
  require_files();
  impl_ = std::make_unique<Impl>();
}
SocketContext::~SocketContext() = default;
void* SocketContext::handle() { return impl_->zmq.handle(); }

Socket::Socket(Kind kind) : impl_(std::make_unique<Impl>(kind, std::make_unique<SocketContext>())) {
  set_up();
}

Socket::Socket(Kind kind, SocketContext& context) {
  require_files();
  impl_ = std::make_unique<Impl>(kind, context);
  set_up();
}

void Socket::set_up() {
  zmq::socket_t& socket = impl_->socket;
  // The link knows what has arrived and waits for it; ZeroMQ would wait for what a dead peer never
  // takes.
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::maxmsgsize, kMaxFrameBytes);
  if (impl_->router) {
    // A peer may fill its queues with the largest frames, and those of ZeroMQ are long by default.
    socket.set(zmq::sockopt::rcvhwm, kMaxReceived);
    socket.set(zmq::sockopt::sndhwm, kMaxToSend);
    // Else what is for an unknown peer is dropped without a word.
    socket.set(zmq::sockopt::router_mandatory, true);
  } else {
    // Nothing is queued before there is a connection: it would come out later, in the middle of
    // another session.
    socket.set(zmq::sockopt::immediate, true);
    socket.set(zmq::sockopt::reconnect_ivl, kReconnectMilliseconds);
    socket.set(zmq::sockopt::reconnect_ivl_max, kMaxReconnectMilliseconds);
  }
}

Socket::~Socket() = default;

void Socket::bind(const std::string& endpoint) {
  if (IpcFile::names(endpoint)) {
    impl_->file.emplace(endpoint);
    // Its folder may have been taken away since the launch made it.
    if (auto room = impl_->file->make_room(); !room)
      throw UserError("endpoint {}: {}", endpoint, room.failure().message);
  }
  try {
    impl_->socket.bind(endpoint);
  } catch (const zmq::error_t& error) {
    throw UserError("endpoint {}: {}", endpoint, error.what());
  }
  impl_->bound = endpoint;
  if (impl_->file) impl_->file->note_bound();
}

Socket::File Socket::look_after_file(std::string& trouble) {
  if (!impl_->file || (!impl_->bound.empty() && impl_->file->is_there())) return File::kThere;
  const std::string endpoint = "ipc://" + impl_->file->path().string();
  try {
    // First: who is connected stays so for as long as nothing else could be bound.
    if (auto room = impl_->file->make_room(); !room) {
      trouble = room.failure().message;
      return File::kGone;
    }
    if (!impl_->bound.empty()) {
      impl_->bound.clear();
      impl_->socket.unbind(endpoint);
      return File::kGone;
    }
    impl_->socket.bind(endpoint);
  } catch (const zmq::error_t& error) {
    trouble = fmt::format("endpoint {}: {}", endpoint, error.what());
    return File::kGone;
  }
  impl_->bound = endpoint;
  impl_->file->note_bound();
  return File::kBack;
}

void Socket::bind(const std::string& endpoint, const KeyPair& server, const Doorkeeper&) {
  zmq::socket_t& socket = impl_->socket;
  try {
    set_tcp_options(socket);
    socket.set(zmq::sockopt::sndhwm, kMaxToSendFar);
    socket.set(zmq::sockopt::curve_server, true);
    socket.set(zmq::sockopt::curve_secretkey, server.secret_key);
    socket.set(zmq::sockopt::zap_domain, kZapDomain);
    socket.bind(endpoint);
  } catch (const zmq::error_t& error) {
    throw UserError("endpoint {}: {}", endpoint, error.what());
  }
}

void Socket::connect(const Endpoint& endpoint) {
  zmq::socket_t& socket = impl_->socket;
  // In the clear there is no tcp.
  TR_CHECK(endpoint.keys.has_value() || IpcFile::names(endpoint.address), "{}", endpoint.address);
  try {
    if (endpoint.keys) {
      set_tcp_options(socket);
      socket.set(zmq::sockopt::connect_timeout, kTcpConnectMilliseconds);
      socket.set(zmq::sockopt::reconnect_ivl, kReconnectTcpMilliseconds);
      socket.set(zmq::sockopt::reconnect_ivl_max, kMaxReconnectTcpMilliseconds);
      socket.set(zmq::sockopt::curve_serverkey, endpoint.keys->server);
      socket.set(zmq::sockopt::curve_publickey, endpoint.keys->own.public_key);
      socket.set(zmq::sockopt::curve_secretkey, endpoint.keys->own.secret_key);
    }
    socket.connect(endpoint.address);
    impl_->connected = endpoint.address;
  } catch (const zmq::error_t& error) {
    throw UserError("endpoint {}: {}", endpoint.address, error.what());
  }
}

void Socket::watch() {
  const std::string name = fmt::format("inproc://watch-{}", unique_number());
  constexpr int kEvents = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_CONNECT_RETRIED |
                          ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                          ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_DISCONNECTED;
  TR_CHECK(zmq_socket_monitor(impl_->socket.handle(), name.c_str(), kEvents) == 0, "{}",
           zmq_strerror(zmq_errno()));
  impl_->monitor = zmq::socket_t(impl_->zmq, zmq::socket_type::pair);
  // Without a bound: where one is reached, the thread that carries all bytes of the context waits
  // for contact() to be called, and strangers can cause events as they like.
  impl_->monitor.set(zmq::sockopt::rcvhwm, 0);
  impl_->monitor.connect(name);
}

void Socket::revive() {
  if (!impl_->refused || steady_now() < impl_->revive_at) return;
  impl_->refused = false;
  try {
    impl_->socket.disconnect(impl_->connected);
  } catch (const zmq::error_t&) {
    // It is gone already.
  }
  try {
    impl_->socket.connect(impl_->connected);
  } catch (const zmq::error_t&) {
    impl_->refused = true;
    impl_->revive_at = steady_now() + kRevive;
  }
}

std::optional<Socket::Contact> Socket::contact() {
  if (!impl_->monitor) return std::nullopt;
  while (true) {
    zmq::message_t event, address;
    try {
      if (!impl_->monitor.recv(event, zmq::recv_flags::dontwait)) return std::nullopt;
      (void)impl_->monitor.recv(address, zmq::recv_flags::dontwait);
    } catch (const zmq::error_t&) {
      return std::nullopt;  // a signal
    }
    // 16 bits of the event, then 32 of its value.
    uint16_t number = 0;
    uint32_t value = 0;
    if (event.size() < sizeof number + sizeof value) continue;
    std::memcpy(&number, event.data(), sizeof number);
    std::memcpy(&value, static_cast<const char*>(event.data()) + sizeof number, sizeof value);
    const auto found = contact_of(number, value, impl_->router);
    if (!found) continue;
    if (!impl_->router && is_refusal(*found)) {
      impl_->refused = true;
      impl_->revive_at = steady_now() + kRevive;
    }
    return found;
  }
}

bool Socket::send(std::string_view peer, std::span<const std::byte> frame, const Header& header) {
  zmq::message_t message(frame.data(), frame.size());
  rewrite_header({static_cast<std::byte*>(message.data()), message.size()}, header);
  return impl_->send(peer, std::move(message));
}

bool Socket::send(std::string_view peer, std::span<const std::byte> frame) {
  return impl_->send(peer, zmq::message_t(frame.data(), frame.size()));
}

std::optional<Socket::Received> Socket::receive() {
  auto receive_part = [this](zmq::message_t& part) {
    while (true) {
      try {
        return impl_->socket.recv(part, zmq::recv_flags::dontwait).has_value();
      } catch (const zmq::error_t& error) {
        if (error.num() != EINTR) return false;
      }
    }
  };
  if (impl_->router && !receive_part(impl_->peer)) return std::nullopt;
  if (!receive_part(impl_->frame)) return std::nullopt;
  // All parts are taken out, so that the next receive() begins with a message.
  const bool extra_parts = impl_->frame.more();
  while (impl_->frame.more() && receive_part(impl_->frame)) {
  }
  Received received;
  if (impl_->router) {
    received.peer = impl_->peer.to_string_view();
    const char* user = zmq_msg_gets(impl_->frame.handle(), "User-Id");
    if (user != nullptr) received.user = user;
  }
  if (!extra_parts)
    received.frame = {static_cast<const std::byte*>(impl_->frame.data()), impl_->frame.size()};
  return received;
}

void Socket::wait(std::chrono::nanoseconds timeout, bool for_room, int extra_descriptor) {
  // poll looks at the socket's own state before it sleeps on the edge-triggered descriptor.
  zmq::pollitem_t items[2] = {};
  items[0].socket = impl_->socket.handle();
  items[0].events = static_cast<short>(for_room ? ZMQ_POLLIN | ZMQ_POLLOUT : ZMQ_POLLIN);
  items[1].fd = extra_descriptor;
  items[1].events = ZMQ_POLLIN;
  try {
    zmq::poll(items, extra_descriptor >= 0 ? 2 : 1,
              std::chrono::ceil<std::chrono::milliseconds>(
                  std::max(timeout, std::chrono::nanoseconds(0))));
  } catch (const zmq::error_t&) {
    // A signal; the caller looks again anyway.
  }
}

void Socket::wait_for_any(std::span<Socket* const> sockets, std::chrono::nanoseconds timeout,
                          int extra_descriptor) {
  std::vector<zmq::pollitem_t> items(sockets.size() + 1);
  for (size_t i = 0; i < sockets.size(); ++i) {
    items[i].socket = sockets[i]->impl_->socket.handle();
    items[i].events = ZMQ_POLLIN;
  }
  items.back().fd = extra_descriptor;
  items.back().events = ZMQ_POLLIN;
  try {
    zmq::poll(items.data(), extra_descriptor >= 0 ? items.size() : sockets.size(),
              std::chrono::ceil<std::chrono::milliseconds>(
                  std::max(timeout, std::chrono::nanoseconds(0))));
  } catch (const zmq::error_t&) {
    // A signal; the caller looks again anyway.
  }
}

}  // namespace tailrace::wire
