// The scenarios of docs/scheduler-law.md, section 16, that concern modes other than sync. As in
// law_test, the number is that of the table there, and each is kept as a transcript.
#include <algorithm>
#include <map>

#include "scheduler/state/credit.h"
#include "scheduler/state/expects.h"
#include "tests/golden/golden.h"
#include "tests/scheduler/decide/harness.h"

namespace tailrace::scheduler {
namespace {

constexpr Ratio kQuarterMore{5, 4};

Mode tail_batching() {
  return {
      .launch_prompts = kQuarterMore, .launch_members = kQuarterMore, .tail = TailPolicy::kDiscard};
}
Mode partial() { return {.launch_prompts = {2, 1}, .tail = TailPolicy::kKeep, .max_staleness = 5}; }
Mode ahead(Ratio steps, int64_t bound, OnStale on_stale) {
  return {.ahead = steps, .max_staleness = bound, .on_stale = on_stale};
}

Harness started(const Mode& mode, int64_t prompts, int64_t members) {
  Config config = small_config(prompts, members);
  config.mode = mode;
  config.validate();
  return started(config);
}

// Its first tokens are as old as its grant.
AttemptResult long_result(Harness& h, const Grant& grant, double reward) {
  AttemptResult result = h.result(grant, reward);
  result.min_version = member_of(h.state, {grant.lane, grant.lease.member}).granted_version;
  return result;
}

// The first `count` members of a prompt finish, with rewards that differ. Returns the last actions.
Actions finish(Harness& h, int64_t prompt, int64_t count, int32_t dataset = 0) {
  Actions last;
  for (const Grant& grant : grants_of(h, prompt, dataset)) {
    if (count-- == 0) break;
    last = h.tell(long_result(h, grant, grant.lease.member.member));
  }
  return last;
}

std::vector<int64_t> prompts_of(const HandOver& batch) {
  std::vector<int64_t> prompts;
  for (const HandOver::Item& item : batch.items) {
    const int64_t prompt = item.lease.member.prompt;
    if (prompts.empty() || prompts.back() != prompt) prompts.push_back(prompt);
  }
  return prompts;
}

std::vector<int64_t> prompts_of(const std::set<TaskId>& tasks) {
  std::vector<int64_t> prompts;
  for (const TaskId& id : tasks) prompts.push_back(id.prompt);
  return prompts;
}

const Round& newest_round(Harness& h) { return h.policy().rounds.back(); }

using Prompts = std::vector<int64_t>;

TEST(SchedulerModes, S03_AShortRoundKeepsTheFirstGroupsAndQueuesTheRest) {
  Harness h = started(tail_batching(), 4, 4);
  EXPECT_EQ(newest_round(h).kind, RoundKind::kShort);
  EXPECT_EQ(h.count(Place::kRunning), 5);
  EXPECT_EQ(h.state.leases.size(), 25u);
  const Actions fourth = finish(h, 0, 4);
  EXPECT_EQ(only<Abort>(fourth).size(), 1u);  // its fifth member
  EXPECT_EQ(h.count(Place::kReady), 1);
  finish(h, 1, 4);
  finish(h, 2, 4);
  finish(h, 3, 3);  // three of four: thrown away with the rest if it is too slow
  const Actions last = finish(h, 4, 4);
  EXPECT_EQ(only<Abort>(last).size(), 3u);  // one of its own, two of prompt 3
  EXPECT_EQ(prompts_of(h.policy().datasets[0].long_queue), Prompts{3});
  EXPECT_EQ(h.policy().tasks.at({.prompt = 3}).launch, 1);
  EXPECT_TRUE(h.policy().rounds.empty());
  const auto batch = only<HandOver>(h.tell(wants(1)));
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(prompts_of(batch[0]), (Prompts{0, 1, 2, 4}));
  EXPECT_EQ(batch[0].items.size(), 16u);
  expect_golden("scheduler/S03.txt", h.transcript);
}

TEST(SchedulerModes, S04_AnOldRewardOfAQueuedPromptDoesNothing) {
  Harness h = started(tail_batching(), 4, 4);
  const Grant late = grants_of(h, 4).front();
  for (int64_t prompt = 0; prompt < 4; ++prompt) finish(h, prompt, 4);
  ASSERT_EQ(prompts_of(h.policy().datasets[0].long_queue), Prompts{4});
  const State before = h.state;
  EXPECT_FALSE(expects_result(h.state, late.worker, late.lane, late.lease));
  EXPECT_TRUE(h.tell(h.result(late, 1.0)).empty());
  EXPECT_EQ(h.state, before);
  expect_golden("scheduler/S04.txt", h.transcript);
}

// In place of an abort and a grant with a prefix: the engine keeps what it has.
TEST(SchedulerModes, S05_WhatARoundDoesNotKeepRunsOnForTheNextOne) {
  Harness h = started(partial(), 2, 2);
  EXPECT_EQ(h.count(Place::kRunning), 4);
  finish(h, 0, 2);
  finish(h, 2, 1);  // this one will be late
  EXPECT_TRUE(only<Abort>(finish(h, 1, 2)).empty());
  EXPECT_EQ(prompts_of(h.policy().datasets[0].carried), (Prompts{2, 3}));
  EXPECT_EQ(credit_held(h.policy(), 0), 2);
  ASSERT_EQ(only<HandOver>(h.tell(wants(1))).size(), 1u);
  EXPECT_TRUE(only<Grant>(publish(h, 1)).size() == 4);  // two fresh prompts beside the two
  EXPECT_EQ(h.count(Place::kRunning), 4);
  EXPECT_TRUE(h.policy().datasets[0].carried.empty());
  EXPECT_EQ(h.policy().tasks.at({.prompt = 2}).launch, 0);
  // The reward that it had counts; its sibling is given under the same lease.
  finish(h, 2, 1);
  finish(h, 3, 2);
  const auto batch = only<HandOver>(h.tell(wants(2)));
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(prompts_of(batch[0]), (Prompts{2, 3}));
  for (const HandOver::Item& item : batch[0].items) EXPECT_EQ(item.lease.attempt, 1);
  expect_golden("scheduler/S05.txt", h.transcript);
}

TEST(SchedulerModes, S08_ALongRoundWaitsForAQueueOfAStepAndHasNoSurplus) {
  Harness h = started(tail_batching(), 4, 2);
  for (int64_t step = 1; step <= 5; ++step) {
    const Round round = newest_round(h);
    const auto queued = std::ssize(h.policy().datasets[0].long_queue);
    EXPECT_EQ(round.kind, step == 5 ? RoundKind::kLong : RoundKind::kShort) << step;
    EXPECT_EQ(round.shares[0].launch_target, step == 5 ? 4 : 5);
    EXPECT_EQ(queued, step == 5 ? 0 : step - 1);
    h.answer_running();
    ASSERT_EQ(only<HandOver>(h.tell(wants(step))).size(), 1u);
    publish(h, step);
  }
  EXPECT_EQ(newest_round(h).kind, RoundKind::kShort);
  EXPECT_EQ(h.policy().datasets[0].ended_as(TaskEnd::kTrained), 20);
  EXPECT_EQ(h.policy().datasets[0].next, 25);  // 20 trained, 5 run
  expect_golden("scheduler/S08.txt", h.transcript);
}

TEST(SchedulerModes, S09_EachDatasetFillsItsShareByItself) {
  Config config = small_config(7, 1);
  config.datasets.push_back({.prompts_per_step = 1});
  config.mode = tail_batching();
  config.mode.launch_members = {1, 1};
  Harness h = started(config);
  EXPECT_EQ(newest_round(h).shares[0].launch_target, 8);
  EXPECT_EQ(newest_round(h).shares[1].launch_target, 1);
  for (int64_t step = 1; step <= 8; ++step) {
    for (int64_t done = 0; done < 7; ++done) {
      // The slowest of dataset 0 is its newest prompt.
      const auto leases = h.state.leases.in_order();
      const auto running = std::ranges::find_if(
          leases, [](const auto& lease) { return lease.first.member.dataset == 0; });
      ASSERT_NE(running, leases.end());
      h.tell(h.result(Harness::grant_of(running->first, running->second), 1.0));
    }
    const auto queued = h.policy().datasets[0].long_queue.size();
    EXPECT_EQ(queued, static_cast<size_t>(step)) << "while dataset 1 still runs";
    EXPECT_EQ(h.policy().rounds.size(), 1u);
    h.answer_running();
    ASSERT_EQ(only<HandOver>(h.tell(wants(step))).size(), 1u);
    publish(h, step);
  }
  EXPECT_EQ(newest_round(h).kind, RoundKind::kLong);
  EXPECT_EQ(prompts_of(h.policy().datasets[0].long_queue).size(), 1u);  // 7 of 8 are taken
  EXPECT_EQ(newest_round(h).shares[0].running, 7);
  EXPECT_EQ(newest_round(h).shares[1].running, 1);  // fresh: its own queue is empty
  expect_golden("scheduler/S09.txt", h.transcript);
}

TEST(SchedulerModes, S11_TheLastRoundTakesWhatIsLeft) {
  Config config = small_config(4, 2);
  config.mode = tail_batching();
  config.steps = 0;
  config.datasets[0] = {.prompts_per_step = 4, .prompts_per_epoch = 7, .epochs = 1};
  Harness h = started(config);
  for (int64_t prompt = 0; prompt < 4; ++prompt) finish(h, prompt, 2);
  EXPECT_EQ(prompts_of(h.policy().datasets[0].long_queue), Prompts{4});
  h.tell(wants(1));
  publish(h, 1);
  EXPECT_EQ(newest_round(h).kind, RoundKind::kLong);
  EXPECT_EQ(newest_round(h).shares[0].target, 3);
  h.answer_running();
  const auto batch = only<HandOver>(h.tell(wants(2)));
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(prompts_of(batch[0]), (Prompts{4, 5, 6}));
  publish(h, 2);
  const auto done = only<RunDone>(h.tell(durable(2)));
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].end.reason, RunEnd::Reason::kDataEnd);
  expect_golden("scheduler/S11.txt", h.transcript);
}

