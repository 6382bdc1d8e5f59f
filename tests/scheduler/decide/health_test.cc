// Workers that fail, one at a time and all at once (law 7).
#include "scheduler/state/expects.h"
#include "tests/golden/golden.h"
#include "tests/scheduler/decide/harness.h"

namespace tailrace::scheduler {
namespace {

TEST(Breaker, HaltsAndNamesTheCauseWhenFailuresPileUp) {
  Config config = small_config(4, 2);
  config.breaker = {.window = 10, .share = 0.5};
  Harness h(config);
  h.add_rollout("w0", 8);
  publish(h, 0);
  std::vector<Grant> open;
  std::vector<Halt> halts;
  for (int attempts = 0; attempts < 50 && halts.empty(); ++attempts) {
    if (h.state.leases.empty()) h.wait(seconds(4));
    ASSERT_FALSE(h.state.leases.empty());
    open.clear();
    for (const auto& [work, lease] : h.state.leases.in_order())
      open.push_back(Harness::grant_of(work, lease));
    halts = only<Halt>(h.tell(h.failure(open.front(), Outcome::kEnvFailed)));
  }
  ASSERT_EQ(halts.size(), 1u);
  EXPECT_NE(halts[0].reason.find("env_failed"), std::string::npos) << halts[0].reason;
  EXPECT_NE(halts[0].reason.find("broken on purpose"), std::string::npos) << halts[0].reason;
  EXPECT_TRUE(only<Grant>(h.tell(h.failure(open.back(), Outcome::kEnvFailed))).empty());
}

TEST(Breaker, OneWorkerWhoseEnvironmentsFailEndsNothingWhileOthersDoWell) {
  Config config = small_config(4, 2);
  config.breaker = {.window = 10, .share = 0.5};
  config.retries.env_failed = 1000;
  Harness h(config);
  h.add_rollout("bad", 8);
  h.add_rollout("good", 1);
  publish(h, 0);
  for (int i = 0; i < 200; ++i) {
    h.now += std::chrono::milliseconds(500);
    h.tell(Tick{});
    const auto leases = h.state.leases.in_order();
    for (const auto& [work, lease] : leases) {
      const Grant grant = Harness::grant_of(work, lease);
      if (!expects_result(h.state, grant.worker, grant.lane, grant.lease)) continue;
      if (lease.worker == "bad") h.tell(h.failure(grant, Outcome::kEnvFailed));
    }
    ASSERT_EQ(h.state.halted, "");
  }
  // It gets one try now and then; the other one still works.
  EXPECT_TRUE(h.state.health.contains("bad"));
  EXPECT_FALSE(h.state.health.contains("good"));
  h.answer_running();
  EXPECT_EQ(h.state.halted, "");
}

TEST(Breaker, GoodEnvironmentsDoNotHideVerifiersThatFail) {
  Config config = small_config(4, 2);
  config.breaker = {.window = 6, .share = 0.5};
  config.retries.verifier_failed = 0;
  Harness h(config);
  h.add_rollout("w0", 8);
  h.tell(WorkerUp{.worker = "r0", .role = Role::kReward, .slots = 8});
  publish(h, 0);
  for (int answers = 0; answers < 6 && h.state.halted.empty(); ++answers) {
    const auto leases = h.state.leases.in_order();
    const auto lease = std::ranges::find_if(
        leases, [](const auto& entry) { return entry.second.kind == LeaseKind::kGenerate; });
    ASSERT_NE(lease, leases.end());
    const auto verify =
        only<Verify>(h.tell(h.result(Harness::grant_of(lease->first, lease->second), {})));
    ASSERT_EQ(verify.size(), 1u);
    h.tell(Reward{"r0", verify[0].lease, Lane::kTrain, verify[0].verify_attempt, {}, "no disk"});
  }
  EXPECT_EQ(h.state.halted,
            "6 of the last 6 attempts ended as verifier_failed; the last one: no disk");
}

TEST(Breaker, EnvironmentsThatFailEverywhereHaltTheRun) {
  Config config = small_config(4, 4);
  config.breaker = {.window = 12, .share = 0.5};
  config.retries.env_failed = 1000;
  Harness h(config);
  for (const char* id : {"w0", "w1", "w2"}) h.add_rollout(id, 4);
  publish(h, 0);
  for (int i = 0; i < 100 && h.state.halted.empty(); ++i) {
    h.now += seconds(1);
    h.tell(Tick{});
    const auto leases = h.state.leases.in_order();
    for (const auto& [work, lease] : leases)
      h.tell(h.failure(Harness::grant_of(work, lease), Outcome::kEnvFailed));
  }
  EXPECT_NE(h.state.halted.find("env_failed"), std::string::npos) << h.state.halted;
  expect_golden("scheduler/breaker.txt", h.transcript);
}

TEST(Health, AWorkerThatHangsAndHeartbeatsEndsNothing) {
  Harness h(small_config(8, 8));
  h.add_rollout("hangs", 64);
  publish(h, 0);
  EXPECT_EQ(h.state.leases.size(), 64u);
  h.add_rollout("works", 4);
  h.now += h.state.config.deadlines.lease;
  const Actions late = h.tell(Tick{});
  EXPECT_EQ(only<Abort>(late).size(), 64u);
  ASSERT_EQ(only<Quarantine>(late).size(), 1u);
  EXPECT_EQ(only<Quarantine>(late)[0].worker, "hangs");
  EXPECT_NE(only<Quarantine>(late)[0].reason.find("deadline"), std::string::npos);
  for (const Grant& grant : only<Grant>(late)) EXPECT_EQ(grant.worker, "works");
  // After its quarantine it must prove itself with one.
  h.now += seconds(2);
  const auto trial = only<Grant>(h.tell(Tick{}));
  EXPECT_EQ(trial.size(), 1u);
  EXPECT_EQ(h.state.halted, "");
  h.answer_running();
  EXPECT_FALSE(h.state.health.contains("hangs"));  // it has answered
  expect_golden("scheduler/hanging_worker.txt", h.transcript);
}

TEST(Health, WorkersThatSayGoodbyeCostNobodyARetry) {
  Harness h(small_config(8, 8));
  h.state.config.retries.lost = 0;
  h.add_rollout("stays", 1);
  publish(h, 0);
  for (int i = 0; i < 100; ++i) {
    const WorkerId id = fmt::format("spot-{}", i);
    h.add_rollout(id, 4);
    h.tell(WorkerDown{id});
    h.now += seconds(1);
  }
  EXPECT_EQ(h.state.halted, "");
  EXPECT_EQ(h.policy().attempts.lost, 0);
  h.answer_running();
  EXPECT_EQ(h.count(Place::kReady), 8);
}

// What is lost is nobody's environment or verifier: it does not fill the breaker's window.
TEST(Health, ThirtyThreeLostWorkersAfterSixtyFourGoodResultsEndNothing) {
  Harness h(small_config(8, 8));
  ASSERT_EQ(h.state.config.breaker.window, 64);
  h.add_rollout("stays", 1);
  publish(h, 0);
  h.answer_running();
  const auto window = h.state.breakers[{Role::kRollout, {}}].window.size();
  EXPECT_EQ(window, 64u);
  h.tell(wants(1));
  publish(h, 1);
  for (int i = 0; i < 33; ++i) {
    const WorkerId id = fmt::format("spot-{}", i);
    h.add_rollout(id, 1);
    EXPECT_EQ(h.state.workers.at(id).leased, 1);
    h.tell(WorkerDown{id});
  }
  EXPECT_EQ(h.state.halted, "");
  h.answer_running();
  EXPECT_EQ(h.count(Place::kReady), 8);
}

TEST(Health, AWorkerThatCannotInstallEndsNothingWhileAnotherCan) {
  Harness h(small_config(2, 2));
  h.add_rollout("good", 4);
  h.tell(WorkerUp{.worker = "bad", .slots = 4});
  std::vector<Stage> open = only<Stage>(h.tell(published(0)));
  int failures = 0;
  for (int i = 0; i < 1000; ++i) {
    for (const Stage& install : std::exchange(open, {})) {
      const bool bad = install.worker == "bad";
      failures += bad;
      const Event answer = bad ? Event(InstallFailed{install.worker, 0, install.version,
                                                     install.digest, "no such file"})
                               : Event(Staged{install.worker, 0, install.version, install.digest});
      const Actions actions = h.tell(answer);
      for (const Stage& next : only<Stage>(actions)) open.push_back(next);
      for (const Switch& next : only<Switch>(actions)) h.tell_switched(next);
    }
    h.now += std::chrono::milliseconds(500);
    for (const Stage& next : only<Stage>(h.tell(Tick{}))) open.push_back(next);
  }
  EXPECT_EQ(h.state.halted, "");
  EXPECT_GT(failures, 10);  // it is asked again and again,
  EXPECT_LT(failures, 25);  // ever less often
  EXPECT_EQ(h.state.leases.size(), 4u);
}

TEST(Health, WhenNobodyOfARoleIsFitTheRunHaltsAndSaysWhy) {
  Harness h(small_config(2, 2));
  h.add_rollout("w0", 4);
  publish(h, 0);
  const Time start = h.now;
  for (int i = 0; i < 200 && h.state.halted.empty(); ++i) {
    const uint64_t incarnation = static_cast<uint64_t>(i) + 10;
    h.tell(WorkerUp{.worker = "w0", .incarnation = incarnation, .slots = 4});
    h.now += std::chrono::milliseconds(500);
    h.tell(Tick{});
    h.install_open();
    h.tell(WorkerDown{"w0"});
  }
  EXPECT_NE(h.state.halted.find("no rollout worker is fit for work: w0"), std::string::npos)
      << h.state.halted;
  EXPECT_GT(h.now - start, seconds(15));  // it had every chance
  EXPECT_FALSE(next_deadline(h.state));
}

TEST(Health, AFailedWorkerEndsARunOnlyBeforeTheFirstInstall) {
  Harness early(small_config(1, 2));
  early.tell(WorkerUp{.worker = "w0", .slots = 4});
  const auto halts = only<Halt>(early.tell(WorkerFailed{"w0", "no such tokenizer"}));
  ASSERT_EQ(halts.size(), 1u);
  EXPECT_EQ(halts[0].reason, "w0: no such tokenizer");

  Harness late(small_config(1, 2));
  late.add_rollout("w0", 4);
  late.add_rollout("w1", 4);
  publish(late, 0);
  const Actions failed = late.tell(WorkerFailed{"w0", "the disk is full"});
  EXPECT_TRUE(only<Halt>(failed).empty());
  ASSERT_EQ(only<Quarantine>(failed).size(), 1u);
  for (const Grant& grant : only<Grant>(failed)) EXPECT_EQ(grant.worker, "w1");
  EXPECT_EQ(late.state.leases.size(), 2u);
}

TEST(Health, ATrainerThatFailsGetsItsBatchAgainAfterAWhile) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 4);
  publish(h, 0);
  h.answer_running();
  const auto batch = only<HandOver>(h.tell(wants(1)));
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_TRUE(only<Halt>(h.tell(WorkerFailed{"t", "the disk is full"})).empty());
  h.tell(WorkerDown{"t"});
  h.add_trainer(0);
  EXPECT_TRUE(only<HandOver>(h.tell(wants(1))).empty());
  h.now += seconds(2);
  const auto again = only<HandOver>(h.tell(Tick{}));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].items, batch[0].items);
  h.tell(published(1));
  EXPECT_TRUE(h.state.health.empty());
  expect_golden("scheduler/failing_trainer.txt", h.transcript);
}

