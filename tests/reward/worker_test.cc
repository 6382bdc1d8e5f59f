#include "reward/worker.h"

#include <limits>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "core/wire/server.h"

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
    verifiers_.add("throws", "", std::make_unique<Broken>([]() -> Result<Score> {
                     throw std::runtime_error("ouch");
                   }));
    verifiers_.add("not_finite", "", std::make_unique<Broken>([] {
                     return Score{.reward = std::numeric_limits<double>::quiet_NaN(),
                                  .metrics = {}};
                   }));
    verifiers_.add("slow", "", std::make_unique<Broken>([this] {
                     clock_.advance(std::chrono::seconds(6));
                     return Score{.reward = 1, .metrics = {}};
                   }));
  }

  Verdict judge(const std::string& verifier, const std::string& evidence) {
    RewardWorker worker(verifiers_, clock_, {});
    Verify request;
    request.lease.attempt = 3;
    request.lane = Lane::kEval;
    request.verify_attempt = 2;
    request.verifier = verifier;
    request.evidence = evidence;
    Verdict verdict = worker.judge(request);
    EXPECT_EQ(verdict.lease, request.lease);
    EXPECT_EQ(verdict.lane, Lane::kEval);
    EXPECT_EQ(verdict.verify_attempt, 2);
    EXPECT_EQ(verdict.reward.has_value(), verdict.failure.empty());
    return verdict;
  }

  VerifierRegistry verifiers_ = built_in_verifiers();
  ManualClock clock_;
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
  EXPECT_EQ(judge("slow", kRight).failure,
            "verifier slow: it took 6000 ms; the deadline is 5000 ms");
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
  std::string ending;
  std::jthread thread([&] { ending = worker.run(); });
  std::vector<Verify> requests;
  for (int i = 0; i < 20; ++i) {
    Verify request;
    request.lease.member.prompt = i;
    request.verifier = "number";
    request.evidence = i % 2 == 0 ? kRight : "not JSON";
    requests.push_back(request);
  }
  std::vector<Verdict> verdicts = serve(server, requests.size(), requests);
  for (size_t i = 0; i < verdicts.size(); ++i) {
    EXPECT_EQ(verdicts[i].lease, requests[i].lease);
    EXPECT_EQ(verdicts[i].reward.has_value(), i % 2 == 0);
  }
  server.send("reward-0", Shutdown{.reason = "the run is over"});
  server.flush(milliseconds(5000));
  thread.join();
  EXPECT_EQ(ending, "shutdown: the run is over");
}

TEST_F(RewardWorkerTest, GivesUpOnASilentScheduler) {
  std::string endpoint =
      fmt::format("ipc://{}reward_nobody_{}.sock", ::testing::TempDir(), getpid());
  RewardWorker worker(
      verifiers_, clock_,
      {.endpoint = endpoint, .link = {.linger = milliseconds(10)}, .patience = milliseconds(300)});
  EXPECT_NE(worker.run().find("the scheduler has been silent"), std::string::npos);
}

TEST_F(RewardWorkerTest, StopsWhenAsked) {
  std::string endpoint = fmt::format("ipc://{}reward_stop_{}.sock", ::testing::TempDir(), getpid());
  RewardWorker worker(verifiers_, clock_,
                      {.endpoint = endpoint, .link = {.linger = milliseconds(10)}});
  worker.request_stop();
  EXPECT_EQ(worker.run(), "stopped");
}

}  // namespace
}  // namespace tailrace
