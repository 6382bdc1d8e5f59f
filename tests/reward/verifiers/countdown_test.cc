#include "reward/verifiers/countdown.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "reward/verifiers/built_in.h"

namespace tailrace {
namespace {

Result<Score> countdown_score(const std::string& evidence) {
  return built_in_verifiers().find("countdown")->score(evidence, kScoreBudget);
}

double countdown_reward(std::vector<int64_t> numbers, int64_t target, const std::string& response) {
  nlohmann::json evidence = {{"numbers", numbers}, {"target", target}, {"response", response}};
  Result<Score> result = countdown_score(evidence.dump());
  EXPECT_TRUE(result.ok());
  return result.value().reward;
}

std::string tagged(const std::string& formula) { return "<answer>" + formula + "</answer>"; }

// Cases on which TinyZero's scorer (github.com/Jiayi-Pan/TinyZero) and a strict reading of the
// rules differ, among others: it lets ** and // through, takes 1.5 for the numbers 1 and 5, and
// sees the last line only. Expected is the strict reading.
TEST(CountdownVerifier, GivesTheGoldenScores) {
  EXPECT_EQ(countdown_reward({44, 19, 35}, 98, tagged("44+19+35")), 1);
  EXPECT_EQ(countdown_reward({44, 19, 35}, 98, tagged("44 + 19 * 35")), 0.1);
  EXPECT_EQ(countdown_reward({44, 19, 35}, 98, tagged("44+19+36")), 0.1);
  EXPECT_EQ(countdown_reward({44, 19, 35}, 98, "44+19+35"), 0);
  EXPECT_EQ(countdown_reward({44, 19, 35}, 98, tagged("44+19+35 = 98")), 0.1);
  EXPECT_EQ(countdown_reward({44, 19, 35}, 98, tagged("44+19+35") + "\nanother line"), 1);
  EXPECT_EQ(countdown_reward({2, 3}, 8, tagged("2**3")), 0.1);
  EXPECT_EQ(countdown_reward({2, 7}, 3, tagged("7//2")), 0.1);
  EXPECT_EQ(countdown_reward({1, 2, 5}, 3, tagged("1.5*2")), 0.1);
  EXPECT_EQ(countdown_reward({8, 2, 3, 1}, 3, tagged("(8-2)/(3-1)")), 1);
  EXPECT_EQ(countdown_reward({1, 3, 3}, 1, tagged("1/3*3")), 1);
  EXPECT_EQ(countdown_reward({5, 3, 3}, 1, tagged("5/(3-3)")), 0.1);
}

TEST(CountdownVerifier, ReadsTheLastAnswerAfterTheThought) {
  EXPECT_EQ(countdown_reward({2, 3}, 5, tagged("2*3") + tagged("2+3")), 1);
  EXPECT_EQ(countdown_reward({2, 3}, 5, tagged("2+3") + tagged("2*3")), 0.1);
  EXPECT_EQ(countdown_reward({2, 3}, 5, "<think>" + tagged("2+3") + "</think> I give up"), 0);
  EXPECT_EQ(countdown_reward({2, 3}, 5, "<answer><answer>2+3</answer>"), 1);
  EXPECT_EQ(countdown_reward({2, 3}, 5, "</answer>2+3<answer>"), 0);
  EXPECT_EQ(countdown_reward({2, 3}, 5, ""), 0);
}

TEST(CountdownVerifier, EachNumberExactlyOnce) {
  EXPECT_EQ(countdown_reward({2, 2, 3}, 5, tagged("2+3")), 0.1);
  EXPECT_EQ(countdown_reward({2, 3}, 7, tagged("2+2+3")), 0.1);
}

TEST(CountdownVerifier, EvidenceThatItCannotReadIsAFailureAndNotAZero) {
  for (const char* evidence : {"", "[]", "{", "{}", R"({"response": "x"})",
                               R"({"response": "x", "target": 1, "numbers": ["2"]})",
                               R"({"response": "x", "target": 1.5, "numbers": [2]})",
                               R"({"response": 3, "target": 1, "numbers": [2]})"}) {
    EXPECT_FALSE(countdown_score(evidence).ok()) << evidence;
  }
}

}  // namespace
}  // namespace tailrace