// All outcomes that say nothing of environments, again and again: the worker gets less and less,
// and others do the work.
TEST(Health, AWorkerThatGivesEverythingUpUsesUpNobodysChances) {
  for (const Outcome outcome :
       {Outcome::kLost, Outcome::kStale, Outcome::kAborted, Outcome::kVerifierFailed}) {
    Harness h(small_config(4, 4));
    h.add_rollout("gives up", 64);
    h.add_rollout("works", 2);
    publish(h, 0);
    for (int i = 0; i < 1000 && h.count(Place::kReady) < 4; ++i) {
      for (const auto& [work, lease] : h.state.leases.in_order()) {
        const Grant grant = Harness::grant_of(work, lease);
        const bool works = lease.worker == "works";
        h.tell(works ? h.result(grant, work.member.member) : h.failure(grant, outcome));
      }
      h.wait(std::chrono::milliseconds(100));
    }
    EXPECT_EQ(h.count(Place::kReady), 4) << name_of(outcome);
    EXPECT_EQ(h.policy().datasets[0].ended_as(TaskEnd::kFailed), 0);
    EXPECT_GE(h.state.health.at("gives up").quarantines, 1);
  }
}

// A prompt that brings its environment down wherever it is tried ends as failed, and the run goes
// on: however many members and tries it has, it is one fault of one task.
TEST(Health, ABrokenPromptIsNobodysFaultButItsOwn) {
  for (const int workers : {1, 2, 4}) {
    Harness h(small_config(8, 16));
    h.state.config.breaker.window = 32;
    for (int i = 0; i < workers; ++i) h.add_rollout(fmt::format("w{}", i), 16);
    publish(h, 0);
    for (int i = 0; i < 1000 && h.count(Place::kReady) < 8 && h.state.halted.empty(); ++i) {
      // The broken one fails before anybody else answers.
      for (const bool broken : {true, false}) {
        for (const auto& [work, lease] : h.state.leases.in_order()) {
          const Grant grant = Harness::grant_of(work, lease);
          if (broken && work.member.prompt == 3)
            h.tell(h.failure(grant, Outcome::kEnvFailed));
          else if (!broken && work.member.prompt != 3 && h.state.leases.contains(work))
            h.tell(h.result(grant, work.member.member));
        }
      }
      h.wait(seconds(1));
    }
    EXPECT_EQ(h.state.halted, "") << workers;
    EXPECT_EQ(h.count(Place::kReady), 8) << workers;
    EXPECT_EQ(h.policy().datasets[0].ended_as(TaskEnd::kFailed), 1);
    for (const auto& [id, health] : h.state.health) EXPECT_EQ(health.quarantines, 0) << id;
  }
}

