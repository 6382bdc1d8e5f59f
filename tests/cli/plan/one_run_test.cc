// Every preset in every mode, by the doors that commands come in through: `launch` loads a config,
// its roles and `eval --run` load the config that it has kept, `plan` simulates what launch would
// start here, and `plan --hardware` loads the config by the same rules. All of them must mean one
// run.
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cli/inputs/load.h"
#include "cli/plan/local_run.h"
#include "cli/prepare/placed_run.h"
#include "cli/prepare/plan.h"
#include "cli/prepare/setup.h"
#include "cli/prepare/worker_configs.h"
#include "core/base/error.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

constexpr const char* kOneDataset =
    "run: {name: t, steps: 3}\n"
    "model: {create: {hidden_size: 16, layers: 1, heads: 2}}\n"
    "env: {name: frozen_grid}\n"
    "rollout: {prompts_per_step: 4, group_size: 4, max_context_tokens: 128, workers: 2}\n"
    "eval: {prompts: 8, interval_steps: 2}\n";

constexpr const char* kTwoDatasets =
    "run: {name: t, steps: 3}\n"
    "model: {create: {hidden_size: 16, layers: 1, heads: 2}}\n"
    "datasets:\n"
    "  - {name: grid, env: frozen_grid, ratio: 3, pool: large}\n"
    "  - {name: sums, env: calculator}\n"
    "rollout: {prompts_per_step: 4, group_size: 4, max_context_tokens: 128,\n"
    "          pools: [{name: large, workers: 2}, {name: small, max_sequences: 3}]}\n"
    "eval: {prompts: 8, interval_steps: 2}\n";

// What a run is beside its law.
std::string facts_of(const ResolvedRun& run) {
  std::string facts = fmt::format(
      "{} x {}, {}, {} + {} workers{}{}\n", run.options.step.prompts_per_step,
      run.options.step.group_size, describe(run.threads), run.rollout_workers, run.reward_workers,
      run.supervised_only ? ", supervised" : "", run.stages.empty() ? "" : ", warms up");
  for (const RunDataset& dataset : run.datasets)
    facts += fmt::format("{} {} {}: {} prompts, {} epochs, pool '{}'\n", dataset.key("env"),
                         dataset.name, dataset.env, dataset.prompts, dataset.epochs, dataset.pool);
  for (const PoolSection& pool : run.pools)
    facts += fmt::format("pool '{}': {} x {}\n", pool.name, pool.workers, pool.max_sequences);
  return facts;
}

EpisodeSource of_three_tokens() {
  return std::make_shared<simulator::ReplayedEpisodes>(
      std::vector<PlannedEpisode>{
          {.member = {}, .episode = {.prompt_tokens = 5, .turns = {{.tokens = 3}}}}},
      1);
}

class OneRun : public testing::TestWithParam<const char*> {
 protected:
  TemporaryDirectory directory_;
  const std::filesystem::path config_ = directory_.write("config.yaml", GetParam());
  const Registries registries_ = built_in_registries();

  // Nothing: the preset and the mode do not go together.
  std::optional<LoadedRun> launched(const std::vector<std::string>& overrides) const {
    try {
      return load_run_options(config_, overrides, registries_);
    } catch (const UserError&) {
      return std::nullopt;
    }
  }
  // As the processes of a launch read it.
  ResolvedRun played(const std::string& name, const ResolvedRun& run) const {
    const std::filesystem::path config =
        directory_.write(name + "/config.yaml", resolved_config(run.options));
    return load_stored_run(RunPaths{config.parent_path()}, {}, registries_).run;
  }
};

TEST_P(OneRun, IsWhatEveryCommandMeans) {
  int compared = 0;
  std::set<bool> replaces, holds;
  for (const std::string_view algo : kEnumNames<AlgoPreset>) {
    for (const std::string_view mode : kEnumNames<scheduler::ModeName>) {
      const std::string name = fmt::format("{}-{}", algo, mode);
      SCOPED_TRACE(name);
      const std::vector<std::string> overrides = {fmt::format("algo.name={}", algo),
                                                  fmt::format("scheduler.mode={}", mode)};
      const std::optional<LoadedRun> launch = launched(overrides);
      if (!launch) {
        EXPECT_THROW(load_simulated_run(config_, overrides, HardwareFile{}, registries_),
                     UserError);
        continue;
      }
      ++compared;
      const PlacedRun placed = place(launch->run, registries_.environments);
      const std::string facts = facts_of(placed.run);
      // As the scheduler of the launch has it.
      const scheduler::Config law = on_this_machine(scheduler_config(placed.run), placed);
      replaces.insert(law.replace_zero_signal);
      holds.insert(law.eval.holds_training);

      const ResolvedRun stored = played(name, placed.run);
      EXPECT_EQ(facts_of(stored), facts);
      EXPECT_EQ(on_this_machine(scheduler_config(stored), place(stored, registries_.environments)),
                law);

      const ResolvedRun local = local_run(placed.run, {});
      EXPECT_EQ(facts_of(local), facts);
      const SimulatedMode here = simulate_here(local, registries_.environments, {},
                                               of_three_tokens(), placed.run.options.run.steps);
      EXPECT_EQ(here.simulation.law, law);
      EXPECT_EQ(here.simulation.rollout_workers(), placed.run.rollout_workers);

      const ResolvedRun simulated =
          load_simulated_run(config_, overrides, HardwareFile{}, registries_).run;
      EXPECT_EQ(facts_of(simulated), facts);
      EXPECT_EQ(print_config(simulated.options), print_config(launch->run.options));
      // On the hardware of the section nobody shares the cores of this machine.
      EXPECT_EQ(make_simulation(simulated, registries_.environments).law,
                scheduler_config(placed.run));

      const Plan plan = make_plan(placed, /*available_bytes=*/0);
      EXPECT_EQ(plan.steps, law.steps);
      EXPECT_EQ(plan.rollout_workers, placed.run.rollout_workers);
      EXPECT_EQ(describe(plan.threads), describe(placed.run.threads));
    }
  }
  EXPECT_GE(compared, 40);
  EXPECT_EQ(replaces.size(), 2u) << "no preset differed";
  EXPECT_EQ(holds.size(), 2u) << "no mode differed";
}

INSTANTIATE_TEST_SUITE_P(Configs, OneRun, testing::Values(kOneDataset, kTwoDatasets),
                         [](const auto& test) { return test.index == 0 ? "Env" : "Datasets"; });

}  // namespace
}  // namespace tailrace
