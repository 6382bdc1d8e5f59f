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

}  // namespace
}  // namespace tailrace
