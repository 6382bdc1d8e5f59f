// The scenarios of docs/scheduler-law.md, section 16, that concern the synchronous mode; the number
// is that of the table there. Each is also kept as a transcript, tests/golden/scheduler/SNN.txt.
#include <array>
#include <optional>

#include "scheduler/state/credit.h"
#include "scheduler/state/expects.h"
#include "tests/golden/golden.h"
#include "tests/scheduler/decide/harness.h"

namespace tailrace::scheduler {
namespace {

// Brings a run to a step that is handed over: every group answered, the trainer has its batch.
HandOver run_step(Harness& h, int64_t step) {
  h.answer_running();
  const auto batches = only<HandOver>(h.tell(wants(step)));
  EXPECT_EQ(batches.size(), 1u) << "step " << step;
  return batches.empty() ? HandOver{} : batches[0];
}

Harness ready_run(int64_t prompts, int64_t members, int64_t slots = 64) {
  Harness h(small_config(prompts, members));
  h.add_rollout("w0", slots);
  publish(h, 0);
  return h;
}

TEST(SchedulerLaw, S01_SyncOpensARoundOnlyAtPublicationAndGrantsOnlyAfterInstall) {
  Harness h(small_config(2, 2));
  h.tell(WorkerUp{.worker = "w0", .slots = 8});
  const Actions start = h.tell(published(0));
  EXPECT_EQ(h.count(Place::kRunning), 2);  // start: 2 launches
  ASSERT_EQ(only<Stage>(start).size(), 1u);
  EXPECT_TRUE(only<Grant>(start).empty());
  EXPECT_EQ(only<Grant>(h.tell_installed(only<Stage>(start)[0])).size(), 4u);

  h.answer_running();
  EXPECT_EQ(h.count(Place::kReady), 2);
  const Actions handed = h.tell(wants(1));
  ASSERT_EQ(only<HandOver>(handed).size(), 1u);
  EXPECT_EQ(only<HandOver>(handed)[0].items.size(), 4u);
  EXPECT_EQ(h.count(Place::kRunning), 0);  // both accepted, handed: no launch

  const Actions next = h.tell(published(1));
  EXPECT_EQ(h.count(Place::kRunning), 2);  // published(1): 2 launches, install, no grant
  ASSERT_EQ(only<Stage>(next).size(), 1u);
  EXPECT_TRUE(only<Grant>(next).empty());
  const Actions granted = h.tell_installed(only<Stage>(next)[0]);
  ASSERT_EQ(only<Grant>(granted).size(), 4u);
  EXPECT_EQ(only<Grant>(granted)[0].version, 1);
  expect_golden("scheduler/S01.txt", h.transcript);
}

TEST(SchedulerLaw, S02_AFilteredGroupIsReplacedAndTheCreditIsHeld) {
  Config config = small_config(2, 2);
  config.replace_zero_signal = true;
  Harness h(config);
  h.add_rollout("w0", 8);
  const Actions start = h.tell(published(0));
  const auto grants = only<Grant>(h.tell_installed(only<Stage>(start)[0]));
  ASSERT_EQ(grants.size(), 4u);
  Actions last;
  for (const Grant& grant : grants) {
    if (grant.lease.member.prompt == 0) last = h.tell(h.result(grant, 1.0));  // A: zero signal
  }
  const auto done = only<TaskDone>(last);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].end, TaskEnd::kFiltered);
  EXPECT_EQ(done[0].task.prompt, 0);
  const auto replacement = only<Grant>(last);
  ASSERT_EQ(replacement.size(), 2u);
  EXPECT_EQ(replacement[0].lease.member.prompt, 2);  // C launched
  EXPECT_EQ(h.count(Place::kRunning), 2);            // held stays 2
  EXPECT_EQ(only<Release>(last).size(), 1u);
  expect_golden("scheduler/S02.txt", h.transcript);
}

