#include "rollout/engine/batch_planner.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "core/base/random.h"
#include "kernels/base/check.h"

namespace tailrace {
namespace {

std::span<const TokenId> prompt_of(const Sequence& sequence) {
  return std::span(sequence.tokens).first(static_cast<size_t>(sequence.prompt_tokens));
}

}  // namespace

BatchPlanner::BatchPlanner(const KvCache& kv, Limits limits)
    : kv_(kv), limits_(limits), pool_(limits.num_blocks), prefixes_(kv.block_tokens()) {}

int BatchPlanner::blocks_for(int64_t tokens) const {
  return static_cast<int>((tokens + kv_.block_tokens() - 1) / kv_.block_tokens());
}

PlannerStats BatchPlanner::stats() const {
  PlannerStats stats = stats_;
  stats.peak_blocks = pool_.peak_used();
  return stats;
}

void BatchPlanner::enqueue(Sequence& sequence) {
  TR_CHECK(sequence.phase == Sequence::Phase::kIdle, "session {} is busy", sequence.session);
  // Once a session: the prompt is that of its first request, what the members of a group share.
  if (sequence.prompt_key == 0) {
    uint64_t key = mix({static_cast<uint64_t>(sequence.prompt_tokens)});
    for (TokenId token : prompt_of(sequence)) key = mix({key, static_cast<uint64_t>(token)});
    sequence.prompt_key = key;
  }
  idle_.erase(sequence.order);
  sequence.phase = Sequence::Phase::kQueued;
  sequence.order = next_order_++;
  (sequence.num_computed > 0 ? warm_ : cold_).emplace(sequence.order, &sequence);
}

void BatchPlanner::finish(Sequence& sequence) {
  TR_CHECK(sequence.phase == Sequence::Phase::kRunning, "session {}", sequence.session);
  std::erase(running_, &sequence);
  forget_flight(sequence);
  sequence.phase = Sequence::Phase::kIdle;
  // From now on its age counts from here: idle sessions lose their KV least recently used first.
  sequence.order = next_order_++;
  idle_.emplace(sequence.order, &sequence);
}

void BatchPlanner::remove(Sequence& sequence) {
  stop_leading(sequence);
  switch (sequence.phase) {
    case Sequence::Phase::kIdle:
      idle_.erase(sequence.order);
      break;
    case Sequence::Phase::kQueued:
      // Orders are unique, so at most one of the two has it.
      warm_.erase(sequence.order);
      cold_.erase(sequence.order);
      break;
    case Sequence::Phase::kRunning:
      std::erase(running_, &sequence);
      break;
  }
  sequence.blocks.clear();
}

bool BatchPlanner::plan(bool may_admit, bool may_preempt) {
  may_preempt_ = may_preempt;
  copies_.clear();
  budget_ = limits_.max_batch_tokens;
  for (Sequence* sequence : running_) sequence->planned = 0;
  // Decoding first: it needs one token a sequence and ends episodes, which is what gives blocks
  // back. Prefill takes what is left of the pass.
  if (!plan_running(/*decode=*/true) || !plan_running(/*decode=*/false)) return false;
  if (may_admit) admit();
  return true;
}

bool BatchPlanner::plan_running(bool decode) {
  // hold_blocks() may preempt, but only from the end of running_ and at most down to `sequence`.
  for (size_t i = 0; i < running_.size() && budget_ > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.uncomputed() == 0 || (sequence.uncomputed() == 1) != decode) continue;
    // A prompt longer than the budget is cut; where, changes no number (design rule 3).
    int64_t count = std::min(sequence.uncomputed(), budget_);
    if (!hold_blocks(sequence, sequence.next_position() + count)) return may_preempt_;
    sequence.planned = count;
    budget_ -= count;
  }
  return true;
}

