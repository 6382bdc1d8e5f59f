#include "reward/command/retold.h"

#include <optional>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "sandbox/builtin/built_in.h"

namespace tailrace {
namespace {

using nlohmann::json;
using sandbox::EnvironmentRegistry;
using sandbox::StepResult;

std::shared_ptr<const sandbox::EnvironmentSource> source(
    const std::string& name, const sandbox::EnvironmentSettings& settings) {
  return sandbox::built_in_environments().source(name, settings);
}

RetoldEpisode retold_of(const StepResult& end) {
  const auto retold = RetoldEpisode::read(end.evidence);
  EXPECT_TRUE(retold) << retold.failure().message;
  return retold ? retold.value() : RetoldEpisode{.episode = "{}"};
}

json told_in(const StepResult& end) { return json::parse(retold_of(end).episode); }

TEST(Retold, APromptOfADatasetIsToldWithItsRowAndItsAnswer) {
  const auto environment =
      retold(source("text", {{"verifier", "number"}}), "mine", /*keeps_evidence=*/true)->open();
  EXPECT_EQ(environment->info().verifier, "mine");
  ASSERT_TRUE(environment->reset({.data = R"({"prompt": "2 + 3?", "answer": "5"})"}));
  const auto end = environment->step("it is 5");
  ASSERT_TRUE(end);
  EXPECT_EQ(end.value().verifier, "mine");
  const json told = told_in(end.value());
  EXPECT_EQ(told["prompt"], "2 + 3?");
  EXPECT_EQ(told["response"], "it is 5");
  EXPECT_EQ(told["turns"], 1);
  EXPECT_EQ(told["row"], json::parse(R"({"prompt": "2 + 3?", "answer": "5"})"));
  EXPECT_EQ(told["messages"], json::parse(R"([{"role": "user", "content": "2 + 3?"},
                                              {"role": "assistant", "content": "it is 5"}])"));
  // What the verifier of the environment would have had.
  EXPECT_EQ(json::parse(retold_of(end.value()).evidence.value())["response"], "it is 5");
  EXPECT_FALSE(told.contains("environment_reward"));
}

TEST(Retold, APromptOfMessagesIsToldAsItIs) {
  const auto environment =
      retold(source("text", {{"verifier", "number"}}), "mine", /*keeps_evidence=*/false)->open();
  ASSERT_TRUE(environment->reset({.data = R"({"prompt": [{"role": "system", "content": "be short"},
      {"role": "user", "content": [{"type": "text", "text": "hello"}]}]})"}));
  const auto end = environment->cut();  // nothing was answered
  ASSERT_TRUE(end);
  const json told = told_in(end.value());
  EXPECT_EQ(told["prompt"], "hello");
  EXPECT_EQ(told["response"], "");
  EXPECT_EQ(told["turns"], 0);
  EXPECT_EQ(told["messages"].size(), 2u);
  EXPECT_FALSE(retold_of(end.value()).evidence);
}

TEST(Retold, AnAnswerThatIsNoTextIsToldAsJsonAllTheSame) {
  const auto environment =
      retold(source("text", {{"verifier", "number"}}), "mine", /*keeps_evidence=*/false)->open();
  ASSERT_TRUE(environment->reset({.data = R"({"prompt": "x"})"}));
  const auto end = environment->step("\xff\n\"\\ end");
  ASSERT_TRUE(end);
  EXPECT_EQ(end.value().evidence.find('\n'), std::string::npos);
  EXPECT_EQ(told_in(end.value())["response"], "\xef\xbf\xbd\n\"\\ end");
}

// Its rewards are told and count no more, whatever it names.
TEST(Retold, AnEnvironmentThatRewardsItselfIsScoredByAnother) {
  const auto inner = source("frozen_grid", {})->open();
  const auto environment = retold(source("frozen_grid", {}), "mine", false)->open();
  const sandbox::Task task{.seed = 5};
  ASSERT_TRUE(inner->reset(task));
  ASSERT_TRUE(environment->reset(task));
  Rng rng(1);
  double reward = 0;
  int turns = 0;
  for (std::optional<StepResult> last; !last || !(last->terminated || last->truncated);) {
    ASSERT_LT(turns, 100);
    Rng same = rng;
    const std::string action =
        inner->demonstrate(same).value_or("?\n");  // it knows the way, and ends there
    const auto expected = inner->step(action), told = environment->step(action);
    ASSERT_TRUE(expected && told);
    reward += expected.value().reward;
    EXPECT_EQ(told.value().reward, 0);
    EXPECT_EQ(told.value().metrics, expected.value().metrics);
    ++turns;
    last = told.value();
    if (!last->terminated && !last->truncated) {
      EXPECT_TRUE(last->verifier.empty());
      continue;
    }
    const json evidence = told_in(*last);
    EXPECT_EQ(last->verifier, "mine");
    EXPECT_EQ(evidence["environment_reward"], reward);
    EXPECT_EQ(evidence["turns"], turns);
    EXPECT_EQ(evidence["row"], json());
    // Each answer, and each observation that the policy heard.
    EXPECT_EQ(evidence["messages"].size(), static_cast<size_t>(2 * turns));
    EXPECT_EQ(evidence["messages"][1]["role"], "assistant");
  }
}

// One that plays elsewhere, with its answers at once.
class Elsewhere final : public sandbox::RemoteEnvironment {
 public:
  explicit Elsewhere(std::unique_ptr<sandbox::Environment> inner) : inner_(std::move(inner)) {}
  void begin(const sandbox::EnvironmentCall& call, Done done) override {
    using Kind = sandbox::EnvironmentCall::Kind;
    done(call.kind == Kind::kReset  ? sandbox::first_step(inner_->reset(call.task))
         : call.kind == Kind::kStep ? inner_->step(call.action)
                                    : inner_->cut());
  }