TEST(SchedulerLaw, S06_WhatAWorkerThatStandsStillHoldsGoesOnElsewhere) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  const auto first = only<Grant>(publish(h, 0));
  ASSERT_EQ(first.size(), 2u);
  const auto held = credit_held(h.policy(), 0);
  const RoundId round = h.policy().tasks.begin()->second.round;
  // Nobody else is there: it may go on, and keeps its work.
  EXPECT_TRUE(h.tell(Stalled{"w0"}).empty());
  EXPECT_EQ(h.state.workers.at("w0").leased, 2);
  h.tell(WorkerUp{.worker = "w1", .slots = 8});
  const Actions moved = h.tell_installed({{"w1"}, {.digest = digest_of(0), .manifest = ""}});
  const auto aborts = only<Abort>(moved);
  const auto again = only<Grant>(moved);
  ASSERT_EQ(aborts.size(), 2u);
  ASSERT_EQ(again.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(aborts[i].worker, "w0");
    EXPECT_EQ(aborts[i].lease, first[i].lease);
    EXPECT_EQ(again[i].worker, "w1");
    EXPECT_EQ(again[i].lease.member, first[i].lease.member);  // the same launch
    EXPECT_EQ(again[i].lease.attempt, 2);
  }
  EXPECT_EQ(credit_held(h.policy(), 0), held);
  EXPECT_EQ(h.policy().tasks.begin()->second.round, round);
  EXPECT_EQ(h.policy().attempts.lost, 0);
  EXPECT_FALSE(h.state.health.contains("w0"));
  expect_golden("scheduler/S06.txt", h.transcript);
}

TEST(SchedulerLaw, S07_AResultThatCrossesItsAbortIsAccepted) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  const auto first = only<Grant>(publish(h, 0));
  h.add_rollout("w1", 8);
  const auto second = only<Grant>(h.tell(Stalled{"w0"}));
  ASSERT_EQ(second.size(), 2u);
  // It had finished one of them before it heard.
  EXPECT_TRUE(expects_result(h.state, "w0", Lane::kTrain, first[0].lease));
  const Actions accepted = h.tell(h.result(first[0], 1.0));
  const auto aborts = only<Abort>(accepted);
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].worker, "w1");
  EXPECT_EQ(aborts[0].lease, second[0].lease);
  EXPECT_TRUE(only<Release>(accepted).empty());
  const Member& member = h.policy().tasks.begin()->second.members[0];
  EXPECT_EQ(member.phase, Phase::kRewarded);
  EXPECT_TRUE(holds_body(h.state, {Lane::kTrain, first[0].lease}));
  // The attempt in its place is fenced, also when it has finished as well.
  const State before = h.state;
  EXPECT_TRUE(h.tell(h.result(second[0], 0.0)).empty());
  EXPECT_EQ(h.state, before);
  h.tell(h.result(second[1], 0.0));
  const auto batch = only<HandOver>(h.tell(wants(1)));
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].items[0].lease, first[0].lease);
  EXPECT_EQ(batch[0].items[1].lease, second[1].lease);
  expect_golden("scheduler/S07.txt", h.transcript);
}

TEST(SchedulerLaw, S10_AFilteredGroupLeavesTheQuotaUnchanged) {
  Config config = small_config(2, 2);
  config.replace_zero_signal = true;
  Harness h(config);
  h.add_rollout("w0", 8);
  Actions last = publish(h, 0);
  for (int filtered = 0; filtered < 5; ++filtered) {
    const auto grants = only<Grant>(last);
    const int64_t prompt = grants.back().lease.member.prompt;
    for (const Grant& grant : grants) {
      if (grant.lease.member.prompt == prompt) last = h.tell(h.result(grant, 0.0));
    }
    const Share& share = h.policy().rounds.at(0).shares.at(0);
    EXPECT_EQ(share.target, 2);
    EXPECT_EQ(share.accepted, 0);
    EXPECT_EQ(share.running, 2);
  }
  EXPECT_EQ(h.policy().datasets[0].ended[static_cast<size_t>(TaskEnd::kFiltered)], 5);
  expect_golden("scheduler/S10.txt", h.transcript);
}

