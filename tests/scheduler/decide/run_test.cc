// What the law's scenarios leave open of a run: evaluation, its ends, checkpoints, trainers and
// rollbacks.
#include <gmock/gmock.h>

#include "core/base/error.h"
#include "scheduler/state/waits.h"
#include "tests/golden/golden.h"
#include "tests/scheduler/decide/harness.h"

namespace tailrace::scheduler {
namespace {

// One device for both (run.colocate): training would take it from what is evaluated.
TEST(Evaluation, HoldsTheNextStepBackWhereTheyTakeTurns) {
  Config config = small_config(1, 2);
  config.eval = {.prompts = 1, .group_size = 1, .interval_steps = 0, .holds_training = true};
  Harness h(config);
  h.add_rollout("w0", 4);
  const auto grants = only<Grant>(publish(h, 0));
  std::optional<Grant> evaluated;
  for (const Grant& grant : grants) {
    if (grant.lane == Lane::kEval)
      evaluated = grant;
    else
      h.tell(h.result(grant, grant.lease.member.member));
  }
  ASSERT_TRUE(evaluated);
  EXPECT_EQ(h.count(Place::kReady), 1);
  EXPECT_TRUE(only<HandOver>(h.tell(wants(1))).empty());
  EXPECT_TRUE(only<HandOver>(h.tell(h.result(*evaluated, 1.0))).empty());
  EXPECT_EQ(only<HandOver>(h.tell(EvalReported{0, 0})).size(), 1u);
}

TEST(Evaluation, IsServedFirstOnExactlyItsVersionWhileTheTrainerGoesOn) {
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
  const auto running = h.state.leases.in_order();
  for (const auto& [work, lease] : running) {
    if (work.lane == Lane::kTrain) {
      h.tell(h.result(Harness::grant_of(work, lease), work.member.member));
    }
  }
  EXPECT_EQ(h.count(Place::kReady), 1);
  // The trainer goes on meanwhile, and so does who samples nothing that is held out.
  EXPECT_EQ(only<HandOver>(h.tell(wants(1))).size(), 1u);
  const auto stages = only<Stage>(h.tell(published(1)));
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_TRUE(only<Switch>(h.tell_installed(stages[0])).empty());  // staged beside it, no more
  const auto late = only<Stage>(h.tell(WorkerUp{.worker = "w2", .slots = 2}));
  ASSERT_EQ(late.size(), 1u);
  EXPECT_EQ(late[0].version, 1);
  h.tell(durable(1));
  EXPECT_TRUE(h.policy().lineage.contains(0)) << "another one may come";
  EXPECT_EQ(only<Switch>(h.tell_installed(late[0])).size(), 1u);
  EXPECT_EQ(h.state.workers.at("w2").leased, 2);
  EXPECT_TRUE(only<HandOver>(h.tell(wants(2))).empty());
  Actions last;
  for (const Grant& grant : grants) last = h.tell(h.result(grant, 1.0));
  const auto report = only<EvalDone>(last);
  ASSERT_EQ(report.size(), 1u);
  EXPECT_EQ(report[0].version, 0);
  EXPECT_EQ(report[0].items.size(), 4u);
  const auto switches = only<Switch>(last);
  ASSERT_EQ(switches.size(), 1u);
  EXPECT_EQ(switches[0].worker, "w0");
  h.tell_switched(switches[0]);
  EXPECT_EQ(only<Switch>(h.tell_installed(stages[1])).size(), 1u);  // it had been slow
  h.answer_running();
  EXPECT_EQ(h.count(Place::kHandedOver), 1);  // step 2, which does not wait for the report
  const Actions reported = h.tell(EvalReported{0, 0});
  EXPECT_EQ(only<Release>(reported).size(), 2u);  // of its two prompts
  expect_golden("scheduler/evaluation.txt", h.transcript);
}

// Steps go on under an evaluation until another version is due, which would be left out.
TEST(Evaluation, MayLagBehindUntilTheNextOneIsDue) {
  Config config = small_config(1, 2);
  config.mode = {.ahead = {6, 1}, .max_staleness = 6};
  config.eval = {.prompts = 1, .group_size = 1, .interval_steps = 3};
  Harness h(config);
  h.add_rollout("w0", 16);
  publish(h, 0);
  const auto leases = h.state.leases.in_order();
  ASSERT_EQ(leases.begin()->first.lane, Lane::kEval);
  const Grant held_out = Harness::grant_of(leases.begin()->first, leases.begin()->second);
  for (const auto& [work, lease] : leases)
    if (work.lane == Lane::kTrain)
      h.tell(h.result(Harness::grant_of(work, lease), work.member.member));
  EXPECT_EQ(h.count(Place::kReady), 7);
  for (int64_t step : {1, 2, 3}) {
    EXPECT_EQ(only<HandOver>(h.tell(wants(step))).size(), 1u) << step;
    h.tell(published(step));
  }
  EXPECT_TRUE(only<HandOver>(h.tell(wants(4))).empty());
  EXPECT_THAT(waits_of(h.state, h.now),
              testing::Contains(testing::HasSubstr(
                  "1 held-out samples of version 0 missing, and step 4 waits for their report")));
  EXPECT_EQ(h.state.workers.at("w0").version, 0);
  const Actions last = h.tell(h.result(held_out, 1.0));
  ASSERT_EQ(only<EvalDone>(last).size(), 1u);
  EXPECT_EQ(only<EvalDone>(last)[0].version, 0);
  EXPECT_TRUE(only<HandOver>(last).empty());
  EXPECT_EQ(only<HandOver>(h.tell(EvalReported{0, 0})).size(), 1u);
  ASSERT_TRUE(h.policy().evaluation);
  EXPECT_EQ(h.policy().evaluation->version, 3);
}

// Nothing is tried once more than its bound says because a body is gone that nobody needs.
TEST(Evaluation, AMemberThatFailedForGoodIsNotSampledAgainForItsBody) {
  Config config = small_config(1, 2);
  config.eval = {.prompts = 1, .group_size = 2, .interval_steps = 0};
  config.retries.verifier_failed = 0;
  Harness h(config);
  h.add_rollout("w0", 8);
  h.tell(WorkerUp{.worker = "r0", .role = Role::kReward, .slots = 8});
  std::vector<Grant> held_out;
  for (const Grant& grant : only<Grant>(publish(h, 0)))
    if (grant.lane == Lane::kEval) held_out.push_back(grant);
  ASSERT_EQ(held_out.size(), 2u);
  const auto verify = only<Verify>(h.tell(h.result(held_out[0], {})));
  ASSERT_EQ(verify.size(), 1u);
  h.tell(Reward{"r0", verify[0].lease, Lane::kEval, verify[0].verify_attempt, {}, "no disk"});
  EXPECT_TRUE(only<Grant>(h.tell(BodiesLost{{{Lane::kEval, held_out[0].lease}}})).empty());
  EXPECT_EQ(h.policy().evaluation->open, 1);
  const auto report = only<EvalDone>(h.tell(h.result(held_out[1], 1.0)));
  ASSERT_EQ(report.size(), 1u);
  EXPECT_EQ(report[0].items[0].reward, std::nullopt);
}

// Once a newer version is there too, by the weights that are evaluated.
TEST(Evaluation, AMemberWhoseBodyIsLostIsSampledAgain) {
  Config config = small_config(1, 2);
  config.eval = {.prompts = 1, .group_size = 2, .interval_steps = 0};
  Harness h(config);
  h.add_rollout("w0", 8);
  std::vector<Grant> held_out;
  for (const Grant& grant : only<Grant>(publish(h, 0))) {
    if (grant.lane == Lane::kEval)
      held_out.push_back(grant);
    else
      h.tell(h.result(grant, grant.lease.member.member));
  }
  ASSERT_EQ(held_out.size(), 2u);
  h.tell(h.result(held_out[0], 0.5));
  h.tell(wants(1));
  h.tell(published(1));
  const auto lose = [&](const LeaseId& lease) {
    const auto grants = only<Grant>(h.tell(BodiesLost{{{Lane::kEval, lease}}}));
    EXPECT_EQ(grants.size(), 1u);
    EXPECT_EQ(grants.at(0).lease.member, held_out[0].lease.member);
    EXPECT_EQ(grants.at(0).lease.attempt, lease.attempt + 1);
    EXPECT_EQ(grants.at(0).version, 0);
    return grants.at(0);
  };
  const Grant again = lose(held_out[0].lease);
  EXPECT_TRUE(only<EvalDone>(h.tell(h.result(held_out[1], 1.0))).empty());
  auto report = only<EvalDone>(h.tell(h.result(again, 0.25)));
  ASSERT_EQ(report.size(), 1u);
  EXPECT_EQ(report[0].items[0].reward, 0.25);
  EXPECT_EQ(report[0].items[1].reward, 1.0);
  // Also before its report is on disk: what is reported then is another one.
  const Grant last = lose(again.lease);
  h.tell(EvalReported{0, 0});
  ASSERT_TRUE(h.policy().evaluation);
  report = only<EvalDone>(h.tell(h.result(last, 0.75)));
  ASSERT_EQ(report.size(), 1u);
  EXPECT_EQ(report[0].items[0].reward, 0.75);
  EXPECT_EQ(only<Switch>(h.tell(Staged{"w0", 0, 1, digest_of(1)})).size(), 1u);
  EXPECT_EQ(only<Release>(h.tell(EvalReported{0, 0})).size(), 1u);
}

// A checkpoint comes between the last reward and the report, and then the body is found to be lost.
TEST(Evaluation, WhatIsNotReportedMayStillBeSampledAgain) {
  for (const bool with_others : {false, true}) {
    Config config = small_config(1, 2);
    config.eval = {.prompts = 1, .group_size = 1, .interval_steps = 0};
    config.save.interval_steps = 1;
    Harness h(config);
    h.add_rollout("w0", 8);
    for (const Grant& grant : only<Grant>(publish(h, 0)))
      if (grant.lane == Lane::kTrain) h.tell(h.result(grant, grant.lease.member.member));
    h.tell(wants(1));
    h.install_all(h.tell(published(1)));
    const WorkId work = h.state.leases.of("w0").at(0);
    ASSERT_EQ(work.lane, Lane::kEval);
    const Grant grant = Harness::grant_of(work, h.state.leases.at(work));
    const Actions last = h.tell(h.result(grant, 1.0));
    ASSERT_EQ(only<EvalDone>(last).size(), 1u);
    h.tell_switched(only<Switch>(last).at(0));
    h.tell(with_others ? durable(1, 0) : durable(1));
    BodiesLost lost;
    for (const BodyId& body : held_bodies(h.state))
      if (with_others || body.lane == Lane::kEval) lost.bodies.push_back(body);
    h.tell(lost);
    h.answer_running();
    h.install_open();
    ASSERT_EQ(h.state.leases.of("w0").at(0).lane, Lane::kEval);
    EXPECT_EQ(h.state.workers.at("w0").version, 0);
  }
}

// Its weights stay for workers that come, but nothing leads from them to the present any more.
TEST(Evaluation, AVersionThatIsKeptForItIsNoneToGoBackTo) {
  Config config = small_config(1, 2);
  config.eval = {.prompts = 1, .group_size = 1, .interval_steps = 0};
  Harness h(config);
  h.add_rollout("w0", 8);
  for (const Grant& grant : only<Grant>(publish(h, 0))) {
    if (grant.lane == Lane::kTrain) h.tell(h.result(grant, grant.lease.member.member));
  }
  h.tell(wants(1));
  h.tell(published(1));
  h.tell(durable(1));
  ASSERT_TRUE(h.policy().lineage.contains(0));
  h.tell(WorkerDown{"t"});
  EXPECT_EQ(only<Halt>(h.add_trainer(0)).size(), 1u);
}

// New rules come with a restart, at any moment: also while the trainer makes the next version.
TEST(Evaluation, OpensOnAVersionWhoseNextOneIsBeingTrained) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  for (int64_t version : {0, 1}) {
    publish(h, version);
    h.answer_running();
    h.tell(wants(version + 1));
  }
  Config config = h.state.config;
  config.eval = {.prompts = 2, .group_size = 1, .interval_steps = 1};
  h.tell(Restarted{.config = config});
  ASSERT_TRUE(h.policy().evaluation);
  EXPECT_EQ(h.policy().evaluation->version, 1);
  h.tell(WorkerUp{.worker = "t", .role = Role::kTrainer, .incarnation = 1});
  h.tell(rolled_back(1));
  h.tell(published(2));
  const auto installs = only<Stage>(h.tell(WorkerUp{.worker = "w0", .slots = 8}));
  ASSERT_EQ(installs.size(), 1u);
  EXPECT_EQ(installs[0].version, 1);
}

TEST(Evaluation, AMemberThatFailsForGoodIsReportedWithoutReward) {
  Config config = small_config(1, 2);
  config.eval = {.prompts = 1, .group_size = 2, .interval_steps = 0};
  config.retries.env_failed = 1;
  Harness h(config);
  h.add_rollout("w0", 8);
  auto grants = only<Grant>(publish(h, 0));
  h.tell(h.result(grants[0], 0.25));
  h.tell(h.failure(grants[1], Outcome::kEnvFailed));
  auto again = only<Grant>(h.wait(seconds(1)));
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
      h.tell(EvalReported{0, step - 1});
      for (const HandOver& batch : only<HandOver>(h.tell(wants(step)))) all.push_back(batch);
      publish(h, step);
    }
    h.answer_running();
    h.tell(EvalReported{0, 5});
    h.tell(durable(5));
    EXPECT_TRUE(h.state.ended);
    EXPECT_EQ(h.policy().evaluated, eval_prompts > 0 ? 5 : -1);
    return all;
  };
  const auto plain = batches(0), evaluated = batches(4);
  ASSERT_EQ(plain.size(), 5u);
  EXPECT_EQ(plain, evaluated);
}

