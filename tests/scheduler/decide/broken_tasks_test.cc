// Tasks that nobody can play or score (law 6.10).
#include <gtest/gtest.h>

#include "tests/scheduler/decide/harness.h"

namespace tailrace::scheduler {
namespace {

AttemptResult broken(const Harness& h, const Grant& grant) {
  AttemptResult result = h.failure(grant, Outcome::kTaskBroken);
  result.reason = "no wall has a door";
  return result;
}

Config rows_config(int64_t prompts, int64_t rows, int64_t epochs = 0) {
  Config config = small_config(prompts, 2);
  config.datasets[0].prompts_per_epoch = rows;
  config.datasets[0].epochs = epochs;
  config.datasets[0].name = "mazes";
  return config;
}

std::set<int64_t> running_prompts(const Harness& h) {
  std::set<int64_t> prompts;
  for (const auto& [work, lease] : h.state.leases.in_order())
    if (work.lane == Lane::kTrain) prompts.insert(work.member.prompt);
  return prompts;
}

TEST(BrokenTasks, TheGroupEndsAtOnceIsReplacedAndNobodyIsBlamed) {
  Harness h = started(rows_config(2, 3));
  const Actions actions = h.tell(broken(h, grants_of(h, 1)[0]));
  EXPECT_EQ(only<Abort>(actions).size(), 1u);
  const auto done = only<TaskDone>(actions);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].end, TaskEnd::kBroken);
  const auto told = only<TaskBroken>(actions);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(describe(told[0]),
            "task_broken policy=0 dataset=0 epoch=0 prompt=1 row=1: no wall has a door");
  EXPECT_EQ(running_prompts(h), (std::set<int64_t>{0, 2}));
  EXPECT_TRUE(h.state.health.empty());
  EXPECT_TRUE(h.state.breakers.empty());
  EXPECT_EQ(h.policy().attempts.env_failed, 0);
}

TEST(BrokenTasks, TheRowIsNeverSampledAgainInAnyEpoch) {
  Harness h = started(rows_config(2, 3));
  h.tell(broken(h, grants_of(h, 1)[0]));
  for (int64_t step = 1; step <= 10; ++step) {
    EXPECT_FALSE(running_prompts(h).contains(1));
    train_step(h, step);
  }
  const Dataset& dataset = h.policy().datasets[0];
  EXPECT_EQ(dataset.ended_as(TaskEnd::kTrained), 20);
  EXPECT_GE(dataset.ended_as(TaskEnd::kBroken), 9);  // a prompt of each epoch
  EXPECT_EQ(dataset.broken.found, 1);
  EXPECT_TRUE(h.state.health.empty());
}

TEST(BrokenTasks, SamplesOfTheGroupAreReleased) {
  Harness h = started(rows_config(2, 3));
  const auto grants = grants_of(h, 1);
  h.tell(h.result(grants[0], 1.0));
  const auto released = only<Release>(h.tell(broken(h, grants[1])));
  ASSERT_EQ(released.size(), 1u);
  EXPECT_EQ(released[0].bodies, (std::vector<BodyId>{{Lane::kTrain, grants[0].lease}}));
}

TEST(BrokenTasks, AVerifierMaySayIt) {
  Harness h = started(rows_config(2, 3));
  h.tell(WorkerUp{.worker = "r0", .role = Role::kReward, .slots = 4});
  const Grant grant = grants_of(h, 0)[0];
  const auto verify = only<Verify>(h.tell(h.result(grant, std::nullopt)));
  ASSERT_EQ(verify.size(), 1u);
  const Actions actions = h.tell(Reward{.worker = "r0",
                                        .lease = grant.lease,
                                        .lane = Lane::kTrain,
                                        .verify_attempt = verify[0].verify_attempt,
                                        .reward = std::nullopt,
                                        .reason = "no answer is known",
                                        .task_broken = true});
  EXPECT_EQ(only<TaskBroken>(actions).size(), 1u);
  EXPECT_EQ(only<Release>(actions).size(), 1u);
  EXPECT_TRUE(only<Verify>(actions).empty());
  EXPECT_EQ(running_prompts(h), (std::set<int64_t>{1, 2}));
  EXPECT_EQ(h.policy().attempts.verifier_failed, 0);
}

// Epochs have no barrier, so two of them may play a row at once.
TEST(BrokenTasks, OtherEpochsOfTheRowEndWithIt) {
  Harness h = started(rows_config(4, 2));
  EXPECT_EQ(grants_of(h, 1).size(), 4u);
  const Actions actions = h.tell(broken(h, grants_of(h, 1)[0]));
  EXPECT_EQ(only<Abort>(actions).size(), 3u);
  EXPECT_EQ(only<TaskBroken>(actions).size(), 1u);
  EXPECT_EQ(running_prompts(h), (std::set<int64_t>{0}));
  EXPECT_EQ(h.policy().tasks.size(), 6u);  // four of row 0, two that have ended
}

TEST(BrokenTasks, AForkDoesNotBringThemBack) {
  Harness h = started(rows_config(2, 3));
  h.tell(broken(h, grants_of(h, 1)[0]));
  train_step(h, 1);
  h.tell(durable(1, 0));
  h.add_trainer(0, "b");
  h.install_open();
  EXPECT_FALSE(running_prompts(h).empty());
  EXPECT_FALSE(running_prompts(h).contains(1));
}

