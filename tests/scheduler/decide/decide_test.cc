// What the law's scenarios leave open: evaluation, deadlines, the breaker, the ends of data and of
// patience.
#include <cmath>

#include "scheduler/decide/rounds.h"
#include "tests/scheduler/decide/harness.h"

namespace tailrace::scheduler {
namespace {

Actions publish(Harness& h, int64_t version) {
  Actions all = h.tell(published(version));
  for (const Install& install : only<Install>(all)) {
    for (const Action& action : h.tell_installed(install)) all.push_back(action);
  }
  return all;
}

TEST(Evaluation, IsServedFirstOnExactlyTheVersionAndHoldsTheTrainerBack) {
  Config config = small_config(1, 2);
  config.eval = {.prompts = 2, .group_size = 2, .interval_steps = 0};
  Harness h(config);
  h.add_rollout("w0", 4);
  const auto grants = only<Grant>(publish(h, 0));
  ASSERT_EQ(grants.size(), 4u);  // all slots go to the evaluation
  for (const Grant& grant : grants) {
    EXPECT_EQ(grant.lane, Lane::kEval);
    EXPECT_EQ(grant.lease.member.epoch, 0);
  }
  h.add_rollout("w1", 2);  // the training group
  const auto running = h.state.leases;
  for (const auto& [work, lease] : running) {
    if (work.lane == Lane::kTrain) {
      h.tell(h.result(Grant{lease.worker, {work.member, lease.attempt}, work.lane, 0, {}},
                      work.member.member));
    }
  }
  EXPECT_EQ(h.count(Place::kReady), 1);
  EXPECT_TRUE(only<HandOver>(h.tell(TrainerWants{0, 1})).empty());
  Actions last;
  for (const Grant& grant : grants) last = h.tell(h.result(grant, 1.0));
  const auto report = only<EvalDone>(last);
  ASSERT_EQ(report.size(), 1u);
  EXPECT_EQ(report[0].version, 0);
  EXPECT_EQ(report[0].items.size(), 4u);
  EXPECT_EQ(only<HandOver>(last).size(), 1u);
}

TEST(Evaluation, AMemberThatFailsForGoodIsReportedWithoutReward) {
  Config config = small_config(1, 2);
  config.eval = {.prompts = 1, .group_size = 2, .interval_steps = 0};
  config.retries.env_failed = 1;
  Harness h(config);
  h.add_rollout("w0", 2);
  auto grants = only<Grant>(publish(h, 0));
  h.tell(h.result(grants[0], 0.25));
  auto again = only<Grant>(h.tell(h.failure(grants[1], Outcome::kEnvFailed)));
  const auto retry = std::find_if(again.begin(), again.end(),
                                  [](const Grant& g) { return g.lane == Lane::kEval; });
  ASSERT_NE(retry, again.end());
  const auto report = only<EvalDone>(h.tell(h.failure(*retry, Outcome::kEnvFailed)));
  ASSERT_EQ(report.size(), 1u);
  EXPECT_EQ(report[0].items[0].reward, 0.25);
  EXPECT_FALSE(report[0].items[1].reward);
}

TEST(Evaluation, ChangesNothingThatTrainingSees) {
  const auto batches = [](int64_t eval_prompts) {
    Config config = small_config(3, 2);
    config.steps = 5;
    config.eval = {.prompts = eval_prompts, .group_size = 1, .interval_steps = 2};
    Harness h(config);
    h.add_rollout("w0", 2);
    std::vector<HandOver> all;

    publish(h, 0);
    for (int64_t step = 1; step <= 5; ++step) {
      h.answer_running();
      for (const HandOver& batch : only<HandOver>(h.tell(TrainerWants{0, step})))
        all.push_back(batch);
      publish(h, step);
    }
    h.answer_running();

    EXPECT_TRUE(h.state.end.has_value());
    EXPECT_EQ(h.policy().evaluated, eval_prompts > 0 ? 5 : -1);
    return all;
  };
  const auto plain = batches(0), evaluated = batches(4);
  ASSERT_EQ(plain.size(), 5u);
  EXPECT_EQ(plain, evaluated);
}

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
  const auto again = only<Grant>(late);
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].lease.attempt, 2);
}

TEST(Leases, AnInstallThatTakesTooLongIsAskedForAgain) {
  Harness h(small_config(1, 2));
  h.tell(WorkerUp{.worker = "w0", .slots = 2});
  EXPECT_EQ(only<Install>(h.tell(published(0))).size(), 1u);
  EXPECT_TRUE(only<Install>(h.tell(Tick{})).empty());
  h.tell(Installed{"w0", 0, 0, "other bytes"});  // proves nothing
  EXPECT_TRUE(h.state.leases.empty());
  h.now += h.state.config.deadlines.install;
  EXPECT_EQ(only<Install>(h.tell(Tick{})).size(), 1u);
}

