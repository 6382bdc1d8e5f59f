#include "cli/plan/local_run.h"

#include <utility>

#include "cli/prepare/placed_run.h"
#include "cli/prepare/setup.h"
#include "cli/simulate/simulation_size.h"
#include "core/base/machine.h"
#include "core/run/log.h"

namespace tailrace {

ResolvedRun local_run(const ResolvedRun& run, const std::filesystem::path& like) {
  RunOptions local = run.options;
  local.simulate = {};
  // Messages take what the pilot finds (MachineCosts::train.step).
  local.simulate.message_ms = 0;
  // More than any run takes, so that its steps end it.
  local.simulate.days = 1e4;
  local.simulate.hardware = {{.name = "this machine"}};
  local.simulate.trainer.workers = run.options.train.ranks;
  local.simulate.episodes.from = like.string();
  if (!local.rollout_processes.pools.empty()) local.rollout_processes.pools = run.launched_pools;
  return changed(run, std::move(local));
}

SimulatedMode simulate_here(const ResolvedRun& run,
                            const sandbox::EnvironmentRegistry& environments,
                            const MachineCosts& costs, const EpisodeSource& episodes,
                            int64_t steps) {
  ResolvedRun simulated = run;
  simulated.options.simulate.steps = steps;
  simulated.options.simulate.episodes.from.clear();  // `episodes` has them
  SimulatedMode mode{.options = simulated.options,
                     .simulation = make_simulation(simulated, environments)};
  // The processes share the cores of this machine, which the section knows nothing of.
  mode.simulation.law = on_this_machine(std::move(mode.simulation.law), place(run, environments));
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
