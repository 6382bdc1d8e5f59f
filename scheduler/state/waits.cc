#include "scheduler/state/waits.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "core/base/join_texts.h"
#include "scheduler/state/queues.h"

namespace tailrace::scheduler {
namespace {

// " for 31 s"; nothing for what has just begun.
std::string since(Time begin, Time now) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - begin).count();
  return seconds > 0 ? fmt::format(" for {} s", seconds) : "";
}

using Texts = std::vector<std::string>;

void tell_leases(const State& state, Time now, LeaseKind kind, std::string_view verb,
                 Texts& texts) {
  std::map<WorkerId, int64_t> at;
  int64_t count = 0;
  Time earliest = Time::max();
  for (const auto& [work, lease] : state.leases.in_order()) {
    if (lease.kind != kind) continue;
    ++at[lease.worker], ++count;
    earliest = std::min(earliest, lease.deadline);
  }
  if (count == 0) return;
  std::string text = fmt::format("{} samples {} at", count, verb);
  const char* separator = " ";
  for (const auto& [worker, leases] : at) {
    text += fmt::format("{}{} ({})", separator, worker, leases);
    separator = ", ";
  }
  // A lease has no begin. Its deadline less the time that it was given is when it was granted, or
  // when turns of it were stored last.
  const Deadlines& deadlines = state.config.deadlines;
  const Time given = kind == LeaseKind::kGenerate ? deadlines.lease : deadlines.verify;
  if (std::string age = since(earliest - given, now); !age.empty()) text += ", the oldest" + age;
  texts.push_back(std::move(text));
}

// A trainer reads its model or its checkpoint before it says anything.
void tell_silent_trainers(const State& state, PolicyId id, const Policy& policy, Texts& texts) {
  for (const auto& [name, worker] : state.workers) {
    if (worker.role != Role::kTrainer || worker.policy != id || !worker.connected) continue;
    // Other ranks say nothing of weights or steps (law 8.7).
    if (worker.rank != 0) continue;
    const bool is_known = policy.greeted && policy.trainer == name &&
                          policy.trainer_incarnation == worker.incarnation;
    // A second trainer may have said its words, which wait for its turn (law 8.3).
    if (!is_known && !worker.greeting)
      texts.push_back(fmt::format("{} has come and has not said yet what it holds", name));
  }
}

void tell_absent_ranks(const State& state, const Policy& policy, Texts& texts) {
  for (int32_t rank = 1; rank < state.config.trainer_ranks; ++rank) {
    if (!policy.ranks.contains(rank))
      texts.push_back(fmt::format("rank {} of the trainer is away", rank));
  }
}

void tell_policy(const State& state, PolicyId id, const Policy& policy, Time now, Texts& texts) {
  const auto tell = [&](std::string text) { texts.push_back(std::move(text)); };
  // Nothing else of this policy can have begun.
  if (policy.published < 0) {
    tell(std::string(kNoVersionYet));
    tell_silent_trainers(state, id, policy, texts);
    if (policy.stage.number > 0) tell_absent_ranks(state, policy, texts);
    return;
  }
  tell(fmt::format("version {}{}", policy.published,
                   policy.published < policy.frontier
                       ? fmt::format(" (trained again up to {})", policy.frontier)
                       : ""));
  int64_t ready = 0;
  for (const Dataset& dataset : policy.datasets) ready += std::ssize(dataset.ready);
  // Groups that were handed over one by one have left the ready queues, and still are a part of the
  // step (law 3.8).
  if (const auto batch = policy.batches.find(policy.published + 1);
      batch != policy.batches.end() && !batch->second.whole)
    ready += std::ssize(batch->second.tasks);
  const int64_t wanted = state.config.prompts_per_step();
  tell(ready > wanted ? fmt::format("{} groups ready, {} a step", ready, wanted)
                      : fmt::format("{} of {} groups ready", ready, wanted));
  if (policy.handed) {
    const auto batch = policy.batches.find(policy.published + 1);
    tell(fmt::format("the trainer works on step {}{}", policy.published + 1,
                     batch == policy.batches.end() ? "" : since(batch->second.handed, now)));
  }
  if (ready >= state.config.prompts_per_step() && !policy.handed && !policy.wanted)
    tell(fmt::format("the trainer has not asked for step {} yet", policy.published + 1));
  if (policy.told > 0 && !policy.handed)
    tell(fmt::format("the trainer was given {} of them for step {}", policy.told,
                     policy.published + 1));
  else if (policy.wanted && !policy.handed)
    tell(fmt::format("the trainer waits for step {}", *policy.wanted));
  if (!policy.trainer.empty() && trainer_of(state, policy) == nullptr)
    tell(fmt::format("{} is away", policy.trainer));
  tell_silent_trainers(state, id, policy, texts);
  tell_absent_ranks(state, policy, texts);
  if (!policy.evaluation) return;
  tell(fmt::format("{} held-out samples of version {} missing{}", num_open(policy),
                   policy.evaluation->version,
                   waits_for_report(state.config, policy)
                       ? fmt::format(", and step {} waits for their report", policy.frontier + 1)
                       : ""));
}

