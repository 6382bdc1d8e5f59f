#include "core/wire/socket.h"

#include <cerrno>
#include <memory>

#include <poll.h>

#include "core/base/error.h"
#include "core/base/machine.h"
#include "core/wire/ipc_file.h"

#include <zmq.hpp>

#if defined(__SANITIZE_THREAD__)
// libzmq is not built with the thread sanitizer, which thus cannot see how it hands memory from
// thread to thread, and takes every frame for a race.
extern "C" const char* __tsan_default_suppressions() {
  // The second for programs that bring the allocation operators and strings that it links with.
  return "called_from_lib:libzmq.so\nrace:libzmq.so\n";
}
#endif

namespace tailrace::wire {
namespace {

// Frames of a connection, of kMaxFrameBytes at most: what a peer can make the router hold. To it
// there are more, since a burst of small ones beyond them waits for kBlockedRetry of the server;
// its link bounds their bytes.
constexpr int kMaxReceived = 32, kMaxToSend = 128;
// Of a socket and its context, with a few connections. ZeroMQ ends the process when there is none
// left.
constexpr int64_t kFiles = 12;

Socket::Kind with_files_for(Socket::Kind kind) {
  if (const int64_t left = files_left(); left < kFiles)
    throw UserError(
        "a connection needs {} files, and {} are left of the limit of open files. Raise it (ulimit "
        "-n).",
        kFiles, left);
  return kind;
}

constexpr int kReconnectMilliseconds = 20;
constexpr int kMaxReconnectMilliseconds = 200;
// ZMQ_ZERO_COPY_RECV, which zmq.h hides behind the draft switch. 0: every frame is aligned.
constexpr int kZeroCopyReceive = 10;

}  // namespace

struct Socket::Impl {
  explicit Impl(Kind kind)
      : router(kind == Kind::kRouter),
        socket(context, router ? zmq::socket_type::router : zmq::socket_type::dealer) {}

  // No context_t(int): the option must be set before the first socket starts the I/O threads.
  struct Context : zmq::context_t {
    Context() { TR_CHECK(zmq_ctx_set(handle(), kZeroCopyReceive, 0) == 0); }
  } context;
  bool router;
  zmq::socket_t socket;
  zmq::message_t peer, frame;
  std::optional<IpcFile> file;  // of an ipc endpoint that was bound
  std::string bound;            // the endpoint while it is bound
};

Socket::Socket(Kind kind) : impl_(std::make_unique<Impl>(with_files_for(kind))) {
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

void Socket::connect(const std::string& endpoint) {
  try {
    impl_->socket.connect(endpoint);
  } catch (const zmq::error_t& error) {
    throw UserError("endpoint {}: {}", endpoint, error.what());
  }
}

bool Socket::send(std::string_view peer, std::span<const std::byte> frame, const Header& header) {
  zmq::message_t message(frame.data(), frame.size());
  rewrite_header({static_cast<std::byte*>(message.data()), message.size()}, header);
  try {
    // MANDATORY makes the first part fail when the peer is unknown (an error) or its queue is full
    // (nothing sent); the rest then follows.
    if (impl_->router && !impl_->socket.send(zmq::buffer(peer),
                                             zmq::send_flags::sndmore | zmq::send_flags::dontwait))
      return false;
    return impl_->socket.send(std::move(message), zmq::send_flags::dontwait).has_value();
  } catch (const zmq::error_t&) {
    return false;
  }
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
  if (impl_->router) received.peer = impl_->peer.to_string_view();
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

}  // namespace tailrace::wire
