// What a member goes through: leases and their deadlines, who gets them, which results count, and
// the batch that comes of it.
#include <cmath>

#include <gmock/gmock.h>

#include "core/base/random.h"
#include "scheduler/decide/rounds.h"
#include "scheduler/state/expects.h"
#include "scheduler/state/queues.h"
#include "tests/golden/golden.h"
#include "tests/scheduler/decide/harness.h"

namespace tailrace::scheduler {
namespace {

TEST(Leases, ExpireWithTimeAndAreGivenAgain) {
  Harness h(small_config(1, 2));
  h.state.config.deadlines.lease = seconds(10);
  h.add_rollout("w0", 2);
  const auto grants = only<Grant>(publish(h, 0));
  h.now += seconds(9);
  EXPECT_TRUE(h.tell(Tick{}).empty());
  h.now += seconds(2);
  const Actions late = h.tell(Tick{});
  EXPECT_EQ(only<Abort>(late).size(), 2u);
  EXPECT_TRUE(only<Grant>(late).empty());  // nobody else is there: after a rest, to the same worker
  const auto again = only<Grant>(h.wait(seconds(1)));
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].lease.attempt, 2);
}

TEST(Leases, AndTasksThatAreNotFoundAsTheyLieAreAViolation) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 2);
  publish(h, 0);
  State state = h.state;
  EXPECT_EQ(find_violation(state), std::nullopt);
  const_cast<Lease&>(state.leases.at(state.leases.next())).deadline += seconds(1);
  EXPECT_THAT(find_violation(state).value_or(""), testing::HasSubstr("leases: entries"));
  state = h.state;
  const_cast<TaskId&>(state.policies.at(0).tasks.begin()->first).prompt += 100;
  EXPECT_THAT(find_violation(state).value_or(""), testing::HasSubstr("tasks: map and hash"));
  state = h.state;
  const_cast<WorkerId&>(state.workers.begin()->first) = "w-1";
  EXPECT_THAT(find_violation(state).value_or(""), testing::HasSubstr("workers: map and hash"));
}

TEST(Leases, AnInstallThatTakesTooLongIsAskedForAgain) {
  Harness h(small_config(1, 2));
  h.tell(WorkerUp{.worker = "w0", .slots = 2});
  EXPECT_EQ(only<Stage>(h.tell(published(0))).size(), 1u);
  EXPECT_TRUE(only<Stage>(h.tell(Tick{})).empty());
  EXPECT_TRUE(only<Switch>(h.tell(Staged{"w0", 0, 0, "other bytes"})).empty());  // proves nothing
  h.now += h.state.config.deadlines.install;
  EXPECT_EQ(only<Stage>(h.tell(Tick{})).size(), 1u);
  // So is the switch, which may have happened or not: all begins anew.
  EXPECT_EQ(only<Switch>(h.tell(Staged{"w0", 0, 0, digest_of(0)})).size(), 1u);
  h.tell(Installed{"w0", 0, 0, "other bytes"});
  EXPECT_TRUE(h.state.leases.empty());
  h.now += h.state.config.deadlines.install;
  EXPECT_EQ(only<Stage>(h.tell(Tick{})).size(), 1u);
  EXPECT_EQ(h.state.health.at("w0").faults, 2);
}

TEST(Leases, AWorkerThatConnectsAnewKeepsThemAndIsToldAgain) {
  Harness h(small_config(1, 2));
  h.state.config.retries.lost = 0;
  h.tell(WorkerUp{.worker = "w0", .session = 1, .incarnation = 7, .slots = 2});
  const auto grants = only<Grant>(publish(h, 0));
  ASSERT_EQ(grants.size(), 2u);
  const Actions again =
      h.tell(WorkerUp{.worker = "w0", .session = 2, .incarnation = 7, .slots = 2});
  const auto holds = only<Hold>(again);
  ASSERT_EQ(holds.size(), 1u);
  EXPECT_EQ(holds[0].leases.size(), 2u);
  EXPECT_EQ(holds[0].session, 2u);
  const auto repeated = only<Grant>(again);
  ASSERT_EQ(repeated.size(), 2u);
  EXPECT_EQ(repeated[0].lease, grants[0].lease);  // the same attempt
  EXPECT_EQ(only<Stage>(again).size(), 1u);       // weights are proved anew
  // The end of the old session is no news.
  EXPECT_TRUE(h.tell(WorkerDown{"w0", 1}).empty());
  EXPECT_EQ(h.state.leases.size(), 2u);

  const Actions other =
      h.tell(WorkerUp{.worker = "w0", .session = 3, .incarnation = 8, .slots = 2});
  EXPECT_EQ(only<TaskDone>(other).size(), 1u);  // another process, bound 0: the group has failed
  EXPECT_TRUE(only<Hold>(other).at(0).leases.empty());
}