TEST(Leases, AReconnectedWorkerIsNotCountedAsLost) {
  Harness h(small_config(1, 2));
  h.state.config.retries.lost = 0;
  h.tell(WorkerUp{.worker = "w0", .incarnation = 7, .slots = 2});
  publish(h, 0);
  ASSERT_EQ(h.state.leases.size(), 2u);
  const auto installs =
      only<Install>(h.tell(WorkerUp{.worker = "w0", .incarnation = 7, .slots = 2}));
  ASSERT_EQ(installs.size(), 1u);
  EXPECT_EQ(only<Grant>(h.tell_installed(installs[0])).size(), 2u);
  const Actions other = h.tell(WorkerUp{.worker = "w0", .incarnation = 8, .slots = 2});
  EXPECT_EQ(only<TaskDone>(other).size(), 1u);  // bound 0: the group has failed
}

TEST(Placement, SiblingsGoToOneWorker) {
  Harness h(small_config(2, 4));
  h.add_rollout("w0", 4);
  h.add_rollout("w1", 4);
  std::map<int64_t, std::set<WorkerId>> places;
  const Actions start = h.tell(published(0));
  for (const Install& install : only<Install>(start)) h.tell_installed(install);
  for (const auto& [work, lease] : h.state.leases) places[work.member.prompt].insert(lease.worker);
  EXPECT_EQ(h.state.leases.size(), 8u);
  EXPECT_EQ(places[0].size(), 1u);
  EXPECT_EQ(places[1].size(), 1u);
}

TEST(Placement, NobodyInstallsWhileARollbackIsReplayed) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  publish(h, 0);
  for (int64_t step = 1; step <= 2; ++step) {
    h.answer_running();
    h.tell(TrainerWants{0, step});
    publish(h, step);
  }
  h.tell(RolledBack{0, 1, digest_of(1), ""});
  // What the trainer holds now, nothing may run on; the newest version comes back.
  EXPECT_TRUE(only<Install>(h.tell(WorkerUp{.worker = "w1", .slots = 2})).empty());
  h.tell(TrainerWants{0, 2});
  const auto installs = only<Install>(h.tell(published(2)));
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
    h.tell(TrainerWants{0, step});
  }
  h.tell(RolledBack{0, 1, digest_of(1, "b"), ""});  // step 2 is sampled again, in another round
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

TEST(Breaker, HaltsAndNamesTheCauseWhenFailuresPileUp) {
  Config config = small_config(4, 2);
  config.breaker = {.window = 10, .share = 0.5};
  Harness h(config);
  h.add_rollout("w0", 8);
  std::vector<Grant> open = only<Grant>(publish(h, 0));
  std::vector<Halt> halts;
  for (int attempts = 0; attempts < 30 && halts.empty(); ++attempts) {
    ASSERT_FALSE(open.empty());
    const Actions actions = h.tell(h.failure(open.back(), Outcome::kEnvFailed));
    open.pop_back();
    for (const Grant& grant : only<Grant>(actions)) open.push_back(grant);
    halts = only<Halt>(actions);
  }
  ASSERT_EQ(halts.size(), 1u);
  EXPECT_NE(halts[0].reason.find("env_failed"), std::string::npos) << halts[0].reason;
  EXPECT_NE(halts[0].reason.find("broken on purpose"), std::string::npos) << halts[0].reason;
  EXPECT_TRUE(only<Grant>(h.tell(h.failure(open.back(), Outcome::kEnvFailed))).empty());
}

TEST(Breaker, CountsADeadWorkerOnce) {
  Config config = small_config(4, 8);
  config.breaker = {.window = 8, .share = 0.5};
  Harness h(config);
  h.add_rollout("w0", 32);
  publish(h, 0);
  EXPECT_EQ(h.state.leases.size(), 32u);
  EXPECT_TRUE(only<Halt>(h.tell(WorkerDown{"w0"})).empty());
  EXPECT_EQ(h.state.breaker.window.size(), 1u);
}

TEST(Results, ThatBreakTheContractAreFailuresNotSamples) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 2);
  auto grants = only<Grant>(publish(h, 0));
  AttemptResult nan = h.result(grants[0], std::nan(""));
  EXPECT_EQ(only<Grant>(h.tell(nan)).size(), 1u);
  AttemptResult future = h.result(grants[1], 1.0);
  future.max_version = 9;
  EXPECT_EQ(only<Grant>(h.tell(future)).size(), 1u);
  AttemptResult neither = h.result(grants[0], std::nullopt);
  neither.lease.attempt = 2;
  neither.needs_verifier = false;
  EXPECT_EQ(only<Grant>(h.tell(neither)).size(), 1u);
}