// With the prompt that brought it there it would fail again.
TEST(Health, AWorkerOnTrialGetsWhatNobodyHasFailedAt) {
  Harness h(small_config(6, 2));
  h.add_rollout("w0", 6);
  const auto grants = only<Grant>(publish(h, 0));
  ASSERT_EQ(grants.size(), 6u);
  // Prompts 0 to 2, and what it got for them before the third one put it into quarantine.
  for (const Grant& grant : grants) h.tell(h.failure(grant, Outcome::kLost));
  for (const auto& [work, lease] : h.state.leases.in_order())
    h.tell(h.failure(Harness::grant_of(work, lease), Outcome::kLost));
  ASSERT_TRUE(in_quarantine(h.state, "w0"));
  const auto trial = only<Grant>(h.wait(seconds(1)));
  ASSERT_EQ(trial.size(), 1u);
  EXPECT_EQ(trial[0].lease.member.prompt, 5);
  h.tell(h.result(trial[0], 1.0));
  EXPECT_FALSE(h.state.health.contains("w0"));
}

// Only a goodbye spares the members: of one that fell silent and did not come back nothing is
// known.
TEST(Health, AWorkerThatIsLostCostsItsMembersATry) {
  for (const bool goodbye : {true, false}) {
    Harness h(small_config(1, 2));
    h.state.config.retries.lost = 0;
    h.add_rollout("w0", 2);
    publish(h, 0);
    h.tell(WorkerDown{"w0", 0, /*silent=*/!goodbye});
    h.wait(h.state.config.deadlines.reconnect);
    EXPECT_FALSE(h.state.workers.contains("w0"));
    EXPECT_EQ(h.policy().attempts.lost, goodbye ? 0 : 2);
    EXPECT_EQ(h.policy().datasets[0].ended_as(TaskEnd::kFailed), goodbye ? 0 : 1);
  }
}

