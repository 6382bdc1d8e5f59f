#include "cli/plan/local_run.h"

#include <utility>

#include "cli/run/pools.h"
#include "cli/simulate/simulation_size.h"
#include "core/base/log.h"
#include "core/base/machine.h"

namespace tailrace {

RunOptions local_options(const RunOptions& options, const std::filesystem::path& like) {
  RunOptions local = options;
  local.simulate = {};
  // Messages take what the pilot finds (MachineCosts::train.step).
  local.simulate.message_ms = 0;
  // More than any run takes, so that its steps end it.
  local.simulate.days = 1e4;
  local.simulate.hardware = {{.name = "this machine"}};
  local.simulate.trainer.workers = options.train.ranks;
  local.simulate.episodes.from = like.string();
  if (!local.rollout_processes.pools.empty())
    local.rollout_processes.pools = launched_pools(options);
  return local;
}

SimulatedMode simulate_here(const RunOptions& options,
                            const sandbox::EnvironmentRegistry& environments,
                            const MachineCosts& costs, const EpisodeSource& episodes,
                            int64_t steps) {
  SimulatedMode mode{.options = options};
  mode.options.simulate.steps = steps;
  mode.options.simulate.episodes.from.clear();  // `episodes` has them
  mode.simulation = make_simulation(mode.options, environments);
  mode.simulation.episodes = episodes;
  for (simulator::PoolModel& pool : mode.simulation.cluster.pools) {
    pool.hardware = costs.worker;
    pool.transfer = costs.transfer;
  }
  const bool drops = mode.simulation.cluster.trainer.drops_equal_groups;
  mode.simulation.cluster.trainer = costs.train;
  mode.simulation.cluster.trainer.drops_equal_groups = drops;
  require_size(size_of(mode.simulation), memory_facts());
  mode.run = simulate(mode.simulation, std::nullopt);
  return mode;
}

std::vector<PlannedEpisode> episodes_of_step(const RunOptions& options,
                                             const simulator::EpisodeSource& episodes) {
  std::vector<PlannedEpisode> step;
  for (int64_t prompt = 0; prompt < options.step.prompts_per_step; ++prompt)
    for (int64_t m = 0; m < options.step.group_size; ++m) {
      const MemberId member{.prompt = prompt, .member = static_cast<int32_t>(m)};
      step.push_back({.member = member, .episode = episodes.draw(Lane::kTrain, member, 1)});
    }
  return step;
}

}  // namespace tailrace