TEST(DataEnd, StepsRunShortOnlyWhenNothingMoreCanCome) {
  Config config = small_config(4, 2);
  config.steps = 0;
  config.datasets[0] = {.prompts_per_step = 4, .prompts_per_epoch = 3, .epochs = 2};
  Harness h(config);
  h.add_rollout("w0", 64);
  publish(h, 0);
  std::vector<size_t> sizes;
  for (int64_t step = 1; !h.state.end && step < 10; ++step) {
    h.answer_running();
    for (const HandOver& batch : only<HandOver>(h.tell(wants(step))))
      sizes.push_back(batch.items.size());
    publish(h, step);
  }
  EXPECT_EQ(sizes,
            (std::vector<size_t>{8, 4}));  // 4 groups across the epochs' border, then the last 2
  h.tell(durable(h.policy().published));
  ASSERT_TRUE(h.state.ended);
  EXPECT_EQ(h.state.end->reason, RunEnd::Reason::kDataEnd);
  EXPECT_EQ(h.state.end->unreached, 0);
  expect_golden("scheduler/data_end.txt", h.transcript);
}

// A run of supervised training alone: what it is for is version 0.
TEST(DataEnd, WithoutDatasetsARunEndsWhenItsFirstVersionIsSaved) {
  Config config = small_config(1, 2);
  config.steps = 0;
  config.datasets.clear();
  config.eval.prompts = 0;
  EXPECT_NO_THROW(config.validate());
  Harness h(config);
  h.tell(published(0));
  EXPECT_FALSE(h.state.ended);
  const auto done = only<RunDone>(h.tell(durable(0)));
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].end.reason, RunEnd::Reason::kDataEnd);
  EXPECT_EQ(done[0].end.unreached, 0);
  // With a step limit there is nothing to reach it with.
  config.steps = 3;
  EXPECT_THROW(config.validate(), UserError);
}