TEST(SchedulerModes, S15_OneOfThreeMembersMayBeLost) {
  Config config = small_config(1, 2);
  config.mode.launch_members = {3, 2};
  config.retries.env_failed = 0;
  Harness h = started(config);
  const auto grants = grants_of(h, 0);
  ASSERT_EQ(grants.size(), 3u);
  h.tell(h.failure(grants[1], Outcome::kEnvFailed));
  h.tell(h.result(grants[0], 0.0));
  h.tell(h.result(grants[2], 1.0));
  EXPECT_EQ(h.count(Place::kReady), 1);
  const auto batch = only<HandOver>(h.tell(wants(1)));
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].items.size(), 2u);
  expect_golden("scheduler/S15.txt", h.transcript);
}

// The first that are rewarded are kept, also where others wait for their verifier.
TEST(SchedulerModes, S15_AMemberThatIsNotNeededLeavesNothingBehind) {
  Config config = small_config(1, 2);
  config.mode.launch_members = {2, 1};
  Harness h = started(config);
  h.tell(WorkerUp{.worker = "r0", .role = Role::kReward, .slots = 1});
  const auto grants = grants_of(h, 0);
  ASSERT_EQ(grants.size(), 4u);
  h.tell(h.result(grants[0], std::nullopt));  // is verified
  h.tell(h.result(grants[1], std::nullopt));  // waits for the verifier
  h.tell(h.result(grants[2], 0.0));
  const Actions last = h.tell(h.result(grants[3], 1.0));
  EXPECT_EQ(only<Abort>(last).size(), 1u);
  ASSERT_EQ(only<Release>(last).size(), 1u);
  EXPECT_EQ(only<Release>(last)[0].bodies.size(), 2u);
  EXPECT_EQ(h.count(Place::kReady), 1);
  EXPECT_EQ(held_bodies(h.state).size(), 2u);
}