TEST(Leases, OutliveTheSchedulerAndAResentResultCounts) {
  Harness h(small_config(1, 2));
  h.tell(WorkerUp{.worker = "w0", .session = 1, .incarnation = 7, .slots = 2});
  const auto grants = only<Grant>(publish(h, 0));
  h.tell(Restarted{});
  EXPECT_EQ(h.state.leases.size(), 2u);
  h.tell(WorkerUp{.worker = "w0", .session = 9, .incarnation = 7, .slots = 2});
  // What it had finished while nobody listened.
  EXPECT_TRUE(expects_result(h.state, "w0", Lane::kTrain, grants[0].lease));
  AttemptResult result = h.result(grants[0], 1.0);
  result.min_version = result.max_version = 0;
  h.tell(result);
  EXPECT_EQ(h.policy().tasks.begin()->second.members[0].phase, Phase::kRewarded);
  EXPECT_EQ(h.state.leases.size(), 1u);
  expect_golden("scheduler/restart_keeps_leases.txt", h.transcript);
}

TEST(Leases, OfAWorkerThatDoesNotComeBackAreGivenToOthers) {
  Harness h(small_config(1, 2));
  h.tell(WorkerUp{.worker = "w0", .incarnation = 7, .slots = 2});
  publish(h, 0);
  h.tell(Restarted{});
  h.add_rollout("w1", 2);
  EXPECT_EQ(h.state.leases.size(), 2u);
  h.now += h.state.config.deadlines.reconnect;
  const auto grants = only<Grant>(h.tell(Tick{}));
  ASSERT_EQ(grants.size(), 2u);
  EXPECT_EQ(grants[0].worker, "w1");
  EXPECT_FALSE(h.state.workers.contains("w0"));
}

TEST(Stalled, IsGrantedNothingUntilItMovesAgain) {
  Harness h(small_config(2, 2));
  h.add_rollout("w0", 2);
  h.tell(Stalled{"w0"});
  publish(h, 0);
  EXPECT_TRUE(h.state.leases.empty());
  EXPECT_EQ(num_waiting(h.state), 4);
  EXPECT_TRUE(h.tell(Stalled{"w0"}).empty());  // said twice
  EXPECT_EQ(only<Grant>(h.tell(Stalled{"w0", 0, false})).size(), 2u);
  h.tell(Stalled{"w0"});
  // A new session, and another scheduler, begin anew.
  h.tell(WorkerUp{.worker = "w0", .session = 1, .slots = 2});
  EXPECT_FALSE(h.state.workers.at("w0").stalled);
  EXPECT_TRUE(h.tell(Stalled{"w0"}).empty()) << "of the session before";
  h.tell(Stalled{"w0", 1});
  h.tell(Restarted{});
  EXPECT_FALSE(h.state.workers.at("w0").stalled);
}

TEST(Stalled, GivesItsWorkAwayAfterWhatWaits) {
  Harness h(small_config(2, 2));
  h.add_rollout("w0", 2);
  publish(h, 0);
  ASSERT_EQ(num_waiting(h.state), 2);
  h.tell(Stalled{"w0"});
  h.add_rollout("w1", 3);
  EXPECT_EQ(num_waiting(h.state), 0);
  EXPECT_EQ(h.state.workers.at("w1").leased, 3);
  EXPECT_EQ(h.state.workers.at("w0").leased, 1);
  // As soon as there is room.
  for (const auto& [work, lease] : h.state.leases.in_order()) {
    if (lease.worker != "w1") continue;
    h.tell(h.result(Harness::grant_of(work, lease), 1.0));
    break;
  }
  EXPECT_EQ(h.state.workers.at("w0").leased, 0);
  h.answer_running();
  EXPECT_EQ(h.count(Place::kReady), 2);
}

