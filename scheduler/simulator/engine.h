// The decode engine of one simulated worker, in continuous time: all sequences that decode gain
// tokens at the same rate, which changes when one begins, ends, or loses its KV. Between such
// changes the time of n steps has a closed form (a step grows by n * context, since each sequence
// grows by a token), so an engine costs a few operations a turn and nothing a token.
//
// A prefill holds up decoding for tokens / prefill_tokens_per_s seconds; what is removed before its
// prefill is none. Sequences with the same prompt share its KV, as long as one of them holds it.
// When the KV cache is full, the KV of sequences that do not decode goes first, then the youngest
// sequence is preempted: it waits, and what of its context nobody holds is prefilled again.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "scheduler/simulator/hardware.h"

namespace tailrace::simulator {

class Engine {
 public:
  using Id = int64_t;

  Engine() = default;
  explicit Engine(const Hardware& hardware) : hardware_(hardware) {}

  // The first tokens of several sequences: of one group. The same key has the same tokens.
  struct Prompt {
    uint64_t key = 0;
    int64_t tokens = 0;  // 0: it shares none
  };

  // The sequence decodes `tokens` >= 1 behind `context` tokens, which begin with `prompt`, the same
  // one in each of its turns. All calls are made at the time of the last advance().
  void decode(Id id, int64_t context, int64_t tokens, Prompt prompt);
  void decode(Id id, int64_t context, int64_t tokens) { decode(id, context, tokens, Prompt{}); }
  // It is gone, whatever it does.
  void remove(Id id);
  // The KV of all sequences is void (new weights): what decodes is prefilled again.
  void drop_cache();
  // Nothing moves for so long.
  void stall(double seconds) { stall_ += seconds; }

  // Time passes, to `now` in seconds; the sequences whose tokens are all decoded are appended to
  // `ended`, in order.
  void advance(double now, std::vector<Id>& ended);
  // When something happens next by itself.
  std::optional<double> next() const;

  // The tokens decoded of the latest request.
  double decoded(Id id) const;
  int64_t decoding() const { return std::ssize(ends_); }
  int64_t queued() const { return std::ssize(queue_); }
  double now() const { return now_; }

  struct Totals {
    double tokens = 0;        // decoded
    double prefilled = 0;     // tokens, when they are
    double busy = 0;          // seconds with a sequence that decodes or is prefilled
    double sequence_s = 0;    // sum over sequences of the seconds that they decoded
    int64_t preemptions = 0;  // for want of KV
  };
  const Totals& totals() const { return totals_; }

 private:
  enum class Phase : uint8_t { kQueued, kDecoding, kIdle };
  struct Sequence {
    Phase phase = Phase::kIdle;
    double context = 0;  // at `begun`
    double tokens = 0;   // still to be decoded, at `begun`
    double asked = 0;    // of decode()
    double begun = 0;    // in steps
    double cached = 0;   // tokens in KV, prompt included, unless it decodes: then all are
    int64_t order = 0;   // of its admission, and of its prefill
    Prompt prompt = {};  // which it holds while it decodes or has something cached
  };
  struct Shared {
    int64_t holders = 0;
    int64_t order = 0;  // of its prefill
  };

  double room() const;
  double fresh(const Sequence& sequence) const;
  bool admit();
  void settle();
  bool evict_idle(Id spared);
  void preempt_youngest();
  void end_decoding(Id id, Sequence& sequence);
  void hold(const Prompt& prompt);
  void let_go(const Prompt& prompt);
  void forget(Sequence& sequence);
  void owe(int64_t order, double tokens);
  void forgive(int64_t order);
  void prefill(double tokens);
  void move(double steps);
  double steps_in(double seconds) const;
  double seconds_of_steps(double steps) const;
  double steps_to_event() const;

  Hardware hardware_;
  std::unordered_map<Id, Sequence> sequences_;
  std::set<std::pair<double, Id>> ends_;          // of those that decode, in steps
  std::map<int64_t, Id> by_order_;                // the same, only where KV has a limit
  std::set<Id> idle_;                             // with something in KV, but not decoding
  std::unordered_map<uint64_t, Shared> prompts_;  // by key, those that somebody holds
  std::map<int64_t, double> owed_;                // tokens to be prefilled, in order
  std::deque<Id> queue_;
  double now_ = 0, steps_ = 0, stall_ = 0;
  double decode_tokens_ = 0;  // of contexts, of all that decode
  double idle_tokens_ = 0;    // of those that do not, in KV
  double shared_tokens_ = 0;  // that these two count more than once
  double owed_tokens_ = 0;    // sum of owed_
  int64_t orders_ = 0;
  Totals totals_;
};

}  // namespace tailrace::simulator