TEST(SchedulerModes, S19_AFractionOfAStepMayBeAhead) {
  Harness h = started(ahead({1, 2}, 1, OnStale::kMask), 4, 2);
  EXPECT_EQ(h.count(Place::kRunning), 6);
  for (int64_t prompt = 0; prompt < 4; ++prompt) finish(h, prompt, 2);
  ASSERT_EQ(only<HandOver>(h.tell(wants(1))).size(), 1u);
  EXPECT_EQ(h.count(Place::kRunning), 2);  // four handed over: nothing is launched
  publish(h, 1);
  EXPECT_EQ(h.count(Place::kRunning), 6);
  expect_golden("scheduler/S19.txt", h.transcript);
}

TEST(SchedulerModes, S20_WhatIsTooOldForTheNextStepIsReplaced) {
  Harness h = started(ahead({1, 1}, 1, OnStale::kDrop), 1, 2);
  EXPECT_EQ(h.count(Place::kRunning), 2);  // A and B at version 0
  finish(h, 1, 2);
  ASSERT_EQ(only<HandOver>(h.tell(wants(1))).size(), 1u);
  publish(h, 1);
  finish(h, 2, 2);
  ASSERT_EQ(only<HandOver>(h.tell(wants(2))).size(), 1u);
  const Actions last = h.tell(published(2));
  EXPECT_EQ(only<Abort>(last).size(), 2u);
  const auto done = only<TaskDone>(last);
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[1].task.prompt, 0);
  EXPECT_EQ(done[1].end, TaskEnd::kStale);
  EXPECT_EQ(h.count(Place::kRunning), 2);
  expect_golden("scheduler/S20.txt", h.transcript);
}