TEST(Stalled, IsNotWaitedForWhileItInstalls) {
  Harness h(small_config(5, 4));
  for (const char* id : {"w0", "w1"}) h.tell(WorkerUp{.worker = id, .slots = 64});
  const auto installs = only<Stage>(h.tell(published(0)));
  EXPECT_EQ(only<Grant>(h.tell_installed(installs[1])).size(), 10u);  // its part
  EXPECT_EQ(only<Grant>(h.tell(Stalled{"w0"})).size(), 10u);
}

// Not as a failure, and not by weights that are older than those of the grant in its place.
TEST(Stalled, AnswersLateAndIsHeardOnlyWhereNothingIsLost) {
  Harness h(small_config(2, 2));
  h.state.config.mode.ahead = {1, 1};
  h.add_rollout("w0", 8);
  publish(h, 0);
  for (const auto& [work, lease] : h.state.leases.in_order()) {
    if (work.member.prompt < 2) h.tell(h.result(Harness::grant_of(work, lease), 1.0));
  }
  ASSERT_EQ(only<HandOver>(h.tell(wants(1))).size(), 1u);
  // The second step's groups run on version 0 when 1 comes out.
  const std::map<WorkId, Lease> running = h.state.leases.in_order();
  h.tell(Stalled{"w0"});
  h.tell(published(1));
  h.install_open();
  h.add_rollout("w1", 16);
  for (const auto& [work, before] : running) {
    const Lease lease = h.state.leases.at(work);
    ASSERT_EQ(lease.worker, "w1");
    ASSERT_TRUE(lease.before.has_value());
    const Grant grant = Harness::grant_of(work, before);
    AttemptResult old = h.result(grant, 1.0);
    old.min_version = 0;
    const Actions refused = h.tell(old);
    EXPECT_TRUE(only<Abort>(refused).empty());
    EXPECT_EQ(only<Release>(refused).size(), 1u);
    EXPECT_TRUE(h.tell(h.failure(grant, Outcome::kEnvFailed)).empty());
    EXPECT_EQ(h.state.leases.at(work), lease);
    // Its engine has the new weights by now: that is as good.
    AttemptResult good = h.result(grant, 1.0);
    good.min_version = good.max_version = 1;
    EXPECT_EQ(only<Abort>(h.tell(good)).size(), 1u);
  }
  EXPECT_EQ(running.size(), 4u);
}

// Where new weights wait for the work of the old ones, they need not wait any more.
TEST(Stalled, IsDrainedWhenItsWorkIsElsewhere) {
  Harness h(small_config(1, 2));
  h.state.config.mode.ahead = {1, 1};
  h.state.config.mode.install = InstallWhen::kDrained;
  h.add_rollout("w0", 4);
  publish(h, 0);
  for (const auto& [work, lease] : h.state.leases.in_order()) {
    if (work.member.prompt == 0) h.tell(h.result(Harness::grant_of(work, lease), 1.0));
  }
  ASSERT_EQ(only<HandOver>(h.tell(wants(1))).size(), 1u);
  h.tell(Stalled{"w0"});
  const auto stages = only<Stage>(h.tell(published(1)));
  ASSERT_EQ(stages.size(), 1u);
  EXPECT_TRUE(only<Switch>(h.tell_installed(stages[0])).empty());
  ASSERT_EQ(h.state.workers.at("w0").leased, 2);
  const Actions up = h.tell(WorkerUp{.worker = "w1", .slots = 8});
  ASSERT_EQ(only<Stage>(up).size(), 1u);
  const auto switches = only<Switch>(h.tell_installed(only<Stage>(up)[0]));
  ASSERT_EQ(switches.size(), 2u);
  EXPECT_EQ(switches[0].worker, "w1");
  EXPECT_EQ(switches[1].worker, "w0");
  EXPECT_TRUE(h.tell(Tick{}).empty());
}

