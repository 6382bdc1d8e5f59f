#include "reward/command/weighted.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reward/command/retold.h"
#include "reward/verifiers/built_in.h"

namespace tailrace {
namespace {

using testing::HasSubstr;

class ScriptedPart final : public Verifier {
 public:
  explicit ScriptedPart(std::function<Result<Score>(const std::string&)> act)
      : act_(std::move(act)) {}
  Result<Score> score(const std::string& evidence, Time) const override { return act_(evidence); }
  Result<void> check_row(const std::string&, Time) const override { return Failure{"bad row"}; }

 private:
  std::function<Result<Score>(const std::string&)> act_;
};

std::shared_ptr<const Verifier> scripted(std::function<Result<Score>(const std::string&)> act) {
  return std::make_shared<ScriptedPart>(std::move(act));
}

const std::string kEpisode = RetoldEpisode{.episode = R"({"prompt": "2 + 2", "response": "4"})",
                                           .evidence = R"({"answer": "4", "response": "#### 4"})"}
                                 .write();

std::vector<WeightedPart> number_and(WeightedPart part) {
  // It shares what the registry of this copy keeps.
  static const VerifierRegistry verifiers = built_in_verifiers();
  std::vector<WeightedPart> parts;
  parts.push_back({.name = "right",
                   .weight = 2,
                   .verifier = std::shared_ptr<const Verifier>(std::shared_ptr<void>(),
                                                               &verifiers.at("number"))});
  parts.push_back(std::move(part));
  return parts;
}

TEST(Weighted, TheRewardIsTheSumOfEachTimesItsWeight) {
  const auto verifier = make_weighted_verifier(
      number_and({.name = "style",
                  .weight = -0.5,
                  .verifier = scripted([](const std::string& evidence) -> Result<Score> {
                    EXPECT_EQ(evidence, kEpisode);  // and not what the environment says
                    return Score{.reward = 3, .metrics = {{"x", 7}}};
                  }),
                  .is_retold = true}));
  const auto score = verifier->score(kEpisode, kScoreBudget);
  ASSERT_TRUE(score) << score.failure().message;
  EXPECT_EQ(score.value().reward, 2 * 1 - 0.5 * 3);
  const MetricList& metrics = score.value().metrics;
  const auto has = [&](const std::string& name, double value) {
    return std::ranges::find(metrics, std::pair(name, value)) != metrics.end();
  };
  EXPECT_TRUE(has("reward_right", 1) && has("reward_style", 3) && has("style_x", 7) &&
              has("right_success", 1));
}

// Each waits for the other: one after the other neither would have a verdict.
TEST(Weighted, ProgramsAreAskedAtTheSameTime) {
  std::atomic<int> begun = 0;
  const auto waits = [&](const std::string&) -> Result<Score> {
    ++begun;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (begun < 2) {
      if (std::chrono::steady_clock::now() > deadline) return Failure{"nobody came"};
      std::this_thread::yield();
    }
    return Score{.reward = 1, .metrics = {}};
  };
  std::vector<WeightedPart> parts;
  for (const char* name : {"a", "b"})
    parts.push_back({.name = name, .verifier = scripted(waits), .is_retold = true});
  const auto score = make_weighted_verifier(std::move(parts))->score(kEpisode, kScoreBudget);
  ASSERT_TRUE(score) << score.failure().message;
  EXPECT_EQ(score.value().reward, 2);
}

TEST(Weighted, WhereAPartHasNoVerdictTheSumHasNone) {
  const std::pair<std::function<Result<Score>(const std::string&)>, const char*> faults[] = {
      {[](const std::string&) -> Result<Score> { return Failure{"away"}; }, "style: away"},
      {[](const std::string&) -> Result<Score> { throw std::runtime_error("thrown"); },
       "style: thrown"},
      {[](const std::string&) -> Result<Score> {
         return Score{.reward = std::numeric_limits<double>::quiet_NaN(), .metrics = {}};
       },
       "style: its reward is nan, which is no finite number of at most 1e+30 in size"},
      {[](const std::string&) -> Result<Score> { return Score{.reward = 1e31, .metrics = {}}; },
       "style: its reward is 1e+31, which is no finite number of at most 1e+30 in size"}};
  for (const auto& [act, reason] : faults) {
    const auto verifier = make_weighted_verifier(
        number_and({.name = "style", .weight = 0, .verifier = scripted(act), .is_retold = true}));
    const auto score = verifier->score(kEpisode, kScoreBudget);
    ASSERT_FALSE(score);
    EXPECT_EQ(score.failure().message, reason);
  }
}

TEST(Weighted, ASumIsNoLargerThanAReward) {
  const auto verifier = make_weighted_verifier(
      number_and({.name = "style",
                  .weight = -20,
                  .verifier = scripted([](const std::string&) -> Result<Score> {
                    return Score{.reward = 1e29, .metrics = {}};
                  }),
                  .is_retold = true}));
  const auto score = verifier->score(kEpisode, kScoreBudget);
  ASSERT_FALSE(score) << score.value().reward;
  EXPECT_THAT(score.failure().message, HasSubstr("the weighted sum: its reward is -2e+30"));
}

TEST(Weighted, AMetricIsOfOnePart) {
  const auto part = [](const std::string& name, const std::string& metric) {
    return WeightedPart{.name = name,
                        .weight = 1,
                        .verifier = scripted([metric](const std::string&) -> Result<Score> {
                          return Score{.reward = 1, .metrics = {{metric, 1}}};
                        }),
                        .is_retold = true};
  };
  EXPECT_TRUE(
      make_weighted_verifier({part("a", "b"), part("a_b", "c")})->score(kEpisode, kScoreBudget));
  const auto twice =
      make_weighted_verifier({part("a", "b_c"), part("a_b", "c")})->score(kEpisode, kScoreBudget);
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.failure().message, "the parts give the metric a_b_c twice. Rename one of them");
}

TEST(Weighted, AVerifierNeedsWhatTheEnvironmentSays) {
  const auto verifier = make_weighted_verifier(
      number_and({.name = "other",
                  .verifier = scripted([](const std::string&) -> Result<Score> {
                    return Score{.reward = 1, .metrics = {}};
                  }),
                  .is_retold = true}));
  const auto failure = [&](const std::string& evidence) {
    const auto score = verifier->score(evidence, kScoreBudget);
    return score ? "a score" : score.failure().message;
  };
  EXPECT_THAT(failure(RetoldEpisode{.episode = R"({"response": "4"})"}.write()),
              HasSubstr("right: the environment rewards by itself"));
  for (const char* evidence : {"no JSON", R"({"evidence": "4"})", "[]"})
    EXPECT_THAT(failure(evidence), HasSubstr("no episode that was retold"));
}

TEST(Weighted, ARowIsRefusedByThePartThatRefusesIt) {
  const auto verifier = make_weighted_verifier(number_and(
      {.name = "style",
       .verifier = scripted([](const std::string&) -> Result<Score> { return Failure{""}; })}));
  EXPECT_EQ(
      verifier->check_row(R"({"prompt": "x", "answer": "4"})", kScoreBudget).failure().message,
      "style: bad row");
}

}  // namespace
}  // namespace tailrace