TEST(DataEnd, StepsRunShortOnlyWhenNothingMoreCanCome) {
  Config config = small_config(4, 2);
  config.steps = 0;
  config.domains[0] = {.prompts_per_step = 4, .prompts_per_epoch = 3, .epochs = 2};
  Harness h(config);
  h.add_rollout("w0", 64);
  publish(h, 0);
  std::vector<size_t> sizes;
  for (int64_t step = 1; !h.state.end && step < 10; ++step) {
    h.answer_running();
    for (const HandOver& batch : only<HandOver>(h.tell(TrainerWants{0, step})))
      sizes.push_back(batch.items.size());
    publish(h, step);
  }
  EXPECT_EQ(sizes,
            (std::vector<size_t>{8, 4}));  // 4 groups across the epochs' border, then the last 2
  ASSERT_TRUE(h.state.end);
  EXPECT_EQ(h.state.end->reason, RunEnd::Reason::kDataEnd);
  EXPECT_EQ(h.state.end->unreached, 0);
}

TEST(DataEnd, AStepLimitLeavesPromptsUnreached) {
  Config config = small_config(2, 2);
  config.steps = 1;
  config.domains[0] = {.prompts_per_step = 2, .prompts_per_epoch = 5, .epochs = 1};
  Harness h(config);
  h.add_rollout("w0", 64);
  publish(h, 0);
  h.answer_running();
  h.tell(TrainerWants{0, 1});
  const auto done = only<RunDone>(h.tell(published(1)));
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].end.unreached, 3);
}

TEST(Stop, EndsAtOnceWhenIdleAndAfterTheStepWhenTheTrainerWorks) {
  Harness idle(small_config(1, 2));
  idle.add_rollout("w0", 8);
  publish(idle, 0);
  const Actions stopped = idle.tell(StopRequested{});
  EXPECT_EQ(only<Abort>(stopped).size(), 2u);
  EXPECT_EQ(only<RunDone>(stopped).size(), 1u);
  EXPECT_EQ(only<Grant>(idle.tell(Restarted{})).size(), 2u);  // and it can be continued

  Harness busy(small_config(1, 2));
  busy.add_rollout("w0", 8);
  publish(busy, 0);
  busy.answer_running();
  busy.tell(TrainerWants{0, 1});
  EXPECT_TRUE(only<RunDone>(busy.tell(StopRequested{})).empty());
  const auto done = only<RunDone>(busy.tell(published(1)));
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].end.reason, RunEnd::Reason::kStopped);
}

TEST(Rollback, BeyondWhatIsKeptHaltsWithTheReason) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  publish(h, 0);
  for (int64_t step = 1; step <= 3; ++step) {
    h.answer_running();
    h.tell(TrainerWants{0, step});
    publish(h, step);
  }
  h.tell(Durable{0, 2});
  State copy = h.state;
  const auto halts = only<Halt>(decide(copy, RolledBack{0, 1, digest_of(1), ""}, h.now));
  ASSERT_EQ(halts.size(), 1u);
  EXPECT_NE(halts[0].reason.find("version 1"), std::string::npos);
  EXPECT_NE(only<Halt>(h.tell(RolledBack{0, -1, "", ""})).at(0).reason.find("no checkpoint"),
            std::string::npos);
}

TEST(Rollback, AnOldGreetingOfTheSameProcessIsNoRollback) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  h.tell(RolledBack{0, -1, "", "", 7});
  publish(h, 0);
  h.answer_running();
  h.tell(TrainerWants{0, 1});
  publish(h, 1);
  const State before = h.state;
  // The scheduler died before it could acknowledge these: they come again.
  EXPECT_TRUE(h.tell(RolledBack{0, -1, "", "", 7}).empty());
  EXPECT_TRUE(h.tell(RolledBack{0, 0, digest_of(0), "", 7}).empty());
  EXPECT_EQ(h.state, before);
  h.tell(RolledBack{0, 0, digest_of(0), "", 8});
  EXPECT_EQ(h.policy().published, 0);
}

// No mode has it yet: rounds of several steps are open, and a batch may hold groups that are older
// than the version before it. What a round, a task and a batch say of each other must not rest on
// their steps being equal.
Harness run_a_step_ahead(bool replace_zero_signal = false) {
  Config config = small_config(2, 2);
  config.mode.ahead = {1, 1};
  config.replace_zero_signal = replace_zero_signal;
  Harness h(config);
  h.add_rollout("w0", 64);
  publish(h, 0);
  return h;
}