// An attempt that was given up for the one before it has had its number all the same.
TEST(Stalled, NoAttemptHasTheNumberOfAnother) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 2);
  const auto first = only<Grant>(publish(h, 0));
  h.add_rollout("w1", 2);
  ASSERT_EQ(only<Grant>(h.tell(Stalled{"w0"})).size(), 2u);
  h.tell(h.result(first[0], 1.0));
  h.tell(Stalled{"w0", 0, false});
  const auto again = only<Grant>(h.tell(BodiesLost{{{Lane::kTrain, first[0].lease}}}));
  ASSERT_FALSE(again.empty());
  for (const Grant& grant : again) EXPECT_EQ(grant.lease.attempt, 3);
}

// Where all stand still in turn, its deadline has the last word.
TEST(Stalled, GivesAMemberAwaySoManyTimesAndNoMore) {
  Harness h(small_config(1, 2));
  h.state.config.retries.returned = 3;
  h.add_rollout("w0", 2);
  h.add_rollout("w1", 2);
  publish(h, 0);
  int moves = 0;
  for (int i = 0; i < 10; ++i) {
    for (const char* id : {"w0", "w1"}) {
      moves += static_cast<int>(only<Grant>(h.tell(Stalled{id})).size());
      h.tell(Stalled{id, 0, false});
    }
  }
  EXPECT_EQ(moves, 2 * 3);
  EXPECT_EQ(h.state.leases.size(), 2u);
  EXPECT_EQ(h.policy().attempts.lost, 0);
}

TEST(Placement, SiblingsGoToOneWorker) {
  Harness h(small_config(2, 4));
  h.add_rollout("w0", 4);
  h.add_rollout("w1", 4);
  std::map<int64_t, std::set<WorkerId>> places;
  const Actions start = h.tell(published(0));
  for (const Stage& install : only<Stage>(start)) h.tell_installed(install);
  for (const auto& [work, lease] : h.state.leases.in_order())
    places[work.member.prompt].insert(lease.worker);
  EXPECT_EQ(h.state.leases.size(), 8u);
  EXPECT_EQ(places[0].size(), 1u);
  EXPECT_EQ(places[1].size(), 1u);
}

TEST(Placement, TheFirstThatInstallsLeavesTheOthersTheirPart) {
  Harness h(small_config(5, 4));
  for (const char* id : {"w0", "w1"}) h.tell(WorkerUp{.worker = id, .slots = 64});
  const auto installs = only<Stage>(h.tell(published(0)));
  ASSERT_EQ(installs.size(), 2u);
  EXPECT_EQ(only<Grant>(h.tell_installed(installs[1])).size(), 10u);  // half of 20
  const auto rest = only<Grant>(h.tell_installed(installs[0]));
  ASSERT_EQ(rest.size(), 10u);
  // Nobody installs any more: two of them go where their siblings are.
  EXPECT_EQ(std::ranges::count(rest, "w0", &Grant::worker), 8);
}

// A part is not cut to whole groups (law 6.6), whether it is one group and a half or half a group:
// what was rounded off began when the last of them had installed, and what was rounded up left
// nothing to it.
TEST(Placement, APartThatIsNoWholeGroupIsTakenWhole) {
  for (const int64_t groups : {9, 3}) {
    Harness h(small_config(groups, 4));
    for (int i = 0; i < 6; ++i) h.tell(WorkerUp{.worker = fmt::format("w{}", i), .slots = 64});
    const auto installs = only<Stage>(h.tell(published(0)));
    ASSERT_EQ(installs.size(), 6u);
    for (const Stage& install : installs)
      EXPECT_EQ(std::ssize(only<Grant>(h.tell_installed(install))), groups * 4 / 6) << groups;
  }
}