// Tells the members that wait for a pool in which nobody is.
void tell_empty_pools(const State& state, Texts& texts) {
  std::map<std::string, int64_t> waiting;
  for (const auto& [need, members] : state.waiting)
    if (!need.pool.empty()) waiting[need.pool] += std::ssize(members);
  for (const auto& [pool, members] : waiting) {
    const bool somebody = std::ranges::any_of(state.workers, [&](const auto& entry) {
      const Worker& worker = entry.second;
      return worker.role == Role::kRollout && worker.connected && worker.site.pool == pool;
    });
    if (!somebody)
      texts.push_back(fmt::format("{} of them for pool {}, in which nobody is", members, pool));
  }
}

}  // namespace

// All that is open, instead of a guess at the culprit: the line is read when a run stands still and
// nobody knows why.
std::vector<std::string> waits_of(const State& state, Time now) {
  Texts texts;
  const auto tell = [&](std::string text) { texts.push_back(std::move(text)); };
  for (const auto& [id, policy] : state.policies) tell_policy(state, id, policy, now, texts);
  tell_leases(state, now, LeaseKind::kGenerate, "run", texts);
  tell_leases(state, now, LeaseKind::kVerify, "are verified", texts);
  if (!state.waiting.empty()) {
    tell(fmt::format("{} samples wait for a rollout worker", num_waiting(state)));
    tell_empty_pools(state, texts);
  }
  if (!state.to_verify.empty())
    tell(fmt::format("{} samples wait for a reward worker", state.to_verify.size()));
  for (const auto& [id, worker] : state.workers) {
    if (is_asked(worker))
      tell(fmt::format("{} {} version {}{}", id,
                       worker.install->phase == Install::Phase::kStaging ? "stages" : "switches to",
                       worker.install->version,
                       since(worker.install->deadline - state.config.deadlines.install, now)));
    if (worker.install && worker.install->bytes > 0 && is_asked(worker))
      tell(fmt::format("{} has {} bytes of version {}", id, worker.install->bytes,
                       worker.install->version));
    if (worker.rest)
      tell(fmt::format("version {} cannot come to {} ({}, {} times): {}", worker.rest->version, id,
                       worker.rest->cause == InstallCause::kBase ? "wrong base" : "dead source",
                       worker.rest->times, worker.rest->reason));
    if (!worker.connected)
      tell(fmt::format("{} has been away{}", id,
                       since(worker.reconnect_deadline - state.config.deadlines.reconnect, now)));
    if (worker.stalled) tell(fmt::format("{} makes no progress", id));
    if (in_quarantine(state, id))
      tell(fmt::format("{} is in quarantine: {}", id, state.health.at(id).reason));
  }
  if (state.end) {
    tell("the last version is being saved");
  } else if (state.stopping) {
    tell("a stop was asked for");
  }
  return texts;
}

std::string describe_waits(const State& state, Time now) {
  return join_texts(waits_of(state, now), "; ");
}

}  // namespace tailrace::scheduler
