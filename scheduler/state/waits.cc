#include "scheduler/state/waits.h"

#include <map>

#include <fmt/format.h>

namespace tailrace::scheduler {
namespace {

std::string leases_out(const State& state, LeaseKind kind, std::string_view verb) {
  std::map<WorkerId, int64_t> at;
  int64_t count = 0;
  for (const auto& [work, lease] : state.leases) {
    if (lease.kind == kind) ++at[lease.worker], ++count;
  }
  if (count == 0) return "";
  std::string text = fmt::format("; {} samples {} at", count, verb);
  for (const auto& [worker, leases] : at) text += fmt::format(" {} ({})", worker, leases);
  return text;
}

std::string policy_waits(const State& state, const Policy& policy) {
  std::string text = fmt::format("version {}", policy.published);
  // Nothing else of this policy can have begun.
  if (policy.published < 0) return "the trainer has not published version 0 yet";
  if (policy.published < policy.frontier)
    text += fmt::format(" (trained again up to {})", policy.frontier);
  int64_t ready = 0;
  for (const Domain& domain : policy.domains) ready += std::ssize(domain.ready);
  text += fmt::format("; {} of {} groups ready", ready, state.config.prompts_per_step());
  if (policy.handed) text += fmt::format("; the trainer works on step {}", policy.published + 1);
  if (policy.wanted && !policy.handed)
    text += fmt::format("; the trainer waits for step {}", *policy.wanted);
  if (!policy.trainer.empty() && trainer_of(state, policy) == nullptr)
    text += fmt::format("; {} is away", policy.trainer);
  if (evaluating(policy))
    text += fmt::format("; {} held-out samples missing", policy.evaluation->open_members);
  return text;
}

}  // namespace

// All that is open, instead of a guess at the culprit: the line is read when a run stands still and
// nobody knows why.
std::string describe_waits(const State& state) {
  std::string text;
  for (const auto& [id, policy] : state.policies)
    text += (text.empty() ? "" : "; ") + policy_waits(state, policy);
  text += leases_out(state, LeaseKind::kGenerate, "run");
  text += leases_out(state, LeaseKind::kVerify, "are verified");
  if (!state.waiting.empty())
    text += fmt::format("; {} samples wait for a rollout worker", state.waiting.size());
  if (!state.to_verify.empty())
    text += fmt::format("; {} samples wait for a reward worker", state.to_verify.size());
  for (const auto& [id, worker] : state.workers) {
    if (worker.phase == WorkerPhase::kInstalling)
      text += fmt::format("; {} installs version {}", id, worker.target);
    if (!worker.connected) text += fmt::format("; {} has not come back yet", id);
    if (in_quarantine(state, id))
      text += fmt::format("; {} is in quarantine: {}", id, state.health.at(id).reason);
  }
  if (state.end) {
    text += "; the last version is being saved";
  } else if (state.stopping) {
    text += "; a stop was asked for";
  }
  return text;
}

}  // namespace tailrace::scheduler
