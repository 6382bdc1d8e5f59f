// One direction-pair of a session as a pure state machine: sequence numbers, cumulative
// acknowledgements, resending, duplicates, silence. It opens no socket and reads no clock, so that
// a lossy, duplicating and reordering transport can be tried on it in a loop.
//
// Each end has one Link a session. Sent messages are numbered 1, 2, ... and kept until the other
// end acknowledges them, which it does when their owner there has taken them over (not when they
// arrive). Received messages are accepted in order only; one that comes early is left for the
// sender to send again, since ZeroMQ keeps the order and a gap means that a connection was lost
// with what was in flight. What has arrived is said at once and not sent again in the session; what
// has not is at most kWindowBytes and one message: it neither fills the pipe of a slow owner nor
// keeps heartbeats from passing.
//
// Thread: caller locks.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "core/base/time.h"
#include "core/wire/frame.h"

namespace tailrace::wire {

constexpr int64_t kWindowBytes = int64_t{16} << 20;

struct LinkOptions {
  std::chrono::milliseconds heartbeat{500};  // a silent peer is presumed lost after `timeout`
  std::chrono::milliseconds timeout{5000};
  std::chrono::milliseconds resend{1000};
  std::chrono::milliseconds linger{2000};
};

struct LinkCounters {
  int64_t sent = 0, received = 0;  // messages, each counted once
  int64_t resent = 0;              // transmissions after the first
  int64_t duplicates = 0;          // received again, and dropped
  int64_t early = 0;               // received after a gap, and dropped
  int64_t malformed = 0;           // frames that were refused
  LinkCounters& operator+=(const LinkCounters& other);
};

class Link {
 public:
  // An encoded frame, its header to be rewritten.
  using Body = std::shared_ptr<const std::vector<std::byte>>;

  Link(uint64_t session, const LinkOptions& options, Time now);

  // Queues a message.
  void push(Body body);

  enum class Verdict {
    kDeliver,    // the next message: hand it to the owner, then take_over() its sequence
    kDrop,       // a duplicate, or early
    kHeartbeat,  // nothing to deliver
  };
  // Takes note of a frame of this session, of so many bytes.
  Verdict on_frame(const Header& header, Time now, int64_t bytes = 0);
  // The owner has all messages up to `sequence`: they may be acknowledged. More than was delivered
  // is our bug.
  void take_over(uint64_t sequence);
  // The last `count` delivered frames up to this one turned out to be malformed: no owner will take
  // them over, and sending them again is no help. They count as taken over once all before them
  // are.
  void skip(uint64_t sequence, int64_t count = 1);

  struct Transmission {
    Header header;
    Body body;  // nullptr: a bare heartbeat
  };
  // The frames to send now, in order: new messages, those to send again, else a heartbeat when one
  // is due or an acknowledgement waits. What is lost on the way is found out by time.
  std::vector<Transmission> due(Time now);
  // The socket refused this one and those after it: due() will give them again.
  void not_sent(const Header& header);
  // When to ask again if nothing happens before.
  Time next_due() const;
  // The connection changed hands: all that has not arrived goes out anew.
  void resend_all();

  bool lost(Time now) const { return now - last_heard_ > options_.timeout; }
  bool idle() const { return unacknowledged_.empty(); }
  int64_t num_unacknowledged() const { return static_cast<int64_t>(unacknowledged_.size()); }
  int64_t unacknowledged_bytes() const { return unacknowledged_bytes_; }
  uint64_t session() const { return session_; }
  const LinkCounters& counters() const { return counters_; }

  // The messages that were not acknowledged, oldest first, for the next session. Ends this one.
  std::deque<Body> release() { return std::move(unacknowledged_); }

 private:
  Header header(uint64_t sequence) const {
    return {session_, sequence, taken_over_, Signal::kNone, delivered_};
  }
  // 0 < sequence - acknowledged_ <= num_unacknowledged().
  const Body& body(uint64_t sequence) const {
    return unacknowledged_[sequence - acknowledged_ - 1];
  }
  bool may_send() const {
    return next_ <= acknowledged_ + unacknowledged_.size() && bytes_in_flight_ < kWindowBytes;
  }
  void note_arrival(uint64_t sequence);
  Time resend_time() const;

  uint64_t session_;
  LinkOptions options_;
  // Sent messages, by sequence: acknowledged_ <= arrived_ < next_, as the other end has said.
  uint64_t acknowledged_ = 0, arrived_ = 0;
  uint64_t next_ = 1;       // to be sent; from arrived_ on those before are in flight
  uint64_t ever_sent_ = 0;  // the highest
  std::deque<Body> unacknowledged_;
  int64_t unacknowledged_bytes_ = 0, bytes_in_flight_ = 0;
  uint64_t delivered_ = 0;  // from the other end
  uint64_t taken_over_ = 0;
  std::set<uint64_t> skipped_;  // not yet taken over
  bool ack_waits_ = false;
  int64_t untold_bytes_ = 0;  // delivered, which the other end does not know
  int patience_ = 1;          // doubles with every resending in vain: a slow owner gets few copies
  Time last_heard_, last_sent_, last_progress_;
  LinkCounters counters_;
};

}  // namespace tailrace::wire
