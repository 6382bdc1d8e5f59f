#include "reward/judge.h"

#include <functional>
#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

#include "reward/verifiers/built_in.h"

namespace tailrace {
namespace {

class Scripted final : public Verifier {
 public:
  explicit Scripted(std::function<Result<Score>()> act) : act_(std::move(act)) {}
  Result<Score> score(const std::string&, Time) const override { return act_(); }

 private:
  std::function<Result<Score>()> act_;
};

const std::string kRight = R"({"answer": "4", "response": "#### 4"})";

TEST(Judge, GivesTheScoreAndItsMetrics) {
  const auto score = judge(built_in_verifiers(), "number", kRight, kScoreBudget);
  ASSERT_TRUE(score) << score.failure().message;
  EXPECT_EQ(score.value().reward, 1.0);
  EXPECT_EQ(score.value().metrics.at(0), (std::pair<std::string, double>("success", 1)));
}

TEST(Judge, WhatCannotBeDecidedIsAFailureAndNeverAZero) {
  VerifierRegistry verifiers = built_in_verifiers();
  const auto add = [&](const std::string& name, std::function<Result<Score>()> act) {
    verifiers.add(name, "", std::make_unique<Scripted>(std::move(act)));
  };
  add("throws", []() -> Result<Score> { throw std::runtime_error("ouch"); });
  add("not_finite", [] { return Score{std::numeric_limits<double>::quiet_NaN(), {}}; });
  add("huge", [] { return Score{-1e200, {}}; });
  add("large", [] { return Score{-1e30, {}}; });
  const auto failure = [&](const std::string& name, const std::string& evidence) {
    const auto score = judge(verifiers, name, evidence, kScoreBudget);
    EXPECT_FALSE(score) << name;
    return score ? "" : score.failure().message;
  };
  EXPECT_EQ(failure("number", "{}"), "verifier number: the evidence has no string \"response\"");
  EXPECT_EQ(failure("throws", kRight), "verifier throws: ouch");
  EXPECT_EQ(
      failure("not_finite", kRight),
      "verifier not_finite: its reward is nan, which is no finite number of at most 1e+30 in size");
  EXPECT_EQ(
      failure("huge", kRight),
      "verifier huge: its reward is -1e+200, which is no finite number of at most 1e+30 in size");
  EXPECT_TRUE(judge(verifiers, "large", kRight, kScoreBudget));
  const std::string unknown = failure("numbr", kRight);
  EXPECT_EQ(unknown.find("there is no verifier 'numbr'; verifiers: countdown, "), 0u) << unknown;
}

TEST(Judge, KeepsTheWordThatNobodyCanScoreATask) {
  VerifierRegistry verifiers;
  verifiers.add("broken", "", std::make_unique<Scripted>([]() -> Result<Score> {
                  return Failure{.message = "no answer is known", .is_final = true};
                }));
  const auto score = judge(verifiers, "broken", kRight, kScoreBudget);
  ASSERT_FALSE(score);
  EXPECT_TRUE(score.failure().is_final);
  EXPECT_EQ(score.failure().message, "verifier broken: no answer is known");
}

// Each who waits has more than who is waited for, and 60 s are what the scheduler waits by default.
TEST(ScoreBudget, IsLessThanWhatTheWorkerHasWhichIsLessThanTheSchedulers) {
  using namespace std::chrono_literals;
  EXPECT_EQ(worker_deadline(100s), 90s);
  EXPECT_EQ(score_budget(100s), 81s);
  EXPECT_EQ(kScoreBudget, 48600ms);
}

}  // namespace
}  // namespace tailrace
