// Pools of rollout workers (law 1.5): who may sample what.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "scheduler/state/queues.h"
#include "scheduler/state/waits.h"
#include "tests/scheduler/decide/harness.h"

namespace tailrace::scheduler {
namespace {

using testing::HasSubstr;
using testing::Not;

// Datasets of these pools, each with so many prompts of two members a step.
Config pools_config(const std::vector<std::string>& pools, int64_t prompts = 2) {
  Config config = small_config(prompts, /*members=*/2);
  config.datasets.clear();
  for (const std::string& pool : pools)
    config.datasets.push_back({.prompts_per_step = prompts, .pool = pool});
  return config;
}

// How many members of each dataset each worker runs.
std::map<std::pair<WorkerId, int32_t>, int64_t> running_at(const Harness& h) {
  std::map<std::pair<WorkerId, int32_t>, int64_t> at;
  for (const auto& [work, lease] : h.state.leases.in_order())
    ++at[{lease.worker, work.member.dataset}];
  return at;
}
using At = std::map<std::pair<WorkerId, int32_t>, int64_t>;

Harness with_pools(Config config, int64_t slots) {
  Harness h(std::move(config));
  h.add_to_pool("small", "w0", slots);
  h.add_to_pool("large", "w1", slots);
  publish(h, 0);
  return h;
}

TEST(Pools, AMemberGoesOnlyToItsPool) {
  Harness h = with_pools(pools_config({"large", "small"}), /*slots=*/16);
  EXPECT_EQ(running_at(h), (At{{{"w0", 1}, 4}, {{"w1", 0}, 4}}));
  train_step(h, 1);
  EXPECT_EQ(running_at(h), (At{{{"w0", 1}, 4}, {{"w1", 0}, 4}}));
}

TEST(Pools, WithoutAPoolItGoesToAnyAfterWhatHasOnlyThatOne) {
  // Dataset 0 was launched first, and has two places to go to.
  Harness h = with_pools(pools_config({"", "small"}), /*slots=*/4);
  EXPECT_EQ(running_at(h), (At{{{"w0", 1}, 4}, {{"w1", 0}, 4}}));
  EXPECT_EQ(num_waiting(h.state), 0);

  Harness both = with_pools(pools_config({"", ""}), /*slots=*/4);
  EXPECT_EQ(both.state.workers.at("w0").leased, 4);
  EXPECT_EQ(both.state.workers.at("w1").leased, 4);
}

TEST(Pools, AnEvaluationKeepsToThem) {
  Config config = pools_config({"large", "small"});
  config.eval = {.prompts = 3, .group_size = 1, .interval_steps = 1};
  Harness h = with_pools(config, /*slots=*/16);
  for (const auto& [work, lease] : h.state.leases.in_order())
    EXPECT_EQ(lease.worker, work.member.dataset == 0 ? "w1" : "w0") << to_string(work.member);
  EXPECT_EQ(running_at(h), (At{{{"w0", 1}, 7}, {{"w1", 0}, 7}}));
}

TEST(Pools, APoolThatLosesItsOnlyWorkerWaitsAndTheOthersGoOn) {
  Harness h = with_pools(pools_config({"large", "small"}), /*slots=*/16);
  h.tell(WorkerDown{"w1", 0});
  EXPECT_EQ(running_at(h), (At{{{"w0", 1}, 4}}));
  h.answer_running();
  EXPECT_EQ(h.count(Place::kReady), 2);
  EXPECT_EQ(num_waiting(h.state), 4);
  EXPECT_THAT(describe_waits(h.state, h.now),
              HasSubstr("; 4 samples wait for a rollout worker; 4 of them for pool large, in which "
                        "nobody is"));
  // Of another pool: it is no help.
  h.add_to_pool("small", "w2", 16);
  EXPECT_EQ(num_waiting(h.state), 4);
  h.tell(WorkerUp{.worker = "j", .slots = 16, .joined = true, .site = {.pool = "large"}});
  h.install_open();
  EXPECT_EQ(running_at(h), (At{{{"j", 0}, 4}}));
  EXPECT_THAT(describe_waits(h.state, h.now), Not(HasSubstr("nobody")));
  train_step(h, 1);
}

TEST(Pools, AProcessThatComesBackInAnotherPoolIsOfThatOne) {
  Harness h = with_pools(pools_config({"large", "small"}), /*slots=*/16);
  h.install_all(
      h.tell(WorkerUp{.worker = "w1", .incarnation = 7, .slots = 16, .site = {.pool = "small"}}));
  EXPECT_EQ(num_waiting(h.state), 4);
  EXPECT_EQ(running_at(h), (At{{{"w0", 1}, 4}}));
}

// Law 6.6, of each pool by itself: nobody there installs, so its worker takes all that it may.
TEST(Pools, PartsAreOfAPool) {
  Config config = pools_config({"large", "small"}, /*prompts=*/4);
  config.mode.dispatch = Dispatch::kLeastLoaded;
  Harness h(config);
  h.add_to_pool("small", "w0", 16);
  h.add_to_pool("large", "w1", 16);
  h.add_to_pool("large", "w2", 16);
  const auto stages = only<Stage>(h.tell(published(0)));
  ASSERT_EQ(stages.size(), 3u);
  h.tell_installed(stages[0]);
  EXPECT_EQ(running_at(h), (At{{{"w0", 1}, 8}}));
  h.tell_installed(stages[1]);
  // Half of it: the other one comes in a moment.
  EXPECT_EQ(running_at(h), (At{{{"w0", 1}, 8}, {{"w1", 0}, 4}}));
  h.tell_installed(stages[2]);
  EXPECT_EQ(running_at(h), (At{{{"w0", 1}, 8}, {{"w1", 0}, 4}, {{"w2", 0}, 4}}));
}

// Datasets of these pools, six prompts of two members each; w0 of pool small, with 8 slots, has
// installed version 0, and w1 of pool large, with 16, is about to.
struct Installing : Harness {
  explicit Installing(const std::vector<std::string>& pools) : Harness(config(pools)) {
    add_to_pool("small", "w0", 8);
    add_to_pool("large", "w1", 16);
    const auto stages = only<Stage>(tell(published(0)));
    EXPECT_EQ(stages.size(), 2u);
    tell_installed(stages.at(0));
    last = stages.at(1);
  }
  static Config config(const std::vector<std::string>& pools) {
    Config config = pools_config(pools, /*prompts=*/6);
    config.mode.dispatch = Dispatch::kLeastLoaded;
    return config;
  }
  Stage last;
};

// What may go anywhere is shared by all, also with those of another pool.
TEST(Pools, WhatMayGoAnywhereIsSharedByAllPools) {
  Installing h({""});
  EXPECT_EQ(running_at(h), (At{{{"w0", 0}, 4}}));
  h.tell_installed(h.last);
  EXPECT_EQ(running_at(h), (At{{{"w0", 0}, 4}, {{"w1", 0}, 8}}));
}

// What waits for a pool with nobody in it is no work for the others.
TEST(Pools, TheBacklogOfAnotherPoolRaisesNobodysShare) {
  Installing h({"", "gone"});
  EXPECT_EQ(num_waiting(h.state), 12 - 4 + 12);
  EXPECT_EQ(running_at(h), (At{{{"w0", 0}, 4}}));
}

// Law 10.1: those that no held-out member may go to do not wait for the others.
TEST(Pools, AnEvaluationHoldsTheWorkersOfItsPoolsAlone) {
  Config config = pools_config({"small", "large"}, /*prompts=*/1);
  config.eval = {.prompts = 1, .group_size = 1, .interval_steps = 2};
  Harness h = with_pools(config, /*slots=*/16);
  const auto is_last = [](const WorkId& work) {
    return work.lane == Lane::kEval && work.member.dataset == 1;
  };
  for (const auto& [work, lease] : h.state.leases.in_order())
    if (!is_last(work)) h.tell(h.result(Harness::grant_of(work, lease), work.member.member));
  h.tell(wants(1));
  const auto stages = only<Stage>(h.tell(published(1)));
  ASSERT_EQ(stages.size(), 2u);
  for (const Stage& stage : stages) h.tell_installed(stage);
  EXPECT_EQ(h.state.workers.at("w0").version, 1);
  EXPECT_EQ(h.state.workers.at("w1").version, 0);
  EXPECT_EQ(running_at(h), (At{{{"w0", 0}, 2}, {{"w1", 1}, 1}}));
  const auto leases = h.state.leases.in_order();
  const auto last = std::ranges::find_if(leases, is_last, &std::pair<const WorkId, Lease>::first);
  ASSERT_NE(last, leases.end());
  for (const Switch& change :
       only<Switch>(h.tell(h.result(Harness::grant_of(last->first, last->second), 1))))
    h.tell_switched(change);
  EXPECT_EQ(running_at(h), (At{{{"w0", 0}, 2}, {{"w1", 1}, 2}}));
}

// The same when its pool loses its worker: the next one there samples it by the version that is
// evaluated, which others have left.
TEST(Pools, TheVersionThatIsEvaluatedIsKeptForAPoolThatIsEmpty) {
  Config config = pools_config({"small", "large"}, /*prompts=*/1);
  config.eval = {.prompts = 1, .group_size = 1, .interval_steps = 2};
  config.save.interval_steps = 1;
  Harness h = with_pools(config, /*slots=*/16);
  for (const auto& [work, lease] : h.state.leases.in_order())
    if (work.lane == Lane::kTrain || work.member.dataset == 0)
      h.tell(h.result(Harness::grant_of(work, lease), work.member.member));
  h.tell(WorkerDown{"w1", 0});
  h.tell(wants(1));
  publish(h, 1);
  h.tell(durable(1));
  EXPECT_EQ(h.state.workers.at("w0").version, 1);
  h.tell(WorkerUp{.worker = "w2", .slots = 16, .site = {.pool = "large"}});
  EXPECT_EQ(h.state.workers.at("w2").install->version, 0);
  h.install_open();
  EXPECT_EQ(running_at(h), (At{{{"w0", 0}, 2}, {{"w2", 1}, 1}}));
}

// eval.pool: only its workers stay at the evaluated version, and no others sample held-out prompts.
TEST(Pools, AnEvaluationMayHaveWorkersOfItsOwn) {
  Config config = pools_config({"large", ""}, /*prompts=*/1);
  config.eval = {.prompts = 2, .group_size = 1, .interval_steps = 0, .pool = "small"};
  Harness h = with_pools(config, /*slots=*/16);
  int held_out = 0;
  const auto leases = h.state.leases.in_order();
  for (const auto& [work, lease] : leases) {
    if (work.lane == Lane::kEval) {
      EXPECT_EQ(lease.worker, "w0");
      ++held_out;
    } else {
      h.tell(h.result(Harness::grant_of(work, lease), work.member.member));
    }
  }
  EXPECT_EQ(held_out, 4);
  h.tell(wants(1));
  publish(h, 1);
  EXPECT_EQ(h.state.workers.at("w0").version, 0);
  EXPECT_EQ(h.state.workers.at("w1").version, 1);
  for (const auto& [work, lease] : h.state.leases.in_order())
    EXPECT_EQ(work.lane == Lane::kEval, lease.worker == "w0") << to_string(work.member);
  h.answer_running();
  ASSERT_TRUE(h.state.workers.at("w0").install);
  EXPECT_EQ(h.state.workers.at("w0").install->phase, Install::Phase::kSwitching);
}

// One held-out sample for each of `slots` places of w0 and w2 in pool small, and one more, which
// waits; w1 of pool large has sampled step 1, and version 1 is published.
struct Evaluating : Harness {
  explicit Evaluating(const std::string& pool, int64_t slots) : Harness(config(pool, slots)) {
    add_to_pool("small", "w0", slots);
    add_to_pool("small", "w2", slots);
    add_to_pool("large", "w1", 16);
    install_all(tell(published(0)));
    for (const auto& [work, lease] : state.leases.in_order())
      if (work.lane == Lane::kTrain) tell(result(grant_of(work, lease), work.member.member));
    EXPECT_EQ(held_out_at("w0"), slots);
    EXPECT_EQ(held_out_at("w2"), slots);
    tell(wants(1));
    publish(*this, 1);
    EXPECT_EQ(version_of("w1"), 1);
  }
  static Config config(const std::string& pool, int64_t slots) {
    Config config = pools_config({pool}, /*prompts=*/1);
    config.eval = {.prompts = 2 * slots + 1, .group_size = 1, .interval_steps = 0, .pool = "small"};
    return config;
  }
  int64_t version_of(const WorkerId& id) { return state.workers.at(id).version; }
  int64_t held_out_at(const WorkerId& id) {
    return std::ranges::count(state.leases.of(id), Lane::kEval, &WorkId::lane);
  }
  // It ends the first of what it samples.
  Actions answer(const WorkerId& id) {
    const WorkId work = state.leases.of(id).at(0);
    return tell(result(grant_of(work, state.leases.at(work)), work.member.member));
  }
};

// Law 10.1: the last long sample holds back nobody but its own worker.
TEST(Pools, AWorkerGoesOnWhenNoHeldOutSampleIsLeftForIt) {
  Evaluating h("large", /*slots=*/1);
  // Both would switch; one waits.
  EXPECT_TRUE(only<Switch>(h.answer("w0")).empty());
  EXPECT_EQ(h.held_out_at("w0"), 1);
  const auto changes = only<Switch>(h.answer("w2"));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].worker, "w2");
  EXPECT_EQ(changes[0].version, 1);
  h.tell_switched(changes[0]);
  EXPECT_EQ(h.version_of("w0"), 0);
}

