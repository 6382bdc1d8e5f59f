#include "reward/verifiers/number.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "reward/verifiers/built_in.h"

namespace tailrace {
namespace {

Result<Score> number_score(const std::string& evidence) {
  return built_in_verifiers().find("number")->score(evidence, kScoreBudget);
}

double number_reward(const nlohmann::json& answer, const std::string& response,
                     const char* extract = "flexible") {
  nlohmann::json evidence = {{"answer", answer}, {"response", response}, {"extract", extract}};
  Result<Score> result = number_score(evidence.dump());
  EXPECT_TRUE(result.ok());
  return result.value().reward;
}

// GSM8K's answers end in "#### N" (Cobbe et al. 2021); here with dollar signs, commas, decimals and
// full stops, which a comparison of strings would refuse.
TEST(NumberVerifier, AcceptsTheGoldenAnswers) {
  EXPECT_EQ(number_reward("12", "so 3*4=12\n#### 12"), 1);
  EXPECT_EQ(number_reward("1234", "#### 1,234"), 1);
  EXPECT_EQ(number_reward("18", "#### $18"), 1);
  EXPECT_EQ(number_reward("18", "#### 18.00"), 1);
  EXPECT_EQ(number_reward("18", "####18"), 1);
  EXPECT_EQ(number_reward("18", "####18", "strict"), 0);
  EXPECT_EQ(number_reward("42", "The answer is 42."), 1);
  EXPECT_EQ(number_reward("42", "The answer is 42.", "strict"), 0);
  EXPECT_EQ(number_reward("7", "#### 5 then #### 7"), 1);
  EXPECT_EQ(number_reward("5", "#### 5 then #### 7"), 0);
  EXPECT_EQ(number_reward("-3", "#### -3"), 1);
  EXPECT_EQ(number_reward("3", "#### -3"), 0);
}

// As models of mathematics write it, whatever they are asked.
TEST(NumberVerifier, ReadsWhatIsBoxed) {
  EXPECT_EQ(number_reward("18", "so it is \\boxed{18}."), 1);
  EXPECT_EQ(number_reward("18", "so it is $\\boxed{18}$", "strict"), 1);
  EXPECT_EQ(number_reward("1800", "\\boxed{\\$1{,}800}"), 0);  // braces inside are no number
  EXPECT_EQ(number_reward("1800", "\\boxed{\\$1,800}"), 1);
  EXPECT_EQ(number_reward("0.5", "\\boxed{1/2} of 7"), 1);
  EXPECT_EQ(number_reward("18", "\\boxed{18} and not \\boxed{17}"), 0);
  EXPECT_EQ(number_reward("18", "#### 17, no: \\boxed{18}"), 1);  // the last mark counts
  EXPECT_EQ(number_reward("17", "\\boxed{18}\n#### 17"), 1);
  EXPECT_EQ(number_reward("18", "\\boxed{18"), 1);  // cut off before its end
  EXPECT_EQ(number_reward("18", "\\boxed{x = 18}"), 0);
}

TEST(NumberVerifier, ReadsAnswersOfAllKinds) {
  EXPECT_EQ(number_reward(72, "72"), 1);
  EXPECT_EQ(number_reward(0.5, "it is 1/2"), 1);
  EXPECT_EQ(number_reward("Natalia sold 48/2 = 24 clips.\n#### 1,072", "#### 1072"), 1);
  EXPECT_EQ(number_reward("5", "3-5"), 1);
  EXPECT_EQ(number_reward("-5", "x = -5"), 1);
  EXPECT_EQ(number_reward("5", "between 2 and 5, say 4"), 0);
}

TEST(NumberVerifier, ComparesWithinAMillionth) {
  EXPECT_EQ(number_reward("1000000", "1000000.9"), 1);
  EXPECT_EQ(number_reward("1000000", "1000002"), 0);
  EXPECT_EQ(number_reward("0.3333333", "1/3"), 1);
  EXPECT_EQ(number_reward("0.33", "1/3"), 0);
}

TEST(NumberVerifier, ReadsOnlyTheTailAfterTheThought) {
  EXPECT_EQ(number_reward("7", "7 " + std::string(300, 'x')), 0);
  EXPECT_EQ(number_reward("7", "<think>7</think> no idea"), 0);
}

TEST(NumberVerifier, ATextWithoutANumberIsWrongAndBadEvidenceAFailure) {
  EXPECT_EQ(number_reward("7", ""), 0);
  EXPECT_EQ(number_reward("7", "seven"), 0);
  EXPECT_EQ(number_reward("7", std::string(10000, '9')), 0);
  for (const char* evidence :
       {"", "{}", R"({"response": "7"})", R"({"answer": "7"})",
        R"({"answer": "seven", "response": "7"})", R"({"answer": [7], "response": "7"})"}) {
    EXPECT_FALSE(number_score(evidence).ok()) << evidence;
  }
}

TEST(ParseNumber, TakesOneNumberAndNothingElse) {
  EXPECT_EQ(parse_answer(" $1,234.50. "), 1234.5);
  EXPECT_EQ(parse_answer("3/4"), 0.75);
  EXPECT_EQ(parse_answer(".5"), 0.5);
  for (const char* text : {"", ".", "1/0", "1/", "--1", "1 2", "inf", "nan", "0x10", "1-2"}) {
    EXPECT_FALSE(parse_answer(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace tailrace
