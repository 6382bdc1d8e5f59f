#include "scheduler/simulator/engine.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"

namespace tailrace::simulator {

namespace {

// Of a step: sums of thousands of steps round. And the finest that a clock of the world shows.
constexpr double kTinyStep = 1e-6, kTinySeconds = 1e-9;

}  // namespace

double Engine::room() const {
  if (hardware_.kv_tokens == 0) return std::numeric_limits<double>::infinity();
  return static_cast<double>(hardware_.kv_tokens) - decode_tokens_ - idle_tokens_;
}

void Engine::decode(Id id, int64_t context, int64_t tokens, int64_t shared) {
  Sequence& sequence = sequences_[id];
  TR_CHECK(sequence.phase == Phase::kIdle && tokens >= 1, "sequence {} decodes already, or nothing",
           id);
  sequence.context = static_cast<double>(context);
  sequence.tokens = sequence.asked = static_cast<double>(tokens);
  idle_tokens_ -= sequence.cached;
  idle_.erase(id);
  sequence.cached = std::min(sequence.context, std::max(sequence.cached, double(shared)));
  idle_tokens_ += sequence.cached;
  sequence.phase = Phase::kQueued;
  queue_.push_back(id);
  settle();
}

void Engine::remove(Id id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Sequence& sequence = found->second;
  if (sequence.phase == Phase::kDecoding) {
    ends_.erase({sequence.begun + sequence.tokens, id});
    by_order_.erase(sequence.order);
    decode_tokens_ -= sequence.context + (steps_ - sequence.begun);
  } else {
    idle_tokens_ -= sequence.cached;
    idle_.erase(id);
    if (sequence.phase == Phase::kQueued) std::erase(queue_, id);
  }
  sequences_.erase(found);
  if (ends_.empty()) decode_tokens_ = 0;  // without what rounding left
  settle();
}

void Engine::drop_cache() {
  if (hardware_.prefill_tokens_per_s > 0) debt_ += decode_tokens_ / hardware_.prefill_tokens_per_s;
  totals_.prefilled += decode_tokens_;
  for (auto& [id, sequence] : sequences_) {
    if (sequence.phase != Phase::kDecoding) sequence.cached = 0;
  }
  idle_.clear();
  idle_tokens_ = 0;
  settle();
}

// The one that waits longest, if there is room for it and for a token of everybody.
bool Engine::admit() {
  if (queue_.empty()) return false;
  const Id id = queue_.front();
  Sequence& sequence = sequences_.at(id);
  const double fresh = sequence.context - sequence.cached;
  const double needed = fresh + static_cast<double>(ends_.size()) + 1;
  if (room() < needed) {
    evict_idle(needed);
    // One alone runs in any case.
    if (room() < needed && !ends_.empty()) return false;
  }
  queue_.pop_front();
  if (hardware_.prefill_tokens_per_s > 0) debt_ += fresh / hardware_.prefill_tokens_per_s;
  totals_.prefilled += fresh;
  idle_tokens_ -= sequence.cached;
  sequence.cached = 0;
  sequence.phase = Phase::kDecoding;
  sequence.begun = steps_;
  sequence.order = ++orders_;
  decode_tokens_ += sequence.context;
  ends_.emplace(steps_ + sequence.tokens, id);
  if (hardware_.kv_tokens > 0) by_order_.emplace(sequence.order, id);
  return true;
}

void Engine::evict_idle(double needed) {
  while (room() < needed && !idle_.empty()) {
    Sequence& sequence = sequences_.at(*idle_.begin());
    idle_tokens_ -= sequence.cached;
    sequence.cached = 0;
    idle_.erase(idle_.begin());
  }
}

void Engine::preempt_youngest() {
  const Id id = std::prev(by_order_.end())->second;
  Sequence& sequence = sequences_.at(id);
  ends_.erase({sequence.begun + sequence.tokens, id});
  by_order_.erase(sequence.order);
  const double done = steps_ - sequence.begun;
  decode_tokens_ -= sequence.context + done;
  sequence.context += done;
  sequence.tokens = std::max(sequence.tokens - done, kTinyStep);
  sequence.phase = Phase::kQueued;
  queue_.push_front(id);
  ++totals_.preemptions;
}

void Engine::settle() {
  const auto step = [&] { return static_cast<double>(ends_.size()); };
  while (ends_.size() > 1 && room() < step() * kTinyStep) {
    evict_idle(step());
    if (room() >= step()) break;
    preempt_youngest();
  }
  while (admit()) {
  }
}

// n steps take n * (step + sequences * sequence + tokens * context) + sequences * context * n^2
// / 2.
double Engine::seconds_of_steps(double steps) const {
  const double sequences = static_cast<double>(ends_.size());
  return steps * hardware_.decode.seconds(sequences, decode_tokens_) +
         sequences * hardware_.decode.context * steps * steps / 2;
}

double Engine::steps_in(double seconds) const {
  const double sequences = static_cast<double>(ends_.size());
  const double first = hardware_.decode.seconds(sequences, decode_tokens_);
  const double growth = sequences * hardware_.decode.context;
  // The root of growth / 2 * n^2 + first * n = seconds, without cancellation.
  return 2 * seconds / (first + std::sqrt(first * first + 2 * growth * seconds));
}

double Engine::steps_to_event() const {
  double steps = std::max(0.0, ends_.begin()->first - steps_);
  if (hardware_.kv_tokens > 0 && ends_.size() > 1)
    steps = std::min(steps, std::max(0.0, room() / static_cast<double>(ends_.size())));
  return steps;
}

void Engine::move(double steps) {
  const double sequences = static_cast<double>(ends_.size());
  steps_ += steps;
  decode_tokens_ += sequences * steps;
  totals_.tokens += sequences * steps;
}

void Engine::advance(double now, std::vector<Id>& ended) {
  while (now_ < now) {
    if (debt_ > 0) {
      const double paid = std::min(debt_, now - now_);
      // What is left of a subtraction is nothing.
      debt_ = debt_ - paid < 1e-12 ? 0 : debt_ - paid;
      now_ += paid;
      totals_.busy += paid;
      continue;
    }
    if (ends_.empty()) {
      now_ = now;
      return;
    }
    const double sequences = static_cast<double>(ends_.size());
    const double left = now - now_;
    const double steps = steps_to_event();
    const double seconds = seconds_of_steps(steps);
    if (seconds > left + kTinySeconds) {
      move(steps_in(left));
      totals_.busy += left;
      totals_.sequence_s += left * sequences;
      now_ = now;
      return;
    }
    move(steps);
    totals_.busy += seconds;
    totals_.sequence_s += seconds * sequences;
    now_ += seconds;
    while (!ends_.empty() && ends_.begin()->first <= steps_ + kTinyStep) {
      const Id id = ends_.begin()->second;
      Sequence& sequence = sequences_.at(id);
      ends_.erase(ends_.begin());
      by_order_.erase(sequence.order);
      const double context = sequence.context + sequence.tokens;
      decode_tokens_ -= sequence.context + (steps_ - sequence.begun);
      sequence = {.context = context, .asked = sequence.asked, .cached = context};
      idle_tokens_ += context;
      if (hardware_.kv_tokens > 0) idle_.insert(id);
      ended.push_back(id);
    }
    if (ends_.empty()) decode_tokens_ = 0;
    settle();
  }
}

std::optional<double> Engine::next() const {
  if (ends_.empty()) return std::nullopt;
  return now_ + debt_ + seconds_of_steps(steps_to_event());
}

double Engine::decoded(Id id) const {
  const Sequence& sequence = sequences_.at(id);
  const double left = sequence.phase == Phase::kDecoding ? sequence.begun + sequence.tokens - steps_
                                                         : sequence.tokens;
  return std::clamp(sequence.asked - left, 0.0, sequence.asked);
}

}  // namespace tailrace::simulator