TEST(Health, AGoodbyeHasItsBoundToo) {
  Harness h(small_config(1, 2));
  h.state.config.retries.returned = 3;
  publish(h, 0);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(h.policy().datasets[0].ended_as(TaskEnd::kFailed), 0);
    const WorkerId id = fmt::format("w{}", i);
    h.add_rollout(id, 2);
    EXPECT_EQ(h.state.leases.size(), 2u);
    h.tell(WorkerDown{id});
  }
  EXPECT_EQ(h.policy().datasets[0].ended_as(TaskEnd::kFailed), 1);
}

// A person has added it, and may take it away with work in hand.
TEST(Health, AJoinedWorkerThatTakesItsLeaveHasDoneNothingWrong) {
  for (const bool goodbye : {true, false}) {
    Harness h(small_config(1, 2));
    h.add_rollout("stays", 1);
    h.add_joined("joined", 1);
    publish(h, 0);
    ASSERT_EQ(h.state.workers.at("joined").leased, 1);
    h.tell(WorkerDown{"joined", 0, /*silent=*/!goodbye});
    h.wait(h.state.config.deadlines.reconnect);
    EXPECT_FALSE(h.state.workers.contains("joined"));
    EXPECT_EQ(h.policy().attempts.lost, goodbye ? 0 : 1);
    EXPECT_EQ(h.state.health.at("joined").faults, goodbye ? 0 : 1);
    h.answer_running();
    EXPECT_EQ(h.count(Place::kReady), 1);
  }
}

