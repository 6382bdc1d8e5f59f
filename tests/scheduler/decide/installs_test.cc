// An install is two events (law 9.6): weights are staged beside those that sample, and switched to.
#include "tests/scheduler/decide/harness.h"

namespace tailrace::scheduler {
namespace {

// Two steps of credit and one worker that has room for all; version 1 is out while groups of
// version 0 run.
struct Overlapping : Harness {
  explicit Overlapping(InstallWhen when = InstallWhen::kAtOnce, Ratio ahead = {1, 1})
      : Harness(overlapping(when, ahead)) {
    add_rollout("w0", 16);
    publish(*this, 0);
    for (const auto& [work, lease] : state.leases.in_order()) {
      if (work.member.prompt == 0) tell(result(grant_of(work, lease), work.member.member));
    }
    EXPECT_EQ(only<HandOver>(tell(wants(1))).size(), 1u);
    const auto stages = only<Stage>(tell(published(1)));
    EXPECT_EQ(stages.size(), 1u);
    stage = stages.at(0);
  }

  const Worker& worker() const { return state.workers.at("w0"); }
  // Long after: it would rest where it failed.
  Actions retry(const WorkId& work, const Lease& lease) {
    tell(failure(grant_of(work, lease), Outcome::kLost));
    return wait(state.config.quarantine.first);
  }
  Actions staged() { return tell(Staged{stage.worker, 0, stage.version, stage.digest}); }

  Stage stage;

 private:
  static Config overlapping(InstallWhen when, Ratio ahead) {
    Config config = small_config(1, 2);
    config.mode = {.ahead = ahead, .max_staleness = 2, .on_stale = OnStale::kMask, .install = when};
    config.validate();
    return config;
  }
};

// A retry of an older launch does not wait for weights that it does not need.
TEST(Installs, WhoStagesIsGrantedWhatItsWeightsMaySample) {
  Overlapping h;
  const auto [work, lease] = *h.state.leases.in_order().begin();
  const auto again = only<Grant>(h.retry(work, lease));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].worker, "w0");
  EXPECT_EQ(again[0].lease.member, work.member);
  EXPECT_EQ(h.worker().version, 0);
  EXPECT_EQ(h.worker().install->phase, Install::Phase::kStaging);
}

TEST(Installs, WhoSwitchesIsGrantedNothing) {
  Overlapping h;
  ASSERT_EQ(only<Switch>(h.staged()).size(), 1u);
  const auto [work, lease] = *h.state.leases.in_order().begin();
  EXPECT_TRUE(only<Grant>(h.retry(work, lease)).empty());
  const auto grants = only<Grant>(h.tell(Installed{"w0", 0, 1, h.stage.digest}));
  EXPECT_EQ(grants.size(), 3u) << "the retry, and the group of the step after";
}

TEST(Installs, WhatComesFasterThanItIsStagedIsSwitchedToAllTheSame) {
  Overlapping h;
  h.answer_running();
  ASSERT_EQ(only<HandOver>(h.tell(wants(2))).size(), 1u);
  EXPECT_TRUE(only<Stage>(h.tell(published(2))).empty()) << "the first is left to end";
  const auto change = only<Switch>(h.staged());
  ASSERT_EQ(change.size(), 1u);
  EXPECT_EQ(change[0].version, 1);
  const auto next = only<Stage>(h.tell_switched(change[0]));
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].version, 2);
}

TEST(Installs, WhatWaitsStagedIsReplacedByANewerVersion) {
  Overlapping h(InstallWhen::kDrained, {2, 1});
  EXPECT_TRUE(h.staged().empty());  // what runs keeps its weights
  for (const auto& [work, lease] : h.state.leases.in_order()) {
    if (work.member.prompt == 1)
      h.tell(h.result(Harness::grant_of(work, lease), work.member.member));
  }
  ASSERT_EQ(only<HandOver>(h.tell(wants(2))).size(), 1u);
  const auto newer = only<Stage>(h.tell(published(2)));
  ASSERT_EQ(newer.size(), 1u);
  EXPECT_EQ(newer[0].version, 2);
  EXPECT_TRUE(only<Switch>(h.tell_installed(newer[0])).empty());
  Actions last;
  for (const auto& [work, lease] : h.state.leases.in_order())
    last = h.tell(h.result(Harness::grant_of(work, lease), work.member.member));
  const auto change = only<Switch>(last);
  ASSERT_EQ(change.size(), 1u);
  EXPECT_EQ(change[0].version, 2);
}