 private:
  const std::unique_ptr<sandbox::Environment> inner_;
};

class ElsewhereSource final : public sandbox::EnvironmentSource {
 public:
  explicit ElsewhereSource(std::shared_ptr<const sandbox::EnvironmentSource> inner)
      : inner_(std::move(inner)) {}
  const sandbox::EnvironmentInfo& info() const override { return inner_->info(); }
  std::unique_ptr<sandbox::Environment> open() const override { return inner_->open(); }
  std::unique_ptr<sandbox::RemoteEnvironment> open_remote() const override {
    return std::make_unique<Elsewhere>(inner_->open());
  }

 private:
  const std::shared_ptr<const sandbox::EnvironmentSource> inner_;
};

TEST(Retold, WhatIsWrittenIsRead) {
  for (const auto& evidence :
       {std::optional<std::string>(), std::optional<std::string>("\"a\" \\ \n")}) {
    const RetoldEpisode episode{.episode = R"({"response":"z","a":["\\n"]})", .evidence = evidence};
    const auto read = RetoldEpisode::read(episode.write());
    ASSERT_TRUE(read) << episode.write();
    EXPECT_EQ(read.value().episode, episode.episode);  // with its keys in their order
    EXPECT_EQ(read.value().evidence, evidence);
  }
  for (const char* other : {"", "[]", "{}", R"({"evidence": "a"})"})
    EXPECT_FALSE(RetoldEpisode::read(other)) << other;
}

TEST(Retold, OneThatPlaysElsewhereIsToldTheSame) {
  using Call = sandbox::EnvironmentCall;
  const auto inner = source("text", {{"verifier", "number"}});
  const auto twice = retold(std::make_shared<ElsewhereSource>(inner), "mine", true);
  const auto here = twice->open();
  const auto there = twice->open_remote();
  ASSERT_NE(there, nullptr);
  EXPECT_EQ(retold(inner, "mine", true)->open_remote(), nullptr);
  const sandbox::Task task{.data = R"({"prompt": "2 + 3?"})"};
  ASSERT_TRUE(here->reset(task));
  std::string evidence;
  const auto keep = [&](Result<StepResult> said) {
    ASSERT_TRUE(said);
    evidence = said.value().evidence;
  };
  for (int episode = 0; episode < 2; ++episode) {
    there->begin({.kind = Call::Kind::kReset, .task = task}, keep);
    EXPECT_EQ(evidence, "");
    there->begin({.kind = Call::Kind::kStep, .action = "5"}, keep);
    ASSERT_TRUE(here->reset(task));
    EXPECT_EQ(evidence, here->step("5").value().evidence);
    evidence.clear();
  }
}

}  // namespace
}  // namespace tailrace