TEST(DataEnd, AStepLimitLeavesPromptsUnreached) {
  Config config = small_config(2, 2);
  config.steps = 1;
  config.datasets[0] = {.prompts_per_step = 2, .prompts_per_epoch = 5, .epochs = 1};
  Harness h(config);
  h.add_rollout("w0", 64);
  publish(h, 0);
  h.answer_running();
  h.tell(wants(1));
  h.tell(published(1));
  const auto done = only<RunDone>(h.tell(durable(1)));
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].end.unreached, 3);
}

TEST(Stop, EndsWhenTheStepIsTrainedAndItsCheckpointIsWritten) {
  Harness idle(small_config(1, 2));
  idle.add_rollout("w0", 8);
  publish(idle, 0);
  idle.tell(durable(0));
  const Actions stopped = idle.tell(StopRequested{});
  EXPECT_EQ(only<Abort>(stopped).size(), 2u);
  EXPECT_EQ(only<RunDone>(stopped).size(), 1u);
  EXPECT_FALSE(next_deadline(idle.state));
  idle.tell(Restarted{});  // and it can be continued
  EXPECT_EQ(only<Stage>(idle.tell(WorkerUp{.worker = "w0", .slots = 8})).size(), 1u);
  idle.tell(Staged{"w0", 0, 0, digest_of(0)});
  EXPECT_EQ(only<Grant>(idle.tell(Installed{"w0", 0, 0, digest_of(0)})).size(), 2u);

  Harness busy(small_config(1, 2));
  busy.add_rollout("w0", 8);
  publish(busy, 0);
  busy.answer_running();
  busy.tell(wants(1));
  EXPECT_TRUE(only<RunDone>(busy.tell(StopRequested{})).empty());
  const Actions trained = busy.tell(published(1));
  EXPECT_EQ(only<Save>(trained).size(), 1u);
  EXPECT_TRUE(only<RunDone>(trained).empty());
  const auto done = only<RunDone>(busy.tell(durable(1)));
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].end.reason, RunEnd::Reason::kStopped);
  expect_golden("scheduler/stop.txt", busy.transcript);
}