// Nobody starts it again: who stays behind is judged as what it is, alone.
TEST(Health, AJoinedWorkerThatIsGoneIsNobodysHope) {
  for (const bool joined : {true, false}) {
    Harness h(small_config(1, 2));
    h.state.config.breaker.window = 0;
    h.add_rollout("stays", 2);
    publish(h, 0);
    for (int i = 0; i < h.state.config.quarantine.limit; ++i) {
      EXPECT_EQ(h.state.halted, "");
      // It comes and goes, last a moment before the end.
      h.tell(WorkerUp{.worker = "guest", .slots = 1, .joined = joined});
      h.tell(WorkerDown{"guest"});
      h.tell(WorkerFailed{"stays", "no disk"});
      h.wait(h.state.config.quarantine.longest);
    }
    EXPECT_EQ(h.state.halted.empty(), !joined) << h.state.halted;
  }
}

TEST(Breaker, DoesNotCountOneThatJoinedAndIsGone) {
  for (const bool joined : {true, false}) {
    Harness h(small_config(32, 4));
    h.add_rollout("stays", 128);
    publish(h, 0);
    h.tell(WorkerUp{.worker = "guest", .slots = 1, .joined = joined});
    h.tell(WorkerDown{"guest"});
    for (const auto& [work, lease] : h.state.leases.in_order()) {
      if (!h.state.halted.empty()) break;
      h.tell(h.failure(Harness::grant_of(work, lease), Outcome::kEnvFailed));
    }
    EXPECT_EQ(h.state.halted.empty(), !joined) << h.state.halted;
  }
}

// A pool with work of its own is judged by itself; the others, which do the same work, together.
TEST(Breaker, IsOfOneBoundPoolOrOfAllTheOthers) {
  for (const bool bound : {true, false}) {
    Config config = small_config(4, 4);
    config.datasets[0].pool = bound ? "bad" : "";
    config.datasets.push_back({.prompts_per_step = 4, .pool = bound ? "good" : ""});
    config.breaker = {.window = 6, .share = 0.5};
    Harness h(config);
    h.add_to_pool("bad", "w0", 16);
    h.add_to_pool("good", "w1", 16);
    publish(h, 0);
    int64_t failures = 0;
    for (const auto& [work, lease] : h.state.leases.in_order()) {
      if (lease.worker != "w0" || !h.state.halted.empty()) continue;
      h.tell(h.failure(Harness::grant_of(work, lease), Outcome::kEnvFailed));
      ++failures;
    }
    EXPECT_GE(failures, 6);
    EXPECT_EQ(h.state.halted.empty(), !bound) << h.state.halted;
  }
}

// The start is the launch's: what a worker lacks that was added to it says nothing about it.
TEST(Health, AJoinedWorkerEndsNoStart) {
  Harness h(small_config(1, 2));
  h.tell(WorkerUp{.worker = "w0", .slots = 2});
  h.tell(WorkerUp{.worker = "joined", .slots = 2, .joined = true});
  h.tell(published(0));
  h.tell(WorkerFailed{"joined", "no disk"});
  EXPECT_EQ(h.state.halted, "");
  h.tell(WorkerFailed{"w0", "no disk"});
  EXPECT_EQ(h.state.halted, "w0: no disk");
}

