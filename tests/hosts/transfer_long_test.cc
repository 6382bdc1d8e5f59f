// Transfers over slow links that lose packets, are cut for a minute, and end with either side
// killed: the weights of a synchronous run stay what they would have been.
#include <sys/stat.h>

#include "core/run/metrics.h"
#include "core/wire/gate_frames.h"
#include "tests/hosts/remote_fixture.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

constexpr int kSteps = 3;

class RemoteTransfer : public RemoteTest {
 protected:
  Digest root_of_a_local_run() {
    HostProcess& local = launch(
        {"run.listen=\"\"", "clusters=[]", "rollout.pools=[]", "reward.workers=1"}, "/tmp/local");
    EXPECT_EQ(local.wait(kHostPatience), 0);
    return root_of(kSteps, "/tmp/local");
  }
  void expect_the_weights_of(const Digest& root, HostProcess& run) {
    EXPECT_EQ(run.wait(kHostPatience), 0);
    EXPECT_EQ(root_of(kSteps), root);
  }
  // Of a version that is under way, what has reached the disk.
  int64_t bytes_of_a_part() const {
    std::error_code ignored;
    int64_t bytes = 0;
    for (const auto& folder : fs::directory_iterator(far_->outside("/tmp/work/weights"), ignored))
      for (const auto& file : fs::directory_iterator(folder.path(), ignored)) {
        struct stat facts {};
        if (file.path().extension() == ".part" && ::stat(file.path().c_str(), &facts) == 0)
          bytes = std::max<int64_t>(bytes, facts.st_blocks * 512);
      }
    return bytes;
  }
  // Some of a version has arrived, and not all.
  bool is_under_way() const {
    std::error_code ignored;
    for (const auto& folder : fs::directory_iterator(far_->outside("/tmp/work/weights"), ignored))
      for (const auto& file : fs::directory_iterator(folder.path(), ignored))
        if (file.path().extension() == ".part") return true;
    return false;
  }
  // Processes of a host, by a word of their command lines; numbers as the host counts them.
  void kill_role(const std::string& role) {
    const std::string word = fmt::format("roles/{}.lock", role);
    const std::string pid = text_at_home("/tmp/run/" + word);
    ASSERT_FALSE(pid.empty()) << word;
    EXPECT_TRUE(home_->kill_inside(std::stoi(pid), SIGKILL)) << pid;
  }
};

TEST_F(RemoteTransfer, SlowAndLossyLinksChangeNoBit) {
  const Digest root = root_of_a_local_run();
  for (const LinkOptions& options :
       {LinkOptions{.rate_mbit = 2, .delay = 25ms}, LinkOptions{.rate_mbit = 100, .delay = 25ms},
        LinkOptions{.rate_mbit = 1000, .delay = 5ms, .loss_ratio = 0.001}}) {
    link_.reset();
    connect(options);
    fs::remove_all(home_->outside("/tmp/run"));
    HostProcess& run = launch();
    ASSERT_NO_FATAL_FAILURE(expect_open());
    HostProcess& rollout = join_rollout();
    HostProcess& reward = join_reward();
    expect_the_weights_of(root, run);
    // All of it crosses again.
    fs::remove_all(far_->outside("/tmp/work"));
    EXPECT_EQ(rollout.wait(20s), 0);
    EXPECT_EQ(reward.wait(20s), 0);
  }
}

// Some 80 chunks a version, so that windows fill and packets are lost, and a cut in the middle of
// one.
TEST_F(RemoteTransfer, ALargerModelCrossesALossyLinkThatIsCut) {
  std::ofstream(home_->outside("/tmp/far.yaml")) << R"(
run: {name: large, seed: 3, steps: 2, listen: "tcp://10.77.0.1:7701", keys: /tmp/keys}
model:
  create: {hidden_size: 256, intermediate_size: 768, layers: 6, heads: 4, kv_heads: 2, max_positions: 128}
clusters: [{name: west, link_mbit: 1000}]
env: {name: frozen_grid, settings: {max_turns: 8}}
rollout:
  prompts_per_step: 4
  group_size: 4
  max_turns: 8
  max_context_tokens: 128
  pools: [{name: far, workers: 1, cluster: west}]
reward: {workers: 0}
algo: {filter_zero_signal: none}
train: {microbatch_tokens: 1024, threads: 1}
eval: {prompts: 4, interval_steps: 2}
)";
  HostProcess& local = launch(
      {"run.listen=\"\"", "clusters=[]", "rollout.pools=[]", "reward.workers=1"}, "/tmp/local");
  ASSERT_EQ(local.wait(kHostPatience), 0);
  connect({.rate_mbit = 100, .delay = 5ms, .loss_ratio = 0.001});
  HostProcess& run = launch();
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess& rollout = join_rollout();
  HostProcess& reward = join_reward();
  ASSERT_TRUE(comes_true([&] { return bytes_of_a_part() >= 16 * wire::kChunkBytes; }));
  link_->cut();
  std::this_thread::sleep_for(3s);
  link_->heal();
  link_->set_rate(1000);
  EXPECT_EQ(run.wait(kHostPatience), 0);
  EXPECT_EQ(rollout.wait(20s), 0);
  EXPECT_EQ(reward.wait(20s), 0);
  EXPECT_EQ(root_of(2), root_of(2, "/tmp/local"));
  EXPECT_GT(link_->counters(Direction::kAToB).lost, 0);
  // Three versions, and little of any of them twice.
  EXPECT_LT(link_->counters(Direction::kAToB).passed_bytes, 4 * 20'000'000);
}

