#include "scheduler/simulator/engine.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"

namespace tailrace::simulator {

namespace {

// The rounding of a step and of a prefill: sums of thousands of them round. And the finest that a
// clock of the world shows.
constexpr double kTinyStep = 1e-6, kTinyTokens = 1e-6, kTinySeconds = 1e-9;
constexpr Engine::Id kNobody = std::numeric_limits<Engine::Id>::min();

}  // namespace

double Engine::room() const {
  if (hardware_.kv_tokens == 0) return std::numeric_limits<double>::infinity();
  return static_cast<double>(hardware_.kv_tokens) - decode_tokens_ - idle_tokens_ + shared_tokens_;
}

void Engine::owe(int64_t order, double tokens) {
  if (hardware_.prefill_tokens_per_s <= 0) {
    totals_.prefilled += tokens;
  } else if (tokens > 0) {
    owed_.emplace(order, tokens);
    owed_tokens_ += tokens;
  }
}

void Engine::forgive(int64_t order) {
  const auto found = owed_.find(order);
  if (found == owed_.end()) return;
  owed_tokens_ -= found->second;
  owed_.erase(found);
  if (owed_.empty()) owed_tokens_ = 0;  // without what rounding left
}

// Prefills so many of the owed tokens, in order.
void Engine::prefill(double tokens) {
  while (!owed_.empty() && tokens > 0) {
    const auto first = owed_.begin();
    const double paid = std::min(tokens, first->second);
    tokens -= paid;
    totals_.prefilled += paid;
    first->second -= paid;
    owed_tokens_ -= paid;
    if (first->second < kTinyTokens) forgive(first->first);
  }
}

void Engine::hold(const Prompt& prompt) {
  if (prompt.tokens == 0) return;
  Shared& shared = prompts_[prompt.key];
  const auto tokens = static_cast<double>(prompt.tokens);
  if (++shared.holders > 1) {
    shared_tokens_ += tokens;
  } else {
    shared.order = ++orders_;
    owe(shared.order, tokens);
  }
}

void Engine::let_go(const Prompt& prompt) {
  if (prompt.tokens == 0) return;
  const auto found = prompts_.find(prompt.key);
  if (--found->second.holders > 0) {
    shared_tokens_ -= static_cast<double>(prompt.tokens);
  } else {
    forgive(found->second.order);
    prompts_.erase(found);
  }
}

// Forgets the KV of a sequence that does not decode.
void Engine::forget(Sequence& sequence) {
  if (sequence.cached <= 0) return;
  idle_tokens_ -= sequence.cached;
  sequence.cached = 0;
  let_go(sequence.prompt);
}

void Engine::decode(Id id, int64_t context, int64_t tokens, Prompt prompt) {
  Sequence& sequence = sequences_[id];
  TR_CHECK(sequence.phase == Phase::kIdle && tokens >= 1 && context >= prompt.tokens,
           "sequence {} decodes already, or nothing, or has a prompt beyond its context", id);
  sequence.context = static_cast<double>(context);
  sequence.tokens = sequence.asked = static_cast<double>(tokens);
  // While something of it is in KV it holds the prompt that it began with, and lets that one go.
  if (sequence.cached <= 0) sequence.prompt = prompt;
  sequence.phase = Phase::kQueued;
  queue_.push_back(id);
  settle();
}

// It decodes no more: its KV is not counted, and what of it was not prefilled will not be.
void Engine::end_decoding(Id id, Sequence& sequence) {
  const double done = steps_ - sequence.begun;
  ends_.erase({sequence.begun + sequence.tokens, id});
  by_order_.erase(sequence.order);
  forgive(sequence.order);
  decode_tokens_ -= sequence.context + done;
  if (ends_.empty()) decode_tokens_ = 0;  // without what rounding left
  sequence.context += done;
  sequence.tokens = std::max(sequence.tokens - done, kTinyStep);
}

void Engine::remove(Id id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Sequence& sequence = found->second;
  if (sequence.phase == Phase::kDecoding) {
    end_decoding(id, sequence);
    let_go(sequence.prompt);
  } else {
    forget(sequence);
    idle_.erase(id);
    if (sequence.phase == Phase::kQueued) std::erase(queue_, id);
  }
  sequences_.erase(found);
  settle();
}

void Engine::drop_cache() {
  for (const Id id : idle_) forget(sequences_.at(id));
  idle_.clear();
  idle_tokens_ = 0;
  // Tokens owed before are part of the new debt.
  owed_.clear();
  owed_tokens_ = 0;
  for (const auto& [end, id] : ends_) {
    const Sequence& sequence = sequences_.at(id);
    const auto shared = static_cast<double>(sequence.prompt.tokens);
    owe(sequence.order, sequence.context + (steps_ - sequence.begun) - shared);
    if (shared > 0 && !owed_.contains(prompts_.at(sequence.prompt.key).order))
      owe(prompts_.at(sequence.prompt.key).order, shared);
  }
  settle();
}

// The tokens of its context that are not in KV.
double Engine::fresh(const Sequence& sequence) const {
  if (sequence.cached > 0) return sequence.context - sequence.cached;
  const bool is_held = prompts_.contains(sequence.prompt.key);
  return sequence.context - (is_held ? static_cast<double>(sequence.prompt.tokens) : 0);
}

// The one that waits longest, if there is room for it and for a token of everybody.
bool Engine::admit() {
  if (queue_.empty()) return false;
  const Id id = queue_.front();
  Sequence& sequence = sequences_.at(id);
  // An evicted prompt may be one that it would have shared.
  while (room() < fresh(sequence) + static_cast<double>(ends_.size()) + 1) {
    if (evict_idle(/*spared=*/id)) continue;
    if (!ends_.empty()) return false;
    break;  // one alone runs in any case
  }
  queue_.pop_front();
  double own = sequence.context - sequence.cached;
  if (sequence.cached > 0) {
    idle_.erase(id);
    idle_tokens_ -= sequence.cached;
    sequence.cached = 0;
  } else {
    hold(sequence.prompt);
    own -= static_cast<double>(sequence.prompt.tokens);
  }
  sequence.phase = Phase::kDecoding;
  sequence.begun = steps_;
  sequence.order = ++orders_;
  owe(sequence.order, own);
  decode_tokens_ += sequence.context;
  ends_.emplace(steps_ + sequence.tokens, id);
  if (hardware_.kv_tokens > 0) by_order_.emplace(sequence.order, id);
  return true;
}

// One that does not decode lets its KV go. False: there is none.
bool Engine::evict_idle(Id spared) {
  auto first = idle_.begin();
  if (first != idle_.end() && *first == spared) ++first;
  if (first == idle_.end()) return false;
  forget(sequences_.at(*first));
  idle_.erase(first);
  return true;
}

void Engine::preempt_youngest() {
  const Id id = std::prev(by_order_.end())->second;
  Sequence& sequence = sequences_.at(id);
  end_decoding(id, sequence);
  let_go(sequence.prompt);
  sequence.phase = Phase::kQueued;
  // In front: it has waited its turn already, and the next room is its own.
  queue_.push_front(id);
  ++totals_.preemptions;
}

void Engine::settle() {
  const auto step = [&] { return static_cast<double>(ends_.size()); };
  // KV is full when there is no token left for everybody. One sequence alone goes on in any case:
  // it may be longer than the cache, and there is nobody to make room for it.
  while (ends_.size() > 1 && room() < step() * kTinyStep) {
    while (room() < step() && evict_idle(/*spared=*/kNobody)) {
    }
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
  // The next change comes when the first sequence ends, or when the steps until then have filled
  // the KV cache, whichever is sooner.
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
    if (stall_ > 0) {
      const double paid = std::min(stall_, now - now_);
      // A rest so small is the rounding of the subtraction, and counts as nothing.
      stall_ = stall_ - paid < 1e-12 ? 0 : stall_ - paid;
      now_ += paid;
      totals_.busy += paid;
      continue;
    }
    if (!owed_.empty()) {
      const double rate = hardware_.prefill_tokens_per_s;
      const double seconds = owed_tokens_ / rate;
      // A rest that rounding leaves would cost a wake of its own, and its next one another.
      const bool all = seconds <= now - now_ + kTinySeconds;
      const double paid = all ? seconds : now - now_;
      prefill(all ? std::numeric_limits<double>::infinity() : paid * rate);
      now_ = all ? now_ + paid : now;
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
    // Sequences that end in one step end together, whatever their fractions are.
    while (!ends_.empty() && ends_.begin()->first <= steps_ + kTinyStep) {
      const Id id = ends_.begin()->second;
      Sequence& sequence = sequences_.at(id);
      const double context = sequence.context + sequence.tokens;
      end_decoding(id, sequence);
      sequence.phase = Phase::kIdle;
      sequence.tokens = 0;
      sequence.context = sequence.cached = context;
      idle_tokens_ += context;
      idle_.insert(id);
      ended.push_back(id);
    }
    settle();
  }
}

std::optional<double> Engine::next() const {
  if (ends_.empty()) return std::nullopt;
  const double prefill = owed_.empty() ? 0 : owed_tokens_ / hardware_.prefill_tokens_per_s;
  return now_ + stall_ + prefill + seconds_of_steps(steps_to_event());
}

double Engine::decoded(Id id) const {
  const Sequence& sequence = sequences_.at(id);
  const double left = sequence.phase == Phase::kDecoding ? sequence.begun + sequence.tokens - steps_
                                                         : sequence.tokens;
  return std::clamp(sequence.asked - left, 0.0, sequence.asked);
}

}  // namespace tailrace::simulator