TEST(SchedulerModes, S21_AStepWaitsForThoseThatAreDueSooner) {
  Harness h = started(ahead({2, 1}, 2, OnStale::kWait), 2, 2);
  EXPECT_EQ(h.count(Place::kRunning), 6);  // A to F
  finish(h, 0, 2);
  finish(h, 1, 2);
  ASSERT_EQ(only<HandOver>(h.tell(wants(1))).size(), 1u);
  publish(h, 1);  // G and H
  finish(h, 6, 2);
  finish(h, 7, 2);
  // C to F are due by version 2, where one step has two places.
  EXPECT_TRUE(only<HandOver>(h.tell(wants(2))).empty());
  finish(h, 2, 2);
  const auto batch = only<HandOver>(finish(h, 3, 2));
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(prompts_of(batch[0]), (Prompts{2, 3}));
  expect_golden("scheduler/S21.txt", h.transcript);
}

TEST(SchedulerModes, S22_AGroupIsAsOldAsItsOldestMember) {
  Harness h = started(ahead({1, 1}, 5, OnStale::kMask), 1, 2);
  const Grant first = grants_of(h, 1).front();
  for (int64_t step = 1; step <= 2; ++step) {
    finish(h, step == 1 ? 0 : 2, 2);
    ASSERT_EQ(only<HandOver>(h.tell(wants(step))).size(), 1u);
    publish(h, step);
  }
  h.tell(h.result(first, 1.0));  // at version 2; its sibling has run since version 0
  EXPECT_EQ(oldest_version(h.policy().tasks.at({.prompt = 1})), 0);
  expect_golden("scheduler/S22.txt", h.transcript);
}

TEST(SchedulerModes, S23_ACompleteSurplusWaitsForAPlace) {
  Harness h = started(partial(), 2, 2);
  for (int64_t prompt = 0; prompt < 3; ++prompt) finish(h, prompt, 2);
  EXPECT_EQ(h.count(Place::kReady), 2);
  EXPECT_EQ(h.count(Place::kParked), 1);
  ASSERT_EQ(only<HandOver>(h.tell(wants(1))).size(), 1u);
  const Actions next = publish(h, 1);
  EXPECT_EQ(h.count(Place::kReady), 1);  // taken before anything is launched
  EXPECT_EQ(h.count(Place::kParked), 0);
  EXPECT_EQ(h.count(Place::kRunning), 3);
  EXPECT_EQ(only<Grant>(next).size(), 4u);
  expect_golden("scheduler/S23.txt", h.transcript);
}

Mode streaming(Ratio steps) {
  return {.ahead = steps, .max_staleness = 1, .hand_over = HandOverBy::kGroups};
}