TEST_F(RemoteTransfer, AWorkerThatIsKilledInTheMiddleGoesOnWhereItEnded) {
  const Digest root = root_of_a_local_run();
  connect({.rate_mbit = 1, .delay = 5ms});
  HostProcess& run = launch();
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess& reward = join_reward();
  HostProcess& first = join_rollout();
  ASSERT_TRUE(comes_true([&] { return bytes_of_a_part() >= 2 * wire::kChunkBytes; }));
  first.kill(SIGKILL);
  EXPECT_EQ(first.wait(10s), 128 + SIGKILL);
  link_->set_rate(100);
  HostProcess& second = join_rollout();
  expect_the_weights_of(root, run);
  EXPECT_EQ(second.wait(20s), 0);
  EXPECT_EQ(reward.wait(20s), 0);
  // The first version that it fetched: what its predecessor had was not sent again.
  const auto log = read_file(far_->outside("/tmp/work/logs/far-rollout-1.log"));
  ASSERT_TRUE(log) << log.failure().message;
  const size_t kept = log.value().find("kept_bytes=");
  ASSERT_NE(kept, std::string::npos) << log.value();
  EXPECT_GE(std::stoll(log.value().substr(kept + 11)), 2 * wire::kChunkBytes) << log.value();
}

TEST_F(RemoteTransfer, AGateThatIsKilledInTheMiddleIsStartedAgain) {
  const Digest root = root_of_a_local_run();
  connect({.rate_mbit = 1, .delay = 5ms});
  HostProcess& run = launch();
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess& reward = join_reward();
  HostProcess& rollout = join_rollout();
  ASSERT_TRUE(comes_true([&] { return is_under_way(); }));
  kill_role("gate-0");
  link_->set_rate(100);
  expect_the_weights_of(root, run);
  EXPECT_EQ(rollout.wait(20s), 0);
  EXPECT_EQ(reward.wait(20s), 0);
}

TEST_F(RemoteTransfer, ALaunchThatIsKilledGoesOnWithTheWorkersThatItHad) {
  const Digest root = root_of_a_local_run();
  connect({.rate_mbit = 1, .delay = 5ms});
  HostProcess& killed = launch();
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess& reward = join_reward();
  HostProcess& rollout = join_rollout();
  ASSERT_TRUE(comes_true([&] { return is_under_way(); }));
  killed.kill(SIGKILL);
  EXPECT_EQ(killed.wait(10s), 128 + SIGKILL);
  link_->set_rate(100);
  HostProcess& run = launch();
  expect_the_weights_of(root, run);
  EXPECT_EQ(rollout.wait(20s), 0);
  EXPECT_EQ(reward.wait(20s), 0);
}

TEST_F(RemoteTransfer, ACutOfAMinuteMovesTheWorkAndTheWorkerComesBack) {
  connect({.rate_mbit = 100, .delay = 25ms});
  HostProcess& run = launch({"run.steps=100000", "checkpoint.interval_steps=1000", "eval.prompts=0",
                             "rollout.pools=[{name: near, workers: 1}, {name: far, workers: 1, "
                             "cluster: west}]",
                             "reward.workers=1"});
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess& rollout = join_rollout();
  ASSERT_TRUE(comes_true([&] {
    return log_of("scheduler-0").find("rollout-1 has joined") != std::string::npos &&
           steps_done() >= 2;
  }));
  link_->cut();
  ASSERT_TRUE(comes_true(
      [&] { return log_of("scheduler-0").find("rollout-1 is gone") != std::string::npos; }));
  const int64_t before = steps_done();
  std::this_thread::sleep_for(60s);
  EXPECT_GT(steps_done(), before + 2);
  link_->heal();
  const size_t seen = log_of("scheduler-0").size();
  EXPECT_TRUE(comes_true(
      [&] { return log_of("scheduler-0").find("rollout-1 has joined", seen) != std::string::npos; },
      30s))
      << log_of("scheduler-0");
  EXPECT_TRUE(rollout.is_running());
  run.kill(SIGINT);
  EXPECT_EQ(run.wait(kHostPatience), 130);
  EXPECT_EQ(rollout.wait(20s), 0);
}

TEST_F(RemoteTransfer, AsynchronousTrainingKeepsItsBound) {
  connect({.rate_mbit = 20, .delay = 25ms});
  HostProcess& run = launch(
      {"run.steps=12", "scheduler.mode=async", "scheduler.ahead=2", "scheduler.max_staleness=2"});
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess& rollout = join_rollout();
  HostProcess& reward = join_reward();
  EXPECT_EQ(run.wait(kHostPatience), 0);
  EXPECT_EQ(rollout.wait(20s), 0);
  EXPECT_EQ(reward.wait(20s), 0);
  const auto rows = read_metrics(home_->outside("/tmp/run/metrics.jsonl"));
  ASSERT_TRUE(rows) << rows.failure().message;
  double stalest = 0;
  int steps = 0;
  for (const MetricsRow& row : rows.value()) {
    const double* value = row.find("staleness/max");
    if (value == nullptr) continue;
    ++steps;
    stalest = std::max(stalest, *value);
  }
  EXPECT_EQ(steps, 12);
  EXPECT_LE(stalest, 2);
  EXPECT_GT(stalest, 0);
}

}  // namespace
}  // namespace tailrace