TEST(Placement, OneThatNeverInstallsHoldsNobodyBack) {
  Harness h(small_config(5, 4));
  for (const char* id : {"w0", "w1"}) h.tell(WorkerUp{.worker = id, .slots = 64});
  const auto installs = only<Stage>(h.tell(published(0)));
  h.tell_installed(installs[0]);
  // Its part of what is left grows as it goes on.
  h.answer_running();
  EXPECT_EQ(h.count(Place::kReady), 5);
  EXPECT_TRUE(is_asked(h.state.workers.at("w1")));
  // Once its deadline has passed it is not waited for at all.
  h.wait(h.state.config.deadlines.install);
  h.tell(wants(1));
  const auto more = only<Stage>(h.tell(published(1)));
  for (const Stage& install : more) {
    if (install.worker == "w0") {
      EXPECT_EQ(only<Grant>(h.tell_installed(install)).size(), 20u);
    }
  }
}

TEST(Placement, ARetryGoesToAnotherWorkerThanTheOneThatFailed) {
  Harness h(small_config(1, 2));
  h.add_rollout("bad", 2);
  const auto at_bad = only<Grant>(publish(h, 0));
  ASSERT_EQ(at_bad.size(), 2u);
  h.add_rollout("good", 1);
  // Its sibling and all its room speak for the worker where it failed.
  const auto retry = only<Grant>(h.tell(h.failure(at_bad[0], Outcome::kEnvFailed)));
  ASSERT_EQ(retry.size(), 1u);
  EXPECT_EQ(retry[0].worker, "good");
  // The other one is full: it waits for it.
  EXPECT_TRUE(only<Grant>(h.tell(h.failure(at_bad[1], Outcome::kEnvFailed))).empty());
  const auto next = only<Grant>(h.tell(h.result(retry[0], 1.0)));
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].worker, "good");
  // Nobody else is left: after a while it goes back there.
  EXPECT_TRUE(only<Grant>(h.tell(WorkerDown{"good"})).empty());
  EXPECT_EQ(next_deadline(h.state), h.now + seconds(1));
  const auto last = only<Grant>(h.wait(seconds(1)));
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].worker, "bad");
}

TEST(Placement, AVerificationIsTriedAgainByAnotherVerifier) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 2);
  for (const char* id : {"v0", "v1"})
    h.tell(WorkerUp{.worker = id, .role = Role::kReward, .slots = 4});
  const auto grants = only<Grant>(publish(h, 0));
  AttemptResult sample = h.result(grants[0], 0.0);
  sample.reward.reset();
  sample.needs_verifier = true;
  const auto first = only<Verify>(h.tell(sample));
  ASSERT_EQ(first.size(), 1u);
  const auto second = only<Verify>(h.tell(Reward{.worker = first[0].worker,
                                                 .lease = first[0].lease,
                                                 .verify_attempt = first[0].verify_attempt,
                                                 .reward = {},
                                                 .reason = "timeout"}));
  ASSERT_EQ(second.size(), 1u);
  EXPECT_NE(second[0].worker, first[0].worker);
}

TEST(Placement, NobodyInstallsWhileARollbackIsReplayed) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  publish(h, 0);
  for (int64_t step = 1; step <= 2; ++step) train_step(h, step);
  h.add_trainer(1);
  // What the trainer holds now, nothing may run on; the newest version comes back.
  EXPECT_TRUE(only<Stage>(h.tell(WorkerUp{.worker = "w1", .slots = 2})).empty());
  h.tell(wants(2));
  const auto installs = only<Stage>(h.tell(published(2)));
  ASSERT_EQ(installs.size(), 1u);
  EXPECT_EQ(installs[0].worker, "w1");
  EXPECT_EQ(installs[0].version, 2);
}

TEST(Rounds, HaveIdsThatAreNeverGivenAgain) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  for (int64_t step = 1; step <= 3; ++step) {
    publish(h, step - 1);
    EXPECT_EQ(h.policy().rounds.at(0).id, step);
    h.answer_running();
    h.tell(wants(step));
  }
  h.add_trainer(1, "b");  // step 2 is sampled again, in another round
  ASSERT_EQ(h.policy().rounds.size(), 1u);
  EXPECT_EQ(h.policy().rounds[0].id, 4);
  EXPECT_EQ(h.policy().rounds[0].step, 2);
  EXPECT_EQ(h.policy().tasks.at({.prompt = 0}).round, 1);  // of version 0: untouched
  EXPECT_EQ(h.policy().tasks.at({.prompt = 1}).round, 4);
}