// Each group reaches the trainer as it is complete, and the last part says that it is the last.
TEST(SchedulerModes, S26_GroupsAreHandedOverOneByOne) {
  Harness h = started(streaming({1, 1}), 2, 2);
  EXPECT_TRUE(only<HandOver>(h.tell(wants(1))).empty());  // nothing is complete
  const auto first = only<HandOver>(finish(h, 1, 2));
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(prompts_of(first[0]), Prompts{1});
  EXPECT_FALSE(first[0].last);
  const auto second = only<HandOver>(finish(h, 0, 2));
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(prompts_of(second[0]), Prompts{0});
  EXPECT_EQ(second[0].first, 2);
  EXPECT_TRUE(second[0].last);
  // The next step's; its turn comes when the trainer asks.
  EXPECT_TRUE(only<HandOver>(finish(h, 2, 2)).empty());
  EXPECT_EQ(h.count(Place::kReady), 1);
  publish(h, 1);
  const auto next = only<HandOver>(h.tell(wants(2)));
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(prompts_of(next[0]), Prompts{2});
  EXPECT_FALSE(next[0].last);
  expect_golden("scheduler/S26.txt", h.transcript);
}

// A trainer that was lost between two parts gets the same list, in the same order, and the rest.
TEST(SchedulerModes, S26_ALostTrainerGetsTheSamePartsOnce) {
  Harness h = started(streaming({0, 1}), 3, 2);
  h.tell(wants(1));
  finish(h, 2, 2);
  finish(h, 0, 2);
  h.tell(WorkerDown{"t"});
  EXPECT_TRUE(only<HandOver>(finish(h, 1, 2)).empty());
  EXPECT_EQ(h.count(Place::kRunning), 0);  // its credit stays taken
  h.add_trainer(0);
  const auto again = only<HandOver>(h.tell(wants(1)));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(prompts_of(again[0]), (Prompts{2, 0, 1}));
  EXPECT_EQ(again[0].first, 0);
  EXPECT_TRUE(again[0].last);
}

// How many items the trainer has is not in a snapshot: it is counted when one is read.
TEST(SchedulerModes, S26_AListGoesOnBehindASnapshotInItsMiddle) {
  Harness h = started(streaming({0, 1}), 2, 2);
  h.tell(wants(1));
  finish(h, 1, 2);
  h.state = *from_bytes<State>(to_bytes(h.state));
  const auto rest = only<HandOver>(finish(h, 0, 2));
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(prompts_of(rest[0]), Prompts{0});
  EXPECT_EQ(rest[0].first, 2);
}

// Only a whole batch can have been trained.
TEST(SchedulerModes, S26_APartIsNotPublished) {
  Harness h = started(streaming({0, 1}), 2, 2);
  h.tell(wants(1));
  finish(h, 0, 2);
  EXPECT_FALSE(expects(h.state, published(1)));
  h.tell(published(1));
  EXPECT_EQ(h.policy().published, 0);
  // A stop does not wait for it either: the rest of the step is not sampled any more.
  h.tell(StopRequested{});
  EXPECT_TRUE(h.state.end.has_value());
}

// From a disk that remembers less than the trainer: said, and not waited for.
TEST(SchedulerModes, S26_ATrainerThatHoldsAPartsVersionIsHalted) {
  Harness h = started(streaming({0, 1}), 2, 2);
  h.tell(wants(1));
  finish(h, 0, 2);
  h.tell(WorkerDown{"t"});
  EXPECT_EQ(only<Halt>(h.add_trainer(1)).size(), 1u);
}

// Nobody can have trained the step: the list begins anew, and the lost group is sampled again.
TEST(SchedulerModes, S26_ABodyOfAPartMayBeLost) {
  Harness h = started(streaming({0, 1}), 3, 2);
  h.tell(wants(1));
  finish(h, 2, 2);
  finish(h, 1, 2);
  const Actions lost = h.tell(
      BodiesLost{bodies_of(Lane::kTrain, {.prompt = 2}, h.policy().tasks.at({.prompt = 2}))});
  EXPECT_TRUE(only<Halt>(lost).empty());
  const auto anew = only<HandOver>(lost);
  ASSERT_EQ(anew.size(), 1u);
  EXPECT_EQ(prompts_of(anew[0]), Prompts{1});
  EXPECT_EQ(anew[0].first, 0);
  finish(h, 0, 2);
  const auto last = only<HandOver>(finish(h, 2, 2));
  ASSERT_EQ(last.size(), 1u);
  EXPECT_TRUE(last[0].last);
  EXPECT_EQ(last[0].first, 4);
}

