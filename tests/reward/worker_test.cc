#include "reward/worker.h"

#include <future>
#include <limits>
#include <set>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "core/wire/server.h"
#include "tests/core/base/test_clock.h"

namespace tailrace {
namespace {

using std::chrono::milliseconds;

class Broken final : public Verifier {
 public:
  explicit Broken(std::function<Result<Score>()> act) : act_(std::move(act)) {}
  Result<Score> score(const std::string&) const override { return act_(); }

 private:
  std::function<Result<Score>()> act_;
};

class RewardWorkerTest : public ::testing::Test {
 protected:
  RewardWorkerTest() {
    add("throws", []() -> Result<Score> { throw std::runtime_error("ouch"); });
    add("not_finite",
        [] { return Score{.reward = std::numeric_limits<double>::quiet_NaN(), .metrics = {}}; });
    add("hangs", [begun = begun_, released = release_.get_future().share()] {
      begun->set_value();
      released.wait();
      return Score{.reward = 1, .metrics = {}};
    });
  }

  Verdict judge(const std::string& verifier, const std::string& evidence) {
    Verify request;
    request.lease.attempt = 3;
    request.lane = Lane::kEval;
    request.verify_attempt = 2;
    request.verifier = verifier;
    request.evidence = evidence;
    Verdict verdict = tailrace::judge(*verifiers_, request);
    EXPECT_EQ(verdict.lease, request.lease);
    EXPECT_EQ(verdict.lane, Lane::kEval);
    EXPECT_EQ(verdict.verify_attempt, 2);
    EXPECT_EQ(verdict.reward.has_value(), verdict.failure.empty());
    return verdict;
  }

  void add(const std::string& name, std::function<Result<Score>()> act) {
    verifiers_->add(name, "", std::make_unique<Broken>(std::move(act)));
  }

