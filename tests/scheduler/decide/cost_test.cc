// What an event costs, counted and not timed (law 14.5): this test compiles scheduler/state and
// scheduler/decide so that every basic block that runs calls the function below. Nothing is left
// out but what the standard library has compiled already (rebalancing a tree, the next element of
// one) and memory, so a walk over all members or all workers shows, wherever it is written.
//
// Whole steps are counted: what is done once a step for each of its members is no growth.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/random.h"
#include "scheduler/decide/decide.h"
#include "scheduler/state/invariants.h"

namespace {
int64_t blocks_run = 0;
}  // namespace

extern "C" __attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc() { ++blocks_run; }

namespace tailrace::scheduler {
namespace {

constexpr int64_t kGroup = 8;
constexpr double kFailing = 0.05;  // of the attempts, by their environment

// Steps of half of the members in flight, so that as many wait as run.
// `in_pools`: workers in two pools, and a domain for each and for both.
Config config_for(const Mode& mode, int64_t members, bool in_pools) {
  Config config;
  config.mode = mode;
  config.group_size = kGroup;
  config.steps = 1'000'000;
  const int64_t prompts = members / kGroup;
  // Of what a step starts.
  const double starts = to_double(config.mode.launch_prompts) * (1 + to_double(config.mode.ahead));
  config.domains = {
      DomainConfig{.prompts_per_step = std::lround(static_cast<double>(prompts) / starts)}};
  if (in_pools) {
    DomainConfig third = config.domains[0];
    third.prompts_per_step /= 3;
    config.domains = {third, third, third};
    config.domains[0].pool = "a";
    config.domains[1].pool = "b";
  }
  config.save.interval_steps = 1;
  // No fault is the worker's here.
  config.quarantine.faults = 1 << 20;
  config.validate();
  return config;
}

// Alike in a group, and of no order over prompts: siblings change places again and again.
int64_t tokens_of(const MemberId& member) {
  return 100 + member.prompt * 7919 % 1000 + member.member * 31 % 100;
}

// Workers that sample in any order, and a trainer that takes a quarter of a step's time.
class Run {
 public:
  Run(const Mode& mode, int64_t workers, int64_t members, bool in_pools)
      : state_(config_for(mode, members, in_pools)) {
    tell(WorkerUp{.worker = "t", .role = Role::kTrainer, .incarnation = 1});
    tell(RolledBack{"t", 0, -1, "", ""});
    for (int64_t i = 0; i < workers; ++i)
      tell(WorkerUp{.worker = fmt::format("rollout-{}", i),
                    .slots = members / (2 * workers),
                    .site = {.pool = !in_pools    ? ""
                                     : i % 2 == 0 ? "a"
                                                  : "b"}});
    publish(0);
  }

  // Blocks an event, over steps that end with the publication of `last`.
  double blocks_until(int64_t last) {
    const int64_t blocks = blocks_, events = events_;
    while (version_ < last && !testing::Test::HasFatalFailure()) step();
    return static_cast<double>(blocks_ - blocks) / static_cast<double>(events_ - events);
  }

  const State& state() const { return state_; }

 private:
  void step() {
    if (!stages_.empty()) {
      const Stage stage = stages_.back();
      stages_.pop_back();
      return tell(Staged{stage.worker, stage.policy, stage.version, stage.digest});
    }
    if (!switches_.empty()) {
      const Switch change = switches_.back();
      switches_.pop_back();
      return tell(Installed{change.worker, change.policy, change.version, change.digest});
    }
    if (saving_) {
      saving_ = false;
      return tell(Durable{"t", 0, version_, version_});
    }
    if (training_ > 0 && (--training_ == 0 || grants_.empty())) {
      training_ = 0;
      return publish(version_ + 1);
    }
    ASSERT_FALSE(grants_.empty()) << "nothing runs at version " << version_;
    const auto index = static_cast<size_t>(rng_.below(std::ssize(grants_)));
    std::swap(grants_[index], grants_.back());
    const Grant grant = std::move(grants_.back());
    grants_.pop_back();
    // What was aborted says nothing.
    if (!expects_result(state_, grant.worker, grant.lane, grant.lease)) return;
    const int64_t version = state_.workers.at(grant.worker).version;
    const bool fails = rng_.chance(kFailing);
    AttemptResult result{.worker = grant.worker,
                         .lease = grant.lease,
                         .lane = grant.lane,
                         .outcome = fails ? Outcome::kEnvFailed : Outcome::kFinished,
                         .tokens = fails ? 0 : tokens_of(grant.lease.member),
                         .min_version = std::min(version, grant.version),
                         .max_version = version,
                         .reward = std::nullopt,
                         .needs_verifier = false,
                         .reason = ""};
    if (!fails) result.reward = static_cast<double>(grant.lease.member.member);
    tell(result);
  }

  void publish(int64_t version) {
    version_ = version;
    tell(Published{"t", 0, version, fmt::format("d{}", version), "m"});
    tell(TrainerWants{"t", 0, version + 1});
  }

  void tell(const Event& event) {
    now_ += std::chrono::microseconds(50);
    const int64_t before = blocks_run;
    Actions actions = decide(state_, event, now_);
    const auto next = next_deadline(state_);
    blocks_ += blocks_run - before;
    ++events_;
    if (next) {
      ASSERT_GT(*next, now_);
    }
    for (Action& action : actions) {
      if (auto* grant = std::get_if<Grant>(&action)) grants_.push_back(std::move(*grant));
      if (auto* stage = std::get_if<Stage>(&action)) stages_.push_back(std::move(*stage));
      if (auto* change = std::get_if<Switch>(&action)) switches_.push_back(std::move(*change));
      if (std::holds_alternative<Save>(action)) saving_ = true;
      if (std::holds_alternative<HandOver>(action))
        training_ = 1 + state_.config.prompts_per_step() * kGroup / 4;
      ASSERT_FALSE(std::holds_alternative<Halt>(action)) << state_.halted;
    }
  }

  State state_;
  Time now_{std::chrono::seconds(1)};
  Rng rng_{1};
  std::vector<Grant> grants_;
  std::vector<Stage> stages_;
  std::vector<Switch> switches_;
  int64_t version_ = -1, training_ = 0, events_ = 0, blocks_ = 0;
  bool saving_ = false;
};

double blocks_an_event(const Mode& mode, int64_t workers, int64_t members, bool in_pools) {
  Run run(mode, workers, members, in_pools);
  run.blocks_until(1);  // the first step begins with nothing
  const double blocks = run.blocks_until(4);
  EXPECT_EQ(find_violation(run.state()), std::nullopt);
  return blocks;
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
  constexpr int64_t kWorkers = 300, kMembers = 10000;
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

}  // namespace
}  // namespace tailrace::scheduler