// Where the data ends short of a step, a part without members says that no more come.
TEST(SchedulerModes, S26_AStepThatRunsDryEndsWithAnEmptyPart) {
  Config config = small_config(2, 2);
  config.mode = streaming({0, 1});
  config.datasets[0].prompts_per_epoch = 2;
  config.datasets[0].epochs = 1;
  config.steps = 0;
  config.replace_zero_signal = true;
  Harness h = started(config);
  h.tell(wants(1));
  const auto first = only<HandOver>(finish(h, 0, 2));
  ASSERT_EQ(first.size(), 1u);
  EXPECT_FALSE(first[0].last);
  Actions last;
  for (const Grant& grant : grants_of(h, 1)) last = h.tell(h.result(grant, 1.0));  // is filtered
  const auto end = only<HandOver>(last);
  ASSERT_EQ(end.size(), 1u);
  EXPECT_TRUE(end[0].items.empty());
  EXPECT_TRUE(end[0].last);
  EXPECT_EQ(end[0].first, 2);
}

TEST(SchedulerModes, S24_NewWeightsWaitForTheWorkOfTheOldOnes) {
  Mode mode = ahead({1, 1}, 1, OnStale::kMask);
  mode.install = InstallWhen::kDrained;
  Harness h = started(mode, 1, 2);
  finish(h, 0, 2);
  ASSERT_EQ(only<HandOver>(h.tell(wants(1))).size(), 1u);
  const Actions at_publication = h.tell(published(1));
  const auto stages = only<Stage>(at_publication);
  ASSERT_EQ(stages.size(), 1u);                      // while B still runs
  EXPECT_TRUE(only<Grant>(at_publication).empty());  // and C may not begin on the old weights
  EXPECT_TRUE(h.tell_installed(stages[0]).empty());
  EXPECT_TRUE(only<Switch>(finish(h, 1, 1)).empty());
  const auto drained = only<Switch>(finish(h, 1, 1));
  ASSERT_EQ(drained.size(), 1u);
  EXPECT_EQ(only<Grant>(h.tell_switched(drained[0])).size(), 2u);
  expect_golden("scheduler/S24.txt", h.transcript);
}

// ---- what the scenarios leave open

// B is complete behind its round and due now, C has its place and is due later.
TEST(SchedulerModes, WhatIsDueSoonerTakesThePlaceOfWhatIsDueLater) {
  Mode mode = partial();
  mode.max_staleness = 1;
  mode.on_stale = OnStale::kWait;
  Harness h = started(mode, 1, 2);
  finish(h, 0, 2);
  ASSERT_EQ(only<HandOver>(h.tell(wants(1))).size(), 1u);
  publish(h, 1);
  finish(h, 2, 2);
  EXPECT_TRUE(only<HandOver>(h.tell(wants(2))).empty());
  const auto batch = only<HandOver>(finish(h, 1, 2));
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(prompts_of(batch[0]), Prompts{1});
  EXPECT_EQ(h.count(Place::kParked), 1);
}

// Its members all wait, and will run on the newest version at the earliest.
TEST(SchedulerModes, WhatOnlyWaitsIsDueByTheNewestVersionAndTheBound) {
  Config config = small_config(1, 2);
  config.mode = ahead({2, 1}, 1, OnStale::kWait);  // a bound too tight: two need the place of one
  Harness h = started(config, 2);
  h.tell(wants(1));
  finish(h, 0, 1);
  EXPECT_TRUE(only<HandOver>(finish(h, 0, 1)).empty());
  EXPECT_EQ(h.count(Place::kReady), 1);
  EXPECT_EQ(oldest_version(h.policy().tasks.at({.prompt = 1})), 0);
  EXPECT_EQ(oldest_version(h.policy().tasks.at({.prompt = 2})), std::nullopt);
}

TEST(SchedulerModes, TheSurplusHoldsNoCreditOfWhatIsAhead) {
  Mode mode = partial();
  mode.ahead = {1, 1};
  Harness h = started(mode, 2, 2);
  EXPECT_EQ(h.count(Place::kRunning), 8);  // four are kept
  finish(h, 0, 2);
  finish(h, 1, 2);
  EXPECT_EQ(credit_held(h.policy(), 0), 4);
  ASSERT_EQ(only<HandOver>(h.tell(wants(1))).size(), 1u);
  publish(h, 1);
  // The first round is not full, and yet what was trained opens another one.
  ASSERT_EQ(h.policy().rounds.size(), 2u);
  EXPECT_EQ(newest_round(h).shares[0].target, 2);
}