TEST(Rounds, AGroupNeedsTwoSamplesUnlessGroupsAreOfOne) {
  EXPECT_EQ(small_config(1, 1).members_needed(), 1);
  EXPECT_EQ(small_config(1, 2).members_needed(), 2);
  EXPECT_EQ(small_config(1, 16).members_needed(), 2);
}

TEST(Rounds, AGroupStartsWithTheMembersOfItsRound) {
  Harness h(small_config(1, 3));
  h.add_rollout("w0", 8);
  const auto grants = only<Grant>(publish(h, 0));
  EXPECT_EQ(std::ssize(grants), members_to_launch(h.state.config, h.policy().rounds.at(0)));
  EXPECT_EQ(std::ssize(grants), 3);
}

// A member that failed is replaced alone. Where its whole group is thrown away, as is common, 5 %
// failures and groups of 8 waste 1 - 0.95^8 = 34 % of the samples.
TEST(Retries, FivePercentFailuresInGroupsOfEightWasteAtMostSixPercent) {
  Config config = small_config(16, 8);
  config.steps = 40;
  Harness h(config);
  h.add_rollout("w0", 64);
  h.add_rollout("w1", 64);
  Rng rng(5);
  std::vector<Grant> open = only<Grant>(publish(h, 0));
  int64_t attempts = 0, trained = 0;
  for (int64_t step = 1; step <= config.steps; ++step) {
    while (!open.empty()) {
      const Grant grant = open.back();
      open.pop_back();
      ++attempts;
      const Actions next = h.tell(rng.chance(0.05) ? h.failure(grant, Outcome::kEnvFailed)
                                                   : h.result(grant, grant.lease.member.member));
      for (const Grant& more : only<Grant>(next)) open.push_back(more);
      // What failed at both workers rests for a while.
      if (open.empty() && num_waiting(h.state) > 0) {
        for (const Grant& more : only<Grant>(h.wait(config.quarantine.longest)))
          open.push_back(more);
      }
    }
    const auto batch = only<HandOver>(h.tell(wants(step)));
    ASSERT_EQ(batch.size(), 1u) << step;
    trained += std::ssize(batch[0].items);
    open = only<Grant>(publish(h, step));
    h.tell(durable(step));
  }
  EXPECT_GT(attempts, trained * 104 / 100) << "nothing failed";
  EXPECT_LE(static_cast<double>(attempts - trained), 0.06 * static_cast<double>(attempts));
}

TEST(Results, ThatBreakTheContractAreFailuresNotSamples) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 2);
  auto grants = only<Grant>(publish(h, 0));
  AttemptResult nan = h.result(grants[0], std::nan(""));
  h.tell(nan);
  EXPECT_EQ(only<Grant>(h.wait(seconds(1))).size(), 1u);
  AttemptResult future = h.result(grants[1], 1.0);
  future.max_version = 9;
  h.tell(future);
  EXPECT_EQ(only<Grant>(h.wait(seconds(1))).size(), 1u);
  AttemptResult neither = h.result(grants[0], std::nullopt);
  neither.lease.attempt = 2;
  neither.needs_verifier = false;
  h.tell(neither);
  EXPECT_EQ(only<Grant>(h.wait(seconds(2))).size(), 1u);  // the second failure of this member
}

TEST(Batch, IsOrderedByPromptWhateverArrivedFirst) {
  Harness h(small_config(3, 2));
  h.add_rollout("w0", 64);
  auto grants = only<Grant>(publish(h, 0));
  std::reverse(grants.begin(), grants.end());
  for (const Grant& grant : grants) h.tell(h.result(grant, grant.lease.member.member));
  const auto batch = only<HandOver>(h.tell(wants(1)));
  ASSERT_EQ(batch.size(), 1u);
  ASSERT_EQ(batch[0].items.size(), 6u);
  for (size_t i = 1; i < 6; ++i)
    EXPECT_LT(batch[0].items[i - 1].lease.member, batch[0].items[i].lease.member);
}

}  // namespace
}  // namespace tailrace::scheduler