// Who has come past it is recalled when nobody else can sample what is left.
TEST(Pools, OneWorkerGoesBackToWhatIsEvaluated) {
  Evaluating h("large", /*slots=*/1);
  h.answer("w0");
  h.tell_switched(only<Switch>(h.answer("w2")).at(0));
  const auto stages = only<Stage>(h.tell(WorkerDown{"w0", 0}));
  ASSERT_EQ(stages.size(), 1u);
  EXPECT_EQ(stages[0].worker, "w2");
  EXPECT_EQ(stages[0].version, 0);
  h.tell_installed(stages[0]);
  EXPECT_EQ(h.version_of("w2"), 0);
  EXPECT_EQ(h.held_out_at("w2"), 1);
  const Actions last = h.answer("w2");
  EXPECT_EQ(only<EvalDone>(last).size(), 1u);
  h.install_all(last);
  h.install_open();
  EXPECT_EQ(h.version_of("w2"), 1);
}

// What it samples then is ended by the weights that it was begun by, and nothing more is begun.
TEST(Pools, WhoGoesBackEndsItsWorkFirst) {
  Evaluating h("", /*slots=*/1);
  h.answer("w0");
  h.tell_switched(only<Switch>(h.answer("w2")).at(0));
  h.tell(WorkerDown{"w1", 0});
  ASSERT_EQ(h.state.leases.of("w2").size(), 1u);
  EXPECT_EQ(h.held_out_at("w2"), 0);
  const auto stages = only<Stage>(h.tell(WorkerDown{"w0", 0}));
  ASSERT_EQ(stages.size(), 1u);
  EXPECT_EQ(stages[0].worker, "w2");
  EXPECT_TRUE(only<Switch>(h.tell_installed(stages[0])).empty());
  EXPECT_EQ(h.version_of("w2"), 1);
  const Actions ended = h.answer("w2");
  EXPECT_TRUE(only<Grant>(ended).empty());
  ASSERT_EQ(only<Switch>(ended).size(), 1u);
  h.tell_switched(only<Switch>(ended)[0]);
  EXPECT_EQ(h.held_out_at("w2"), 1);
}

