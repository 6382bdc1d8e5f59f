#include "core/wire/link.h"

namespace tailrace::wire {
namespace {

// With the default LinkOptions::resend of a second: a copy every eight seconds.
constexpr int kMaxPatience = 8;

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

Link::Verdict Link::on_frame(const Header& header, Time now) {
  last_heard_ = now;
  // An acknowledgement of what was never sent is nonsense from outside: ignored.
  if (header.ack > acknowledged_ && header.ack <= ever_sent_) {
    const auto count = static_cast<size_t>(header.ack - acknowledged_);
    for (size_t i = 0; i < count; ++i) {
      unacknowledged_bytes_ -= std::ssize(*unacknowledged_.front());
      unacknowledged_.pop_front();
    }
    // It may be 0 with messages in flight: resend_all() came between.
    next_to_send_ -= std::min(next_to_send_, count);
    acknowledged_ = header.ack;
    last_progress_ = now;
    patience_ = 1;
  }
  if (header.sequence == 0) return Verdict::kHeartbeat;
  // Delivered and not yet acknowledged: that waits for take_over(), when it is safe with its owner.
  if (header.sequence == delivered_ + 1) {
    ++delivered_;
    ++counters_.received;
    return Verdict::kDeliver;
  }
  if (header.sequence <= delivered_) {
    ++counters_.duplicates;
    ack_waits_ = true;  // our acknowledgement was lost, or is late
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

void Link::skip(uint64_t sequence) {
  ++counters_.malformed;
  if (sequence == taken_over_ + 1) {
    take_over(sequence);
  } else {
    skipped_.insert(sequence);
  }
}

void Link::not_sent(const Header& header) {
  if (header.sequence == 0) {
    ack_waits_ = ack_waits_ || header.ack > 0;
  } else if (header.sequence > acknowledged_) {
    next_to_send_ = static_cast<size_t>(header.sequence - acknowledged_ - 1);
  }
}

// The peer lives (it was heard after we last sent) and yet acknowledges nothing: what was in flight
// is lost, or its owner is slow. A silent peer gets nothing again: it is dead, or all of it waits
// in its pipe.
Time Link::resend_time() const {
  const bool waits = next_to_send_ > 0 && last_heard_ > last_progress_;
  return waits ? last_progress_ + options_.resend * patience_ : Time::max();
}

std::vector<Link::Transmission> Link::due(Time now) {
  std::vector<Transmission> out;
  if (now >= resend_time()) {
    next_to_send_ = 0;
    patience_ = std::min(patience_ * 2, kMaxPatience);
  }
  for (; next_to_send_ < unacknowledged_.size(); ++next_to_send_) {
    const uint64_t sequence = acknowledged_ + 1 + next_to_send_;
    if (sequence <= ever_sent_) ++counters_.resent;
    ever_sent_ = std::max(ever_sent_, sequence);
    // The peer gets its time anew: what was just sent cannot have been answered.
    last_progress_ = now;
    out.push_back({header(sequence), unacknowledged_[next_to_send_]});
  }
  // Every message carries the acknowledgement, so one by itself goes out only where nothing else
  // does.
  if (out.empty() && (ack_waits_ || now - last_sent_ >= options_.heartbeat)) {
    out.push_back({header(0), nullptr});
  }
  if (!out.empty()) {
    last_sent_ = now;
    ack_waits_ = false;
  }
  return out;
}

Time Link::next_due() const {
  if (ack_waits_ || next_to_send_ < unacknowledged_.size()) return Time::min();
  return std::min<Time>(last_sent_ + options_.heartbeat, resend_time());
}

}  // namespace tailrace::wire
