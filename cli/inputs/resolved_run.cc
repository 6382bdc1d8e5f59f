#include "cli/inputs/resolved_run.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "cli/config/pools.h"

namespace tailrace {

ResolvedRun resolve(RunOptions options, int64_t cores) {
  ResolvedRun run{.options = std::move(options)};
  const RunOptions& o = run.options;
  run.supervised_only = supervised_only(o);
  run.stages = stages_of(o);
  run.datasets = datasets_of(o);
  run.pools = pools_of(o);
  if (!run.supervised_only) {
    // Workers of a cluster are started there, by people, and join.
    std::ranges::copy_if(run.pools, std::back_inserter(run.launched_pools),
                         [](const PoolSection& pool) { return pool.cluster.empty(); });
    run.reward_workers = o.reward.workers;
  }
  for (const PoolSection& pool : run.launched_pools) run.rollout_workers += pool.workers;
  run.rewards = rewards_of(o.reward);
  run.mode = o.scheduler.mode.mode();
  run.threads = plan_threads(o, run.rollout_workers, cores);
  return run;
}

ResolvedRun changed(const ResolvedRun& run, RunOptions options) {
  ResolvedRun other = resolve(std::move(options), run.threads.cores);
  for (size_t i = 0; i < std::min(run.datasets.size(), other.datasets.size()); ++i) {
    other.datasets[i].fitted = run.datasets[i].fitted;
    other.datasets[i].fitted_eval = run.datasets[i].fitted_eval;
  }
  return other;
}

}  // namespace tailrace