// It cannot fetch the version, which is no fault, and others are fit: neither it nor a worker that
// comes and has the same trouble is waited for.
TEST(Pools, WhoCannotFetchWhatIsEvaluatedIsNotWaitedFor) {
  for (const bool joins : {false, true}) {
    Evaluating h("large", /*slots=*/1);
    h.answer("w0");
    h.tell_switched(only<Switch>(h.answer("w2")).at(0));
    h.add_to_pool("small", "w3", 1);
    if (joins)
      h.tell(WorkerUp{.worker = "j", .slots = 1, .joined = true, .site = {.pool = "small"}});
    const WorkerId troubled = joins ? "j" : "w2", other = joins ? "w2" : "w3";
    const auto fails = [&] {
      const std::optional<Install>& install = h.state.workers.at(troubled).install;
      ASSERT_TRUE(install);
      h.tell(InstallFailed{troubled, 0, install->version, install->digest, "its source is dead",
                           InstallCause::kSource});
    };
    if (joins) fails();
    h.tell(WorkerDown{"w0", 0});
    if (!joins) fails();
    h.install_open();
    EXPECT_EQ(h.held_out_at(other), 1) << joins;
    EXPECT_TRUE(h.state.leases.of(troubled).empty());
  }
}

// The only one that has the version fails it: the member goes to another, as ever (law 6.5).
TEST(Pools, ARetryGoesToAWorkerThatGoesBackForIt) {
  for (const Outcome outcome : {Outcome::kEnvFailed, Outcome::kLost}) {
    Evaluating h("large", /*slots=*/1);
    h.answer("w0");
    h.tell_switched(only<Switch>(h.answer("w2")).at(0));
    const WorkId work = h.state.leases.of("w0").at(0);
    h.tell(h.failure(Harness::grant_of(work, h.state.leases.at(work)), outcome));
    h.install_open();
    EXPECT_EQ(h.held_out_at("w2"), 1);
    EXPECT_EQ(h.held_out_at("w0"), 0);
    h.answer("w2");
    h.install_open();
    EXPECT_EQ(h.version_of("w2"), 1);
    EXPECT_TRUE(h.policy().evaluation->recalled.empty()) << "one is enough the next time too";
  }
}