TEST(Stop, WaitsForNobodyForEver) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  publish(h, 0);
  h.answer_running();
  h.tell(wants(1));
  h.tell(StopRequested{});
  ASSERT_TRUE(next_deadline(h.state));
  h.now = *next_deadline(h.state);
  EXPECT_TRUE(only<RunDone>(h.tell(Tick{})).empty());  // the step is given up, not its save
  ASSERT_TRUE(next_deadline(h.state));
  h.now = *next_deadline(h.state);
  EXPECT_EQ(only<RunDone>(h.tell(Tick{})).size(), 1u);

  Harness alone(small_config(1, 2));
  alone.add_rollout("w0", 8);
  publish(alone, 0);
  alone.tell(WorkerDown{"t"});
  EXPECT_EQ(only<RunDone>(alone.tell(StopRequested{})).size(), 1u);  // nobody could save
}

TEST(Checkpoints, AreAskedForAtTheirIntervalBeforeTheNextBatch) {
  Config config = small_config(1, 2);
  config.save.interval_steps = 2;
  config.steps = 5;
  Harness h(config);
  h.add_rollout("w0", 8);
  publish(h, 0);
  std::vector<int64_t> asked;
  for (int64_t step = 1; step <= 5; ++step) {
    h.answer_running();
    h.tell(wants(step));
    for (const Save& save : only<Save>(publish(h, step))) {
      asked.push_back(save.version);
      // Another session of the trainer: what was said to the old one may be lost.
      const auto again = only<Save>(h.tell(WorkerUp{
          .worker = "t", .session = 5, .role = Role::kTrainer, .incarnation = h.incarnations}));
      ASSERT_EQ(again.size(), 1u);
      EXPECT_EQ(again[0].version, save.version);
      EXPECT_TRUE(only<Save>(h.tell(Tick{})).empty());  // once a session
      h.tell(durable(save.version));
    }
  }
  EXPECT_EQ(asked, (std::vector<int64_t>{2, 4, 5}));
  EXPECT_TRUE(h.state.ended);
  expect_golden("scheduler/checkpoints.txt", h.transcript);
}

