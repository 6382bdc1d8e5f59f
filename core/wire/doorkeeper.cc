#include "core/wire/doorkeeper.h"

#include <stop_token>
#include <vector>

#include <zmq.hpp>

namespace tailrace::wire {
namespace {

// Requests and the end wake it at once.
constexpr std::chrono::milliseconds kLook{100};

constexpr std::string_view kOldFamily = "::ffff:";

// version, request id, domain, address, identity, mechanism, key.
constexpr size_t kParts = 7;
enum Part : size_t { kVersion, kRequest, kDomain, kAddress, kIdentity, kMechanism, kKey };

std::string z85(std::string_view key) {
  char text[41];
  if (key.size() != 32) return {};
  zmq_z85_encode(text, reinterpret_cast<const uint8_t*>(key.data()), key.size());
  return text;
}

}  // namespace

struct Doorkeeper::Impl {
  Impl(SocketContext& context, WhoIs who_is_in, Wakeup& bell_in)
      : who_is(std::move(who_is_in)),
        bell(bell_in),
        handle(zmq_socket(context.handle(), ZMQ_REP)),
        socket(zmq::from_handle, handle) {
    TR_CHECK(handle != nullptr, "{}", zmq_strerror(zmq_errno()));
    socket.set(zmq::sockopt::linger, 0);
    socket.bind("inproc://zeromq.zap.01");
    thread = std::jthread([this](std::stop_token stop) { run(stop); });
  }

  ~Impl() {
    thread.request_stop();
    end.ring();
    thread.join();
    zmq_close(handle);
  }

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      try {
        zmq::pollitem_t items[] = {{socket.handle(), 0, ZMQ_POLLIN, 0},
                                   {nullptr, end.descriptor(), ZMQ_POLLIN, 0}};
        zmq::poll(items, 2, kLook);
        while (answer()) {
        }
      } catch (const zmq::error_t&) {
        // A signal.
      }
    }
  }

  bool answer() {
    std::vector<std::string> parts;
    zmq::message_t part;
    do {
      if (!socket.recv(part, zmq::recv_flags::dontwait)) return false;
      parts.push_back(part.to_string());
    } while (part.more());
    parts.resize(std::max(parts.size(), kParts));
    const std::string key = z85(parts[kKey]);
    std::optional<std::string> name;
    if (parts[kMechanism] == "CURVE" && !key.empty()) name = who_is(key);
    if (!name) note(parts[kAddress], key);
    const std::string reply[] = {"1.0",
                                 parts[kRequest],
                                 name ? "200" : "400",
                                 name ? "OK" : "not allowed",
                                 name.value_or(""),
                                 ""};
    for (size_t i = 0; i < std::size(reply); ++i)
      socket.send(zmq::buffer(reply[i]),
                  i + 1 < std::size(reply) ? zmq::send_flags::sndmore : zmq::send_flags::none);
    return true;
  }

  void note(std::string address, const std::string& key) {
    // A socket of both families writes the old one as a part of the new.
    if (address.starts_with(kOldFamily)) address.erase(0, kOldFamily.size());
    {
      MutexLock lock(mu);
      if (refused.size() < kMaxRefusals) refused.push_back({std::move(address), key});
    }
    bell.ring();
  }

  const WhoIs who_is;
  Wakeup& bell;
  Wakeup end;
  void* const handle;
  zmq::socket_ref socket;
  Mutex mu;
  std::deque<Refusal> refused TR_GUARDED_BY(mu);
  std::jthread thread;  // last: uses what is above
};

Doorkeeper::Doorkeeper(SocketContext& context, WhoIs who_is, Wakeup& on_refusal)
    : impl_(std::make_unique<Impl>(context, std::move(who_is), on_refusal)) {}

Doorkeeper::Doorkeeper(SocketContext& context, KeyFolder keys, Wakeup& on_refusal)
    : Doorkeeper(
          context,
          [keys = std::move(keys)](std::string_view key) { return find_allowed(keys, key); },
          on_refusal) {}

Doorkeeper::~Doorkeeper() = default;

std::deque<Doorkeeper::Refusal> Doorkeeper::refusals() {
  MutexLock lock(impl_->mu);
  return std::exchange(impl_->refused, {});
}

}  // namespace tailrace::wire