TEST(SchedulerModes, ARoundTakesAllThatRunsOnBeforeItStartsAnything) {
  Mode mode = partial();
  mode.launch_prompts = {3, 1};
  Harness h = started(mode, 2, 2);
  finish(h, 0, 2);
  finish(h, 1, 2);
  EXPECT_EQ(h.policy().datasets[0].carried.size(), 4u);  // twice as many as a round keeps
  ASSERT_EQ(only<HandOver>(h.tell(wants(1))).size(), 1u);
  publish(h, 1);
  EXPECT_TRUE(h.policy().datasets[0].carried.empty());
  EXPECT_EQ(h.count(Place::kRunning), 6);
  EXPECT_EQ(h.policy().datasets[0].next, 8);
}

TEST(SchedulerModes, OfWhatRunsOnARoundTakesTheOldest) {
  Mode mode = partial();
  mode.ahead = {2, 1};
  Harness h = started(mode, 1, 2);
  for (int64_t prompt = 0; prompt < 3; ++prompt) finish(h, prompt, 2);
  EXPECT_EQ(prompts_of(h.policy().datasets[0].carried), (Prompts{3, 4, 5}));
  ASSERT_EQ(only<HandOver>(h.tell(wants(1))).size(), 1u);
  publish(h, 1);
  EXPECT_EQ(newest_round(h).shares[0].running, 2);
  EXPECT_EQ(prompts_of(h.policy().datasets[0].carried), Prompts{5});
}

// Fresh prompts end within the round: what it keeps may come from the queue, its surplus not.
TEST(SchedulerModes, AShortRoundTakesLongPromptsForWhatItKeepsAlone) {
  Config config = small_config(4, 2);
  config.mode = tail_batching();
  config.mode.launch_members = {1, 1};
  config.datasets[0].prompts_per_epoch = 10;
  config.datasets[0].epochs = 1;
  config.retries.env_failed = 0;
  Harness h = started(config);
  for (int64_t prompt = 0; prompt < 4; ++prompt) finish(h, prompt, 2);
  ASSERT_EQ(only<HandOver>(h.tell(wants(1))).size(), 1u);
  publish(h, 1);
  ASSERT_EQ(newest_round(h).kind, RoundKind::kShort);
  EXPECT_EQ(h.count(Place::kRunning), 5);
  EXPECT_EQ(h.policy().datasets[0].next, 0);  // of an epoch that does not come
  const auto fail = [&](int64_t prompt) {
    for (const Grant& grant : grants_of(h, prompt)) h.tell(h.failure(grant, Outcome::kEnvFailed));
  };
  fail(5);
  EXPECT_EQ(prompts_of(h.policy().datasets[0].long_queue), Prompts{4});
  EXPECT_EQ(h.count(Place::kRunning), 4);
  fail(6);
  EXPECT_TRUE(h.policy().datasets[0].long_queue.empty());
  EXPECT_EQ(h.count(Place::kRunning), 4);
}

TEST(SchedulerModes, AForkLeavesNothingParkedThatRestsOnIt) {
  Harness h = started(partial(), 2, 2);
  finish(h, 0, 2);
  finish(h, 1, 2);
  ASSERT_EQ(only<HandOver>(h.tell(wants(1))).size(), 1u);
  publish(h, 1);
  for (int64_t prompt = 2; prompt < 5; ++prompt) finish(h, prompt, 2);
  ASSERT_EQ(h.policy().datasets[0].parked.size(), 1u);
  h.add_trainer(1, "b");
  EXPECT_TRUE(h.policy().datasets[0].parked.empty());
  EXPECT_EQ(h.count(Place::kParked), 0);
  EXPECT_EQ(h.policy().tasks.at({.prompt = 4}).launch, 1);
}