void train_step(Harness& h, int64_t step, std::string_view lineage = "a") {
  h.answer_running();
  EXPECT_EQ(only<HandOver>(h.tell(TrainerWants{0, step})).size(), 1u);
  for (const Install& install : only<Install>(h.tell(published(step, lineage))))
    h.tell_installed(install);
}

Actions roll_back(Harness& h, int64_t version, std::string_view lineage) {
  const Actions all = h.tell(RolledBack{0, version, digest_of(version, lineage), ""});
  for (const Install& install : only<Install>(all)) h.tell_installed(install);
  return all;
}

TEST(Ahead, AKeptGroupBelongsToNoRoundOfTheNewLineage) {
  Harness h = run_a_step_ahead();
  train_step(h, 1);
  train_step(h, 2);  // its groups were sampled at version 0, like those of step 1
  roll_back(h, 1, "b");
  ASSERT_EQ(h.policy().domains[0].ready.size(), 2u);
  const TaskId kept = h.policy().domains[0].ready.front();
  const Share before = h.policy().rounds.at(0).shares.at(0);
  h.tell(BodiesLost{{{Lane::kTrain, {member_id(kept, 0, 0), 1}}}});
  EXPECT_EQ(h.policy().rounds.at(0).shares.at(0), before);
  h.answer_running();
  EXPECT_EQ(h.policy().domains[0].ready.size(), 4u);  // it runs again, in a round of its own
}

TEST(Ahead, AGroupThatWasFilteredOnceIsKeptLikeAnyOther) {
  Harness h = run_a_step_ahead(/*replace_zero_signal=*/true);
  train_step(h, 1);
  std::vector<TaskDone> done;
  for (int32_t member = 0; member < 2; ++member) {
    const LeaseId lease{member_id({.prompt = 4}, 0, member), 1};
    for (const TaskDone& end : only<TaskDone>(h.tell(h.result(Grant{"w0", lease}, 1.0))))
      done.push_back(end);
  }
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].end, TaskEnd::kFiltered);
  roll_back(h, 1, "b");  // its end is withdrawn
  train_step(h, 2, "b");
  h.answer_running();
  const auto batch = only<HandOver>(h.tell(TrainerWants{0, 3}));
  ASSERT_EQ(batch.size(), 1u);
  ASSERT_EQ(batch[0].items[0].lease.member.prompt, 4);  // sampled at version 1
  roll_back(h, 2, "c");
  EXPECT_EQ(h.policy().tasks.at({.prompt = 4}).place, Place::kReady);
}

TEST(Durable, ReleasesTheBodiesThatNobodyAsksForAgain) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  publish(h, 0);
  for (int64_t step = 1; step <= 2; ++step) {
    h.answer_running();
    h.tell(TrainerWants{0, step});
    publish(h, step);
  }
  EXPECT_EQ(held_bodies(h.state).size(), 4u);
  const auto released = only<Release>(h.tell(Durable{0, 1}));
  ASSERT_EQ(released.size(), 1u);
  EXPECT_EQ(released[0].bodies.size(), 2u);
  EXPECT_EQ(held_bodies(h.state).size(), 2u);
}

TEST(Batch, IsOrderedByPromptWhateverArrivedFirst) {
  Harness h(small_config(3, 2));
  h.add_rollout("w0", 64);
  auto grants = only<Grant>(publish(h, 0));
  std::reverse(grants.begin(), grants.end());
  for (const Grant& grant : grants) h.tell(h.result(grant, grant.lease.member.member));
  const auto batch = only<HandOver>(h.tell(TrainerWants{0, 1}));
  ASSERT_EQ(batch.size(), 1u);
  ASSERT_EQ(batch[0].items.size(), 6u);
  for (size_t i = 1; i < 6; ++i)
    EXPECT_LT(batch[0].items[i - 1].lease.member, batch[0].items[i].lease.member);
}

TEST(Archive, RefusesCutAndOverlongBytes) {
  Harness h(small_config(2, 2));
  h.add_rollout("w0", 8);
  publish(h, 0);
  const std::string bytes = to_bytes(h.state);
  ASSERT_TRUE(from_bytes<State>(bytes));
  for (size_t size = 0; size < bytes.size(); size += 7)
    EXPECT_FALSE(from_bytes<State>(bytes.substr(0, size)));
  EXPECT_FALSE(from_bytes<State>(bytes + "x"));
}

}  // namespace
}  // namespace tailrace::scheduler
