#include "core/gate/worker_relay.h"

#include <algorithm>
#include <utility>

#include "core/base/clock.h"

namespace tailrace {
namespace {

// A worker whose queue is full is tried again; meanwhile the scheduler's queue to it fills.
constexpr std::chrono::milliseconds kBlockedRetry{20}, kLongestRetry{500};
constexpr int kMaxFramesOfOne = 256;  // then others have their turn
// Connections to the scheduler that a worker can cause, by connecting itself: each takes files.
constexpr int64_t kConnectionsAtOnce = 32;
constexpr std::chrono::milliseconds kConnectionPeriod{200};
// Until one takes its first frame: on this host, so mostly at once.
constexpr std::chrono::milliseconds kConnectionLook{5}, kConnectionPatience{500};
constexpr std::chrono::hours kForEver{1};
// Sessions of a worker whose frames may still be on their way.
constexpr size_t kMaxSessions = 4;

}  // namespace

WorkerRelay::WorkerRelay()
    : connections_(kConnectionsAtOnce, kConnectionPeriod), retry_(kBlockedRetry) {}

WorkerRelay::Verdict WorkerRelay::from_worker(const wire::Header& header, std::string_view routing,
                                              std::span<const std::byte> frame,
                                              wire::SocketContext& context,
                                              const std::string& scheduler) {
  // Another routing id is another connection of the worker. The scheduler must see one too, since
  // frames of the old one may still be under way.
  if (routing_ != routing || !upstream_) {
    if (!connections_.take(steady_now())) return Verdict::kTooOften;
    reconnect(routing, context, scheduler);
  }
  const uint64_t number = header.session == 0 ? 0 : header.sequence;
  // The link's own window, held here against a worker that does not hold it: frames that nobody has
  // acknowledged would pile up in the scheduler's queue.
  if (!in_flight_.has_room(number, std::ssize(frame))) return Verdict::kBeyondWindow;
  if (pass_on(frame)) in_flight_.note_sent(number, std::ssize(frame));
  return Verdict::kTaken;
}

void WorkerRelay::reconnect(std::string_view routing, wire::SocketContext& context,
                            const std::string& scheduler) {
  routing_ = routing;
  held_.clear();
  first_.clear();
  retry_at_ = Time::min();
  retry_ = kBlockedRetry;
  in_flight_.clear();
  connected_ = steady_now();
  // First: the one that fails for want of files leaves none, and the next frame tries again.
  upstream_.reset();
  auto upstream = std::make_unique<wire::Socket>(wire::Socket::Kind::kDealer, context);
  upstream->connect(scheduler);
  upstream_ = std::move(upstream);
}

// A full queue drops it: the link sends it again. The first frame of a connection is kept, since it
// is a Hello mostly, and would be said again after a second only.
bool WorkerRelay::pass_on(std::span<const std::byte> frame) {
  if (pass_on_first() && upstream_->send("", frame)) return true;
  if (first_.empty() && steady_now() < connected_ + kConnectionPatience)
    first_.assign(frame.begin(), frame.end());
  return false;
}

// Whether none waits.
bool WorkerRelay::pass_on_first() {
  if (first_.empty()) return true;
  const bool sent = upstream_ && upstream_->send("", first_);
  if (!sent && steady_now() < connected_ + kConnectionPatience) return false;
  first_.clear();
  return true;
}

void WorkerRelay::from_scheduler(const Send& send) {
  (void)pass_on_first();
  if (!upstream_ || steady_now() < retry_at_) return;
  for (int i = 0; i < kMaxFramesOfOne; ++i) {
    if (held_.empty()) {
      const auto received = upstream_->receive();
      if (!received) return;
      look_into(received->frame);
      if (send(routing_, received->frame)) continue;
      // One frame is held, so that the order stays: nothing is received from the scheduler before
      // it is gone.
      held_.assign(received->frame.begin(), received->frame.end());
    } else if (send(routing_, held_)) {
      held_.clear();
      retry_ = kBlockedRetry;
      continue;
    }
    // Its connection is gone, or it takes nothing. What waits behind it stays with ZeroMQ.
    retry_at_ = steady_now() + retry_;
    retry_ = std::min(2 * retry_, kLongestRetry);
    return;
  }
}

// Reads what the scheduler says of its session with the worker.
void WorkerRelay::look_into(std::span<const std::byte> frame) {
  const auto header = wire::decode_header(frame);
  if (!header || header->session == 0) return;
  if (!sessions_.empty() && sessions_.back() == header->session)
    in_flight_.arrived(header->received);
  if (header->signal != wire::Signal::kWelcome || knows(header->session)) return;
  sessions_.push_back(header->session);
  in_flight_.clear();
  if (sessions_.size() > kMaxSessions) sessions_.erase(sessions_.begin());
}

bool WorkerRelay::knows(uint64_t session) const {
  return std::ranges::find(sessions_, session) != sessions_.end();
}

std::chrono::milliseconds WorkerRelay::patience() const {
  std::chrono::milliseconds least = kForEver;
  if (!held_.empty()) least = std::min(least, retry_);
  if (!first_.empty()) least = std::min(least, kConnectionLook);
  return least;
}

}  // namespace tailrace