void BatchPlanner::admit() {
  auto full = [&] {
    return budget_ == 0 || static_cast<int64_t>(running_.size()) >= limits_.max_sequences;
  };
  // Sessions that come back with their KV go first: they need few blocks or none, and ending them
  // is what frees blocks.
  for (auto at = warm_.begin(); at != warm_.end() && !full();) {
    Sequence& sequence = *(at++)->second;
    try_start_warm(sequence, /*forced=*/false);
  }
  // Strictly by age: a younger one that happens to fit would take the blocks that an older one
  // waits for, again and again. Only those whose leader computes for them are passed over; they
  // need next to nothing once it is done.
  for (auto at = cold_.begin(); at != cold_.end() && !full();) {
    Sequence& sequence = *(at++)->second;
    if (waits_for_leader(sequence)) continue;
    if (!try_start_cold(sequence, /*forced=*/false)) break;
  }
  if (!running_.empty() || num_queued() == 0) return;
  // Nothing runs that could give blocks back: the oldest request takes them from whoever waits.
  bool cold = warm_.empty() || (!cold_.empty() && cold_.begin()->first < warm_.begin()->first);
  Sequence& oldest = *(cold ? cold_ : warm_).begin()->second;
  bool started =
      cold ? try_start_cold(oldest, /*forced=*/true) : try_start_warm(oldest, /*forced=*/true);
  TR_CHECK(started, "session {} of {} tokens does not fit {} blocks", oldest.session,
           oldest.length(), pool_.num_blocks());
}

bool BatchPlanner::try_start_warm(Sequence& sequence, bool forced) {
  int need = std::max(0, blocks_for(sequence.length()) - sequence.blocks.size());
  // With blocks of 16 positions running sequences take a block each in sixteen passes: this is what
  // they take in two.
  int reserve = static_cast<int>(running_.size()) / 8;  // so that it is not preempted at once
  if (need > 0 && !make_room(need + reserve, /*from_waiting=*/forced, &sequence)) return false;
  sequence.blocks.append(*pool_.try_take(need));
  warm_.erase(sequence.order);
  start(sequence);
  return true;
}

bool BatchPlanner::try_start_cold(Sequence& sequence, bool forced) {
  // At least the last token is computed: its logits are what the request is about.
  int64_t wanted = std::min(sequence.prompt_tokens, sequence.length() - 1);
  // The match holds leases, so that make_room() cannot evict what was just found.
  PrefixCache::Match match = prefixes_.find(prompt_of(sequence), wanted);
  int need = blocks_for(sequence.length()) - match.blocks.size();
  int reserve = static_cast<int>(running_.size()) / 8;
  if (!make_room(need + reserve, /*from_waiting=*/forced, &sequence)) {
    if (!forced) return false;
    // The block that the tail would be copied from may be the one that is missing.
    match = {};
    need = blocks_for(sequence.length());
    if (!make_room(need, /*from_waiting=*/true, &sequence)) return false;
  }
  BlockPool::Lease fresh = *pool_.try_take(need);
  // The tail may be given to another sequence within this plan: copies come before what is written.
  if (match.tail_tokens > 0)
    copies_.push_back({match.tail.ids()[0], fresh.ids()[0], match.tail_tokens});
  sequence.blocks = std::move(match.blocks);
  sequence.blocks.append(std::move(fresh));
  sequence.num_computed = match.num_tokens;
  stats_.requested_tokens += sequence.length();
  stats_.prefix_hit_tokens += match.num_tokens;
  // Another prompt with the same hash may lead already: then this one computes for itself alone.
  if (match.num_tokens < wanted && leaders_.emplace(sequence.prompt_key, &sequence).second)
    sequence.leads = true;
  cold_.erase(sequence.order);
  start(sequence);
  return true;
}

bool BatchPlanner::waits_for_leader(const Sequence& sequence) const {
  auto found = leaders_.find(sequence.prompt_key);
  if (found == leaders_.end()) return false;
  const Sequence& leader = *found->second;
  TR_CHECK(leader.phase == Sequence::Phase::kRunning, "session {} leads and does not run",
           leader.session);
  // A hash may lie: for another prompt it would wait in vain.
  return std::ranges::equal(prompt_of(leader), prompt_of(sequence));
}

void BatchPlanner::start(Sequence& sequence) {
  sequence.phase = Sequence::Phase::kRunning;
  sequence.planned = std::min(sequence.uncomputed(), budget_);
  budget_ -= sequence.planned;
  // By age and not at the end: a preempted sequence comes back to its old place, and is not the
  // next victim.
  auto place = std::ranges::upper_bound(running_, sequence.order, {}, &Sequence::order);
  running_.insert(place, &sequence);
}