  std::shared_ptr<std::promise<void>> begun_ = std::make_shared<std::promise<void>>();
  std::promise<void> release_;  // ends the verifier that hangs
  std::shared_ptr<VerifierRegistry> verifiers_ =
      std::make_shared<VerifierRegistry>(built_in_verifiers());
  TestClock clock_;
};

const std::string kRight = R"({"answer": "4", "response": "#### 4"})";

TEST_F(RewardWorkerTest, GivesTheScoreAndItsMetrics) {
  Verdict verdict = judge("number", kRight);
  EXPECT_EQ(verdict.reward, 1.0);
  EXPECT_EQ(verdict.metrics.at(0), (std::pair<std::string, double>("success", 1)));
}

TEST_F(RewardWorkerTest, WhatCannotBeDecidedIsAFailureAndNeverAZero) {
  EXPECT_EQ(judge("number", "{}").failure,
            "verifier number: the evidence has no string \"response\"");
  EXPECT_NE(
      judge("numbr", kRight).failure.find("there is no verifier 'numbr'; verifiers: countdown, "),
      std::string::npos);
  EXPECT_EQ(judge("throws", kRight).failure, "verifier throws: ouch");
  EXPECT_EQ(judge("not_finite", kRight).failure, "verifier not_finite: its reward is not finite");
}

// The server's events until `done`, or a failure after ten seconds.
std::vector<Verdict> serve(WorkerServer& server, size_t wanted,
                           const std::vector<Verify>& requests) {
  std::vector<Verdict> verdicts;
  auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (verdicts.size() < wanted && std::chrono::steady_clock::now() < give_up) {
    for (ServerEvent& event : server.receive(milliseconds(50))) {
      if (auto* up = std::get_if<WorkerUp>(&event)) {
        EXPECT_EQ(up->hello.role, Role::kReward);
        EXPECT_EQ(up->hello.worker, "reward-0");
        for (const Verify& request : requests) server.send(up->hello.worker, request);
      }
      if (auto* incoming = std::get_if<Incoming>(&event)) {
        if (auto* verdict = std::get_if<Verdict>(&incoming->message)) verdicts.push_back(*verdict);
        server.acknowledge(incoming->worker, incoming->sequence);
      }
    }
  }
  EXPECT_EQ(verdicts.size(), wanted);
  return verdicts;
}

TEST_F(RewardWorkerTest, AnswersOverAConnectionUntilItIsShutDown) {
  std::string endpoint =
      fmt::format("ipc://{}reward_worker_{}.sock", ::testing::TempDir(), getpid());
  WorkerServer server(endpoint, {});
  RewardWorker worker(verifiers_, clock_, {.endpoint = endpoint, .link = {}});
  RewardWorker::Ending ending;
  std::jthread thread([&] { ending = worker.run(); });
  std::vector<Verify> requests;
  for (int i = 0; i < 20; ++i) {
    Verify request;
    request.lease.member.prompt = i;
    request.verifier = "number";
    request.evidence = i % 2 == 0 ? kRight : "not JSON";
    requests.push_back(request);
  }
  std::set<int64_t> answered;  // in any order, because threads score side by side
  for (const Verdict& verdict : serve(server, requests.size(), requests)) {
    int64_t prompt = verdict.lease.member.prompt;
    answered.insert(prompt);
    EXPECT_EQ(verdict.reward.has_value(), prompt % 2 == 0);
  }
  EXPECT_EQ(answered.size(), requests.size());
  server.send("reward-0", Shutdown{.reason = "the run is over"});
  server.flush(milliseconds(5000));
  thread.join();
  EXPECT_EQ(ending.reason, "shutdown: the run is over");
  EXPECT_TRUE(ending.clean);
}

TEST_F(RewardWorkerTest, AVerifierThatHangsIsAFailureAndTheNextRequestIsServed) {
  std::string endpoint =
      fmt::format("ipc://{}reward_hangs_{}.sock", ::testing::TempDir(), getpid());
  WorkerServer server(endpoint, {});
  RewardWorker worker(
      verifiers_, clock_,
      {.endpoint = endpoint, .link = {}, .threads = 1, .deadline = std::chrono::seconds(5)});
  std::jthread thread([&] { worker.run(); });
  std::jthread time([&] {
    begun_->get_future().wait();
    clock_.advance(std::chrono::seconds(6));
  });
  Verify request;
  request.lease.member.prompt = 1;
  request.verifier = "hangs";
  Verdict late = serve(server, 1, {request}).at(0);
  EXPECT_EQ(late.lease, request.lease);
  EXPECT_FALSE(late.reward.has_value());
  EXPECT_EQ(late.failure, "verifier hangs: it did not answer within its deadline of 5 s");
  request.lease.member.prompt = 2;
  request.verifier = "number";
  request.evidence = kRight;
  server.send("reward-0", request);  // its only thread was replaced
  EXPECT_EQ(serve(server, 1, {}).at(0).reward, 1.0);
  server.send("reward-0", Shutdown{.reason = "the run is over"});
  server.flush(milliseconds(5000));
  thread.join();  // while the verifier still hangs
  release_.set_value();
}

TEST_F(RewardWorkerTest, GivesUpOnASilentScheduler) {
  std::string endpoint =
      fmt::format("ipc://{}reward_nobody_{}.sock", ::testing::TempDir(), getpid());
  RewardWorker worker(
      verifiers_, clock_,
      {.endpoint = endpoint, .link = {.linger = milliseconds(10)}, .patience = milliseconds(300)});
  RewardWorker::Ending ending = worker.run();
  EXPECT_NE(ending.reason.find("the scheduler has been silent"), std::string::npos);
  EXPECT_FALSE(ending.clean);
}

TEST_F(RewardWorkerTest, StopsWhenAsked) {
  std::string endpoint = fmt::format("ipc://{}reward_stop_{}.sock", ::testing::TempDir(), getpid());
  RewardWorker worker(verifiers_, clock_,
                      {.endpoint = endpoint, .link = {.linger = milliseconds(10)}});
  worker.request_stop();
  EXPECT_EQ(worker.run().reason, "stopped");
}

}  // namespace
}  // namespace tailrace
