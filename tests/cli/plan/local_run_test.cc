// The run on this machine, simulated on costs that are known here.
#include "cli/plan/local_run.h"

#include <gtest/gtest.h>

#include "cli/inputs/registries.h"

namespace tailrace {
namespace {

RunOptions two_groups_of_two() {
  RunOptions options;
  options.step = {.prompts_per_step = 2, .group_size = 2};
  options.rollout.engine.max_context_tokens = 64;
  options.rollout_processes.workers = 1;
  options.model.create.hidden_size = 32;
  options.model.create.layers = options.model.create.heads = 1;
  options.env.name = "frozen_grid";
  options.algo.filter_zero_signal = ZeroSignalFilter::kNone;
  options.eval = {};
  options.run.steps = 100;
  return options;
}

MachineCosts costs_in_seconds() {
  MachineCosts costs;
  costs.worker.decode = {.step = 1};
  costs.train = {.step = 1, .token = 0.5, .update = 2, .publish = 3};
  costs.transfer.fetch = 4;
  return costs;
}

EpisodeSource of_five_tokens() {
  return std::make_shared<simulator::ReplayedEpisodes>(
      std::vector<PlannedEpisode>{
          {.member = {}, .episode = {.prompt_tokens = 10, .turns = {{.tokens = 5}}}}},
      1);
}

SimulatedRun run_of(const RunOptions& options, int64_t steps = 4) {
  return simulate_here(local_run(resolve(options), {}), built_in_registries().environments,
                       costs_in_seconds(), of_five_tokens(), steps)
      .run;
}

TEST(LocalRun, AStepOfSynchronousModeIsTheSumOfItsParts) {
  const SimulatedRun run = run_of(two_groups_of_two());
  ASSERT_EQ(run.steps.size(), 4u);
  EXPECT_NEAR(run.summary().step_median, 4 + 5 + (1 + 4 * 15 * 0.5 + 2 + 3), 1e-6);
}

TEST(LocalRun, AModeThatSamplesAheadHidesTheShorterHalf) {
  RunOptions options = two_groups_of_two();
  options.scheduler.mode = scheduler::ModeOptions::preset(scheduler::ModeName::kAsync);
  const SimulatedRun run = run_of(options, 8);
  ASSERT_EQ(run.steps.size(), 8u);
  EXPECT_NEAR(run.steps[4].ended - run.steps[4].begun, 1 + 4 * 15 * 0.5 + 2 + 3, 0.5);
  EXPECT_GT(run.steps[4].staleness_mean, 0.5);
}

// The section of the config is about other machines.
TEST(LocalRun, HasTheWorkersThatALaunchStartsHere) {
  RunOptions options = two_groups_of_two();
  options.simulate.workers = 50;
  options.rollout_processes.pools = {{.name = "here", .workers = 2},
                                     {.name = "there", .workers = 9, .cluster = "far"}};
  const ResolvedRun local = local_run(resolve(options), {});
  const Simulation simulation = make_simulation(local, built_in_registries().environments);
  ASSERT_EQ(simulation.cluster.pools.size(), 1u);
  EXPECT_EQ(simulation.rollout_workers(), 2);
}

TEST(LocalRun, StepsAreOfWholeGroups) {
  const std::vector<PlannedEpisode> step = episodes_of_step(two_groups_of_two(), *of_five_tokens());
  ASSERT_EQ(step.size(), 4u);
  EXPECT_EQ(task_of(step[0].member), task_of(step[1].member));
  EXPECT_NE(task_of(step[1].member), task_of(step[2].member));
  EXPECT_EQ(step[3].episode.context(), 15);
}

}  // namespace
}  // namespace tailrace
