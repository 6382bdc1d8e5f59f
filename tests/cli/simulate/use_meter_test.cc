// The meter against the timeline of the same run.
#include "cli/simulate/use_meter.h"

#include <csignal>
#include <filesystem>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "cli/simulate/simulated_run.h"
#include "cli/view/report_page.h"
#include "core/base/error.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

using scheduler::ModeName;
using simulator::EpisodeModel;

// Slots that are all in use at some time, so that a place of the timeline is a slot.
Simulation simulation_of(ModeName mode) {
  Simulation simulation;
  simulation.law.mode = scheduler::ModeOptions::preset(mode).mode();
  simulation.law.datasets = {{.prompts_per_step = 8}};
  simulation.law.group_size = 4;
  simulation.law.steps = 6;
  simulation.law.save.interval_steps = 2;
  simulation.law.eval = {.prompts = 5, .group_size = 2, .interval_steps = 3};
  simulation.law.validate();
  simulation.cluster.pools = {{.workers = 3,
                               .slots = 2,
                               .hardware = {.decode = {.step = 0.01, .sequence = 0.001}},
                               .transfer = {.fetch = 1, .switch_over = 0.5}}};
  simulation.cluster.trainer = {.step = 1, .token = 1e-4, .update = 2, .publish = 0.5, .save = 3};
  EpisodeModel model{.prompt_tokens = 50,
                     .length = {.median = 200, .sigma_response = 0.8, .limit = 2000}};
  model.verify = {simulator::Distribution::Kind::kLogNormal, 0.5, 1};
  simulation.episodes =
      std::make_unique<simulator::DrawnEpisodes>(std::vector<EpisodeModel>{model}, 3);
  simulation.seconds = 1e6;
  return simulation;
}

class Meters : public testing::TestWithParam<ModeName> {};

TEST_P(Meters, SayWhatTheTimelineSays) {
  const TemporaryDirectory folder;
  const RunPaths paths{folder.path()};
  const Simulation simulation = simulation_of(GetParam());
  const SimulatedRun run = simulate(simulation, SimulatedFiles{paths, 1000000});
  ASSERT_EQ(run.stop, simulator::World::Stop::kEnded);
  ASSERT_EQ(run.steps.size(), 6u);
  std::vector<std::string> notes;
  const std::vector<TimelineRow> rows = read_timeline_of(paths, notes);
  ASSERT_TRUE(notes.empty()) << notes[0];
  const Time end(static_cast<int64_t>(run.seconds * 1e9));
  const RunUse use = use_of_workers(rows, Time{}, end, 1);
  for (const WorkerUse& worker : use.workers)
    if (worker.role == Role::kRollout) {
      ASSERT_EQ(worker.places, 2) << worker.worker;
    }
  const auto expect_same = [&](Role role, const UseShares& metered) {
    const UseShares read = shares_of(use, role);
    for (size_t i = 0; i < kNumUses; ++i)
      EXPECT_NEAR(metered[i], read[i], 2e-3) << name_of(role) << ": " << name_of(Use(i));
  };
  expect_same(Role::kRollout, run.rollout);
  expect_same(Role::kTrainer, run.trainer);
  EXPECT_GT(run.rollout[static_cast<size_t>(Use::kGenerate)], 0.1);
  EXPECT_GT(run.rollout[static_cast<size_t>(Use::kEvaluate)], 0.001);
  EXPECT_GT(run.trainer[static_cast<size_t>(Use::kSave)], 0.01);
}

INSTANTIATE_TEST_SUITE_P(Modes, Meters,
                         testing::Values(ModeName::kSync, ModeName::kTailBatching,
                                         ModeName::kPartial, ModeName::kAsync,
                                         ModeName::kStreaming),
                         [](const auto& one) { return std::string(name_of(one.param)); });

// Most slots are never used. The report counts a worker's places, which are those that were in use
// at some time; here each slot counts.
TEST(MetersOfAnEmptyCluster, CountTheSlotsThatNobodyUses) {
  const TemporaryDirectory folder;
  const RunPaths paths{folder.path()};
  Simulation simulation = simulation_of(ModeName::kSync);
  simulation.cluster.pools[0].slots = 100;
  const SimulatedRun run = simulate(simulation, SimulatedFiles{paths, 1000000});
  ASSERT_EQ(run.stop, simulator::World::Stop::kEnded);
  std::vector<std::string> notes;
  double seconds = 0;
  const std::vector<TimelineRow> rows = read_timeline_of(paths, notes);
  for (const TimelineRow& row : rows)
    if (row.what == TimelineWhat::kGenerate && row.lane == Lane::kTrain)
      seconds += seconds_of(row.at - row.from);
  const double share = run.rollout[static_cast<size_t>(Use::kGenerate)];
  EXPECT_GT(share, 0);
  EXPECT_NEAR(share, seconds / (3 * 100 * run.seconds), 1e-6);
  const Time end(static_cast<int64_t>(run.seconds * 1e9));
  EXPECT_GT(shares_of(use_of_workers(rows, Time{}, end, 1),
                      Role::kRollout)[static_cast<size_t>(Use::kGenerate)],
            2 * share);
}

// A timeline that cannot be begun, and one that the disk has no room for.
TEST(SimulatedFolders, AreWholeOrRefused) {
  const auto error_of = [](const RunPaths& paths) -> std::string {
    try {
      simulate(simulation_of(ModeName::kAsync), SimulatedFiles{paths, 1000000});
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  const TemporaryDirectory taken, full;
  std::filesystem::create_directories(RunPaths{taken.path()}.timeline());
  EXPECT_NE(error_of(RunPaths{taken.path()}).find("timeline.jsonl"), std::string::npos);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto signal_before = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{8192, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = error_of(RunPaths{full.path()});
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, signal_before);
  EXPECT_NE(error.find("timeline.jsonl"), std::string::npos) << error;
}

TEST(MetersOfFaults, AddUpToOne) {
  Simulation simulation = simulation_of(ModeName::kAsync);
  simulation.law.steps = 60;
  simulation.cluster.faults = {
      .rollout_mean = 400, .trainer_mean = 500, .hang_mean = 600, .env = 0.02};
  const SimulatedRun run = simulate(simulation, std::nullopt);
  EXPECT_EQ(run.stop, simulator::World::Stop::kEnded) << run.halted;
  EXPECT_GT(run.totals.deaths, 3);
  EXPECT_GT(run.rollout[static_cast<size_t>(Use::kAway)], 0.001);
  for (const UseShares& shares : {run.rollout, run.trainer, run.reward}) {
    double sum = 0;
    for (const double share : shares) {
      EXPECT_GE(share, 0);
      sum += share;
    }
    EXPECT_NEAR(sum, 1, 1e-9);
  }
}

}  // namespace
}  // namespace tailrace