TEST(Health, AFailedWorkerHoldsNothingMore) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 1);
  h.add_rollout("w1", 1);
  publish(h, 0);
  ASSERT_EQ(h.state.leases.size(), 2u);
  h.tell(WorkerFailed{"w0", "no disk"});
  for (const auto& [work, lease] : h.state.leases.in_order()) EXPECT_EQ(lease.worker, "w1");
  EXPECT_EQ(h.state.leases.size(), 1u);
}

TEST(Health, LeavingWithEmptyHandsIsNoFaultAndIsForgotten) {
  Harness h(small_config(1, 2));
  h.add_rollout("stays", 2);
  publish(h, 0);
  for (int i = 0; i < 50; ++i) {
    const WorkerId id = fmt::format("spot-{}", i);
    h.add_rollout(id, 1);
    h.tell(WorkerDown{id});
    EXPECT_EQ(h.state.health.at(id).faults, 0);
    h.wait(seconds(10));
  }
  // Those of the last quarantine_longest_seconds.
  EXPECT_LE(h.state.health.size(), 8u);
}

TEST(Health, ACheckpointIsAGoodAnswerOfATrainer) {
  Harness h(small_config(1, 2));
  h.add_rollout("w0", 2);
  publish(h, 0);
  h.tell(WorkerFailed{"t", "no memory"});
  ASSERT_TRUE(h.state.health.contains("t"));
  h.tell(durable(0));
  EXPECT_FALSE(h.state.health.contains("t"));
}

// It gets what nobody else has room for: what it holds it holds until the deadline of a lease.
TEST(Health, AWorkerThatHangsCostsOneDeadlineAndNotOneAStep) {
  Harness h(small_config(4, 4));
  h.state.config.deadlines.lease = seconds(600);
  for (const char* id : {"hangs", "w1", "w2"}) h.add_rollout(id, 64);
  publish(h, 0);
  std::vector<double> steps;
  for (int64_t step = 1; step <= 6; ++step) {
    const Time start = h.now;
    for (int i = 0; i < 2000 && h.count(Place::kReady) < 4; ++i) {
      for (const auto& [work, lease] : h.state.leases.in_order()) {
        if (lease.worker != "hangs")
          h.tell(h.result(Harness::grant_of(work, lease), work.member.member));
      }
      h.wait(seconds(1));
    }
    steps.push_back(std::chrono::duration<double>(h.now - start).count());
    ASSERT_EQ(only<HandOver>(h.tell(wants(step))).size(), 1u);
    h.wait(seconds(60));
    for (const Stage& install : only<Stage>(h.tell(published(step)))) h.tell_installed(install);
  }
  EXPECT_LE(steps[0], 620);
  for (size_t i = 1; i < steps.size(); ++i) EXPECT_LE(steps[i], 10) << "step " << i + 1;
}

// Few broken prompts answer first, and at once; those that do well take their time.
TEST(Health, SomeBrokenPromptsOfManyHaltNothing) {
  for (const int workers : {1, 2, 4}) {
    Harness h(small_config(64, 8));
    for (int i = 0; i < workers; ++i) h.add_rollout(fmt::format("w{}", i), 256);
    publish(h, 0);
    const auto broken = [](const WorkId& work) { return work.member.prompt % 16 == 3; };
    for (int i = 0; i < 10000 && h.count(Place::kReady) < 64 && h.state.halted.empty(); ++i) {
      for (const auto& [work, lease] : h.state.leases.in_order()) {
        const Grant grant = Harness::grant_of(work, lease);
        if (broken(work))
          h.tell(h.failure(grant, Outcome::kEnvFailed));
        else if (i % 100 == 99)
          h.tell(h.result(grant, work.member.member));
      }
      h.wait(std::chrono::milliseconds(100));
    }
    EXPECT_EQ(h.state.halted, "") << workers;
    EXPECT_EQ(h.count(Place::kReady), 64) << workers;
  }
}