TEST(Trainer, ANameThatNeverComesBackDoesNotBlockAnother) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  publish(h, 0);
  h.answer_running();
  h.tell(Restarted{});
  h.tell(WorkerUp{.worker = "other", .role = Role::kTrainer, .incarnation = 99});
  h.tell(RolledBack{"other", 0, 0, digest_of(0), "v0.json", master_of(0)});
  const auto batch = only<HandOver>(h.tell(TrainerWants{"other", 0, 1}));
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].worker, "other");
}

TEST(Trainer, ASecondOneIsIgnoredWhileTheFirstIsThere) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  publish(h, 0);
  h.answer_running();
  h.tell(WorkerUp{.worker = "other", .role = Role::kTrainer, .incarnation = 99});
  const auto before = h.state.policies;
  EXPECT_TRUE(h.tell(RolledBack{"other", 0, -1, "", ""}).empty());
  EXPECT_TRUE(h.tell(TrainerWants{"other", 0, 1}).empty());
  EXPECT_TRUE(h.tell(Published{"other", 0, 1, "x", "y"}).empty());
  EXPECT_EQ(h.state.policies, before);
  EXPECT_EQ(only<HandOver>(h.tell(wants(1))).size(), 1u);
}

TEST(Trainer, ASecondOneThatGreetedIsHeardWhenTheFirstIsGone) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  publish(h, 0);
  h.answer_running();
  h.tell(WorkerUp{.worker = "u", .role = Role::kTrainer, .incarnation = 90});
  EXPECT_TRUE(h.tell(RolledBack{"u", 0, 0, digest_of(0), "v0.json", master_of(0)}).empty());
  EXPECT_TRUE(h.tell(TrainerWants{"u", 0, 1}).empty());
  const auto batch = only<HandOver>(h.tell(WorkerDown{"t"}));
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].worker, "u");
  EXPECT_EQ(batch[0].step, 1);
  expect_golden("scheduler/second_trainer.txt", h.transcript);
}