TEST(SchedulerModes, AGroupThatIsSampledAgainLeavesThePlaceOfItsOwnRound) {
  Harness h = started(ahead({2, 1}, 2, OnStale::kMask), 2, 2);
  for (int64_t step = 1; step <= 2; ++step) {
    finish(h, 2 * step - 2, 2);
    finish(h, 2 * step - 1, 2);
    ASSERT_EQ(only<HandOver>(h.tell(wants(step))).size(), 1u);
    publish(h, step);
  }
  finish(h, 6, 2);
  finish(h, 8, 2);
  const auto counts = [&] {
    std::vector<std::pair<int64_t, int64_t>> all;
    for (const Round& round : h.policy().rounds)
      all.emplace_back(round.shares[0].accepted, round.shares[0].running);
    return all;
  };
  using Counts = std::vector<std::pair<int64_t, int64_t>>;
  ASSERT_EQ(counts(), (Counts{{4, 2}, {1, 1}, {1, 1}}));
  const LeaseId lost{member_id({.prompt = 6}, 0, 0), 1};
  h.tell(BodiesLost{{{Lane::kTrain, lost}}});
  EXPECT_EQ(counts(), (Counts{{4, 2}, {0, 2}, {1, 1}}));
}

TEST(SchedulerModes, TheAgeOfAGroupIsThatOfWhatCanReachTheTrainer) {
  Task task;
  task.members.resize(7);
  const auto set = [&](size_t index, Phase phase, int64_t granted, int64_t sampled) {
    task.members[index].phase = phase;
    task.members[index].granted_version = granted;
    task.members[index].min_version = sampled;
  };
  set(0, Phase::kWaiting, 1, 1);  // was tried, and will be sampled anew
  set(1, Phase::kFailed, 1, 1);
  set(2, Phase::kSurplus, 1, 1);
  for (size_t i = 3; i < 7; ++i) set(i, Phase::kFailed, 1, 1);
  EXPECT_EQ(oldest_version(task), std::nullopt);
  set(3, Phase::kRunning, 7, 1);  // what it has sampled is not known yet
  EXPECT_EQ(oldest_version(task), 7);
  set(4, Phase::kToVerify, 1, 6);
  EXPECT_EQ(oldest_version(task), 6);
  set(5, Phase::kVerifying, 1, 5);
  EXPECT_EQ(oldest_version(task), 5);
  set(6, Phase::kRewarded, 1, 4);
  EXPECT_EQ(oldest_version(task), 4);
}

TEST(SchedulerModes, NothingIsStartedForStepsThatDoNotCome) {
  Config config = small_config(2, 2);
  config.mode = ahead({2, 1}, 2, OnStale::kMask);
  config.steps = 2;
  Harness h = started(config);
  EXPECT_EQ(h.count(Place::kRunning), 4);
  train_step(h, 1);
  train_step(h, 2);
  EXPECT_EQ(only<RunDone>(h.tell(durable(2))).size(), 1u);
  EXPECT_EQ(h.policy().datasets[0].next, 4);
}

TEST(SchedulerModes, AFilteredGroupNeverEntersTheLongQueue) {
  Config config = small_config(2, 2);
  config.mode = tail_batching();
  config.mode.launch_prompts = {2, 1};
  config.mode.launch_members = {1, 1};
  config.replace_zero_signal = true;
  Harness h = started(config);
  for (const Grant& grant : grants_of(h, 0)) h.tell(h.result(grant, 1.0));
  EXPECT_EQ(h.policy().datasets[0].ended_as(TaskEnd::kFiltered), 1);
  finish(h, 1, 2);
  finish(h, 2, 2);
  EXPECT_EQ(prompts_of(h.policy().datasets[0].long_queue), (Prompts{3, 4}));
}

TEST(SchedulerModes, LeastLoadedSpreadsAGroup) {
  for (const Dispatch dispatch : {Dispatch::kPrefixAffine, Dispatch::kLeastLoaded}) {
    Config config = small_config(1, 4);
    config.mode = ahead({1, 1}, 1, OnStale::kMask);
    config.mode.dispatch = dispatch;
    Harness h(config);
    h.add_rollout("w0", 8);
    h.add_rollout("w1", 8);
    publish(h, 0);
    h.answer_running();
    h.tell(wants(1));
    publish(h, 1);
    std::map<WorkerId, int64_t> members;
    for (const auto& [work, lease] : h.state.leases.in_order()) ++members[lease.worker];
    EXPECT_EQ(members.size(), dispatch == Dispatch::kPrefixAffine ? 1u : 2u);
  }
}

}  // namespace
}  // namespace tailrace::scheduler