void BatchPlanner::started(Sequence& sequence, int32_t row) {
  sequence.in_flight += sequence.planned;
  sequence.drawn_row = row;
}

void BatchPlanner::forget_flight(Sequence& sequence) {
  sequence.in_flight = 0;
  sequence.drawn_row = -1;
}

void BatchPlanner::computed(Sequence& sequence, int64_t count) {
  sequence.num_computed += count;
  sequence.in_flight -= count;
  TR_CHECK(sequence.in_flight >= 0, "session {}", sequence.session);
  // Else a later pass says where its next token is drawn.
  if (sequence.in_flight == 0) sequence.drawn_row = -1;
  // Only the leader inserts: who waited for it finds its blocks there.
  if (sequence.leads && sequence.num_computed >= sequence.prompt_tokens) {
    prefixes_.insert(prompt_of(sequence), sequence.blocks);
    stop_leading(sequence);
  }
}

bool BatchPlanner::hold_blocks(Sequence& sequence, int64_t positions) {
  int need = blocks_for(positions) - sequence.blocks.size();
  if (need <= 0) return true;
  while (!make_room(need, /*from_waiting=*/true, &sequence)) {
    if (!may_preempt_) return false;
    // The youngest gives way: the oldest always gets on, so no two can preempt each other in turn.
    Sequence& youngest = *running_.back();
    preempt(youngest);
    if (&youngest == &sequence) return false;
  }
  sequence.blocks.append(*pool_.try_take(need));
  return true;
}

bool BatchPlanner::make_room(int num_blocks, bool from_waiting, const Sequence* keep) {
  while (pool_.num_free() < num_blocks) {
    // In a loop, because a session whose blocks others share gives back fewer than it held.
    if (prefixes_.evict(num_blocks - pool_.num_free(), pool_) > 0) continue;
    if (from_waiting && drop_waiting(keep)) continue;
    return false;
  }
  return true;
}

bool BatchPlanner::drop_waiting(const Sequence* keep) {
  if (!idle_.empty()) {
    drop_kv(*idle_.begin()->second);
    idle_.erase(idle_.begin());
    return true;
  }
  // From the youngest: the others are admitted before it.
  for (auto at = warm_.rbegin(); at != warm_.rend(); ++at) {
    Sequence& sequence = *at->second;
    if (&sequence == keep) continue;
    drop_kv(sequence);
    warm_.erase(sequence.order);
    cold_.emplace(sequence.order, &sequence);
    return true;
  }
  return false;
}

void BatchPlanner::drop_kv(Sequence& sequence) {
  TR_CHECK(sequence.in_flight == 0, "session {} is in flight", sequence.session);
  stats_.lost_tokens += sequence.num_computed;
  sequence.blocks.clear();
  sequence.num_computed = 0;
}

void BatchPlanner::preempt(Sequence& sequence) {
  ++stats_.preemptions;
  // It may have been given tokens of this very pass.
  budget_ += sequence.planned;
  sequence.planned = 0;
  // Else its group would wait for a leader that waits itself.
  stop_leading(sequence);
  drop_kv(sequence);
  std::erase(running_, &sequence);
  sequence.phase = Sequence::Phase::kQueued;
  cold_.emplace(sequence.order, &sequence);
}

void BatchPlanner::stop_leading(Sequence& sequence) {
  if (sequence.leads) leaders_.erase(sequence.prompt_key);
  sequence.leads = false;
}

void BatchPlanner::forget_kv(int64_t version) {
  for (auto& [order, sequence] : idle_) drop_kv(*sequence);
  for (auto& [order, sequence] : warm_) {
    drop_kv(*sequence);
    cold_.emplace(order, sequence);
  }
  for (Sequence* sequence : running_) {
    stop_leading(*sequence);
    drop_kv(*sequence);
    sequence->planned = 0;
    sequence->phase = Sequence::Phase::kQueued;
    cold_.emplace(sequence->order, sequence);
  }
  idle_.clear();
  warm_.clear();
  running_.clear();
  prefixes_.clear(version);
}

}  // namespace tailrace