TEST(Steps, MayGrowWithoutSkippingPrompts) {
  Config config = small_config(2, 2);
  // So that the end of the run cuts groups off.
  config.mode = {.launch_prompts = {2, 1}, .tail = TailPolicy::kKeep, .max_staleness = 9};
  config.steps = 2;
  Harness h(config);
  h.add_rollout("w0", 64);
  publish(h, 0);
  std::map<int64_t, int> trained;
  const auto run = [&](int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      h.answer_running();
      for (const HandOver& batch : only<HandOver>(h.tell(wants(step)))) {
        for (const HandOver::Item& item : batch.items) ++trained[item.lease.member.prompt];
      }
      publish(h, step);
    }
    h.tell(durable(last));
  };
  run(1, 2);
  ASSERT_TRUE(h.state.ended);
  config.steps = 6;
  h.tell(Restarted{.config = config});
  EXPECT_FALSE(h.state.ended);
  h.add_rollout("w0", 64);
  h.tell(WorkerUp{.worker = "t", .role = Role::kTrainer, .incarnation = h.incarnations});
  h.tell(rolled_back(2));
  run(3, 6);
  EXPECT_TRUE(h.state.ended);
  for (int64_t prompt = 0; prompt < 12; ++prompt) EXPECT_EQ(trained[prompt], 2) << prompt;
}

TEST(Proceed, DoesNothingTwiceAlsoAfterTheEndOfTheData) {
  Config config = small_config(2, 2);
  config.steps = 0;
  config.datasets[0] = {.prompts_per_step = 2, .prompts_per_epoch = 3, .epochs = 1};
  Harness h(config);
  h.add_rollout("w0", 64);
  publish(h, 0);
  train_step(h, 1);
  h.answer_running();  // the last prompt; nothing is left to launch
  const State before = h.state;
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(h.tell(Tick{}).empty());
  EXPECT_EQ(h.state, before);
  EXPECT_EQ(before.policies.at(0).last_round, 2);
}

TEST(Rollback, BeyondWhatIsKeptHaltsWithTheReason) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  publish(h, 0);
  for (int64_t step = 1; step <= 3; ++step) train_step(h, step);
  h.tell(durable(2));
  State copy = h.state;
  (void)decide(copy, WorkerUp{.worker = "t", .role = Role::kTrainer, .incarnation = 50}, h.now);
  const auto halts = only<Halt>(decide(copy, rolled_back(1), h.now));
  ASSERT_EQ(halts.size(), 1u);
  EXPECT_NE(halts[0].reason.find("version 1"), std::string::npos);
  EXPECT_NE(only<Halt>(h.add_trainer(-1)).at(0).reason.find("no checkpoint"), std::string::npos);
}

TEST(Rollback, AnOldGreetingOfTheSameProcessIsNoRollback) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  publish(h, 0);
  train_step(h, 1);
  const State before = h.state;
  // The scheduler died before it could acknowledge these: they come again.
  EXPECT_TRUE(h.tell(rolled_back(-1)).empty());
  EXPECT_TRUE(h.tell(rolled_back(0)).empty());
  EXPECT_EQ(h.state, before);
  h.add_trainer(0);
  EXPECT_EQ(h.policy().published, 0);
}

// Rounds of several steps are open, and a batch may hold groups that are older than the version
// before it. What a round, a task and a batch say of each other must not rest on
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

Actions roll_back(Harness& h, int64_t version, std::string_view lineage) {
  const Actions all = h.add_trainer(version, lineage);
  for (const Stage& install : only<Stage>(all)) h.tell_installed(install);
  return all;
}