// By the metric that the run names, and within what rounding makes of equal sums.
TEST(SchedulerLaw, AGroupIsFilteredByWhatJudgesIt) {
  Config config = small_config(1, 2);
  config.replace_zero_signal = true;
  Harness h(config);
  h.add_rollout("w0", 8);
  publish(h, 0);
  const auto answer = [&](int64_t prompt, std::array<double, 2> rewards,
                          std::array<std::optional<double>, 2> judged) {
    Actions last;
    for (const Grant& grant : grants_of(h, prompt)) {
      const auto member = static_cast<size_t>(grant.lease.member.member);
      AttemptResult result = h.result(grant, rewards[member]);
      result.judged = judged[member];
      last = h.tell(result);
    }
    return only<TaskDone>(last).size() == 1;
  };
  EXPECT_TRUE(answer(0, {0.1 + 0.2, 0.3}, {}));
  EXPECT_TRUE(answer(1, {0.1, 0.4}, {0.0, 0.0})) << "a small part differs";
  EXPECT_TRUE(answer(2, {0.1, 0.4}, {0.0, std::nullopt})) << "one says nothing of the other";
  // What the environment measured, and what a verifier puts in its place.
  for (const Grant& grant : grants_of(h, 3)) {
    AttemptResult result = h.result(grant, std::nullopt);
    result.judged = 1;
    h.tell(WorkerUp{.worker = "r", .session = 1, .role = Role::kReward, .slots = 4});
    for (const Verify& verify : only<Verify>(h.tell(result)))
      h.tell(Reward{.worker = "r",
                    .lease = verify.lease,
                    .verify_attempt = verify.verify_attempt,
                    .reward = 1,
                    .reason = "",
                    .judged = grant.lease.member.member == 0 ? std::nullopt : std::optional(0.5)});
  }
  EXPECT_EQ(h.policy().datasets[0].ready.size(), 1u);
  const auto batch = only<HandOver>(h.tell(wants(1)));
  ASSERT_EQ(batch.size(), 1u);
  ASSERT_EQ(batch[0].items.size(), 2u);
  EXPECT_EQ(batch[0].items[0].judged, 1);
  EXPECT_EQ(batch[0].items[1].judged, 0.5);
}

// Of 16 prompts, 4 a step, half have no signal: two steps are trained, and not the four that there
// could be. The run is half done behind the first, and done behind the second.
TEST(SchedulerLaw, AStepSaysWhichPartOfTheRunItIs) {
  Config config = small_config(4, 2);
  config.steps = 0;
  config.datasets[0].prompts_per_epoch = 8;
  config.datasets[0].epochs = 2;
  config.replace_zero_signal = true;
  Harness h(config);
  h.add_rollout("w0", 64);
  publish(h, 0);
  std::vector<std::pair<double, double>> shares;
  const auto play = [&](int64_t step) {
    h.tell(wants(step));
    for (bool any = true; any;) {
      any = false;
      for (const auto& [work, lease] : h.state.leases.in_order()) {
        const Grant grant = Harness::grant_of(work, lease);
        const bool even = work.member.prompt % 2 == 0;
        for (const HandOver& batch : only<HandOver>(
                 h.tell(h.result(grant, even ? 0 : static_cast<double>(work.member.member)))))
          shares.emplace_back(batch.share_begin, batch.share_end);
        any = true;
        break;
      }
    }
  };
  play(1);
  publish(h, 1);
  play(2);
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[0], (std::pair{0.0, 0.5}));
  EXPECT_EQ(shares[1], (std::pair{0.5, 1.0}));
  // The same to a trainer that asks again, and to one that comes back to the step before.
  const auto again = only<HandOver>(h.tell(wants(2)));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(std::pair(again[0].share_begin, again[0].share_end), shares[1]);
  publish(h, 2);
  h.add_trainer(0);
  for (int64_t step = 1; step <= 2; ++step) {
    const auto replayed = only<HandOver>(h.tell(wants(step)));
    ASSERT_EQ(replayed.size(), 1u);
    EXPECT_EQ(std::pair(replayed[0].share_begin, replayed[0].share_end),
              shares[static_cast<size_t>(step - 1)]);
    publish(h, step);
  }
}

