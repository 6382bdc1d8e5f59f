// Versions: offered, staged, committed, and let go (law 9.7, 9.8).
#include "scheduler/state/expects.h"
#include "scheduler/state/waits.h"
#include "tests/scheduler/decide/harness.h"

namespace tailrace::scheduler {
namespace {

VersionState state_of(Harness& h, int64_t version) { return h.policy().lineage.at(version).state; }

// Version 0 is published and one worker is asked to stage it.
struct Offered : Harness {
  explicit Offered(Config config = small_config(1, 2)) : Harness(std::move(config)) {
    tell(WorkerUp{.worker = "w0", .slots = 4});
    stage = only<Stage>(tell(published(0))).at(0);
  }
  Actions fail(InstallCause cause) {
    return tell(InstallFailed{"w0", 0, stage.version, stage.digest, "on purpose", cause});
  }
  Actions progress(int64_t bytes) {
    return tell(StageProgress{"w0", 0, stage.version, stage.digest, bytes, 1000});
  }
  const Worker& worker() const { return state.workers.at("w0"); }

  Stage stage;
};

TEST(Versions, AreOfferedStagedAndCommitted) {
  Offered h;
  h.tell(WorkerUp{.worker = "w1", .slots = 4});
  EXPECT_EQ(state_of(h, 0), VersionState::kOffered);
  const auto changes = only<Switch>(h.tell(Staged{"w0", 0, 0, digest_of(0)}));
  ASSERT_EQ(changes.size(), 1u);
  // It was told in the same moment.
  EXPECT_EQ(state_of(h, 0), VersionState::kCommitted);
  h.tell_switched(changes[0]);
  h.install_open();
  h.answer_running();
  h.tell(wants(1));
  h.tell(published(1));
  EXPECT_EQ(state_of(h, 1), VersionState::kOffered);
  EXPECT_EQ(state_of(h, 0), VersionState::kCommitted);
}

TEST(Versions, WaitStagedWhereWorkOfTheOldOnesGoesOn) {
  Config config = small_config(1, 2);
  config.mode = {.ahead = {1, 1}, .max_staleness = 2, .install = InstallWhen::kDrained};
  config.validate();
  Harness h = started(config, 16);
  for (const Grant& grant : grants_of(h, 0)) h.tell(h.result(grant, grant.lease.member.member));
  h.tell(wants(1));
  ASSERT_EQ(only<Stage>(h.tell(published(1))).size(), 1u);
  EXPECT_EQ(state_of(h, 1), VersionState::kOffered);
  EXPECT_TRUE(only<Switch>(h.tell(Staged{"w0", 0, 1, digest_of(1)})).empty());
  EXPECT_EQ(state_of(h, 1), VersionState::kStaged);
  h.answer_running();
  EXPECT_EQ(state_of(h, 1), VersionState::kCommitted);
}

// Two masters may be published alike: float32 that rounds to the same bfloat16.
TEST(Versions, OfAnotherMasterBeginAnotherLineageAlsoWhereTheyArePublishedAlike) {
  Harness h = started(small_config(2, 2));
  train_step(h, 1);
  h.tell(durable(0));
  RolledBack back = rolled_back(0);
  h.tell(WorkerUp{.worker = "t", .session = 2, .role = Role::kTrainer, .incarnation = 9});
  h.tell(back);
  h.tell(wants(1));
  Published again = published(1);
  again.master = master_of(1, "b");
  const Actions actions = h.tell(again);
  ASSERT_EQ(only<Forked>(actions).size(), 1u);
  EXPECT_EQ(only<Forked>(actions)[0].from, 1);
  // The worker holds these very bits: nothing is staged, and it is granted what begins anew.
  EXPECT_TRUE(only<Stage>(actions).empty());
  EXPECT_FALSE(only<Grant>(actions).empty());
  EXPECT_EQ(state_of(h, 1), VersionState::kCommitted);
  EXPECT_EQ(h.policy().lineage.at(1).master, master_of(1, "b"));
}

TEST(Versions, OfTheSameMasterThatArePublishedOtherwiseAreInstalledAnew) {
  Harness h = started(small_config(2, 2));
  train_step(h, 1);
  h.tell(durable(1));
  RolledBack back = rolled_back(1);
  back.digest = "rounded otherwise";
  h.tell(WorkerUp{.worker = "t", .session = 2, .role = Role::kTrainer, .incarnation = 9});
  const Actions actions = h.tell(back);
  EXPECT_TRUE(only<Forked>(actions).empty());
  const auto stages = only<Stage>(actions);
  ASSERT_EQ(stages.size(), 1u);
  EXPECT_EQ(stages[0].digest, "rounded otherwise");
  EXPECT_EQ(state_of(h, 1), VersionState::kOffered);
}

TEST(Versions, ADeadSourceIsNoFaultAndIsAskedAgainEverLessOften) {
  for (const InstallCause cause : {InstallCause::kSource, InstallCause::kBase}) {
    Offered h;
    for (const int64_t rest : {1, 2, 4, 8, 16, 32, 60, 60}) {
      EXPECT_TRUE(only<Stage>(h.fail(cause)).empty());
      EXPECT_TRUE(h.state.health.empty()) << "a fault";
      EXPECT_EQ(h.worker().rest->until - h.now, seconds(rest));
      EXPECT_EQ(next_deadline(h.state), h.now + seconds(rest));
      EXPECT_TRUE(only<Stage>(h.wait(seconds(rest) - Time(1))).empty());
      EXPECT_EQ(only<Stage>(h.wait(Time(1))).size(), 1u);
    }
    EXPECT_NE(describe_waits(h.state, h.now).find("version 0 cannot come to w0"), std::string::npos)
        << describe_waits(h.state, h.now);
    // What comes in the end is forgotten trouble.
    EXPECT_FALSE(only<Grant>(h.tell_installed(h.stage)).empty());
    EXPECT_FALSE(h.worker().rest);
  }
}

TEST(Versions, AWorkerThatRestsGoesOnWithWhatItHas) {
  Config config = small_config(1, 2);
  config.mode = {.ahead = {1, 1}, .max_staleness = 2, .on_stale = OnStale::kMask};
  config.validate();
  Harness h = started(config, 16);
  for (const Grant& grant : grants_of(h, 0)) h.tell(h.result(grant, grant.lease.member.member));
  h.tell(wants(1));
  ASSERT_EQ(only<Stage>(h.tell(published(1))).size(), 1u);
  h.tell(InstallFailed{"w0", 0, 1, digest_of(1), "link down", InstallCause::kSource});
  const auto [work, lease] = *h.state.leases.in_order().begin();
  h.tell(h.failure(Harness::grant_of(work, lease), Outcome::kEnvFailed));
  const Time rest = h.state.config.quarantine.first;
  h.tell(InstallFailed{"w0", 0, 1, digest_of(1), "link down", InstallCause::kSource});
  EXPECT_EQ(only<Grant>(h.wait(rest)).size(), 1u) << "its retry, by version 0";
}

TEST(Versions, AWrongDigestIsAFaultAndItsWorkerNeverSamples) {
  Offered h;
  for (int64_t i = 0; i < h.state.config.quarantine.faults; ++i) h.fail(InstallCause::kDigest);
  EXPECT_TRUE(in_quarantine(h.state, "w0"));
  EXPECT_FALSE(h.worker().rest);
  EXPECT_TRUE(h.state.leases.empty());
  EXPECT_EQ(state_of(h, 0), VersionState::kOffered);
}

TEST(Versions, ProgressRenewsTheDeadlineOfAStaging) {
  Offered h;
  const Time limit = h.state.config.deadlines.install;
  for (int64_t bytes = 100; bytes < 1000; bytes += 100) {
    h.wait(limit - seconds(1));
    EXPECT_TRUE(h.progress(bytes).empty());
    EXPECT_EQ(h.worker().install->deadline, h.now + limit);
  }
  EXPECT_TRUE(h.state.health.empty());
  // What does not grow, is of other weights or of nobody, is nothing.
  h.wait(seconds(5));
  EXPECT_FALSE(expects(h.state, StageProgress{"w0", 0, 0, digest_of(0), 900, 1000}));
  EXPECT_FALSE(expects(h.state, StageProgress{"w0", 0, 1, digest_of(1), 950, 1000}));
  EXPECT_FALSE(expects(h.state, StageProgress{"w9", 0, 0, digest_of(0), 950, 1000}));
  const State before = h.state;
  EXPECT_TRUE(h.progress(900).empty());
  EXPECT_EQ(h.state, before);
  h.wait(limit - seconds(5));
  EXPECT_EQ(h.state.health.at("w0").fault, Fault::kInstall);
}

// ---- what is let go

Config keeping(int64_t keep, bool sampled) {
  Config config = small_config(1, 2);
  config.keep_weights = keep;
  config.keep_sampled = sampled;
  config.save.interval_steps = 1;
  return config;
}

std::vector<int64_t> below(const Actions& actions) {
  std::vector<int64_t> found;
  for (const ReleaseWeights& release : only<ReleaseWeights>(actions)) {
    EXPECT_EQ(release.worker, "t");
    EXPECT_TRUE(needs_disk(release));
    found.push_back(release.below);
  }
  return found;
}

TEST(Release, KeepsTheNewestVersionsAndWhatAWorkerHolds) {
  Harness h = started(keeping(2, false));
  h.tell(WorkerUp{.worker = "slow", .session = 3, .slots = 1});
  h.install_open();
  EXPECT_EQ(h.state.workers.at("slow").version, 0);
  for (int64_t step = 1; step <= 3; ++step) {
    h.answer_running();
    h.tell(wants(step));
    const Actions actions = h.tell(published(step));
    for (const Stage& stage : only<Stage>(actions))
      if (stage.worker == "w0") h.tell_installed(stage);
  }
  EXPECT_EQ(h.policy().released, 0) << "the slow one samples by version 0";
  // Away, it may come back and go on.
  h.tell(WorkerDown{.worker = "slow", .session = 3, .silent = true});
  train_step(h, 4);
  EXPECT_EQ(h.policy().released, 0);
  h.wait(h.state.config.deadlines.reconnect);
  h.answer_running();
  h.tell(wants(5));
  EXPECT_EQ(below(h.tell(published(5))), std::vector<int64_t>{4});
}

TEST(Release, KeepsWhatStoredSamplesName) {
  Harness h = started(keeping(1, true));
  for (int64_t step = 1; step <= 3; ++step) train_step(h, step);
  EXPECT_EQ(h.policy().released, 0) << "no checkpoint covers the samples of version 0";
  // Those of steps up to 2 go, and they are by versions 0 and 1.
  EXPECT_EQ(below(h.tell(durable(2))), std::vector<int64_t>{2});
}

TEST(Release, KeepsWhatIsEvaluated) {
  Config config = keeping(1, false);
  config.mode = {.ahead = {1, 1}, .max_staleness = 2};
  config.eval = {.prompts = 1, .group_size = 1, .interval_steps = 2};
  Harness h(config);
  h.add_rollout("w0", 16);
  publish(h, 0);
  const auto held_out = [&] {
    std::vector<Grant> grants;
    for (const auto& [work, lease] : h.state.leases.in_order())
      if (work.lane == Lane::kEval) grants.push_back(Harness::grant_of(work, lease));
    return grants;
  };
  ASSERT_EQ(held_out().size(), 1u);
  const Grant evaluated = held_out()[0];
  for (const Grant& grant : grants_of(h, 0)) h.tell(h.result(grant, grant.lease.member.member));
  h.tell(wants(1));
  h.install_all(h.tell(published(1)));
  EXPECT_EQ(h.policy().released, 0);
  const auto changes = only<Switch>(h.tell(h.result(evaluated, 1.0)));
  ASSERT_EQ(changes.size(), 1u);
  h.tell_switched(changes[0]);
  h.tell(EvalReported{0, 0});
  train_step(h, 2);
  EXPECT_EQ(h.policy().released, 1) << "the worker still held version 1";
}

// However far it lags: those in between may be deltas.
TEST(Release, WhatIsEvaluatedAloneKeepsItsPayload) {
  Config config = keeping(1, false);
  config.mode = {.ahead = {6, 1}, .max_staleness = 6};
  config.eval = {.prompts = 1, .group_size = 1, .interval_steps = 6};
  Harness h(config);
  h.add_rollout("w0", 32);
  publish(h, 0);
  const auto leases = h.state.leases.in_order();
  ASSERT_EQ(leases.begin()->first.lane, Lane::kEval);
  const Grant held_out = Harness::grant_of(leases.begin()->first, leases.begin()->second);
  for (const auto& [work, lease] : leases)
    if (work.lane == Lane::kTrain)
      h.tell(h.result(Harness::grant_of(work, lease), work.member.member));
  std::vector<ReleaseWeights> told;
  const auto step = [&](int64_t version) {
    EXPECT_EQ(only<HandOver>(h.tell(wants(version))).size(), 1u) << version;
    const Actions actions = h.tell(published(version));
    for (const ReleaseWeights& release : only<ReleaseWeights>(actions)) told.push_back(release);
    h.install_all(actions);
  };
  for (const int64_t version : {1, 2, 3, 4}) step(version);
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.back().below, 0);
  EXPECT_EQ(told.back().fetched_from, 3) << "the worker has staged it";
  EXPECT_EQ(told.back().evaluated, 0);
  for (const Switch& change : only<Switch>(h.tell(h.result(held_out, 1.0))))
    h.tell_switched(change);
  h.tell(EvalReported{0, 0});
  step(5);
  EXPECT_EQ(told.back().below, 4);
  EXPECT_EQ(told.back().evaluated, -1);
}

TEST(Release, IsToldOnceInASessionAndNotWhileVersionsAreTrainedAgain) {
  Harness h = started(keeping(1, false));
  h.tell(durable(0));
  train_step(h, 1);
  h.answer_running();
  h.tell(wants(2));
  const Actions actions = h.tell(published(2));
  EXPECT_EQ(below(actions), std::vector<int64_t>{1});
  h.install_all(actions);
  EXPECT_TRUE(below(h.wait(seconds(1))).empty());
  // A new process with an older checkpoint: what it publishes again may be another version 1.
  h.tell(WorkerUp{.worker = "t", .session = 2, .role = Role::kTrainer, .incarnation = 9});
  EXPECT_TRUE(below(h.tell(rolled_back(0))).empty());
  EXPECT_TRUE(below(h.tell(wants(1))).empty());
  EXPECT_TRUE(below(h.tell(published(1))).empty());
  h.tell(wants(2));
  EXPECT_EQ(below(h.tell(published(2))), std::vector<int64_t>{2}) << "the worker has switched";
}

TEST(Release, GoesBackWithAFork) {
  Harness h = started(keeping(1, false));
  h.tell(durable(0));
  for (int64_t step = 1; step <= 3; ++step) train_step(h, step);
  EXPECT_EQ(h.policy().released, 2);
  h.tell(WorkerUp{.worker = "t", .session = 2, .role = Role::kTrainer, .incarnation = 9});
  h.install_all(h.tell(rolled_back(0, "b")));
  EXPECT_EQ(h.policy().released, 0) << "it wrote version 0 again, which workers install";
  train_step(h, 1, "b");
  train_step(h, 2, "b");
  EXPECT_EQ(h.policy().released, 1);
}

// What a power loss made the scheduler forget may come back as a sample.
TEST(Release, ASampleByWeightsThatAreLetGoIsSampledAgain) {
  Config config = keeping(1, true);
  config.mode = {.ahead = {4, 1}, .max_staleness = 8};
  Harness h = started(config);
  h.policy().released = 0;
  const auto grants = grants_of(h, 4);
  ASSERT_EQ(grants.size(), 2u);
  State later = h.state;
  later.policies.at(0).released = 1;
  AttemptResult result = h.result(grants[0], 1.0);
  const Actions actions = decide(later, result, h.now);
  const Task& task = *find_task(later, Lane::kTrain, grants[0].lease.member);
  EXPECT_FALSE(task.members[static_cast<size_t>(grants[0].lease.member.member)].has_body);
}

}  // namespace
}  // namespace tailrace::scheduler