TEST(BrokenTasks, FiniteDataEndsWithoutThem) {
  Config config = rows_config(2, 4, 2);
  config.steps = 0;
  Harness h = started(config);
  h.tell(broken(h, grants_of(h, 1)[0]));
  for (int64_t step = 1; step <= 3; ++step) train_step(h, step);
  const auto done = only<RunDone>(h.tell(durable(3)));
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].end.reason, RunEnd::Reason::kDataEnd);
  EXPECT_EQ(done[0].end.unreached, 0);
  EXPECT_EQ(h.policy().datasets[0].ended_as(TaskEnd::kBroken), 2);
}

TEST(BrokenTasks, ADatasetOfBrokenRowsHaltsTheRunAndIsNamed) {
  Harness h = started(rows_config(2, 3));
  std::vector<Halt> halts;
  while (halts.empty() && !running_prompts(h).empty())
    halts = only<Halt>(h.tell(broken(h, grants_of(h, *running_prompts(h).begin())[0])));
  ASSERT_EQ(halts.size(), 1u);
  EXPECT_TRUE(halts[0].reason.starts_with("all 3 rows of dataset 'mazes' are broken"))
      << halts[0].reason;
  EXPECT_NE(halts[0].reason.find("no wall has a door"), std::string::npos);
  EXPECT_FALSE(next_deadline(h.state));
  // A person who only starts it again is told once more.
  EXPECT_EQ(only<Halt>(h.tell(Restarted{})).size(), 1u);
}

TEST(BrokenTasks, DrawnTasksHaltItWhenAWindowOfThemIsBroken) {
  Config config = small_config(1, 2);
  config.breaker.window = 5;
  Harness h = started(config);
  for (int i = 0; i < 4; ++i)
    EXPECT_TRUE(only<Halt>(h.tell(broken(h, grants_of(h, i)[0]))).empty());
  h.tell(h.result(grants_of(h, 4)[0], 1.0));  // it has others
  h.tell(broken(h, grants_of(h, 4)[0]));
  EXPECT_TRUE(h.state.halted.empty());
  for (int i = 5; i < 9; ++i) h.tell(broken(h, grants_of(h, i)[0]));
  EXPECT_TRUE(h.state.halted.starts_with("the last 5 tasks of dataset number 0 are broken"))
      << h.state.halted;
  EXPECT_TRUE(h.policy().datasets[0].broken.rows.empty());
}

TEST(BrokenTasks, AHeldOutOneCountsAsFailedAndIsNotAskedAgain) {
  Config config = rows_config(1, 8);
  config.eval = {.prompts = 2, .group_size = 2, .interval_steps = 1};
  Harness h = started(config);
  std::vector<Grant> held_out;
  for (const auto& [work, lease] : h.state.leases.in_order())
    if (work.lane == Lane::kEval) held_out.push_back(Harness::grant_of(work, lease));
  ASSERT_EQ(held_out.size(), 4u);
  h.tell(h.result(held_out[0], 1.0));
  const Actions actions = h.tell(broken(h, held_out[1]));
  EXPECT_EQ(only<TaskBroken>(actions).size(), 1u);
  EXPECT_EQ(only<Release>(actions).size(), 1u);
  h.tell(h.result(held_out[2], 1.0));
  const auto report = only<EvalDone>(h.tell(h.result(held_out[3], 1.0)));
  ASSERT_EQ(report.size(), 1u);
  ASSERT_EQ(report[0].items.size(), 4u);
  for (const EvalDone::Item& item : report[0].items)
    EXPECT_EQ(item.reward.has_value(), item.lease.member.prompt == 1);
  h.tell(EvalReported{.policy = 0, .version = 0});
  train_step(h, 1);
  for (const auto& [work, lease] : h.state.leases.in_order())
    EXPECT_FALSE(work.lane == Lane::kEval && work.member.prompt == 0);
  // Training has rows of its own.
  EXPECT_TRUE(h.policy().datasets[0].broken.rows.empty());
}

TEST(BrokenTasks, AnEvaluationOfWhichAllAreBrokenIsReportedWithoutAsking) {
  Config config = rows_config(1, 8);
  config.eval = {.prompts = 1, .group_size = 2, .interval_steps = 1};
  Harness h = started(config);
  for (const auto& [work, lease] : h.state.leases.in_order()) {
    if (work.lane != Lane::kEval) continue;
    EXPECT_EQ(only<EvalDone>(h.tell(broken(h, Harness::grant_of(work, lease)))).size(), 1u);
    break;
  }
  h.tell(EvalReported{.policy = 0, .version = 0});
  h.answer_running();
  h.tell(wants(1));
  const auto report = only<EvalDone>(h.tell(published(1)));
  ASSERT_EQ(report.size(), 1u);
  EXPECT_EQ(report[0].items.size(), 2u);
}

TEST(BrokenTasks, SurviveASnapshotAndARestart) {
  Harness h = started(rows_config(2, 3));
  const State before = h.state;
  const Event event = broken(h, grants_of(h, 1)[0]);
  const Actions actions = h.tell(event);
  // The journal's event, and the snapshot behind it.
  State replayed = *from_bytes<State>(to_bytes(before));
  EXPECT_EQ(decide(replayed, *from_bytes<Event>(to_bytes(event)), h.now), actions);
  EXPECT_EQ(replayed, h.state);
  EXPECT_EQ(*from_bytes<State>(to_bytes(h.state)), h.state);
  h.tell(Restarted{});
  EXPECT_TRUE(is_broken(h.state, Lane::kTrain, {.epoch = 7, .prompt = 1}));
}

}  // namespace
}  // namespace tailrace::scheduler
