// What an event costs, counted and not timed (law 14.5): this test compiles scheduler/state,
// scheduler/decide and the simulator so that every basic block that runs calls the function below,
// and counts those between the observers of a simulated world. Nothing is left out but what the
// standard library has compiled already (rebalancing a tree, the next element of one) and memory,
// so a walk over all members or all workers shows, wherever it is written.
//
// Whole steps are counted: what is done once a step for each of its members is no growth.
#include <cmath>
#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "scheduler/decide/decide.h"
#include "scheduler/simulator/world.h"
#include "scheduler/state/invariants.h"
#include "tests/scheduler/decide/touches.h"

namespace {
int64_t blocks_run = 0;
}  // namespace

extern "C" __attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc() { ++blocks_run; }

namespace tailrace::scheduler {
namespace {

constexpr int64_t kGroup = 8;
constexpr double kFailing = 0.05;  // of the attempts, by their environment

// Steps of half of the members in flight, so that as many wait as run.
// `in_pools`: workers in two pools, and a dataset for each and for both.
Config config_for(const Mode& mode, int64_t members, bool in_pools) {
  Config config;
  config.mode = mode;
  config.group_size = kGroup;
  config.steps = 1'000'000;
  const int64_t prompts = members / kGroup;
  // Of what a step starts.
  const double starts = to_double(config.mode.launch_prompts) * (1 + to_double(config.mode.ahead));
  config.datasets = {
      DatasetConfig{.prompts_per_step = std::lround(static_cast<double>(prompts) / starts)}};
  if (in_pools) {
    DatasetConfig third = config.datasets[0];
    third.prompts_per_step /= 3;
    config.datasets = {third, third, third};
    config.datasets[0].pool = "a";
    config.datasets[1].pool = "b";
  }
  config.save.interval_steps = 1;
  // No fault is the worker's here.
  config.quarantine.faults = 1 << 20;
  config.validate();
  return config;
}

// Alike in a group, and of no order over prompts: siblings change places again and again.
class CostEpisodes final : public simulator::EpisodeSource {
 public:
  simulator::Episode draw(Lane, const MemberId& member, int32_t) const override {
    simulator::Episode episode;
    episode.turns = {{.tokens = 100 + member.prompt * 7919 % 1000 + member.member * 31 % 100}};
    episode.reward = member.member;
    return episode;
  }
};

// A trainer that takes about a quarter of the time in which the samples of a step are decoded.
simulator::Cluster cluster_for(int64_t workers, int64_t members, bool in_pools) {
  simulator::Cluster cluster;
  cluster.pools.assign(in_pools ? 2 : 1, {.workers = in_pools ? workers / 2 : workers,
                                          .slots = members / (2 * workers),
                                          .hardware = {.decode = {.step = 0.01}}});
  if (in_pools) cluster.pools[0].name = "a", cluster.pools[1].name = "b";
  cluster.trainer = {.update = 2};
  cluster.wire = {.delay = 0.001, .spread = 0.05};
  cluster.faults.env = kFailing;
  return cluster;
}

// Blocks of an event over two steps, behind the first one, which begins with nothing.
double blocks_an_event(const Mode& mode, int64_t workers, int64_t members, bool in_pools) {
  const CostEpisodes episodes;
  simulator::World world(config_for(mode, members, in_pools),
                         cluster_for(workers, members, in_pools), episodes, 1);
  int64_t events = 0, blocks = 0, begun = 0;
  world.before = [&](const State&, const Event&, Time) { begun = blocks_run; };
  world.observe = [&](const Event&, const Actions&, const State& state) {
    const auto next = next_deadline(state);
    blocks += blocks_run - begun;
    ++events;
    EXPECT_TRUE(!next || *next > state.now);
  };
  EXPECT_EQ(world.run(1e6, 1), simulator::World::Stop::kSteps);
  blocks = events = 0;
  EXPECT_EQ(world.run(1e6, 2), simulator::World::Stop::kSteps);
  EXPECT_EQ(find_violation(world.state()), std::nullopt);
  return static_cast<double>(blocks) / static_cast<double>(events);
}

struct CostCase {
  std::string name;
  Mode mode;
  bool in_pools = false;
};

CostCase preset(ModeName name) {
  return {std::string(name_of(name)), ModeOptions::preset(name).mode()};
}
CostCase longest_first() {
  return {"longest_first", {.dispatch_order = DispatchOrder::kLongestFirst}};
}

CostCase pools() { return {"pools", {}, /*in_pools=*/true}; }

class SchedulerCost : public testing::TestWithParam<CostCase> {};

TEST_P(SchedulerCost, AnEventGrowsWithTheLogarithmOfMembersAndWorkersAtMost) {
  const auto& [name, mode, in_pools] = GetParam();
  constexpr int64_t kWorkers = 100, kMembers = 3000;
  const double small = blocks_an_event(mode, kWorkers, kMembers, in_pools);
  const double large = blocks_an_event(mode, 10 * kWorkers, 10 * kMembers, in_pools);
  RecordProperty("small", std::to_string(small));
  RecordProperty("large", std::to_string(large));
  // Searches in trees of members and of workers: of the two, the smaller grows more.
  const double most = std::log2(10 * kWorkers) / std::log2(kWorkers);
  EXPECT_LE(large, most * small) << fmt::format(
      "{}: {:.0f} blocks an event at {} members, {:.0f} at {}", name, small, kMembers, large,
      10 * kMembers);
  if (std::getenv("TAILRACE_VERBOSE") != nullptr)
    fmt::print("{}: {:.0f}, {:.0f} blocks an event\n", name, small, large);
}

INSTANTIATE_TEST_SUITE_P(Modes, SchedulerCost,
                         testing::Values(preset(ModeName::kSync), preset(ModeName::kTailBatching),
                                         preset(ModeName::kPartial), preset(ModeName::kAsync),
                                         longest_first(), pools()),
                         [](const auto& one) { return one.param.name; });

class TouchCost : public testing::TestWithParam<TouchCase> {};

double blocks_a_touch(const TouchCase& touch, int64_t size) {
  Touches touches = touch.make(size);
  const int64_t begun = blocks_run;
  for (const Event& event : touches.events) (void)decide(touches.state, event, touches.state.now);
  const int64_t blocks = blocks_run - begun;
  EXPECT_EQ(touches.state.halted, "");
  EXPECT_EQ(find_violation(touches.state), std::nullopt);
  return static_cast<double>(blocks) / static_cast<double>(touches.touched());
}

// What is rare in the runs above, event by event: in a run that is larger only what they do not
// touch is more.
TEST_P(TouchCost, GrowsWithTheLogarithmOfWhatIsThereAtMost) {
  const TouchCase& touch = GetParam();
  const double small = blocks_a_touch(touch, touch.small);
  const double large = blocks_a_touch(touch, touch.large);
  const double most =
      std::log2(static_cast<double>(touch.large)) / std::log2(static_cast<double>(touch.small));
  EXPECT_LE(large, most * small) << fmt::format("{:.0f} blocks an event at {}, {:.0f} at {}", small,
                                                touch.small, large, touch.large);
  if (std::getenv("TAILRACE_VERBOSE") != nullptr)
    fmt::print("{}: {:.0f}, {:.0f} blocks an event\n", touch.name, small, large);
}

INSTANTIATE_TEST_SUITE_P(Events, TouchCost, testing::ValuesIn(touch_cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace tailrace::scheduler