// Law 8.6 holds for what is held out as well.
TEST(Pools, WhatStandsStillIsMovedToAWorkerThatGoesBackForIt) {
  Evaluating h("large", /*slots=*/1);
  h.answer("w0");
  h.tell_switched(only<Switch>(h.answer("w2")).at(0));
  h.tell(Stalled{"w0", 0, true});
  h.install_open();
  EXPECT_EQ(h.held_out_at("w0"), 0);
  EXPECT_EQ(h.held_out_at("w2"), 1);
}

// Another pool for them, after a restart: nobody there goes back under its work either.
TEST(Pools, AnEvaluationMayGoOnInAnotherPool) {
  Evaluating h("large", /*slots=*/1);
  Config config = h.state.config;
  config.eval.pool = "large";
  ASSERT_GT(h.state.workers.at("w1").leased, 0);
  h.tell(Restarted{.config = config});
  const auto stages =
      only<Stage>(h.tell(WorkerUp{.worker = "w1", .slots = 16, .site = {.pool = "large"}}));
  ASSERT_EQ(stages.size(), 1u);
  EXPECT_EQ(stages[0].version, 0);
  EXPECT_TRUE(only<Switch>(h.tell_installed(stages[0])).empty());
  while (!h.state.leases.of("w1").empty() && h.held_out_at("w1") == 0)
    for (const Switch& change : only<Switch>(h.answer("w1"))) h.tell_switched(change);
  EXPECT_EQ(h.held_out_at("w1"), 1);
}

