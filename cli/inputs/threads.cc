#include "cli/inputs/threads.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "cli/config/counted.h"
#include "core/base/join_texts.h"
#include "scheduler/state/mode.h"

namespace tailrace {
namespace {

// Decoding divides a few rows at a time: beyond this a small model loses more by waking threads
// than it gains, and a large one waits for memory.
constexpr int64_t kMostShared = 16;

bool trains_while_it_samples(const RunOptions& o) {
  if (o.run.colocate) return false;
  const scheduler::Mode mode = o.scheduler.mode.mode();
  return mode.off_policy() || mode.hand_over == scheduler::HandOverBy::kGroups;
}

int64_t share_of(int64_t cores, int64_t processes) {
  return std::max<int64_t>(1, cores / std::max<int64_t>(1, processes));
}

}  // namespace

int64_t ThreadPlan::busy() const {
  const int64_t training = trainer * ranks, sampling = worker * workers;
  return in_turn ? std::max(training, sampling) : training + sampling;
}

ThreadPlan plan_threads(const RunOptions& o, int64_t rollout_workers, int64_t cores) {
  ThreadPlan plan{.cores = cores, .ranks = o.train.ranks, .workers = rollout_workers};
  plan.in_turn = plan.workers == 0 || !trains_while_it_samples(o);
  const auto for_workers = [&](int64_t left) {
    return std::min(kMostShared, share_of(left, plan.workers));
  };
  // Roles that take turns may each have all cores; those that work at the same time divide them.
  if (plan.in_turn) {
    plan.trainer = share_of(cores, plan.ranks);
    plan.worker = for_workers(cores);
  } else {
    // The trainer's half is what the workers must leave; what they do not need is the trainer's.
    const int64_t training = o.train.threads > 0 ? o.train.threads * plan.ranks
                                                 : share_of(cores / 2, plan.ranks) * plan.ranks;
    plan.worker = o.rollout.threads > 0 ? o.rollout.threads : for_workers(cores - training);
    plan.trainer = share_of(cores - plan.worker * plan.workers, plan.ranks);
  }
  if (o.train.threads > 0) plan.trainer = o.train.threads;
  if (o.rollout.threads > 0) plan.worker = o.rollout.threads;
  return plan;
}

bool evaluates_in_turn(const ThreadPlan& plan, Device trainer, Device rollout) {
  const bool is_enough = plan.trainer * plan.ranks + plan.worker * plan.workers <= plan.cores;
  return plan.in_turn && !is_enough && plan.workers > 0 && trainer.kind == DeviceKind::kCpu &&
         rollout.kind == DeviceKind::kCpu;
}

int64_t joined_threads(const RunOptions& o) { return std::max<int64_t>(1, o.rollout.threads); }

std::string describe(const ThreadPlan& plan) {
  const std::string trainer = plan.ranks == 1
                                  ? fmt::format("trainer {}", plan.trainer)
                                  : fmt::format("{} trainers x {}", plan.ranks, plan.trainer);
  const std::string of = fmt::format("{} of {}", plan.busy(), counted(plan.cores, "core"));
  if (plan.workers == 0)
    return fmt::format("{}{}", trainer,
                       plan.ranks == 1 ? " of " + counted(plan.cores, "core") : " = " + of);
  const std::string workers =
      fmt::format("{} x {}", counted(plan.workers, "rollout worker"), plan.worker);
  if (!plan.in_turn) return fmt::format("{} + {} = {}", trainer, workers, of);
  return fmt::format("{} or {}, in turn: at most {}", trainer, workers, of);
}

std::string thread_shortage(const ThreadPlan& plan, const RunOptions& o) {
  if (plan.busy() <= plan.cores) return "";
  RunOptions shared = o;
  shared.train.threads = shared.rollout.threads = 0;
  const ThreadPlan by_default = plan_threads(shared, plan.workers, plan.cores);
  std::vector<std::string> advice;
  if (plan.trainer > by_default.trainer) advice.push_back("train.threads=0");
  if (plan.worker > by_default.worker) advice.push_back("rollout.threads=0");
  // Each process has a thread at least.
  if (by_default.busy() > plan.cores) {
    if (plan.workers > 1)
      advice.push_back(o.rollout_processes.pools.empty() ? "fewer rollout.workers"
                                                         : "fewer workers in rollout.pools");
    if (plan.ranks > 1) advice.push_back("fewer train.ranks");
  }
  return fmt::format("{} threads compute at once on {} and get in each other's way{}", plan.busy(),
                     counted(plan.cores, "core"),
                     advice.empty() ? "" : fmt::format(". Try {}", join_texts(advice, ", ")));
}

}  // namespace tailrace
