// The decode engine of one simulated worker, in continuous time: all sequences that decode gain
// tokens at the same rate, which changes when one begins, ends, or loses its KV. Between such
// changes the time of n steps has a closed form (a step grows by n * context, since each sequence
// grows by a token), so an engine costs a few operations a turn and nothing a token.
//
// A prefill holds up decoding for tokens / prefill_tokens_per_s seconds. When the KV cache is full,
// the KV of sequences that wait for their environment goes first, then the youngest sequence is
// preempted: it waits, and its whole context is prefilled again.
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

  // The sequence decodes `tokens` >= 1 behind `context` tokens. Of these `shared` are known to be
  // in KV already (a sibling's prompt); what the sequence itself left there is known here. All
  // calls are made at the time of the last advance().
  void decode(Id id, int64_t context, int64_t tokens, int64_t shared = 0);
  // It is gone, whatever it does.
  void remove(Id id);
  // The KV of all sequences is void (new weights).
  void drop_cache();
  // Nothing moves for so long.
  void stall(double seconds) { debt_ += seconds; }

  // Time passes, to `now` in seconds; the sequences whose tokens are all decoded are appended to
  // `ended`, in order.
  void advance(double now, std::vector<Id>& ended);
  // When something happens next by itself.
  std::optional<double> next() const;

  // Of what it was last asked to decode.
  double decoded(Id id) const;
  int64_t decoding() const { return std::ssize(ends_); }
  int64_t queued() const { return std::ssize(queue_); }
  double now() const { return now_; }

  struct Totals {
    double tokens = 0;        // decoded
    double prefilled = 0;     // tokens
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
    double cached = 0;   // tokens in KV, unless it decodes: then all are
    int64_t order = 0;   // of its admission
  };

  double room() const;
  bool admit();
  void settle();
  void evict_idle(double needed);
  void preempt_youngest();
  void move(double steps);
  double steps_in(double seconds) const;
  double seconds_of_steps(double steps) const;
  double steps_to_event() const;

  Hardware hardware_;
  std::unordered_map<Id, Sequence> sequences_;
  std::set<std::pair<double, Id>> ends_;  // of those that decode, in steps
  std::map<int64_t, Id> by_order_;        // the same, only where KV has a limit
  std::set<Id> idle_;                     // with something in KV, only where KV has a limit
  std::deque<Id> queue_;
  double now_ = 0, steps_ = 0, debt_ = 0;
  double decode_tokens_ = 0;  // of KV, of all that decode
  double idle_tokens_ = 0;    // of KV, of those that do not
  int64_t orders_ = 0;
  Totals totals_;
};

}  // namespace tailrace::simulator
