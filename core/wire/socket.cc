#include "core/wire/socket.h"

#include <cerrno>
#include <cstring>
#include <memory>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "core/base/error.h"

#if defined(__SANITIZE_THREAD__)
// libzmq is not built with the thread sanitizer, which thus cannot see how it hands memory from thread
// to thread, and takes every frame for a race.
extern "C" const char* __tsan_default_suppressions() { return "called_from_lib:libzmq.so\n"; }
#endif

namespace tailrace {
namespace {

constexpr std::string_view kIpc = "ipc://";
constexpr size_t kMaxIpcPath = 107;  // sun_path, less its terminator
constexpr int64_t kMaxMessageBytes = int64_t{1}
                                     << 30;  // a batch of long trajectories is some 100 MB
constexpr int kReconnectMilliseconds = 20;
constexpr int kMaxReconnectMilliseconds = 200;
// ZMQ_ZERO_COPY_RECV, which zmq.h hides behind the draft switch. 0: every frame is aligned.
constexpr int kZeroCopyReceive = 10;

template <class T>
void set_option(void* socket, int option, T value) {
  const int rc = zmq_setsockopt(socket, option, &value, sizeof value);
  TR_CHECK(rc == 0, "option {}: {}", option, zmq_strerror(zmq_errno()));
}

// ZeroMQ unlinks whatever lies at the path and takes a live endpoint over without a word.
void check_ipc_path(const std::string& endpoint) {
  const std::string path = endpoint.substr(kIpc.size());
  if (path.empty() || path.size() > kMaxIpcPath) {
    throw UserError(
        "endpoint {}: the socket's path has {} characters; it must have 1 to {}.\n"
        "       Try a shorter temporary directory (TMPDIR or XDG_RUNTIME_DIR).",
        endpoint, path.size(), kMaxIpcPath);
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int probe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool live =
      probe >= 0 && ::connect(probe, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  if (probe >= 0) ::close(probe);
  if (live) {
    throw UserError(
        "endpoint {}: a live process listens there.\n"
        "       Stop the other run, or give this one another endpoint.",
        endpoint);
  }
}

}  // namespace

struct Socket::Part {
  Part() { zmq_msg_init(&message); }
  ~Part() { zmq_msg_close(&message); }
  Part(const Part&) = delete;
  std::span<const std::byte> bytes() {
    return {static_cast<const std::byte*>(zmq_msg_data(&message)), zmq_msg_size(&message)};
  }
  bool more() { return zmq_msg_more(&message) != 0; }
  zmq_msg_t message;
};

Socket::Socket(Kind kind)
    : context_(zmq_ctx_new()),
      router_(kind == Kind::kRouter),
      peer_(std::make_unique<Part>()),
      frame_(std::make_unique<Part>()) {
  TR_CHECK(context_ != nullptr);
  TR_CHECK(zmq_ctx_set(context_, kZeroCopyReceive, 0) == 0);
  socket_ = zmq_socket(context_, router_ ? ZMQ_ROUTER : ZMQ_DEALER);
  TR_CHECK(socket_ != nullptr, "{}", zmq_strerror(zmq_errno()));
  set_option(socket_, ZMQ_LINGER, 0);
  set_option(socket_, ZMQ_MAXMSGSIZE, kMaxMessageBytes);
  if (router_) {
    set_option(socket_, ZMQ_ROUTER_MANDATORY, 1);
  } else {
    set_option(socket_, ZMQ_IMMEDIATE, 1);
    set_option(socket_, ZMQ_RECONNECT_IVL, kReconnectMilliseconds);
    set_option(socket_, ZMQ_RECONNECT_IVL_MAX, kMaxReconnectMilliseconds);
  }
}

Socket::~Socket() {
  zmq_close(socket_);
  zmq_ctx_term(context_);
}

void Socket::bind(const std::string& endpoint) {
  if (endpoint.starts_with(kIpc)) check_ipc_path(endpoint);
  if (zmq_bind(socket_, endpoint.c_str()) != 0) {
    throw UserError("endpoint {}: {}", endpoint, zmq_strerror(zmq_errno()));
  }
}

void Socket::connect(const std::string& endpoint) {
  if (zmq_connect(socket_, endpoint.c_str()) != 0) {
    throw UserError("endpoint {}: {}", endpoint, zmq_strerror(zmq_errno()));
  }
}

bool Socket::send(std::string_view peer, std::span<const std::byte> frame, const Header& header) {
  // MANDATORY makes the first part fail when the peer is unknown or its queue is full; the rest
  // then follows.
  if (router_ && zmq_send(socket_, peer.data(), peer.size(), ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
    return false;
  zmq_msg_t message;
  TR_CHECK(zmq_msg_init_size(&message, frame.size()) == 0, "{} bytes", frame.size());
  auto* data = static_cast<std::byte*>(zmq_msg_data(&message));
  std::memcpy(data, frame.data(), frame.size());
  rewrite_header({data, frame.size()}, header);
  const bool sent = zmq_msg_send(&message, socket_, ZMQ_DONTWAIT) >= 0;
  if (!sent) zmq_msg_close(&message);
  return sent;
}

bool Socket::receive_part(Part& part) {
  int rc;
  do {
    rc = zmq_msg_recv(&part.message, socket_, ZMQ_DONTWAIT);
  } while (rc < 0 && zmq_errno() == EINTR);
  return rc >= 0;
}

std::optional<Socket::Received> Socket::receive() {
  if (router_ && !receive_part(*peer_)) return std::nullopt;
  if (!receive_part(*frame_)) return std::nullopt;
  const bool extra_parts = frame_->more();
  while (frame_->more() && receive_part(*frame_)) {
  }
  Received received;
  if (router_) {
    const auto peer = peer_->bytes();
    received.peer = {reinterpret_cast<const char*>(peer.data()), peer.size()};
  }
  if (!extra_parts) received.frame = frame_->bytes();
  return received;
}

void Socket::wait(std::chrono::nanoseconds timeout, bool for_room, int extra_descriptor) {
  // zmq_poll looks at the socket's own state before it sleeps on the edge-triggered descriptor.
  zmq_pollitem_t items[2] = {};
  items[0].socket = socket_;
  items[0].events = static_cast<short>(for_room ? ZMQ_POLLIN | ZMQ_POLLOUT : ZMQ_POLLIN);
  items[1].fd = extra_descriptor;
  items[1].events = ZMQ_POLLIN;
  const auto whole =
      std::chrono::ceil<std::chrono::milliseconds>(std::max(timeout, std::chrono::nanoseconds(0)));
  zmq_poll(items, extra_descriptor >= 0 ? 2 : 1, static_cast<long>(whole.count()));
}

}  // namespace tailrace
