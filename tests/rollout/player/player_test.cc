// One driver of the engine: sessions by their sinks, and a player of environments and of programs
// at once.
#include "rollout/player/player.h"

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rollout/episode/task_source.h"
#include "sandbox/builtin/built_in.h"
#include "sandbox/registry.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/rollout/engine/engine_harness.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

class Listener final : public AnswerSink {
 public:
  void answered(Generation generation) override { heard.push_back(std::move(generation)); }
  std::vector<Generation> heard;
};

TEST(GeneratorDriver, EachSinkHearsItsOwnSessions) {
  const TestModel model(tiny_config());
  TestEngine engine(model);
  GeneratorDriver driver(*engine);
  Listener one, other;
  const SessionId first = driver.open(one), second = driver.open(other);
  EXPECT_NE(first, second);
  driver.submit(request_of(first, random_tokens(5, 61, 1), 3));
  driver.submit(request_of(second, random_tokens(5, 61, 2), 4));
  while (!driver.idle()) driver.step();
  ASSERT_EQ(one.heard.size(), 1u);
  ASSERT_EQ(other.heard.size(), 1u);
  EXPECT_EQ(one.heard[0].session, first);
  EXPECT_EQ(std::ssize(other.heard[0].tokens), 4);
}

TEST(GeneratorDriver, AClosedSinkHearsNothingAndItsSessionsEnd) {
  const TestModel model(tiny_config());
  TestEngine engine(model);
  GeneratorDriver driver(*engine);
  Listener gone, stays;
  const SessionId left = driver.open(gone), idle = driver.open(gone), kept = driver.open(stays);
  driver.submit(request_of(left, random_tokens(5, 61, 1), 20));
  driver.submit(request_of(kept, random_tokens(5, 61, 2), 20));
  driver.step();
  driver.close(gone);
  while (!driver.idle()) driver.step();
  EXPECT_TRUE(gone.heard.empty());
  ASSERT_EQ(stays.heard.size(), 1u);
  EXPECT_EQ(std::ssize(stays.heard[0].tokens), 20);
  // Nobody would hear the answer.
  EXPECT_DEATH(driver.submit(request_of(idle, {1}, 1)), "is not open");
}

// Plays by itself: asks once, and says what that was worth.
class AgentOnly final : public sandbox::EnvironmentSource {
 public:
  explicit AgentOnly(const std::string& script) {
    auto program = std::make_shared<sandbox::AgentProgram>();
    program->run = {"/usr/bin/python3", "-c", script};
    program_ = std::move(program);
    info_.name = "agent";
  }
  const sandbox::EnvironmentInfo& info() const override { return info_; }
  std::unique_ptr<sandbox::Environment> open() const override { return nullptr; }
  std::shared_ptr<const sandbox::AgentProgram> agent() const override { return program_; }

 private:
  sandbox::EnvironmentInfo info_;
  std::shared_ptr<const sandbox::AgentProgram> program_;
};

constexpr const char* kAskOnce = R"py(
import json, os, urllib.request
body = json.dumps({"messages": [{"role": "user", "content": "Once upon a time"}]}).encode()
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers), timeout=20).read()
print(json.dumps({"reward": 0.25}))
)py";

class PlayerTest : public ::testing::Test {
 protected:
  EpisodeSpec spec_of(int64_t prompt) const {
    EpisodeSpec spec;
    spec.lease.member.prompt = prompt;
    spec.task.seed = static_cast<uint64_t>(prompt);
    spec.key = member_key(/*run_seed=*/5, Lane::kTrain, spec.lease.member);
    spec.numerics_class = "cpu";
    spec.limits = {.max_context_tokens = 512,
                   .max_prompt_tokens = 512,
                   .max_response_tokens = 512,
                   .max_action_tokens = 6,
                   .max_turns = 2};
    return spec;
  }
  BodyId id_of(int64_t prompt) const { return {Lane::kTrain, spec_of(prompt).lease}; }
  std::shared_ptr<const sandbox::EnvironmentSource> grid() const {
    return environments_.source("frozen_grid", {});
  }
  Player player(int64_t max_request_bytes = 0) {
    return {*engine_,
            format_,
            {.max_request_bytes = max_request_bytes, .agents_folder = directory_ / "agents"},
            clock_};
  }
  static std::map<int64_t, FinishedEpisode> play(Player& player, size_t count) {
    std::map<int64_t, FinishedEpisode> done;
    for (const Time until = steady_now() + 40s; done.size() < count && steady_now() < until;)
      for (FinishedEpisode& episode : player.poll(10ms)) {
        const int64_t prompt = episode.trajectory.lease.member.prompt;
        done[prompt] = std::move(episode);
      }
    EXPECT_EQ(done.size(), count);
    return done;
  }