// By its steps, also where the data would last longer; and where run.steps is another one after a
// restart, by the new number from the next batch on.
TEST(SchedulerLaw, WithAStepLimitTheShareIsThatOfTheSteps) {
  Config config = small_config(2, 2);
  config.steps = 4;
  Harness h(config);
  h.add_rollout("w0", 64);
  publish(h, 0);
  const auto share = [&](int64_t step) {
    const HandOver batch = run_step(h, step);
    return std::pair(batch.share_begin, batch.share_end);
  };
  EXPECT_EQ(share(1), (std::pair{0.0, 0.25}));
  publish(h, 1);
  EXPECT_EQ(share(2), (std::pair{0.25, 0.5}));
  publish(h, 2);
  config.steps = 8;
  h.tell(Restarted{config});
  h.add_rollout("w0", 64);
  h.add_trainer(1);
  h.install_open();
  EXPECT_EQ(share(2), (std::pair{0.25, 0.5})) << "what is trained again is as it was";
  publish(h, 2);
  EXPECT_EQ(share(3), (std::pair{0.25, 0.375}));
}

// A task that is solved gives no group with a signal: its steps end all the same.
TEST(SchedulerLaw, S32_AfterItsRoundsAStepTakesGroupsWithoutSignal) {
  Config config = small_config(2, 2);
  config.datasets.push_back({.prompts_per_step = 1});
  config.replace_zero_signal = true;
  config.max_gen_batches = 3;
  Harness h(config);
  h.add_rollout("w0", 8);
  publish(h, 0);
  const auto filtered = [&](size_t dataset) {
    return h.policy().datasets[dataset].ended_as(TaskEnd::kFiltered);
  };
  for (int64_t step = 1; step <= 2; ++step) {
    h.tell(wants(step));
    Actions last;
    // The first dataset is solved: two rounds of its two groups are replaced, the third is taken.
    for (int64_t prompt = 6 * (step - 1); prompt < 6 * step; ++prompt) {
      EXPECT_EQ(h.policy().datasets[0].ready.size(), prompt % 6 == 5 ? 1u : 0u);
      for (const Grant& grant : grants_of(h, prompt)) last = h.tell(h.result(grant, 1.0));
    }
    EXPECT_EQ(filtered(0), 4 * step);
    EXPECT_TRUE(only<HandOver>(last).empty());
    // The other counts its own: what the first has used up is not of its rounds.
    const int64_t other = h.policy().datasets[1].next - 1;
    for (const Grant& grant : grants_of(h, other, 1)) h.tell(h.result(grant, 0.0));
    EXPECT_EQ(filtered(1), step);
    for (const Grant& grant : grants_of(h, other + 1, 1))
      last = h.tell(h.result(grant, grant.lease.member.member));
    const auto batch = only<HandOver>(last);
    ASSERT_EQ(batch.size(), 1u);
    EXPECT_EQ(batch[0].items.size(), 6u);
    publish(h, step);
  }
  // Without a bound nothing is taken.
  config.max_gen_batches = 0;
  Harness endless(config);
  endless.add_rollout("w0", 8);
  publish(endless, 0);
  for (int64_t prompt = 0; prompt < 50; ++prompt) {
    for (const Grant& grant : grants_of(endless, prompt)) endless.tell(endless.result(grant, 1.0));
  }
  EXPECT_EQ(endless.policy().datasets[0].ended_as(TaskEnd::kFiltered), 50);
  expect_golden("scheduler/S32.txt", h.transcript);
}

TEST(SchedulerLaw, S12_ALostWorkersLeasesAreGivenAgainAndItsLateAnswerIsNothing) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 8);
  const auto first = only<Grant>(publish(h, 0));
  ASSERT_EQ(first.size(), 2u);
  h.add_rollout("w1", 8);
  const auto held = credit_held(h.policy(), 0);
  const auto again = only<Grant>(h.tell(WorkerDown{"w0"}));
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].lease.attempt, 2);
  EXPECT_EQ(again[0].lease.member, first[0].lease.member);  // the same launch
  EXPECT_EQ(credit_held(h.policy(), 0), held);

  const State before = h.state;
  AttemptResult late = h.result(again[0], 1.0);
  late.worker = "w0";
  late.lease.attempt = 1;
  EXPECT_FALSE(expects_result(h.state, late.worker, late.lane, late.lease));
  EXPECT_TRUE(h.tell(late).empty());
  EXPECT_EQ(h.state, before);
  expect_golden("scheduler/S12.txt", h.transcript);
}

