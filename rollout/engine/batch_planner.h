// Decides which sequences the next forward pass computes, and where their KV lives.
//
// A sequence is computed from its first position without KV to its last token, in pieces that fit
// the batch; when the last token is among them, its logits are wanted. Decoding is the case of one
// token. Order of service: running sequences before queued ones, decoding before prefill, older
// before younger. When blocks run out, KV is given up in this order: prompts that nobody uses, idle
// sessions (least recently used first), the youngest running sequence. What is given up is computed
// again later; by design rule 3 the numbers are the same.
//
// A pass may be planned while the one before is in flight: of it is known how far it computes each
// sequence and which ones it draws a token for, not what is drawn. Blocks may change hands
// meanwhile, because the later pass writes later.
//
// Thread: the decode engine's thread only.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "core/generate.h"
#include "core/model/kv_cache.h"
#include "rollout/engine/block_pool.h"
#include "rollout/engine/prefix_cache.h"

namespace tailrace {

class StopMatcher;

// A session and its request. It belongs to the engine; `phase` and what follows to the planner.
struct Sequence {
  SessionId session = 0;
  std::vector<TokenId> tokens;  // the whole context so far
  int64_t prompt_tokens = 0;    // of the first request: what members of a group share

  // The request: valid while the phase is not kIdle.
  SamplingParams sampling;
  SampleKey key;
  bool wants_kept = false;
  int64_t max_length = 0;  // where it ends at the latest
  std::vector<GeneratedToken> sampled;
  const StopMatcher* stops = nullptr;
  // Experts of the positions below num_chosen that no answer has told yet.
  std::vector<uint16_t> choices;
  int64_t num_chosen = 0;

  enum class Phase : uint8_t { kIdle, kQueued, kRunning };
  Phase phase = Phase::kIdle;
  BlockPool::Lease blocks;
  int64_t num_computed = 0;  // positions 0.. whose KV is in `blocks`
  int64_t in_flight = 0;     // positions behind them that passes in flight compute
  int32_t drawn_row = -1;    // of the pass in flight, which draws its next token; -1: none
  int64_t planned = 0;       // tokens in the coming pass
  uint64_t order = 0;        // age of the request; of an idle session: when it became idle
  uint64_t prompt_key = 0;   // hash of the prompt
  bool leads = false;        // others wait for the KV of its prompt

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  // With the token that is being drawn.
  int64_t next_length() const { return length() + (drawn_row >= 0 ? 1 : 0); }
  int64_t next_position() const { return num_computed + in_flight; }
  // Tokens that a pass may compute. None where the token that is being drawn is the last one.
  int64_t uncomputed() const {
    return next_length() < max_length ? next_length() - next_position() : 0;
  }
};

struct PlannerStats {
  int64_t requested_tokens = 0;   // contexts of sequences that began without KV
  int64_t prefix_hit_tokens = 0;  // of those: found in the prefix cache
  int64_t lost_tokens = 0;        // positions whose KV was given up while the session lived
  int64_t preemptions = 0;
  int64_t peak_blocks = 0;
};

class BatchPlanner {
 public:
  struct Limits {
    int64_t max_batch_tokens = 0;
    int64_t max_sequences = 0;
    int num_blocks = 0;  // the first ones of the cache
  };
  BatchPlanner(const KvCache& kv, Limits limits);  // borrows the cache
  BatchPlanner(const BatchPlanner&) = delete;

  // Sequences must not move while they are known here. All must be removed before the planner dies.
  void enqueue(Sequence& sequence);  // an idle one whose request is filled in
  void finish(Sequence& sequence);   // a running one becomes idle and keeps its KV
  void remove(Sequence& sequence);   // whatever it is doing; its blocks are given back

  // Sets `planned` of all running sequences (0: not in this pass) after admitting queued ones.
  // False: it must preempt and may not; nothing is planned then. While a pass is in flight it may
  // not: who is preempted has nothing there.
  [[nodiscard]] bool plan(bool may_admit, bool may_preempt);
  // A copy to make before the pass that was planned, in this order: it is the tail of a prefix that
  // another sequence writes on in.
  struct BlockCopy {
    int from = 0, to = 0, tokens = 0;
  };
  const std::vector<BlockCopy>& copies() const { return copies_; }
  const std::vector<Sequence*>& running() const { return running_; }  // older first
  // The pass is on its way: the planned tokens of a sequence are in flight, and its next one if it
  // is drawn in `row` (-1: it is not).
  void started(Sequence& sequence, int32_t row);
  // Such a pass is over: `count` tokens of a sequence have KV now.
  void computed(Sequence& sequence, int64_t count);
  // Tokens of it that are in flight do not count any more.
  void forget_flight(Sequence& sequence);

  // New weights: all KV is void, and every sequence will be computed again.
  void forget_kv(int64_t version);

  int64_t num_queued() const { return static_cast<int64_t>(warm_.size() + cold_.size()); }
  int num_free_blocks() const { return pool_.num_free(); }
  int num_cached_blocks() const { return prefixes_.num_blocks(); }
  PlannerStats stats() const;

 private:
  using ByOrder = std::map<uint64_t, Sequence*>;

  int blocks_for(int64_t tokens) const;
  bool plan_running(bool decode);
  void admit();
  bool try_start_warm(Sequence& sequence, bool forced);
  bool try_start_cold(Sequence& sequence, bool forced);
  bool waits_for_leader(const Sequence& sequence) const;
  void start(Sequence& sequence);
  bool hold_blocks(Sequence& sequence, int64_t positions);
  bool make_room(int num_blocks, bool from_waiting, const Sequence* keep);
  bool drop_waiting(const Sequence* keep);
  void drop_kv(Sequence& sequence);
  void preempt(Sequence& sequence);
  void stop_leading(Sequence& sequence);

  const KvCache& kv_;
  Limits limits_;
  BlockPool pool_;
  PrefixCache prefixes_;  // after the pool: its leases die first
  std::vector<Sequence*> running_;
  std::vector<BlockCopy> copies_;
  ByOrder warm_, cold_;                              // queued, with and without KV
  ByOrder idle_;                                     // idle sessions that hold KV
  std::unordered_map<uint64_t, Sequence*> leaders_;  // by prompt_key
  int64_t budget_ = 0;                               // tokens left in the pass being planned
  bool may_preempt_ = true;
  uint64_t next_order_ = 1;
  PlannerStats stats_;
};

}  // namespace tailrace
