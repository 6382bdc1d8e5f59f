#include "core/wire/link.h"

namespace tailrace::wire {
namespace {

// With the default LinkOptions::resend of a second: a copy every eight seconds.
constexpr int kMaxPatience = 8;
// Bytes that arrive until their sender hears so: it need not wait for that before it sends more.
constexpr int64_t kTellBytes = kWindowBytes / 4;
// A link that is slower loses its peers: a piece takes longer than LinkOptions::timeout.
constexpr int64_t kSlowestBytesPerSecond = int64_t{1} << 20;

}  // namespace

LinkCounters& LinkCounters::operator+=(const LinkCounters& other) {
  sent += other.sent;
  received += other.received;
  resent += other.resent;
  duplicates += other.duplicates;
  early += other.early;
  malformed += other.malformed;
  return *this;
}

Link::Link(uint64_t session, const LinkOptions& options, Time now)
    : session_(session),
      options_(options),
      last_heard_(now),
      last_sent_(now),
      last_progress_(now) {}

void Link::push(Body body) {
  TR_CHECK(body != nullptr);
  unacknowledged_bytes_ += std::ssize(*body);
  unacknowledged_.push_back(std::move(body));
  ++counters_.sent;
}

// It has arrived, and all before it.
void Link::note_arrival(uint64_t sequence) {
  for (; arrived_ < sequence; ++arrived_) {
    if (arrived_ + 1 < next_) bytes_in_flight_ -= std::ssize(*body(arrived_ + 1));
  }
  next_ = std::max(next_, arrived_ + 1);  // to be sent again, and need not
}

void Link::resend_all() {
  next_ = arrived_ + 1;
  bytes_in_flight_ = 0;
}

Link::Verdict Link::on_frame(const Header& header, Time now, int64_t bytes) {
  last_heard_ = now;
  // A number that was never sent is nonsense from outside: ignored.
  const uint64_t acknowledged = header.ack <= ever_sent_ ? header.ack : 0;
  const uint64_t arrived = header.received <= ever_sent_ ? header.received : 0;
  if (std::max(acknowledged, arrived) > arrived_) {
    note_arrival(std::max(acknowledged, arrived));
    last_progress_ = now;
    patience_ = 1;
  }
  for (; acknowledged_ < acknowledged; ++acknowledged_) {
    unacknowledged_bytes_ -= std::ssize(*unacknowledged_.front());
    unacknowledged_.pop_front();
  }
  if (header.sequence == 0) return Verdict::kHeartbeat;
  // Delivered and not yet acknowledged: that waits for take_over(), when it is safe with its owner.
  if (header.sequence == delivered_ + 1) {
    ++delivered_;
    ++counters_.received;
    untold_bytes_ += bytes;
    if (untold_bytes_ >= kTellBytes) ack_waits_ = true;
    return Verdict::kDeliver;
  }
  if (header.sequence <= delivered_) {
    ++counters_.duplicates;
    ack_waits_ = true;  // our answer was lost, or is late
  } else {
    ++counters_.early;
  }
  return Verdict::kDrop;
}

void Link::take_over(uint64_t sequence) {
  TR_CHECK(sequence <= delivered_, "{} of {} delivered", sequence, delivered_);
  if (sequence <= taken_over_) return;
  taken_over_ = sequence;
  while (!skipped_.empty() && *skipped_.begin() <= taken_over_ + 1) {
    taken_over_ = std::max(taken_over_, *skipped_.begin());
    skipped_.erase(skipped_.begin());
  }
  ack_waits_ = true;
}

void Link::skip(uint64_t sequence, int64_t count) {
  ++counters_.malformed;
  for (uint64_t each = sequence - static_cast<uint64_t>(count - 1); each <= sequence; ++each) {
    if (each == taken_over_ + 1) {
      take_over(each);
    } else {
      skipped_.insert(each);
    }
  }
}

void Link::not_sent(const Header& header) {
  if (header.sequence == 0) {
    ack_waits_ = ack_waits_ || header.ack > 0 || header.received > 0;
    return;
  }
  while (next_ > header.sequence && next_ > arrived_ + 1)
    bytes_in_flight_ -= std::ssize(*body(--next_));
}

// The peer lives (it was heard after we last sent) and yet nothing arrives: what was in flight is
// lost, or is not looked at. A silent peer gets nothing again: it is dead, or all of it waits in
// its pipe. A piece has the time that it takes, whichever is the next: all that follow it would be
// sent again as well.
Time Link::resend_time() const {
  const bool waits = next_ > arrived_ + 1 && last_heard_ > last_progress_;
  if (!waits) return Time::max();
  const Time passage = Time(std::chrono::seconds(1)) * std::min(bytes_in_flight_, kPieceBytes) /
                       kSlowestBytesPerSecond;
  return last_progress_ + options_.resend * patience_ + passage;
}

std::vector<Link::Transmission> Link::due(Time now) {
  std::vector<Transmission> out;
  if (now >= resend_time()) {
    resend_all();
    patience_ = std::min(patience_ * 2, kMaxPatience);
  }
  for (; may_send(); ++next_) {
    if (next_ <= ever_sent_) ++counters_.resent;
    ever_sent_ = std::max(ever_sent_, next_);
    bytes_in_flight_ += std::ssize(*body(next_));
    // The peer gets its time anew: what was just sent cannot have been answered.
    last_progress_ = now;
    out.push_back({header(next_), body(next_)});
  }
  // Every message carries the acknowledgement, so one by itself goes out only where nothing else
  // does.
  if (out.empty() && (ack_waits_ || now - last_sent_ >= options_.heartbeat)) {
    out.push_back({header(0), nullptr});
  }
  if (!out.empty()) {
    last_sent_ = now;
    ack_waits_ = false;
    untold_bytes_ = 0;
  }
  return out;
}

Time Link::next_due() const {
  if (ack_waits_ || may_send()) return Time::min();
  return std::min<Time>(last_sent_ + options_.heartbeat, resend_time());
}

}  // namespace tailrace::wire