TEST(Ahead, AKeptGroupBelongsToNoRoundOfTheNewLineage) {
  Harness h = run_a_step_ahead();
  train_step(h, 1);
  train_step(h, 2);  // its groups were sampled at version 0, like those of step 1
  roll_back(h, 1, "b");
  ASSERT_EQ(h.policy().datasets[0].ready.size(), 2u);
  const TaskId kept = h.policy().datasets[0].ready.front();
  const Share before = h.policy().rounds.at(0).shares.at(0);
  h.tell(BodiesLost{{{Lane::kTrain, {member_id(kept, 0, 0), 1}}}});
  EXPECT_EQ(h.policy().rounds.at(0).shares.at(0), before);
  h.answer_running();
  EXPECT_EQ(h.policy().datasets[0].ready.size(), 4u);  // it runs again, in a round of its own
}

TEST(Ahead, AGroupThatWasFilteredOnceIsKeptLikeAnyOther) {
  Harness h = run_a_step_ahead(/*replace_zero_signal=*/true);
  train_step(h, 1);
  std::vector<TaskDone> done;
  for (int32_t member = 0; member < 2; ++member) {
    const LeaseId lease{member_id({.prompt = 4}, 0, member), 1};
    for (const TaskDone& end :
         only<TaskDone>(h.tell(h.result(Grant{.worker = "w0", .session = 0, .lease = lease}, 1.0))))
      done.push_back(end);
  }
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].end, TaskEnd::kFiltered);
  roll_back(h, 1, "b");  // its end is withdrawn
  train_step(h, 2, "b");
  h.answer_running();
  const auto batch = only<HandOver>(h.tell(wants(3)));
  ASSERT_EQ(batch.size(), 1u);
  ASSERT_EQ(batch[0].items[0].lease.member.prompt, 4);  // sampled at version 1
  roll_back(h, 2, "c");
  EXPECT_EQ(h.policy().tasks.at({.prompt = 4}).place, Place::kReady);
}

// A run that was complete is so again when its trainer has its last checkpoint still.
TEST(Durable, AFinishedRunWaitsForItsTrainersWord) {
  for (const bool damaged : {false, true}) {
    Config config = small_config(1, 2);
    config.steps = 2;
    Harness h(config);
    h.add_rollout("w0", 8);
    publish(h, 0);
    h.tell(durable(0));
    for (int64_t step = 1; step <= 2; ++step) train_step(h, step);
    EXPECT_EQ(only<RunDone>(h.tell(durable(2, 0))).size(), 1u);
    EXPECT_TRUE(only<RunDone>(h.tell(Restarted{})).empty()) << "nobody has said that it is there";
    EXPECT_EQ(only<RunDone>(h.add_trainer(damaged ? 0 : 2)).size(), damaged ? 0u : 1u);
    if (!damaged) continue;
    for (int64_t step = 1; step <= 2; ++step) {
      EXPECT_EQ(only<HandOver>(h.tell(wants(step))).size(), 1u);
      h.tell(published(step));
    }
    EXPECT_EQ(only<RunDone>(h.tell(durable(2, 0))).size(), 1u);
  }
}

// What a disk has lost of a step that goes on is sampled again, and gives the same tokens: the
// random numbers of a member come of its launch.
TEST(BodiesLost, AreOfTheSameLaunchWhenTheyAreSampledAgain) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  const auto grants = only<Grant>(publish(h, 0));
  ASSERT_EQ(grants.size(), 2u);
  h.tell(h.result(grants[0], 0.0));
  const auto again = only<Grant>(h.tell(BodiesLost{{{Lane::kTrain, grants[0].lease}}}));
  ASSERT_EQ(again.size(), 2u);
  for (const Grant& grant : again) {
    EXPECT_EQ(grant.lease.member.launch, 0);
    EXPECT_EQ(grant.lease.attempt, 2) << "no lease is given twice";
  }
  // An answer to the old lease means nothing.
  h.tell(h.result(grants[1], 1.0));
  EXPECT_EQ(h.state.leases.size(), 2u);
  for (const Grant& grant : again) h.tell(h.result(grant, grant.lease.member.member));
  EXPECT_EQ(h.count(Place::kReady), 1);
}