TEST(SchedulerLaw, S13_AnyMessageTwiceDoesNothingTheSecondTime) {
  Config config = small_config(2, 2);
  config.eval.prompts = 1;
  Harness h(config);
  const auto twice = [&](const Event& event) {
    const Actions first = h.tell(event);
    const State before = h.state;
    const Actions second = h.tell(event);
    EXPECT_EQ(h.state, before) << describe(event);
    // A question is answered again, with the same list; nothing else happens.
    if (std::holds_alternative<TrainerWants>(event)) {
      EXPECT_EQ(only<HandOver>(second), only<HandOver>(first));
    } else {
      EXPECT_TRUE(second.empty()) << describe(event) << "\n" << describe_all(second);
    }
    return first;
  };
  h.tell(WorkerUp{.worker = "w0", .slots = 8});
  h.tell(WorkerUp{.worker = "r0", .role = Role::kReward, .slots = 8});
  const Actions start = twice(published(0));
  EXPECT_EQ(only<Switch>(twice(Staged{"w0", 0, 0, digest_of(0)})).size(), 1u);
  Actions granted = twice(Installed{"w0", 0, 0, digest_of(0)});
  std::vector<Verify> verifies;
  for (const Grant& grant : only<Grant>(granted)) {
    const bool verified = grant.lease.member.member == 1;
    const Actions actions = twice(h.result(grant, verified ? std::nullopt : std::optional(0.5)));
    for (const Verify& verify : only<Verify>(actions)) verifies.push_back(verify);
  }
  ASSERT_EQ(verifies.size(), 2u);
  for (const Verify& v : verifies)
    twice(Reward{v.worker, v.lease, v.lane, v.verify_attempt, 1.0, ""});
  twice(EvalReported{0, 0});
  EXPECT_EQ(only<HandOver>(twice(wants(1))).size(), 1u);
  twice(published(1));
  twice(durable(1));
  twice(WorkerDown{"t"});
  h.tell(WorkerUp{.worker = "t", .role = Role::kTrainer, .incarnation = 9});
  twice(rolled_back(1));
  twice(WorkerDown{"w0"});
  twice(StopRequested{});
  expect_golden("scheduler/S13.txt", h.transcript);
}

TEST(SchedulerLaw, S14_AFailedVerifierIsAskedAgainAndThreeOfFourAreEnough) {
  for (const int64_t failing : {1, 3}) {
    Harness h = ready_run(1, 4);
    h.state.config.retries.verifier_failed = 2;
    h.tell(WorkerUp{.worker = "r0", .role = Role::kReward, .slots = 8});
    std::vector<Verify> verifies;
    const auto keep = [&](const Actions& actions) {
      EXPECT_TRUE(only<TaskDone>(actions).empty() || failing == 3);
      for (const Verify& verify : only<Verify>(actions)) verifies.push_back(verify);
    };
    std::vector<Grant> grants;
    for (const auto& [work, lease] : h.state.leases.in_order()) {
      grants.push_back(Harness::grant_of(work, lease));
    }
    for (const Grant& grant : grants) keep(h.tell(h.result(grant, std::nullopt)));
    int64_t asked = 0, new_grants = 0;
    std::vector<TaskDone> done;
    while (!verifies.empty()) {
      const Verify v = verifies.back();
      verifies.pop_back();
      const bool fails = v.lease.member.member < failing;
      asked += fails;
      Reward answer{v.worker, v.lease, v.lane, v.verify_attempt, 1.0, ""};
      if (fails) answer.reward.reset();
      const Actions actions = h.tell(answer);
      keep(actions);
      if (fails) keep(h.wait(seconds(2)));  // a retry has a rest where it failed
      for (const Grant& grant : only<Grant>(actions)) new_grants += grant.lease.member.prompt == 0;
      for (const TaskDone& end : only<TaskDone>(actions)) done.push_back(end);
    }
    EXPECT_EQ(asked, failing * 3);  // once, and two more within the bound
    EXPECT_EQ(new_grants, 0);       // the tokens were good
    if (failing == 1) {
      EXPECT_EQ(h.count(Place::kReady), 1);
      const auto batch = only<HandOver>(h.tell(wants(1)));
      ASSERT_EQ(batch.size(), 1u);
      EXPECT_EQ(batch[0].items.size(), 3u);
    } else {
      ASSERT_EQ(done.size(), 1u);
      EXPECT_EQ(done[0].end, TaskEnd::kFailed);
      EXPECT_EQ(h.count(Place::kRunning), 1);  // replaced
      EXPECT_EQ(h.policy().datasets[0].next, 2);
    }
    expect_golden(fmt::format("scheduler/S14_{}_fail.txt", failing), h.transcript);
  }
}