TEST(Pools, WhatIsMovedStaysInItsPool) {
  Harness h = with_pools(pools_config({"large", "small"}), /*slots=*/16);
  h.tell(Stalled{"w1", 0, true});
  EXPECT_EQ(running_at(h), (At{{{"w0", 1}, 4}, {{"w1", 0}, 4}}));
  h.add_to_pool("large", "w2", 16);
  EXPECT_EQ(running_at(h), (At{{{"w0", 1}, 4}, {{"w2", 0}, 4}}));
}

TEST(Pools, ARestartMayBindADatasetToAnother) {
  Harness h = with_pools(pools_config({"large"}), /*slots=*/2);
  ASSERT_EQ(running_at(h), (At{{{"w1", 0}, 2}}));
  Config other = h.state.config;
  other.datasets[0].pool = "small";
  h.tell(Restarted{other});
  // What runs goes on where it is.
  h.tell(WorkerUp{.worker = "w0", .slots = 2, .site = {.pool = "small"}});
  h.tell(WorkerUp{.worker = "w1", .slots = 2, .site = {.pool = "large"}});
  h.tell(rolled_back(0));
  h.install_open();
  EXPECT_EQ(running_at(h), (At{{{"w0", 0}, 2}, {{"w1", 0}, 2}}));
}

// Law 7.5: a pool whose datasets have no other place halts the run, others do not.
TEST(Pools, TheRunHaltsWhenNobodyOfABoundPoolIsFit) {
  Config config = pools_config({"large", ""});
  config.quarantine.limit = 2;
  for (const auto& [pool, halts] : {std::pair{"w1", true}, {"w0", false}}) {
    Harness h = with_pools(config, /*slots=*/16);
    for (int i = 0; i < 2 && h.state.halted.empty(); ++i) {
      h.tell(WorkerFailed{pool, "broken on purpose"});
      h.wait(seconds(100));
      h.install_open();
    }
    EXPECT_EQ(!h.state.halted.empty(), halts);
    if (halts) {
      EXPECT_THAT(h.state.halted, HasSubstr("no rollout worker of pool large is fit"));
    }
  }
}

}  // namespace
}  // namespace tailrace::scheduler
