// Turns that are stored before their attempt is over, and who goes on from them (law 6.8).
#include <optional>

#include "core/wire/trajectory_codec.h"
#include "tests/scheduler/service/script.h"
#include "tests/scheduler/service/test_run.h"

namespace tailrace::scheduler {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

// A run with one prompt of one member a step, a scripted trainer that has published version 0, and
// the first rollout worker, which has its grant.
struct StoredTurns : testing::Test {
  StoredTurns() : run(1), log("scheduler", run.folder.path() / "log") {
    run.options.config.datasets[0].prompts_per_step = 1;
    run.options.config.group_size = 1;
    run.options.config.eval.prompts = 0;
    run.options.num_samples = 0;
    begin();
    trainer->expect<wire::Welcome>();
    trainer->say(wire::TrainerReady{.version = -1, .digest = ""});
    trainer->say(wire::Published{0, 0, "zero", "m", {}});
    trainer->say(wire::Durable{0, 0, 0, "c"});
    trainer->say(wire::TrainerWants{0, 1});
    w0.emplace(Role::kRollout, "rollout-0", run.options.endpoint);
    grant = install_and_wait(*w0);
  }
  ~StoredTurns() override { end(); }

  void begin() {
    service.reset();  // two do not listen on one endpoint
    service = run.make_service(log);
    loop = std::thread([this] { result = run_to_its_end(*service); });
    if (!trainer) trainer.emplace(Role::kTrainer, "trainer-0", run.options.endpoint);
  }
  void end() {
    service->request_stop();
    if (loop.joinable()) loop.join();
  }

  wire::Grant install_and_wait(Script& worker) {
    const auto stage = worker.expect<wire::Stage>();
    worker.say(wire::Staged{stage.policy, stage.version, stage.digest});
    worker.expect<wire::Switch>();
    worker.say(wire::Installed{stage.policy, stage.version, stage.digest});
    return worker.expect<wire::Grant>();
  }

  Trajectory turns(int num_tokens) const {
    Trajectory t = fakes::make_trajectory(grant.lease, grant.lane, 0, num_tokens);
    t.outcome = Outcome::kAborted;
    t.metrics.clear();
    return t;
  }

  TestRun run;
  Log log;
  std::unique_ptr<Service> service;
  ServiceResult result;
  std::thread loop;
  std::optional<Script> trainer, w0;
  wire::Grant grant;
};

TEST_F(StoredTurns, AWorkerThatLeavesHandsThemToTheNext) {
  EXPECT_TRUE(grant.prefix.empty());
  const auto body = wire::encode_trajectory(turns(4000));
  w0->say(wire::TrajectoryResult{body, /*goes_on=*/true});
  w0.reset();  // its goodbye comes right behind them, and they are still to be proved and stored
  Script w1(Role::kRollout, "rollout-1", run.options.endpoint);
  const wire::Grant again = install_and_wait(w1);
  EXPECT_EQ(again.lease.member, grant.lease.member);
  EXPECT_EQ(again.lease.attempt, 2);
  EXPECT_EQ(again.prefix, body);
  // The sample that comes of them is whole.
  Trajectory whole = fakes::make_trajectory(again.lease, again.lane, 0, 8000);
  whole.reward = 1;
  whole.turns = 2;
  w1.say(wire::TrajectoryResult{wire::encode_trajectory(whole)});
  const auto batch = trainer->expect<wire::Batch>();
  ASSERT_EQ(batch.items.size(), 1u);
  EXPECT_EQ(batch.items[0].lease, again.lease);
  trainer->say(wire::Published{0, 1, "one", "m", {}});
  trainer->expect<wire::Save>();
  trainer->say(wire::Durable{0, 1, 1, "c"});
  loop.join();
  EXPECT_EQ(result.end, ServiceResult::End::kDone) << result.message;
  const auto rows = run.rows();
  ASSERT_FALSE(rows.empty());
  std::optional<double> resumed;
  for (const auto& [key, value] : rows.back().values)
    if (key == "rollout/resumed_tokens") resumed = value;
  EXPECT_EQ(resumed, 2000);
}

TEST_F(StoredTurns, TheyOutliveTheScheduler) {
  const auto body = wire::encode_trajectory(turns(40));
  w0->say(wire::TrajectoryResult{body, /*goes_on=*/true});
  w0.reset();
  end();
  EXPECT_EQ(result.end, ServiceResult::End::kStopped) << result.message;
  trainer.reset();
  begin();
  trainer->expect<wire::Welcome>();
  trainer->say(wire::TrainerReady{.version = 0, .digest = "zero", .manifest = "m"});
  trainer->say(wire::TrainerWants{0, 1});
  Script w1(Role::kRollout, "rollout-1", run.options.endpoint);
  EXPECT_EQ(install_and_wait(w1).prefix, body);
}

TEST_F(StoredTurns, WhatTheTrainerWouldRefuseIsNotGoneOnFrom) {
  Trajectory lie = turns(40);
  lie.segments[0].logprobs.back() = 3;
  w0->say(wire::TrajectoryResult{wire::encode_trajectory(lie), /*goes_on=*/true});
  Trajectory more = turns(40);
  more.turns = 2;  // and it holds one
  w0->say(wire::TrajectoryResult{wire::encode_trajectory(more), /*goes_on=*/true});
  w0.reset();
  Script w1(Role::kRollout, "rollout-1", run.options.endpoint);
  const wire::Grant again = install_and_wait(w1);
  EXPECT_EQ(again.lease.attempt, 2);
  EXPECT_TRUE(again.prefix.empty());
}

// Somebody deletes the bodies of a living run. It samples them again, and the new ones are there; a
// batch that the trainer has the whole list of cannot be sampled again, and ends the run.
TEST_F(StoredTurns, BodiesThatAreDeletedAreSampledAgainOrNamed) {
  const fs::path file = run.options.paths.trajectories() / "bodies-000001.seg";
  const auto deliver = [&](const wire::Grant& to) {
    Trajectory t = fakes::make_trajectory(to.lease, to.lane, 0, 6);
    t.verifier = "fake";
    t.evidence = "1";
    w0->say(wire::TrajectoryResult{wire::encode_trajectory(t)});
  };
  deliver(grant);
  ASSERT_TRUE(wait_until([&] {
    std::error_code missing;
    return fs::file_size(file, missing) > 200 && !missing;
  }));
  fs::remove(file);
  Script reward(Role::kReward, "reward-0", run.options.endpoint);
  deliver(w0->expect<wire::Grant>());
  const auto verify = reward.expect<wire::Verify>();
  EXPECT_EQ(verify.lease.attempt, 2);
  reward.say(wire::Verdict{verify.lease, verify.lane, verify.verify_attempt, 1.0, {}, ""});
  const auto batch = trainer->expect<wire::Batch>();
  ASSERT_EQ(batch.items.size(), 1u);
  EXPECT_EQ(batch.items[0].lease, verify.lease);

  fs::remove_all(run.options.paths.trajectories());
  trainer->ask({{Lane::kTrain, verify.lease}}, 0, 1000);
  loop.join();
  EXPECT_EQ(result.end, ServiceResult::End::kFailed);
  EXPECT_NE(
      result.message.find("the body of " + to_string(verify.lease) + " is missing or damaged"),
      std::string::npos)
      << result.message;
  EXPECT_NE(result.message.find((run.options.paths.trajectories() / "bodies-000002.seg").string()),
            std::string::npos)
      << result.message;
}

}  // namespace
}  // namespace tailrace::scheduler