// What was counted since the newest version is not forgotten because older ones are trained again.
TEST(StepStart, OutlivesAReplay) {
  Config config = small_config(1, 2);
  config.replace_zero_signal = true;
  Harness h(config);
  h.add_rollout("w0", 2);
  publish(h, 0);
  h.tell(durable(0));
  train_step(h, 1);
  const StepStart start = h.policy().step_start;
  EXPECT_EQ(start.time, h.now);
  h.now += seconds(5);
  // A group without signal is filtered in step 2.
  for (const auto& [work, lease] : h.state.leases.in_order())
    h.tell(h.result(Harness::grant_of(work, lease), 1.0));
  EXPECT_EQ(step_start_at(h.policy(), h.now).filtered[0], start.filtered[0] + 1);
  h.add_trainer(0);  // it comes back with the first checkpoint
  EXPECT_EQ(only<HandOver>(h.tell(wants(1))).size(), 1u);
  h.tell(published(1));
  EXPECT_EQ(h.policy().step_start, start);
  train_step(h, 2);
  EXPECT_EQ(h.policy().step_start.filtered[0], start.filtered[0] + 1);
  EXPECT_EQ(h.policy().step_start.time, h.now);
  // Other weights begin anew.
  h.now += seconds(5);
  h.add_trainer(1, "b");
  EXPECT_EQ(h.policy().step_start.time, h.now);
}

// A newer checkpoint may turn out to be damaged: the run goes on from the one before it.
TEST(Durable, KeepsWhatAnOlderCheckpointMayAskForAgain) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  publish(h, 0);
  h.tell(durable(0));
  train_step(h, 1);
  EXPECT_TRUE(only<Release>(h.tell(durable(1, 0))).empty());
  train_step(h, 2);
  EXPECT_TRUE(only<Release>(h.tell(durable(2, 0))).empty());
  EXPECT_EQ(h.policy().durable, 2);

  h.add_trainer(0);  // versions 2 and 1 do not read back
  EXPECT_EQ(h.state.halted, "");
  EXPECT_EQ(h.policy().durable, 0);
  for (int64_t step = 1; step <= 2; ++step) {
    const auto again = only<HandOver>(h.tell(wants(step)));
    ASSERT_EQ(again.size(), 1u) << "the same batch of step " << step;
    EXPECT_EQ(again[0].items[0].lease.member.prompt, step - 1);
    h.tell(published(step));
  }
  EXPECT_EQ(only<Release>(h.tell(durable(2, 2))).at(0).bodies.size(), 4u);
  EXPECT_EQ(h.policy().lineage.begin()->first, 2);
}

TEST(Durable, ABodyThatIsKeptForAnOlderCheckpointMayBeLost) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  publish(h, 0);
  h.tell(durable(0));
  for (int64_t step = 1; step <= 2; ++step) {
    train_step(h, step);
    h.tell(durable(step, 0));
  }
  h.tell(BodiesLost{{{Lane::kTrain, {{.prompt = 0}, 1}}}});
  EXPECT_EQ(h.state.halted, "");
  EXPECT_EQ(h.policy().lineage.begin()->first, 2) << "back to the newest, and no further";
  // Of a step that no checkpoint covers it cannot be given again.
  train_step(h, 3);
  h.tell(BodiesLost{{{Lane::kTrain, {{.prompt = 2}, 1}}}});
  EXPECT_NE(h.state.halted, "");
}

TEST(Durable, ReleasesTheBodiesThatNobodyAsksForAgain) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  publish(h, 0);
  for (int64_t step = 1; step <= 2; ++step) train_step(h, step);
  EXPECT_EQ(held_bodies(h.state).size(), 4u);
  const auto released = only<Release>(h.tell(durable(1)));
  ASSERT_EQ(released.size(), 1u);
  EXPECT_EQ(released[0].bodies.size(), 2u);
  EXPECT_EQ(held_bodies(h.state).size(), 2u);
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

// A batch that was handed over and not trained ends with the run, and not as an empty one later.
TEST(End, FewerStepsThanAreHandedOverLeaveNoBatchBehind) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  publish(h, 0);
  train_step(h, 1);
  h.answer_running();
  ASSERT_EQ(only<HandOver>(h.tell(wants(2))).size(), 1u);
  h.tell(StopRequested{});
  h.wait(h.state.config.deadlines.save + seconds(1));
  ASSERT_TRUE(h.state.end);
  Config config = h.state.config;
  config.steps = 1;
  h.tell(Restarted{.config = config});
  h.add_trainer(1);
  h.tell(durable(1));
  ASSERT_TRUE(h.state.ended);
  EXPECT_FALSE(h.policy().batches.contains(2));
  config.steps = 3;
  h.tell(Restarted{.config = config});
  h.add_trainer(1);
  EXPECT_TRUE(only<HandOver>(h.tell(wants(2))).empty()) << "its prompts are sampled again";
}

}  // namespace
}  // namespace tailrace::scheduler