// By its number alone it would look like the version that is wanted.
TEST(Installs, ASwitchThatAForkOvertakesLeavesTheWorkerClosed) {
  Overlapping h;
  h.tell(durable(0));
  ASSERT_EQ(only<Switch>(h.staged()).size(), 1u);
  // The trainer comes back with the checkpoint, and its step gives other weights.
  const Actions back = h.add_trainer(0);
  h.tell(wants(1));
  const Actions forked = h.tell(published(1, "b"));
  EXPECT_EQ(h.worker().version, -1);
  const auto stages = only<Stage>(forked);
  ASSERT_EQ(stages.size(), 1u);
  EXPECT_EQ(stages[0].digest, digest_of(1, "b"));
  // Its answer comes late, and proves nothing any more.
  EXPECT_TRUE(h.tell(Installed{"w0", 0, 1, h.stage.digest}).empty());
  EXPECT_EQ(h.worker().version, -1);
  EXPECT_FALSE(only<Grant>(h.tell_installed(stages[0])).empty());
}

TEST(Installs, AStagingThatFailsTakesNothingFromTheWorker) {
  Overlapping h;
  const int64_t leased = h.worker().leased;
  ASSERT_GT(leased, 0);
  const auto again = only<Stage>(h.tell(InstallFailed{"w0", 0, 1, h.stage.digest, "no memory"}));
  EXPECT_EQ(again.size(), 1u);
  EXPECT_EQ(h.worker().version, 0);
  EXPECT_EQ(h.worker().leased, leased);
  EXPECT_EQ(h.state.health.at("w0").faults, 1);
}

// Checkpoints let go of versions; what a worker has, or is about to have, is old and not abandoned.
TEST(Installs, ACheckpointTakesNothingFromWhoStages) {
  for (const bool saved : {false, true}) {
    Overlapping h;
    if (saved) h.tell(durable(1));
    const auto [work, lease] = *h.state.leases.in_order().begin();
    const auto again = only<Grant>(h.retry(work, lease));
    ASSERT_EQ(again.size(), 1u) << saved;
    EXPECT_EQ(h.worker().version, 0);
  }
}

TEST(Installs, ASlowStagingIsLeftToEndHoweverManyCheckpointsCome) {
  Config config = small_config(1, 2);
  config.mode = {.ahead = {1, 1}, .max_staleness = 9, .on_stale = OnStale::kMask};
  config.validate();
  Harness h(config);
  h.add_rollout("fast", 16);
  h.add_rollout("slow", 16);
  publish(h, 0);
  std::vector<int64_t> asked;
  const auto install = [&](const Actions& first) {
    Actions open = first;
    while (!open.empty()) {
      Actions next;
      for (const Stage& stage : only<Stage>(open)) {
        if (stage.worker == "slow") {
          asked.push_back(stage.version);
        } else {
          for (const Action& action : h.tell_installed(stage)) next.push_back(action);
        }
      }
      open = std::move(next);
    }
  };
  for (int64_t version = 1; version < 6; ++version) {
    h.answer_running();
    h.tell(wants(version));
    install(h.tell(published(version)));
    install(h.tell(durable(version)));
  }
  EXPECT_EQ(asked, std::vector<int64_t>{1});
  const auto changes = only<Switch>(h.tell(Staged{"slow", 0, 1, digest_of(1)}));
  ASSERT_EQ(changes.size(), 1u);
  h.tell(durable(5));
  h.tell_switched(changes[0]);
  EXPECT_EQ(h.state.workers.at("slow").version, 1);
  EXPECT_EQ(h.state.workers.at("slow").install->version, 5);
  EXPECT_TRUE(h.state.health.empty());
}

TEST(Installs, AFailureOfWhatNobodyWantsAnyMoreIsNoFault) {
  Overlapping h;
  h.answer_running();
  h.tell(wants(2));
  h.tell(published(2));
  ASSERT_EQ(h.worker().install->version, 1);
  const auto again = only<Stage>(h.tell(InstallFailed{"w0", 0, 1, h.stage.digest, "no such file"}));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].version, 2);
  EXPECT_TRUE(h.state.health.empty());
  h.tell(InstallFailed{"w0", 0, 2, again[0].digest, "no memory"});
  EXPECT_EQ(h.state.health.at("w0").faults, 1);
}

// A number alone says little: after a fork other bytes carry it.
TEST(Installs, AFailureOfAbandonedBytesIsNotHeldAgainstTheNewOnes) {
  Overlapping h;
  h.tell(durable(0));
  h.add_trainer(0);
  h.tell(wants(1));
  const auto stages = only<Stage>(h.tell(published(1, "b")));
  ASSERT_EQ(stages.size(), 1u);
  EXPECT_EQ(stages[0].digest, digest_of(1, "b"));
  EXPECT_TRUE(h.tell(InstallFailed{"w0", 0, 1, h.stage.digest, "root differs"}).empty());
  EXPECT_FALSE(h.state.health.contains("w0"));
  EXPECT_EQ(h.worker().install->phase, Install::Phase::kStaging);
}

}  // namespace
}  // namespace tailrace::scheduler
