// A link that is cut while workers are behind it: short cuts are nothing, after longer ones the
// work goes elsewhere and the worker comes back; nothing is lost or done twice.
#include "core/run/metrics.h"
#include "tests/hosts/remote_fixture.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

// Ended by the test, which is long before.
constexpr char kManySteps[] = "run.steps=100000";

class RemoteCut : public RemoteTest {
 protected:
  void expect_steps_go_on() {
    const int64_t before = steps_done();
    ASSERT_TRUE(comes_true([&] { return steps_done() >= before + 2; }, 30s)) << steps_done();
  }
  static int64_t count(const std::string& text, const std::string& part) {
    int64_t found = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
    return found;
  }
  int64_t num_losses() const { return count(log_of("scheduler-0"), " is gone: "); }
};

TEST_F(RemoteCut, ThreeSecondsAreNothingAndEightMoveTheWorkUntilTheWorkerIsBack) {
  connect({.rate_mbit = 100, .delay = 5ms});
  HostProcess& run = launch({kManySteps, "checkpoint.interval_steps=1000", "eval.prompts=0"});
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess& rollout = join_rollout();
  HostProcess& reward = join_reward();
  ASSERT_NO_FATAL_FAILURE(expect_steps_go_on());

  const auto begin = std::chrono::steady_clock::now();
  link_->cut();
  std::this_thread::sleep_for(3s);
  link_->heal();
  const auto cut = std::chrono::steady_clock::now() - begin;
  ASSERT_NO_FATAL_FAILURE(expect_steps_go_on());
  // A machine that has stood still meanwhile has cut it for longer.
  if (cut < 3300ms) {
    EXPECT_EQ(num_losses(), 0) << log_of("scheduler-0");
  }

  link_->cut();
  std::this_thread::sleep_for(8s);
  EXPECT_GE(num_losses(), 2) << log_of("scheduler-0");
  link_->heal();
  ASSERT_NO_FATAL_FAILURE(expect_steps_go_on());
  // What it had to say meanwhile is in the logs of the run.
  EXPECT_TRUE(comes_true(
      [&] { return log_of("rollout-0").find("scheduler silent") != std::string::npos; }, 10s));
  EXPECT_TRUE(rollout.is_running());
  EXPECT_TRUE(reward.is_running());

  run.kill(SIGINT);
  EXPECT_EQ(run.wait(kHostPatience), 130);
  EXPECT_EQ(rollout.wait(10s), 0);
  EXPECT_EQ(reward.wait(10s), 0);
  // Each step once, in order.
  const auto rows = read_metrics(home_->outside("/tmp/run/metrics.jsonl"));
  ASSERT_TRUE(rows) << rows.failure().message;
  int64_t last = 0;
  for (const MetricsRow& row : rows.value()) {
    if (row.find("reward/mean") == nullptr) continue;
    EXPECT_EQ(row.step, ++last);
  }
}

// Beside workers of the run's own host. What a reward worker has in hand waits for
// scheduler.reconnect_seconds more than the silence.
TEST_F(RemoteCut, AfterEightSecondsTheWorkIsElsewhereAndTheWorkersComeBack) {
  connect({.rate_mbit = 100, .delay = 5ms});
  HostProcess& run = launch({kManySteps, "checkpoint.interval_steps=1000", "eval.prompts=0",
                             "rollout.pools=[{name: near, workers: 1}, {name: far, workers: 1, "
                             "cluster: west}]",
                             "reward.workers=1", "scheduler.reconnect_seconds=1"});
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess& rollout = join_rollout();
  HostProcess& reward = join_reward();
  ASSERT_TRUE(comes_true([&] {
    return log_of("scheduler-0").find("rollout-1 has joined") != std::string::npos &&
           log_of("scheduler-0").find("reward-1 has joined") != std::string::npos;
  }));
  ASSERT_NO_FATAL_FAILURE(expect_steps_go_on());
  link_->cut();
  const auto healed = std::chrono::steady_clock::now() + 8s;
  ASSERT_TRUE(comes_true([&] { return num_losses() >= 2; }, 20s)) << log_of("scheduler-0");
  // Still cut: those of this host go on.
  ASSERT_NO_FATAL_FAILURE(expect_steps_go_on());
  std::this_thread::sleep_until(healed);
  const size_t seen = log_of("scheduler-0").size();
  link_->heal();
  for (const char* name : {"rollout-1 has joined", "reward-1 has joined"})
    EXPECT_TRUE(comes_true(
        [&] { return log_of("scheduler-0").find(name, seen) != std::string::npos; }, 30s))
        << log_of("scheduler-0");
  run.kill(SIGINT);
  EXPECT_EQ(run.wait(kHostPatience), 130);
  EXPECT_EQ(rollout.wait(10s), 0);
  EXPECT_EQ(reward.wait(10s), 0);
}

}  // namespace
}  // namespace tailrace
