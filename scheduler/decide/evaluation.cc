#include "scheduler/decide/evaluation.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "scheduler/decide/attempts.h"
#include "scheduler/state/queues.h"
#include "scheduler/state/touch.h"

namespace tailrace::scheduler {
namespace {

// Leases that are still out, and bodies.
void drop(Context& context, Policy& policy) {
  for (auto& [id, task] : policy.evaluation->tasks) {
    void_members(context, Lane::kEval, id, task);
    release_bodies(context, Lane::kEval, id, task);
  }
  policy.evaluation.reset();
}

// A worker of this pool, or of any where it has no name, that the member, if there is one, could be
// sampled by now or in a moment.
bool may_evaluate(const State& state, const PoolId& pool, const Member* member, const WorkerId& id,
                  const Worker& worker) {
  return worker.role == Role::kRollout && worker.policy == pool.policy &&
         (pool.name.empty() || worker.site.pool == pool.name) && worker.connected &&
         !worker.stalled && !in_quarantine(state, id) &&
         (member == nullptr || !is_avoided(state, *member, id));
}

// The first of those that wait for a worker of this pool; null: only at workers that stand still.
const Member* first_held_out(const State& state, const PoolId& pool, int64_t version) {
  const auto queue = state.waiting.find({Lane::kEval, pool.policy, version, pool.name});
  if (queue == state.waiting.end()) return nullptr;
  const MemberId& first = queue->second.begin()->work.member;
  return &find_task(state, Lane::kEval, first)->members[static_cast<size_t>(first.member)];
}

// Held-out members wait for a version that everybody who could sample them has come past: whoever
// has least to do goes back to it, and is given nothing more before. Ends at the first who can
// sample the next of them, which is mostly near.
void recall(Context& context, const PoolId& pool, Policy& policy) {
  State& state = context.state;
  const int64_t version = policy.evaluation->version;
  const Member* member = first_held_out(state, pool, version);
  const auto cost = [&](const WorkerId& id, const Worker& worker) {
    return std::tuple(worker.rest.has_value(), has_faults(state, id), worker.leased);
  };
  const Worker* least = nullptr;
  WorkerId chosen;
  for (const auto& [id, worker] : state.workers) {
    if (!may_evaluate(state, pool, member, id, worker)) continue;
    if (wanted_version(state, policy, id, worker) == version) {
      // It holds it, or comes to it: unless it cannot be fetched there (law 9.7).
      if (worker.version == version || !worker.rest) return;
    } else if (least == nullptr || cost(id, worker) < cost(chosen, *least)) {
      least = &worker, chosen = id;
    }
  }
  if (least == nullptr) return;
  policy.evaluation->recalled.insert(chosen);
  touch(state, chosen);
}

}  // namespace

void open_evaluation(Context& context, PolicyId policy_id, Policy& policy, bool last) {
  const EvalOptions& config = context.config().eval;
  const int64_t version = policy.frontier;
  // Not in a replay: workers hold the frontier's weights, which are not known to come out again
  // until the trainer has published them.
  if (config.prompts == 0 || !at_frontier(policy) || policy.evaluated >= version) return;
  if (policy.evaluation) return;  // it waits to be reported
  // The first version of the run, so that every curve has a beginning.
  const bool first = policy.evaluated < 0;
  if (!first && !context.config().evaluates(version) && !last) return;

  policy.evaluated = version;
  Evaluation evaluation{.version = version, .recalled = {}, .tasks = {}};
  for (int32_t dataset = 0; dataset < std::ssize(policy.datasets); ++dataset) {
    for (int64_t prompt = 0; prompt < config.prompts; ++prompt) {
      // The version stands in the place of the epoch: each evaluation has names of its own.
      const TaskId id{policy_id, dataset, version, prompt};
      Task& task = evaluation.tasks[id];
      task.launch = policy.eval_launch;
      task.weight_floor = version;
      Member fresh;
      if (is_broken(context.state, Lane::kEval, id)) fresh.phase = Phase::kFailed;
      task.members.assign(static_cast<size_t>(config.group_size), fresh);
    }
  }
  evaluation.open = count_open(evaluation);
  policy.evaluation = std::move(evaluation);
  for (const auto& [id, task] : policy.evaluation->tasks) {
    if (!is_broken(context.state, Lane::kEval, id))
      add_all_waiting(context.state, Lane::kEval, id, task);
  }
  // Nobody has to be asked.
  if (!evaluating(policy)) context.act(evaluation_report(policy_id, *policy.evaluation));
}

void exclude_held_out(Context& context, Policy& policy, const BrokenWord& word) {
  BrokenTasks& broken = policy.datasets[static_cast<size_t>(word.task.dataset)].broken;
  if (broken.held_out.insert(word.task.prompt).second) {
    ++broken.found;
    context.act(TaskBroken{word.lane, word.task, word.task.prompt, word.reason});
  }
  // Also those that have a reward: the next evaluation has none of this prompt, and the two are to
  // be compared.
  Task& task = policy.evaluation->tasks.at(word.task);
  void_members(context, Lane::kEval, word.task, task);
  release_bodies(context, Lane::kEval, word.task, task);
  for (int32_t i = 0; i < std::ssize(task.members); ++i) {
    Member& member = task.members[static_cast<size_t>(i)];
    const bool was_open = !settled(member);
    member.phase = Phase::kFailed;
    member.reward.reset();
    member.judged.reset();
    context.settled.push_back({{Lane::kEval, member_id(word.task, task.launch, i)}, was_open});
  }
}

EvalDone evaluation_report(PolicyId policy_id, const Evaluation& evaluation) {
  EvalDone report{.policy = policy_id, .version = evaluation.version, .items = {}};
  for (const auto& [id, task] : evaluation.tasks) {
    for (int32_t i = 0; i < std::ssize(task.members); ++i) {
      // All members, also those that failed for good: they are counted, never scored 0 (law 10.1).
      const Member& member = task.members[static_cast<size_t>(i)];
      report.items.push_back({{member_id(id, task.launch, i), member.attempt}, member.reward});
    }
  }
  return report;
}

void recall_workers(Context& context) {
  State& state = context.state;
  for (const PoolId& pool : state.held_out) {
    Policy& policy = state.policies.at(pool.policy);
    if (at_frontier(policy)) recall(context, pool, policy);
  }
}

void settle_evaluation(Context& context, PolicyId policy_id, Policy& policy, int64_t num_settled) {
  Evaluation& evaluation = *policy.evaluation;
  evaluation.open -= num_settled;
  if (!evaluating(policy)) context.act(evaluation_report(policy_id, evaluation));
}

void on(Context& context, const EvalReported& event) {
  const auto it = context.state.policies.find(event.policy);
  if (it == context.state.policies.end()) return;
  Policy& policy = it->second;
  // A fork may have begun the evaluation of this version anew since the report, and a lost body may
  // have it reported once more.
  if (!policy.evaluation || evaluating(policy) || policy.evaluation->version != event.version)
    return;
  drop(context, policy);
}

void on_eval_body_lost(Context& context, Policy& policy, const BodyId& body) {
  const WorkId work{body.lane, body.lease.member};
  Member& member = member_of(context.state, work);
  // Its verifications failed as often as they may: it is reported without a reward, with its body
  // or without.
  if (member.phase == Phase::kFailed) {
    member.has_body = false;
    return;
  }
  if (settled(member)) ++policy.evaluation->open;
  lose_sample(context, work);
}

void evaluate_anew(Context& context, Policy& policy, int64_t from) {
  if (policy.evaluated < from) return;
  if (policy.evaluation && policy.evaluation->version >= from) drop(context, policy);
  policy.evaluated = from - 1;
  // Its leases and bodies must not be taken for those of the one before.
  ++policy.eval_launch;
}

}  // namespace tailrace::scheduler
