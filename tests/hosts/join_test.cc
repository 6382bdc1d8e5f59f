// Workers that join a run from another host: the work is done there, and nothing else changes.
#include "tests/hosts/remote_fixture.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

constexpr int kSteps = 3;

class RemoteJoin : public RemoteTest {
 protected:
  std::string first_prompt() const {
    const std::string rows = text_at_home("/tmp/data/prompts.jsonl");
    const size_t begin = rows.find("\"prompt\": \"") + 11;
    return rows.substr(begin, 24);
  }
};

TEST_F(RemoteJoin, ASynchronousRunEndsWithTheBitsOfALocalOne) {
  HostProcess& local = launch(
      {"run.listen=\"\"", "clusters=[]", "rollout.pools=[]", "reward.workers=1"}, "/tmp/local");
  connect({.rate_mbit = 1000, .delay = 2ms, .recording = &recording_});
  HostProcess& run = launch();
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess& rollout = join_rollout();
  HostProcess& reward = join_reward();
  EXPECT_EQ(run.wait(kHostPatience), 0);
  EXPECT_EQ(rollout.wait(10s), 0);
  EXPECT_EQ(reward.wait(10s), 0);
  EXPECT_EQ(local.wait(kHostPatience), 0);
  EXPECT_EQ(root_of(kSteps), root_of(kSteps, "/tmp/local"));
  // Nothing of it could be read on the way.
  const std::string prompt = first_prompt();
  ASSERT_EQ(prompt.size(), 24u);
  EXPECT_GT(recording_.bytes(), 1'000'000);
  EXPECT_FALSE(recording_.contains(prompt)) << prompt;
  EXPECT_FALSE(recording_.contains("tokenizer"));
  // Its rows are those of any worker, and say where it was.
  const std::string rows = text_at_home("/tmp/run/timeline.jsonl");
  EXPECT_NE(rows.find(R"("worker":"rollout-0","role":"rollout")"), std::string::npos);
  EXPECT_NE(rows.find(R"("pool":"far","cluster":"west","host":"beta")"), std::string::npos) << rows;
}

// The base comes with the bundle, whole, and versions are the adapter alone.
TEST_F(RemoteJoin, AnAdapterRunEndsWithTheBitsOfALocalOne) {
  const std::vector<std::string> adapter = {"lora.rank=4", "optim.lr=0.005", "eval.prompts=0"};
  std::vector<std::string> alone = {"run.listen=\"\"", "clusters=[]", "rollout.pools=[]",
                                    "reward.workers=1"};
  alone.insert(alone.end(), adapter.begin(), adapter.end());
  HostProcess& local = launch(alone, "/tmp/local");
  connect({.rate_mbit = 1000, .delay = 2ms});
  HostProcess& run = launch(adapter);
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess& rollout = join_rollout();
  HostProcess& reward = join_reward();
  EXPECT_EQ(run.wait(kHostPatience), 0);
  EXPECT_EQ(rollout.wait(10s), 0);
  EXPECT_EQ(reward.wait(10s), 0);
  EXPECT_EQ(local.wait(kHostPatience), 0);
  EXPECT_EQ(root_of(kSteps), root_of(kSteps, "/tmp/local"));
}

// A program that scores, with a file that it reads: both lie on the run's host alone.
class RemoteReward : public RemoteJoin {
 protected:
  void SetUp() override {
    RemoteJoin::SetUp();
    if (IsSkipped()) return;
    std::ofstream(home_->outside("/tmp/data/least.txt")) << "8\n";
    std::ofstream(home_->outside("/tmp/data/reward.py")) << R"(
import json, sys
least = int(open(sys.argv[1]).read())
for line in sys.stdin:
    episode = json.loads(line)
    reward = min(1, len(set(episode["response"].split())) / (4 * least))
    print(json.dumps({"id": episode["id"], "reward": reward}))
)";
  }
  HostProcess& launch_scored(const std::string& run, std::vector<std::string> more = {}) {
    more.push_back("reward.command=[python3, /tmp/data/reward.py, /tmp/data/least.txt]");
    return launch(more, run);
  }
};

TEST_F(RemoteReward, AProgramGoesWhereEpisodesAreScored) {
  HostProcess& local = launch_scored(
      "/tmp/local", {"run.listen=\"\"", "clusters=[]", "rollout.pools=[]", "reward.workers=1"});
  connect({.rate_mbit = 1000, .delay = 2ms});
  HostProcess& run = launch_scored("/tmp/run");
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess& rollout = join_rollout();
  HostProcess& reward = join_reward();
  EXPECT_EQ(run.wait(kHostPatience), 0);
  EXPECT_EQ(rollout.wait(10s), 0);
  EXPECT_EQ(reward.wait(10s), 0);
  EXPECT_EQ(local.wait(kHostPatience), 0);
  EXPECT_EQ(root_of(kSteps), root_of(kSteps, "/tmp/local"));
}

TEST_F(RemoteReward, AHostWithoutTheInterpreterIsRefusedByName) {
  connect({.rate_mbit = 1000, .delay = 2ms});
  launch_scored("/tmp/run");
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess& reward = far_->spawn(
      {TAILRACE_BINARY, "worker", "--join", kListen, "--key", "/tmp/keys/box7.key", "--server-key",
       "/tmp/keys/server.pub", "--work-dir", "/tmp/work", "--role", "reward", "--cluster", "west"},
      next_output(), {"PATH=/nowhere", "HOME=/tmp"});
  EXPECT_EQ(reward.wait(kHostPatience), 2);
  const std::string words =
      "reward.command is 'python3 reward.py least.txt': there is no program python3 on this "
      "machine";
  EXPECT_NE(reward.output().find(words), std::string::npos) << reward.output();
  // Whoever looks at the run reads it too.
  EXPECT_TRUE(comes_true(
      [&] { return text_at_home("/tmp/run/logs/gate-0.log").find(words) != std::string::npos; }));
}

}  // namespace
}  // namespace tailrace
