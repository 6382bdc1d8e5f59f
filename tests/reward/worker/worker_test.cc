#include "reward/worker/worker.h"

#include <future>
#include <limits>
#include <set>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "core/wire/server.h"
#include "reward/verifiers/built_in.h"
#include "tests/core/base/test_clock.h"

namespace tailrace {
namespace {

using std::chrono::milliseconds;

class Broken final : public Verifier {
 public:
  explicit Broken(std::function<Result<Score>()> act) : act_(std::move(act)) {}
  Result<Score> score(const std::string&, Time) const override { return act_(); }

 private:
  std::function<Result<Score>()> act_;
};

// Its reward is the budget in seconds.
class Budgeted final : public Verifier {
 public:
  Result<Score> score(const std::string&, Time budget) const override {
    return Score{.reward = std::chrono::duration<double>(budget).count(), .metrics = {}};
  }
};

class Unscorable final : public Verifier {
 public:
  Result<Score> score(const std::string&, Time) const override {
    return Failure{.message = "no answer is known", .is_final = true};
  }
};

class RewardWorkerTest : public ::testing::Test {
 protected:
  RewardWorkerTest() {
    add("hangs", [begun = begun_, released = release_.get_future().share()] {
      begun->set_value();
      released.wait();
      return Score{.reward = 1, .metrics = {}};
    });
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

void send(wire::WorkerServer& server, uint64_t session, const wire::Message& message) {
  EXPECT_TRUE(server.send("reward-0", session, message)) << wire::describe(message);
}

// The server's events until `done`, or a failure after ten seconds.
std::vector<wire::Verdict> serve(wire::WorkerServer& server, uint64_t& session, size_t wanted,
                                 const std::vector<wire::Verify>& requests) {
  std::vector<wire::Verdict> verdicts;
  auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (verdicts.size() < wanted && std::chrono::steady_clock::now() < give_up) {
    for (wire::ServerEvent& event : server.receive(milliseconds(50))) {
      if (auto* up = std::get_if<wire::WorkerUp>(&event)) {
        EXPECT_EQ(up->hello.role, Role::kReward);
        EXPECT_EQ(up->hello.worker, "reward-0");
        EXPECT_EQ(up->hello.hardware, "cpu");
        for (const wire::Verify& request : requests) send(server, up->session, request);
        session = up->session;
      }
      if (auto* incoming = std::get_if<wire::Incoming>(&event)) {
        if (auto* verdict = std::get_if<wire::Verdict>(&incoming->message))
          verdicts.push_back(*verdict);
        server.acknowledge(incoming->worker, incoming->sequence);
      }
    }
  }
  EXPECT_EQ(verdicts.size(), wanted);
  return verdicts;
}

// The verdict of this request. A scheduler that went before its acknowledgement left may hear
// others again.
std::optional<wire::Verdict> await_verdict(wire::WorkerServer& server, const LeaseId& lease) {
  auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::optional<wire::Verdict> found;
  while (!found && std::chrono::steady_clock::now() < give_up) {
    for (wire::ServerEvent& event : server.receive(milliseconds(50))) {
      auto* incoming = std::get_if<wire::Incoming>(&event);
      if (incoming == nullptr) continue;
      auto* verdict = std::get_if<wire::Verdict>(&incoming->message);
      if (verdict != nullptr && verdict->lease == lease) found = *verdict;
      server.acknowledge(incoming->worker, incoming->sequence);
    }
  }
  return found;
}

uint64_t await_session(wire::WorkerServer& server) {
  auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::chrono::steady_clock::now() < give_up) {
    for (wire::ServerEvent& event : server.receive(milliseconds(50))) {
      if (auto* up = std::get_if<wire::WorkerUp>(&event)) return up->session;
    }
  }
  ADD_FAILURE() << "no worker came";
  return 0;
}

TEST_F(RewardWorkerTest, AnswersOverAConnectionUntilItIsShutDown) {
  std::string endpoint =
      fmt::format("ipc://{}reward_worker_{}.sock", ::testing::TempDir(), getpid());
  wire::WorkerServer server(endpoint, {});
  uint64_t session = 0;
  RewardWorker worker(verifiers_, clock_, {.endpoint = endpoint, .link = {}});
  RewardWorker::Ending ending;
  std::jthread thread([&] { ending = worker.run(); });
  std::vector<wire::Verify> requests;
  for (int i = 0; i < 20; ++i) {
    wire::Verify request;
    request.lease.member.prompt = i;
    request.verifier = "number";
    request.evidence = i % 2 == 0 ? kRight : "not JSON";
    requests.push_back(request);
  }
  std::set<int64_t> answered;  // in any order, because threads score side by side
  for (const wire::Verdict& verdict : serve(server, session, requests.size(), requests)) {
    int64_t prompt = verdict.lease.member.prompt;
    answered.insert(prompt);
    EXPECT_EQ(verdict.reward.has_value(), prompt % 2 == 0);
  }
  EXPECT_EQ(answered.size(), requests.size());
  send(server, session, wire::Shutdown{.reason = "the run is over"});
  server.flush(milliseconds(5000));
  thread.join();
  EXPECT_EQ(ending.reason, "shutdown: the run is over");
  EXPECT_TRUE(ending.clean);
}

TEST_F(RewardWorkerTest, AVerifierIsToldToAnswerBeforeItsDeadline) {
  verifiers_->add("budgeted", "", std::make_unique<Budgeted>());
  std::string endpoint =
      fmt::format("ipc://{}reward_budget_{}.sock", ::testing::TempDir(), getpid());
  wire::WorkerServer server(endpoint, {});
  uint64_t session = 0;
  RewardWorker worker(verifiers_, clock_,
                      {.endpoint = endpoint, .link = {}, .deadline = std::chrono::seconds(20)});
  std::jthread thread([&] { worker.run(); });
  wire::Verify request;
  request.verifier = "budgeted";
  EXPECT_EQ(serve(server, session, 1, {request}).at(0).reward, 18.0);
  send(server, session, wire::Shutdown{.reason = "the run is over"});
  server.flush(milliseconds(5000));
}

TEST_F(RewardWorkerTest, AVerdictSaysThatTheTaskIsBroken) {
  verifiers_->add("broken", "", std::make_unique<Unscorable>());
  std::string endpoint =
      fmt::format("ipc://{}reward_broken_{}.sock", ::testing::TempDir(), getpid());
  wire::WorkerServer server(endpoint, {});
  uint64_t session = 0;
  RewardWorker worker(verifiers_, clock_, {.endpoint = endpoint, .link = {}});
  std::jthread thread([&] { worker.run(); });
  wire::Verify request;
  request.verifier = "broken";
  const wire::Verdict broken = serve(server, session, 1, {request}).at(0);
  EXPECT_FALSE(broken.reward.has_value());
  EXPECT_TRUE(broken.task_broken);
  EXPECT_EQ(broken.failure, "verifier broken: no answer is known");
  request.verifier = "nobody";
  request.verify_attempt = 1;
  send(server, session, request);
  EXPECT_FALSE(serve(server, session, 1, {}).at(0).task_broken);
  send(server, session, wire::Shutdown{.reason = "the run is over"});
  server.flush(milliseconds(5000));
}

TEST_F(RewardWorkerTest, AVerifierThatHangsIsAFailureAndTheNextRequestIsServed) {
  std::string endpoint =
      fmt::format("ipc://{}reward_hangs_{}.sock", ::testing::TempDir(), getpid());
  wire::WorkerServer server(endpoint, {});
  uint64_t session = 0;
  RewardWorker worker(
      verifiers_, clock_,
      {.endpoint = endpoint, .link = {}, .threads = 1, .deadline = std::chrono::seconds(5)});
  std::jthread thread([&] { worker.run(); });
  std::jthread time([&] {
    begun_->get_future().wait();
    clock_.advance(std::chrono::seconds(6));
  });
  wire::Verify request;
  request.lease.member.prompt = 1;
  request.verifier = "hangs";
  wire::Verdict late = serve(server, session, 1, {request}).at(0);
  EXPECT_EQ(late.lease, request.lease);
  EXPECT_FALSE(late.reward.has_value());
  EXPECT_EQ(late.failure, "verifier hangs: it did not answer within its deadline of 5 s");
  request.lease.member.prompt = 2;
  request.verifier = "number";
  request.evidence = kRight;
  send(server, session, request);  // its only thread was replaced
  EXPECT_EQ(serve(server, session, 1, {}).at(0).reward, 1.0);
  send(server, session, wire::Shutdown{.reason = "the run is over"});
  server.flush(milliseconds(5000));
  thread.join();  // while the verifier still hangs
  release_.set_value();
}

// A scheduler that comes back and still waits for a request says so, and says it once more.
TEST_F(RewardWorkerTest, ARequestThatANewSessionHoldsIsScoredOnce) {
  std::string endpoint =
      fmt::format("ipc://{}reward_holds_{}.sock", ::testing::TempDir(), getpid());
  auto server = std::make_unique<wire::WorkerServer>(endpoint, wire::LinkOptions{});
  uint64_t session = 0;
  RewardWorker worker(verifiers_, clock_, {.endpoint = endpoint, .link = {}, .threads = 2});
  std::jthread thread([&] { worker.run(); });
  wire::Verify hanging;
  hanging.lease.member.prompt = 1;
  hanging.verifier = "hangs";
  wire::Verify quick = hanging;
  quick.lease.member.prompt = 2;
  quick.verifier = "number";
  quick.evidence = kRight;
  EXPECT_EQ(serve(*server, session, 1, {hanging, quick}).at(0).lease, quick.lease);
  server.reset();
  server = std::make_unique<wire::WorkerServer>(endpoint, wire::LinkOptions{});
  // `hangs` begins only once: a second promise::set_value() would throw, and its verdict be a
  // failure.
  session = await_session(*server);
  send(*server, session, wire::Hold{{{hanging.lane, hanging.lease}}});
  send(*server, session, hanging);
  // Behind them, so that its verdict says that they were heard.
  wire::Verify last = quick;
  last.lease.member.prompt = 3;
  send(*server, session, last);
  EXPECT_TRUE(await_verdict(*server, last.lease));
  release_.set_value();
  const auto released = await_verdict(*server, hanging.lease);
  ASSERT_TRUE(released);
  EXPECT_EQ(released->reward, 1.0) << released->failure;
  send(*server, session, wire::Shutdown{.reason = "the run is over"});
  server->flush(milliseconds(5000));
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
