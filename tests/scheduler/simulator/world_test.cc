#include "scheduler/simulator/world.h"

#include <gtest/gtest.h>

#include "scheduler/state/archive.h"
#include "scheduler/state/describe.h"
#include "scheduler/state/invariants.h"

namespace tailrace::simulator {
namespace {

scheduler::Config law_of(scheduler::ModeName mode, int64_t prompts, int64_t group, int64_t steps) {
  scheduler::Config law;
  law.mode = scheduler::ModeOptions::preset(mode).mode();
  law.datasets = {{.prompts_per_step = prompts}};
  law.group_size = group;
  law.steps = steps;
  law.deadlines.lease = std::chrono::hours(24);
  law.validate();
  return law;
}

EpisodeModel long_tailed() {
  return {.prompt_tokens = 100,
          .length = {.median = 500, .sigma_prompt = 0.5, .sigma_response = 1, .limit = 16384}};
}

Cluster cluster_of(int64_t workers, int64_t slots) {
  Cluster cluster;
  cluster.pools = {{.workers = workers,
                    .slots = slots,
                    .hardware = {.decode = {.step = 0.01, .sequence = 1e-4, .context = 1e-8},
                                 .prefill_tokens_per_s = 20000},
                    .transfer = {.fetch = 1, .switch_over = 0.1}}};
  cluster.trainer = {.step = 1, .token = 1e-5, .update = 2, .publish = 0.5, .save = 1};
  return cluster;
}

using scheduler::ModeName;

class SimulatedModes : public testing::TestWithParam<ModeName> {};

TEST_P(SimulatedModes, ARunEndsWithAllItsSteps) {
  const DrawnEpisodes episodes({long_tailed()}, 7);
  World world(law_of(GetParam(), 16, 4, 12), cluster_of(2, 32), episodes, 1);
  world.observe = [](const scheduler::Event& event, const scheduler::Actions&,
                     const scheduler::State& state) {
    const auto violation = scheduler::find_violation(state);
    ASSERT_EQ(violation, std::nullopt) << *violation << " after " << describe(event);
  };
  EXPECT_EQ(world.run(1e9), World::Stop::kEnded);
  ASSERT_EQ(world.steps().size(), 12U);
  for (const StepRecord& step : world.steps()) {
    EXPECT_EQ(step.samples, 64);
    EXPECT_LT(step.begun, step.ended);
    const bool on_policy = GetParam() == ModeName::kSync || GetParam() == ModeName::kTailBatching;
    if (on_policy) {
      EXPECT_EQ(step.staleness_max, 0);
    }
  }
  const World::Totals totals = world.totals();
  EXPECT_GE(totals.tokens, totals.trained_tokens);
  // Nothing is cut off where a step takes all that runs.
  const double part = GetParam() == ModeName::kSync ? 1e-3 : 0.5;
  EXPECT_NEAR(totals.generated, static_cast<double>(totals.tokens), part * totals.generated);
}

TEST_P(SimulatedModes, TheSameSeedGivesTheSameRunToTheLastEvent) {
  const DrawnEpisodes episodes({long_tailed()}, 7);
  const auto transcript = [&](uint64_t seed) {
    Cluster cluster = cluster_of(2, 32);
    cluster.wire.spread = 0.01;
    World world(law_of(GetParam(), 16, 4, 4), cluster, episodes, seed);
    std::string text;
    world.observe = [&](const scheduler::Event& event, const scheduler::Actions&,
                        const scheduler::State& state) {
      text += std::to_string(state.now.count()) + " " + describe(event) + "\n";
    };
    EXPECT_EQ(world.run(1e9), World::Stop::kEnded);
    return text + to_bytes(world.state());
  };
  const std::string first = transcript(1);
  EXPECT_TRUE(first == transcript(1));
  EXPECT_FALSE(first == transcript(2));
}

INSTANTIATE_TEST_SUITE_P(Modes, SimulatedModes,
                         testing::Values(ModeName::kSync, ModeName::kTailBatching,
                                         ModeName::kPartial, ModeName::kAsync,
                                         ModeName::kStreaming),
                         [](const auto& one) { return std::string(name_of(one.param)); });

// Law 6.6. Each takes new weights a little later than the one before, and there is little to share:
// parts that are rounded up to groups would leave nothing to the last ones.
TEST(SimulatedWorld, WhoInstallsLastGetsItsPartToo) {
  const DrawnEpisodes episodes({long_tailed()}, 7);
  Cluster cluster = cluster_of(10, 64);
  cluster.pools[0].transfer.payload_bytes = 1;
  cluster.pools[0].transfer.shared_bytes_per_s = 5;
  scheduler::Config law = law_of(ModeName::kAsync, 21, 8, 10);
  World world(law, cluster, episodes, 1);
  std::map<WorkerId, int64_t> granted;
  world.observe = [&](const scheduler::Event&, const scheduler::Actions& actions,
                      const scheduler::State&) {
    for (const scheduler::Action& action : actions)
      if (const auto* grant = std::get_if<scheduler::Grant>(&action)) ++granted[grant->worker];
  };
  ASSERT_EQ(world.run(1e9), World::Stop::kEnded);
  ASSERT_EQ(granted.size(), 10U);
  int64_t least = 1 << 30, all = 0;
  for (const auto& [worker, count] : granted) least = std::min(least, count), all += count;
  EXPECT_GE(least, all / 20);
}

// Two workers with a slot each, four episodes of equal length: a step takes two rounds of decoding,
// and the rest can be added up by hand.
TEST(SimulatedWorld, AStepTakesWhatItsPartsTake) {
  const DrawnEpisodes episodes({{.prompt_tokens = 100, .length = {.median = 200}}}, 1);
  Cluster cluster;
  cluster.wire.delay = 0;
  cluster.pools = {{.workers = 2,
                    .slots = 1,
                    .hardware = {.decode = {.step = 0.01}, .prefill_tokens_per_s = 1000},
                    .transfer = {.payload_bytes = 100,
                                 .fetch = 0.5,
                                 .bytes_per_s = 100,
                                 .shared_bytes_per_s = 50,
                                 .switch_over = 0.25}}};
  cluster.trainer = {.step = 1, .sample = 0.1, .token = 0.001, .update = 2, .publish = 0.5};
  World world(law_of(ModeName::kSync, 2, 2, 3), cluster, episodes, 1);
  ASSERT_EQ(world.run(1e9), World::Stop::kEnded);
  ASSERT_EQ(world.steps().size(), 3U);
  // The link that both share takes 2 s for a payload: the second worker has it after 4, and needs
  // half a second more. Then each plays two episodes: 200 steps of 10 ms and 100 prompt tokens.
  const double installed = 2 * 2 + 0.5 + 0.25, played = 2 * (2 + 0.1);
  const double trained = 1 + 4 * (0.1 + 0.001 * 300) + 2 + 0.5;
  const StepRecord& step = world.steps()[1];
  // The first worker begins two seconds before the second, which plays less.
  EXPECT_LE(step.handed - step.begun, installed + played + 1e-6);
  EXPECT_GE(step.handed - step.begun, installed + played / 2 - 1e-6);
  EXPECT_NEAR(step.ended - step.handed, trained, 1e-6);
}

// A step of a thousand years, deaths once in a million, weights that never come.
TEST(SimulatedWorld, WhatIsBeyondTheClockNeverComes) {
  const DrawnEpisodes episodes({long_tailed()}, 7);
  for (int i = 0; i < 3; ++i) {
    Cluster cluster = cluster_of(2, 32);
    if (i == 0) cluster.trainer.step = 3e10;
    if (i == 1) cluster.faults.rollout_mean = 3e13;
    if (i == 2) cluster.pools[0].transfer = {.payload_bytes = 1e9, .bytes_per_s = 1e-9};
    World world(law_of(ModeName::kAsync, 16, 4, 4), cluster, episodes, 1);
    // Of weights that never come the scheduler has enough some time, and halts.
    EXPECT_EQ(world.run(1e6) == World::Stop::kEnded, i == 1) << i;
    EXPECT_EQ(world.steps().size(), i == 1 ? 4u : 0u) << i;
    EXPECT_EQ(world.totals().deaths, 0) << i;
  }
}

// Of two deaths of a worker the second comes behind the process that took the place of the first.
TEST(SimulatedWorld, ADeadWorkerDiesOnlyWhenItIsBack) {
  const DrawnEpisodes episodes({long_tailed()}, 7);
  Cluster cluster = cluster_of(1, 32);
  cluster.faults = {.rollout_mean = 0.01, .noticed = 1, .restart = 9};
  World world(law_of(ModeName::kAsync, 16, 4, 4), cluster, episodes, 1);
  world.run(1000);  // or until the scheduler has had enough of it
  const auto deaths = static_cast<double>(world.totals().deaths);
  EXPECT_GE(deaths, 3);
  EXPECT_LE(deaths, world.now() / 10 + 1);
}

// What the worker's thread does between turns holds up everybody's decoding: two turns of four
// episodes, of which each stands still for all.
TEST(SimulatedWorld, TheEndOfATurnHoldsUpDecoding) {
  const auto rollout_seconds = [](double turn) {
    const DrawnEpisodes episodes({{.prompt_tokens = 10,
                                   .length = {.median = 20},
                                   .turns = {Distribution::Kind::kConstant, 2}}},
                                 1);
    Cluster cluster = cluster_of(1, 8);
    cluster.pools[0].hardware.turn = turn;
    World world(law_of(ModeName::kSync, 2, 2, 1), cluster, episodes, 1);
    world.run(1e9);
    return world.steps().at(0).handed - world.steps().at(0).begun;
  };
  // That of the last turns is behind the last sample.
  EXPECT_NEAR(rollout_seconds(0.5) - rollout_seconds(0), 4 * 0.5, 1e-3);
}

class Rewarded final : public EpisodeSource {
 public:
  Episode draw(Lane, const MemberId& member, int32_t) const override {
    return {.prompt_tokens = 10,
            .turns = {{.tokens = 5, .env_tokens = 3}, {.tokens = 5}},
            .reward = member.prompt == 0 ? 1.0 : member.member};
  }
};

// Four samples of 10 + 10 tokens and an observation of 3, of which a group has nothing to teach.
TEST(SimulatedWorld, ATrainerTakesObservationsAndMayLeaveOutEqualGroups) {
  const Rewarded episodes;
  for (const bool drops : {false, true}) {
    Cluster cluster = cluster_of(1, 8);
    cluster.trainer = {.token = 1, .drops_equal_groups = drops};
    World world(law_of(ModeName::kSync, 2, 2, 1), cluster, episodes, 1);
    world.run(1e9);
    const StepRecord& step = world.steps().at(0);
    EXPECT_NEAR(step.ended - step.handed, drops ? 2 * 23 : 4 * 23, 1e-6);
    EXPECT_EQ(step.prompt_tokens, 4 * 13);
  }
}

// Training takes 10 s, a checkpoint behind each step 5 s, and there are always samples to train.
TEST(SimulatedWorld, TheNextStepWaitsForTheCheckpoint) {
  for (const auto by : {scheduler::HandOverBy::kStep, scheduler::HandOverBy::kGroups}) {
    const DrawnEpisodes episodes({{.length = {.median = 10}}}, 1);
    Cluster cluster;
    cluster.wire.delay = 0;
    cluster.pools = {{.workers = 2, .slots = 64, .hardware = {.decode = {.step = 0.01}}}};
    cluster.trainer = {.step = 8, .update = 2, .save = 5};
    scheduler::Config law = law_of(ModeName::kAsync, 4, 2, 20);
    law.mode.hand_over = by;
    law.save.interval_steps = 1;
    law.validate();
    World world(law, cluster, episodes, 1);
    std::vector<int64_t> durable;
    world.observe = [&](const scheduler::Event& event, const scheduler::Actions&,
                        const scheduler::State&) {
      if (const auto* saved = std::get_if<scheduler::Durable>(&event))
        durable.push_back(saved->version);
    };
    ASSERT_EQ(world.run(1e9), World::Stop::kEnded);
    ASSERT_EQ(world.steps().size(), 20U);
    EXPECT_EQ(durable.size(), 21U);
    for (size_t i = 5; i < 20; ++i)
      EXPECT_NEAR(world.steps()[i].ended - world.steps()[i - 1].ended, 15, 0.2) << i;
    EXPECT_NEAR(world.totals().trainer_busy, 20 * 10, 1e-6);
  }
}

// Of a step that nobody ends only what was computed counts.
TEST(SimulatedWorld, WorkThatAKillVoidsDoesNotCount) {
  const DrawnEpisodes episodes({{.length = {.median = 10}}}, 1);
  Cluster cluster;
  cluster.pools = {{.slots = 64, .hardware = {.decode = {.step = 0.01}}}};
  cluster.trainer = {.step = 1000, .update = 100};
  cluster.faults.trainer_mean = 200;
  cluster.faults.until = 2000;
  World world(law_of(ModeName::kSync, 4, 2, 1), cluster, episodes, 1);
  ASSERT_EQ(world.run(1e9), World::Stop::kEnded);
  EXPECT_GE(world.totals().deaths, 2);
  EXPECT_GT(world.totals().trainer_busy, 1100);
  EXPECT_LT(world.totals().trainer_busy, world.now());
}

}  // namespace
}  // namespace tailrace::simulator