// Between two bad workers nobody's chances are used up while good ones have room.
TEST(Health, TwoBadWorkersUseUpNobodysChances) {
  for (const Outcome outcome : {Outcome::kEnvFailed, Outcome::kLost}) {
    for (const int64_t prompts : {1, 4}) {
      Harness h(small_config(prompts, 8));
      for (const char* id : {"bad0", "bad1", "good0", "good1"}) h.add_rollout(id, 64);
      publish(h, 0);
      for (int i = 0; i < 1000 && h.count(Place::kReady) < prompts; ++i) {
        for (const auto& [work, lease] : h.state.leases.in_order()) {
          const Grant grant = Harness::grant_of(work, lease);
          if (lease.worker.starts_with("bad"))
            h.tell(h.failure(grant, outcome));
          else if (i % 10 == 9)
            h.tell(h.result(grant, work.member.member));
        }
        h.wait(std::chrono::milliseconds(100));
      }
      EXPECT_EQ(h.count(Place::kReady), prompts) << name_of(outcome);
      EXPECT_EQ(h.policy().datasets[0].ended_as(TaskEnd::kFailed), 0) << name_of(outcome);
    }
  }
}

// Nobody's fault (law 6.2), so it stays as welcome as the others: the rests bound what it costs.
TEST(Health, AWorkerWhoseVersionsNeverFitUsesUpNobodysChances) {
  Harness h(small_config(4, 8));
  for (const char* id : {"odd", "good"}) h.add_rollout(id, 64);
  publish(h, 0);
  int64_t refused = 0;
  for (int i = 0; i < 1000 && h.count(Place::kReady) < 4; ++i) {
    for (const auto& [work, lease] : h.state.leases.in_order()) {
      AttemptResult result = h.result(Harness::grant_of(work, lease), work.member.member);
      if (lease.worker == "odd") {
        result.max_version = 7;
        ++refused;
        h.tell(result);
      } else if (i % 10 == 9) {
        h.tell(result);
      }
    }
    h.wait(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(h.count(Place::kReady), 4);
  EXPECT_EQ(h.policy().datasets[0].ended_as(TaskEnd::kFailed), 0);
  EXPECT_EQ(h.policy().attempts.lost, refused);
  EXPECT_GT(refused, 0);
  EXPECT_LE(refused, 32);  // no member fails there twice
  EXPECT_TRUE(h.state.health.empty());
}

// Prompt 0 of version 0 and prompt 0 of epoch 0 are not the same.
TEST(Health, TasksOfBothLanesAreToldApart) {
  Config config = small_config(2, 2);
  config.eval = {.prompts = 2, .group_size = 1, .interval_steps = 0};
  config.retries.lost = 100;
  Harness h(config);
  h.add_rollout("w0", 8);
  publish(h, 0);
  std::set<std::pair<Lane, int64_t>> failed;
  for (const auto& [work, lease] : h.state.leases.in_order()) {
    if (!failed.emplace(work.lane, work.member.prompt).second) continue;
    if (failed.size() <= 3) h.tell(h.failure(Harness::grant_of(work, lease), Outcome::kLost));
  }
  EXPECT_TRUE(in_quarantine(h.state, "w0"));
}

TEST(Health, ARestartLetsEverybodyBeTriedAgainAtOnce) {
  Harness h(small_config(1, 2));
  h.state.config.quarantine.first = h.state.config.quarantine.longest = seconds(1000);
  h.add_rollout("w0", 2);
  for (const Grant& grant : only<Grant>(publish(h, 0)))
    h.tell(h.failure(grant, Outcome::kEnvFailed));
  EXPECT_TRUE(h.state.leases.empty());
  h.tell(Restarted{});
  const auto incarnation = h.state.workers.at("w0").incarnation;
  const Actions up =
      h.tell(WorkerUp{.worker = "w0", .session = 9, .incarnation = incarnation, .slots = 2});
  for (const Stage& install : only<Stage>(up)) h.tell_installed(install);
  EXPECT_EQ(h.state.leases.size(), 2u);
}

TEST(Health, TimesDoubleWithoutEnd) {
  using std::chrono::seconds;
  EXPECT_EQ(doubled(seconds(1), 0, seconds(60)), seconds(1));
  EXPECT_EQ(doubled(seconds(1), 5, seconds(60)), seconds(32));
  EXPECT_EQ(doubled(seconds(1), 1000, seconds(60)), seconds(60));
  EXPECT_EQ(doubled(seconds(100'000'000), 1000, seconds(100'000'000)), seconds(100'000'000));
}

}  // namespace
}  // namespace tailrace::scheduler