  TemporaryDirectory directory_;
  TestModel model_{"models/stories260K"};
  std::unique_ptr<text::Tokenizer> tokenizer_ =
      text::load_tokenizer(std::string(TAILRACE_SOURCE_DIR) + "/tests/data/models/stories260K");
  chat::PromptFormat format_{*tokenizer_};
  TestEngine engine_{model_, {.max_context_tokens = 512}, tokenizer_.get()};
  sandbox::EnvironmentRegistry environments_ = sandbox::built_in_environments();
  SteadyClock clock_;
};

TEST_F(PlayerTest, EnvironmentsAndAgentsPlaySideBySide) {
  if (!std::filesystem::exists("/usr/bin/python3")) GTEST_SKIP() << "needs python3";
  Player both = player(1 << 20);
  const auto agent = std::make_shared<const AgentOnly>(kAskOnce);
  for (int64_t prompt = 0; prompt < 3; ++prompt) both.start(spec_of(prompt), grid());
  for (int64_t prompt = 3; prompt < 5; ++prompt) both.start(spec_of(prompt), agent);
  EXPECT_EQ(both.num_running(), 5);
  EXPECT_EQ(both.running().size(), 5u);
  for (int64_t prompt = 0; prompt < 5; ++prompt) EXPECT_TRUE(both.is_running(id_of(prompt)));
  const auto done = play(both, 5);
  EXPECT_EQ(both.num_running(), 0);
  for (const auto& [prompt, episode] : done) {
    EXPECT_EQ(episode.failure, "") << prompt;
    EXPECT_EQ(find_fault(episode.trajectory), std::nullopt) << prompt;
    EXPECT_GT(episode.trajectory.num_sampled(), 0) << prompt;
    EXPECT_EQ(episode.trajectory.env, prompt < 3 ? "frozen_grid" : "agent");
  }
  EXPECT_EQ(done.at(4).trajectory.reward, 0.25);
}

// An episode of an environment has its tokens wherever else it is played.
TEST_F(PlayerTest, CompanyChangesNoToken) {
  Player alone = player();
  alone.start(spec_of(1), grid());
  const auto expected = play(alone, 1);
  Player crowd = player();
  for (int64_t prompt = 0; prompt < 6; ++prompt) crowd.start(spec_of(prompt), grid());
  const auto done = play(crowd, 6);
  EXPECT_EQ(done.at(1).trajectory.segments[0].tokens, expected.at(1).trajectory.segments[0].tokens);
}

TEST_F(PlayerTest, AnAbortedEpisodeEndsAndTheOthersGoOn) {
  if (!std::filesystem::exists("/usr/bin/python3")) GTEST_SKIP() << "needs python3";
  Player both = player(1 << 20);
  both.start(spec_of(0), grid());
  both.start(spec_of(1), grid());
  both.start(spec_of(2), std::make_shared<const AgentOnly>("import time; time.sleep(600)"));
  EXPECT_TRUE(both.abort(id_of(0)));
  EXPECT_TRUE(both.abort(id_of(2)));
  EXPECT_FALSE(both.abort(id_of(7))) << "none runs";
  const auto done = play(both, 2);
  EXPECT_EQ(done.at(0).trajectory.outcome, Outcome::kAborted);
  EXPECT_EQ(done.at(1).failure, "");
  EXPECT_EQ(both.num_running(), 0);
  EXPECT_FALSE(both.is_running(id_of(2)));
}

}  // namespace
}  // namespace tailrace