TEST(SchedulerLaw, S16_ALostTrainerFreesNoCreditAndGetsTheSameListAgain) {
  Harness h = ready_run(2, 2);
  const HandOver batch = run_step(h, 1);
  h.tell(WorkerDown{"t"});
  EXPECT_EQ(h.count(Place::kRunning), 0);
  EXPECT_EQ(credit_held(h.policy(), 0), 2);
  h.add_trainer(0);
  const auto again = only<HandOver>(h.tell(wants(1)));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0], batch);
  expect_golden("scheduler/S16.txt", h.transcript);
}

TEST(SchedulerLaw, S17_ARollbackToTheSameDigestReplaysTheBatchesInOrder) {
  Harness h = ready_run(2, 2);
  std::vector<HandOver> batches;
  for (int64_t step = 1; step <= 3; ++step) {
    batches.push_back(run_step(h, step));
    publish(h, step);
  }
  const auto running = h.count(Place::kRunning);
  const auto held = credit_held(h.policy(), 0);
  const int64_t cursor = h.policy().datasets[0].next;
  const Actions rolled = h.add_trainer(1);
  EXPECT_TRUE(rolled.empty()) << describe_all(rolled);  // nothing opened, nothing aborted
  for (int64_t step = 2; step <= 3; ++step) {
    const auto again = only<HandOver>(h.tell(wants(step)));
    ASSERT_EQ(again.size(), 1u);
    EXPECT_EQ(again[0], batches[static_cast<size_t>(step - 1)]);
    EXPECT_EQ(credit_held(h.policy(), 0), held);
    // At the frontier it is told again what it may let go.
    Actions told = h.tell(published(step));
    std::erase_if(
        told, [](const Action& action) { return std::holds_alternative<ReleaseWeights>(action); });
    EXPECT_TRUE(told.empty()) << describe_all(told);
  }
  EXPECT_EQ(h.count(Place::kRunning), running);
  EXPECT_EQ(h.policy().datasets[0].next, cursor);
  run_step(h, 4);
  expect_golden("scheduler/S17.txt", h.transcript);
}

TEST(SchedulerLaw, S18_ARollbackToAnotherDigestLaunchesWhatRestsOnItAgain) {
  Harness h = ready_run(2, 2);
  std::vector<HandOver> batches;
  for (int64_t step = 1; step <= 3; ++step) {
    batches.push_back(run_step(h, step));
    publish(h, step);
  }
  const int64_t cursor = h.policy().datasets[0].next;
  const Actions rolled = h.add_trainer(1, "b");
  // Steps 2 and 3 were sampled at versions 1 and 2: their outcomes are withdrawn. Step 1 stays.
  const auto withdrawn = only<TaskWithdrawn>(rolled);
  ASSERT_EQ(withdrawn.size(), 4u);
  for (const TaskWithdrawn& w : withdrawn) EXPECT_GE(w.task.prompt, 2);
  EXPECT_EQ(only<Abort>(rolled).size(), 4u);  // the groups of step 4
  const auto installs = only<Stage>(rolled);
  ASSERT_EQ(installs.size(), 1u);
  EXPECT_EQ(installs[0].version, 1);
  EXPECT_EQ(installs[0].digest, digest_of(1, "b"));

  const auto grants = only<Grant>(h.tell_installed(installs[0]));
  ASSERT_EQ(grants.size(), 4u);
  for (const Grant& grant : grants) {
    EXPECT_EQ(grant.lease.member.launch, 1);
    EXPECT_EQ(grant.version, 1);
  }
  // The same prompts come back in their order, then fresh ones.
  for (int64_t step = 2; step <= 5; ++step) {
    const HandOver batch = run_step(h, step);
    const int64_t first = batch.items.front().lease.member.prompt;
    EXPECT_EQ(first, 2 * (step - 1));
    publish(h, step, "b");
  }
  EXPECT_EQ(h.policy().datasets[0].next, cursor + 4);
  expect_golden("scheduler/S18.txt", h.transcript);
}

