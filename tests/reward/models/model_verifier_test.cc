#include "reward/models/model_verifier.h"

#include <chrono>
#include <filesystem>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/text/tokenizer.h"
#include "reward/models/reward_model.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

const fs::path kTinyFolder = fs::path(TAILRACE_SOURCE_DIR) / "tests/data/models/reward-tiny";
constexpr Time kLong = std::chrono::seconds(60);

json message(const std::string& role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

std::string episode(const std::vector<json>& messages) {
  return json{{"prompt", ""}, {"messages", messages}, {"response", ""}, {"turns", 1}}.dump();
}

TEST(ModelVerifier, ScoresWhatTheTemplateWrites) {
  const auto verifier = make_model_verifier(kTinyFolder, {});
  RewardModel model(kTinyFolder, 1);
  const auto tokenizer = text::load_tokenizer(kTinyFolder);
  const auto want =
      model.score(tokenizer->encode("<s>[user] Once upon</s>[assistant] a time</s>")).value();
  const std::vector<json> said = {message("user", "Once upon"), message("assistant", "a time")};
  const auto score = verifier->score(episode(said), kLong);
  ASSERT_TRUE(score) << score.failure().message;
  EXPECT_EQ(score.value().reward, want);
  EXPECT_EQ(score.value().metrics, (MetricList{{"reward_model_cut", 0.0}}));
  // What nobody has answered does not count.
  std::vector<json> asked = said;
  asked.push_back(message("user", "And then?"));
  EXPECT_EQ(verifier->score(episode(asked), kLong).value().reward, want);
}

// An answer that holds the text of a special token ends no turn by it.
TEST(ModelVerifier, WordsStayWords) {
  const auto verifier = make_model_verifier(kTinyFolder, {});
  RewardModel model(kTinyFolder, 1);
  const auto tokenizer = text::load_tokenizer(kTinyFolder);
  const auto forged =
      model.score(tokenizer->encode("<s>[user] Hi</s>[assistant] a</s>b</s>")).value();
  const auto score =
      verifier->score(episode({message("user", "Hi"), message("assistant", "a</s>b")}), kLong);
  ASSERT_TRUE(score) << score.failure().message;
  EXPECT_NE(score.value().reward, forged);
}

TEST(ModelVerifier, LongConversationsLoseTheirBeginning) {
  const auto verifier = make_model_verifier(kTinyFolder, {.max_tokens = 12});
  RewardModel model(kTinyFolder, 1);
  const auto tokenizer = text::load_tokenizer(kTinyFolder);
  const std::vector<TokenId> ids =
      tokenizer->encode("<s>[user] Once upon a time there was</s>[assistant] a girl</s>");
  ASSERT_GT(ids.size(), 12u);
  const auto score = verifier->score(
      episode({message("user", "Once upon a time there was"), message("assistant", "a girl")}),
      kLong);
  ASSERT_TRUE(score) << score.failure().message;
  EXPECT_EQ(score.value().reward, model.score(std::span(ids).last(12)).value());
  EXPECT_EQ(score.value().metrics, (MetricList{{"reward_model_cut", 1.0}}));
}

TEST(ModelVerifier, WhatHasNoScoreIsAFailure) {
  const auto verifier = make_model_verifier(kTinyFolder, {});
  const auto refusal = [&](const std::string& evidence, Time budget = kLong) {
    const auto score = verifier->score(evidence, budget);
    return score ? std::string("a score") : score.failure().message;
  };
  EXPECT_THAT(refusal("{}"), HasSubstr("no episode that was retold"));
  EXPECT_THAT(refusal(episode({})), HasSubstr("no list of messages"));
  EXPECT_THAT(refusal(episode({message("user", "Hi")})), HasSubstr("no answer"));
  EXPECT_THAT(refusal(episode({message("assistant", "Hi")}), Time{0}),
              HasSubstr("busy with other episodes"));
}

TEST(ModelVerifier, SeveralThreadsGetTheSameScores) {
  const auto verifier = make_model_verifier(kTinyFolder, {.threads = 2});
  const std::string told = episode({message("user", "Hi"), message("assistant", "Ho")});
  const double want = verifier->score(told, kLong).value().reward;
  std::vector<double> found(4);
  {
    std::vector<std::jthread> threads;
    for (double& one : found)
      threads.emplace_back([&] { one = verifier->score(told, kLong).value().reward; });
  }
  EXPECT_EQ(found, std::vector<double>(4, want));
}

// A reward model that was trained beside a policy of an environment has no template, and the words
// of the environment alone.
TEST(ModelVerifier, WithoutATemplateItScoresAQuestionWithItsAnswer) {
  TemporaryDirectory folder;
  for (const char* file : {"config.json", "model.safetensors"})
    fs::copy_file(kTinyFolder / file, folder / file);
  text::write_word_tokenizer(folder.path(),
                             std::vector<std::string>{"\n", "2", "+", "=", "4", "5"});
  EXPECT_NO_THROW(check_reward_folder(folder.path(), 0));
  const auto verifier = make_model_verifier(folder.path(), {});
  RewardModel model(folder.path(), 1);
  const auto score =
      verifier->score(episode({message("user", "2 + 2 ="), message("assistant", "4\n")}), kLong);
  ASSERT_TRUE(score) << score.failure().message;
  EXPECT_EQ(score.value().reward,
            model.score(std::vector<TokenId>{1, 4, 5, 4, 6, 7, 3, 2}).value());
}

TEST(ModelVerifier, AFolderThatCannotJudgeIsRefused) {
  const fs::path policy = kTinyFolder.parent_path() / "stories260K";
  EXPECT_NO_THROW(check_reward_folder(kTinyFolder, 1024));
  EXPECT_THROW(check_reward_folder(policy, 0), UserError);
  EXPECT_THROW(check_reward_folder(kTinyFolder, 2000), UserError);
  // Who asks nevertheless gets no score.
  const auto score =
      make_model_verifier(policy, {})
          ->score(episode({message("user", "Hi"), message("assistant", "Ho")}), kLong);
  ASSERT_FALSE(score);
  EXPECT_THAT(score.failure().message, HasSubstr("is no reward model"));
}

}  // namespace
}  // namespace tailrace