TEST(SchedulerLaw, S18_TheSameHoldsForAVersionPublishedAgainWithOtherBytes) {
  Harness h = ready_run(2, 2);
  for (int64_t step = 1; step <= 3; ++step) {
    run_step(h, step);
    publish(h, step);
  }
  h.add_trainer(1);
  h.tell(wants(2));
  const Actions forked = h.tell(published(2, "b"));
  EXPECT_EQ(only<TaskWithdrawn>(forked).size(), 2u);  // step 3 was sampled at the old version 2
  EXPECT_EQ(h.policy().frontier, 2);
  ASSERT_EQ(only<Stage>(forked).size(), 1u);
  EXPECT_EQ(only<Stage>(forked)[0].digest, digest_of(2, "b"));
  expect_golden("scheduler/S18b.txt", h.transcript);
}

TEST(SchedulerLaw, S25_SnapshotAndJournalGiveTheSameStateAndRestartRepeatsEverything) {
  Config config = small_config(1, 2);
  config.steps = 2;
  Harness h(config);
  const auto reread = [](const State& state) {
    const auto copy = from_bytes<State>(to_bytes(state));
    EXPECT_TRUE(copy && *copy == state);
    return *copy;
  };
  // The scheduler is restarted here, and everybody connects anew.
  const auto after_restart = [&](const State& state) {
    State copy = reread(state);
    Actions all = decide(copy, Restarted{}, h.now);
    EXPECT_TRUE(only<Grant>(all).empty());  // nobody is there yet
    for (const auto& [id, worker] : state.workers) {
      const WorkerUp up{.worker = id,
                        .role = worker.role,
                        .incarnation = worker.incarnation,
                        .slots = worker.slots};
      for (const Action& action : decide(copy, up, h.now)) all.push_back(action);
    }
    const int64_t step = state.policies.at(0).published + 1;
    for (const Event& event : {Event(rolled_back(step - 1)), Event(wants(step))}) {
      for (const Action& action : decide(copy, event, h.now)) all.push_back(action);
    }
    return all;
  };
  h.tell(WorkerUp{.worker = "w0", .slots = 8});
  h.tell(published(0));
  EXPECT_EQ(only<Stage>(after_restart(h.state)).size(), 1u);

  h.tell(Staged{"w0", 0, 0, digest_of(0)});
  const auto grants = only<Grant>(h.tell(Installed{"w0", 0, 0, digest_of(0)}));
  EXPECT_EQ(only<Grant>(after_restart(h.state)), grants);  // the same attempts: nothing is lost
  const auto holds = only<Hold>(after_restart(h.state));
  ASSERT_EQ(holds.size(), 1u);
  EXPECT_EQ(holds[0].leases.size(), 2u);

  // Snapshot, then the rest from the journal.
  State copy = reread(h.state);
  std::vector<Event> journal;
  for (const Grant& grant : grants) {
    journal.push_back(h.result(grant, grant.lease.member.member));
    h.tell(journal.back());
  }
  journal.push_back(wants(1));
  const auto handed = only<HandOver>(h.tell(journal.back()));
  for (const Event& event : journal) {
    const auto again = from_bytes<Event>(to_bytes(event));
    ASSERT_TRUE(again);
    (void)decide(copy, *again, h.now);
  }
  EXPECT_EQ(copy, h.state);
  EXPECT_EQ(only<HandOver>(after_restart(h.state)), handed);

  publish(h, 1);
  run_step(h, 2);
  const auto saves = only<Save>(h.tell(published(2)));
  ASSERT_EQ(saves.size(), 1u);
  EXPECT_EQ(saves[0].version, 2);
  EXPECT_EQ(only<Save>(after_restart(h.state)), saves);
  const auto done = only<RunDone>(h.tell(durable(2)));
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].end.reason, RunEnd::Reason::kSteps);
  EXPECT_EQ(only<RunDone>(after_restart(h.state)), done);

  const Time before = h.state.now;
  (void)decide(h.state, Tick{}, h.now - seconds(5));
  EXPECT_EQ(h.state.now, before);
  expect_golden("scheduler/S25.txt", h.transcript);
}

}  // namespace
}  // namespace tailrace::scheduler
