#include "reward/verifiers/math.h"

#include <chrono>
#include <fstream>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/random.h"
#include "core/base/time.h"
#include "reward/verifiers/built_in.h"

namespace tailrace {
namespace {

using nlohmann::json;

Result<Score> math_score(const json& evidence) {
  return built_in_verifiers().find("math")->score(
      evidence.dump(-1, ' ', false, json::error_handler_t::replace), kScoreBudget);
}

double math_reward(const json& answer, const std::string& response, const char* extract = nullptr) {
  json evidence = {{"answer", answer}, {"response", response}};
  if (extract) evidence["extract"] = extract;
  const Result<Score> result = math_score(evidence);
  EXPECT_TRUE(result.ok()) << result.failure().message;
  return result.ok() ? result.value().reward : -1;
}

// The cases that string graders of GSM8K get wrong are among these.
TEST(MathVerifier, ReadsAnswersAfterHashes) {
  EXPECT_EQ(math_reward("12", "so 3*4=12\n#### 12"), 1);
  EXPECT_EQ(math_reward("1234", "#### 1,234"), 1);
  EXPECT_EQ(math_reward("18", "#### $18"), 1);
  EXPECT_EQ(math_reward("18", "#### 18.00"), 1);
  EXPECT_EQ(math_reward("18", "####18", "strict"), 1);
  EXPECT_EQ(math_reward("18", "#### 18 dollars per day\n\n"), 1);
  EXPECT_EQ(math_reward("42", "The answer is 42."), 1);
  EXPECT_EQ(math_reward("42", "The answer is 42.", "strict"), 0);
  EXPECT_EQ(math_reward("7", "#### 5 then #### 7"), 1);
  EXPECT_EQ(math_reward("5", "#### 5 then #### 7"), 0);
  EXPECT_EQ(math_reward("-3", "#### -3"), 1);
  EXPECT_EQ(math_reward("3", "#### -3"), 0);
  EXPECT_EQ(math_reward("25", "#### 25%"), 0);
  EXPECT_EQ(math_reward("so it is 25 %\n#### 25", "#### 25%"), 1);
  EXPECT_EQ(math_reward("so it is 25 %\n#### 25", "\\boxed{25\\%}"), 1);
  EXPECT_EQ(math_reward("so it is 25 %\n#### 25", "\\boxed{0.25}"), 0);
  EXPECT_EQ(math_reward("#### 25", "#### 50\\% * 50\\% = 25%"), 0);
  EXPECT_EQ(math_reward("#### 1", "#### 5 * 20% = 1"), 1);
  EXPECT_EQ(math_reward("#### 1234567.50", "#### 1234568.50"), 0);
}

TEST(MathVerifier, ReadsTheLastBox) {
  EXPECT_EQ(math_reward("\\frac{1}{2}", "so \\boxed{\\frac{1}{2}}."), 1);
  EXPECT_EQ(math_reward("2", "\\boxed{1} or rather \\fbox{2}"), 1);
  EXPECT_EQ(math_reward("1", "\\boxed{1} or rather \\boxed{2}"), 0);
  EXPECT_EQ(math_reward("4", "\\boxed{4"), 0);  // cut off: perhaps 42
  EXPECT_EQ(math_reward("3", "\\boxed{3} and \\boxed{4"), 0);
  EXPECT_EQ(math_reward("\\text{(B)}", "\\boxed{\\text{(B)}}"), 1);
  EXPECT_EQ(math_reward("\\{1,2\\}", "$\\boxed{\\{2,1\\}}$"), 1);
  EXPECT_EQ(math_reward("5", "$\\boxed 5$"), 1);
  EXPECT_EQ(math_reward("18", "#### 17, no: \\boxed{18}"), 1);
  EXPECT_EQ(math_reward("17", "\\boxed{18}\n#### 17"), 1);
  EXPECT_EQ(math_reward("5", "\\boxed{}"), 0);
}

TEST(MathVerifier, ReadsAnswersWithoutAMarkUnlessStrict) {
  EXPECT_EQ(math_reward("42", "**Answer:** 42"), 1);
  EXPECT_EQ(math_reward("x+1", "the answer is $1 + x$ because it is."), 1);
  EXPECT_EQ(math_reward("\\frac{1}{2}", "We find that $p = 3q$. So it is $\\frac12$."), 1);
  EXPECT_EQ(math_reward("7", "Then he has 3 + 4 = 7 apples"), 1);
  EXPECT_EQ(math_reward("18", "It costs $18."), 1);
  EXPECT_EQ(math_reward("B", "B"), 1);
  EXPECT_EQ(math_reward("yes", "Yes."), 1);
  EXPECT_EQ(math_reward("5", "5 or 6"), 0);
  EXPECT_EQ(math_reward("6", "5 or 6"), 0);
  EXPECT_EQ(math_reward("7", "no idea"), 0);
  EXPECT_EQ(math_reward("7", ""), 0);
  EXPECT_EQ(math_reward("7", "7 " + std::string(300, 'x')), 0);
  EXPECT_EQ(math_reward("7", "<think>\\boxed{7}</think> no idea"), 0);
  EXPECT_EQ(math_reward("7", "<think>\\boxed{8}</think> \\boxed{7}"), 1);
}

// A policy learned to write "18 - 6 equals -2.": its beginning has the value of the right answer.
// The verdicts are those of math-verify 0.9, which takes a term alone ("18 - 6") for its value,
// though.
TEST(MathVerifier, WhatRepeatsTheQuestionIsNoAnswer) {
  for (const char* wrong : {"18 - 6 equals -2.",
                            "18 - 6 equals {-2}",
                            "18 - 6 is 5",
                            "18 - 6 = 5",
                            "18 - 6 -> 5",
                            "18 - 6: 5",
                            "18 - 6 gives us 14",
                            "18 - 6 equals $-2$.",
                            "12 equals 5",
                            "12 equals -5",
                            "12 apples and 3 pears",
                            "12 of the 20",
                            "12 (not 5)",
                            "$18 - 6$ equals -2",
                            "18 - 6",
                            "The answer is 18 - 6",
                            "x = 18 - 6",
                            "18 - 6 = 18 - 6",
                            "18 - 6 equals the difference.",
                            "2 * 6",
                            "24 / 2",
                            "18 - 6^1",
                            "12 * 10^{0}+0",
                            "$24 / 2$",
                            "(10 + 2)"})
    EXPECT_EQ(math_reward("12", wrong), 0) << wrong;
  for (const char* right :
       {"12.", "**12**", "18 - 6 = 12", "18 - 6 = 12.", "18 minus 6 is 12", "18 - 6 equals 12.",
        "The answer is 12", "x = 18 - 6 = 12", "The total is $18 - 6$ = 12", "12 apples",
        "\\boxed{18 - 6}", "so $x = 12$"})
    EXPECT_EQ(math_reward("12", right), 1) << right;
  EXPECT_EQ(math_reward("1", "11 - 10 = (2 - 1) = 1 (though technically,"), 1);
  EXPECT_EQ(math_reward("5", "5 cm^2"), 1);
  EXPECT_EQ(math_reward("5", "5 cm^{-1}"), 1);
  EXPECT_EQ(math_reward("5", "5 km/h^{2}"), 1);
  // No terms, or such that are asked for.
  EXPECT_EQ(math_reward("0.5", "1/2"), 1);
  EXPECT_EQ(math_reward("-12", "-12"), 1);
  EXPECT_EQ(math_reward("1024", "2^{10}"), 1);
  EXPECT_EQ(math_reward("300000", "3 * 10^5"), 1);
  EXPECT_EQ(math_reward("\\sqrt{8}", "2\\sqrt{2}"), 1);
  EXPECT_EQ(math_reward("2 + 3", "2 + 3"), 1);
}

TEST(MathVerifier, FindsTheRightAnswerOfARow) {
  const auto of = [](json row) {
    row["response"] = "\\boxed{72}";
    const Result<Score> result = math_score(row);
    return result.ok() ? result.value().reward : -1;
  };
  EXPECT_EQ(of({{"answer", 72}}), 1);
  EXPECT_EQ(of({{"answer", "48 + 24 = 72 clips.\n#### 72"}}), 1);
  EXPECT_EQ(of({{"ground_truth", "72"}}), 1);
  EXPECT_EQ(of({{"reward_model", {{"style", "rule"}, {"ground_truth", "72"}}}}), 1);
  EXPECT_EQ(of({{"solution", "It is \\boxed{71}, or rather \\boxed{72}."}}), 1);
  EXPECT_EQ(of({{"solution", "It is \\boxed{71}, or \\boxed{72}."}}), 0);
  EXPECT_EQ(of({{"answer", "71"}, {"solution", "\\boxed{72}"}}), 0);
  EXPECT_EQ(of({{"solution", "It is 72."}}), -1);
  EXPECT_EQ(of({{"answer", json::array({72})}}), -1);
  EXPECT_EQ(of(json::object()), -1);
}

// Rows as they are found in data and responses, with near misses: {answer or solution, response,
// expected}.
TEST(MathVerifier, ScoresTheRowsOfItsFiles) {
  for (const auto& [name, least] :
       {std::pair{"several_boxes", 30}, {"labels", 70}, {"writing", 50}}) {
    std::ifstream file(std::string(TAILRACE_SOURCE_DIR) + "/tests/data/math/" + name + ".jsonl");
    int rows = 0;
    for (std::string line; std::getline(file, line); ++rows) {
      const json row = json::parse(line);
      const Result<Score> score = math_score(row);
      ASSERT_TRUE(score.ok()) << line;
      EXPECT_EQ(score.value().reward, row.at("expected").get<double>()) << line;
      const auto fit = built_in_verifiers().find("math")->check_row(line, kScoreBudget);
      EXPECT_TRUE(fit.ok()) << line;
    }
    EXPECT_GE(rows, least) << name;
  }
}

TEST(MathVerifier, RefusesRowsWithoutARightAnswer) {
  const auto fault = [](const json& row) {
    const auto fit = built_in_verifiers().find("math")->check_row(row.dump(), kScoreBudget);
    return fit ? std::string() : fit.failure().message;
  };
  EXPECT_EQ(fault({{"prompt", "?"}, {"answer", "\\frac12"}}), "");
  EXPECT_EQ(fault({{"prompt", "?"}, {"solution", "\\boxed{1}"}}), "");
  const std::string none =
      "it has no right answer; give \"answer\" or \"ground_truth\" (a number, or a text such as "
      "\"\\\\frac{1}{2}\" or \"... #### 72\"), or a \"solution\" with its answer in \\boxed{}";
  EXPECT_EQ(fault({{"prompt", "?"}}), none);
  EXPECT_EQ(fault({{"prompt", "?"}, {"solution", "It is 1."}}), none);
  EXPECT_EQ(fault({{"prompt", "?"}, {"answer", ""}}),
            "its right answer is empty, or nested too deep");
  EXPECT_EQ(fault({{"prompt", "?"}, {"answer", std::string(2001, 'x')}}),
            "its right answer has 2001 bytes; the most is 2000");
  EXPECT_EQ(fault({{"answer", "1"}, {"extract", "loose"}}),
            "\"extract\" is \"loose\"; it must be \"strict\", or left out");
  EXPECT_EQ(fault({{"answr", "1"}, {"ground_truth", "1"}}),
            "there is no column \"answr\"; did you mean \"answer\"?");
}

// A policy may write anything. The bound is of a slow machine under a sanitizer; one of these takes
// milliseconds.
TEST(MathVerifier, TakesLinearTime) {
  const std::string megabyte(1 << 20, '{');
  std::string boxes;
  while (boxes.size() < (1 << 20)) boxes += "\\boxed{";
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& response :
       {megabyte, "\\boxed" + megabyte, "#### " + megabyte, boxes,
        boxes + std::string(200'000, '}'), std::string(1 << 20, '$'),
        "\\boxed{10**10**10}" + std::string(1 << 20, ' '),
        "\\boxed{" + std::string(1 << 20, '(') + "}", "answer is " + std::string(1 << 20, '\\'),
        "\\boxed{" + std::string(1900, '-') + "1}", "\\boxed{" + std::string(1900, '|') + "}",
        "\\boxed{9" + std::string(1900, '!') + "}"})
    EXPECT_EQ(math_reward("1", response), 0) << response.substr(0, 20);
  std::string nested = "x=1,y=2";
  while (nested.size() < 1900) nested = "(" + nested + ";1)";
  EXPECT_EQ(math_reward("1", "\\boxed{" + nested + "}"), 0);
  std::string joined = std::string(1 << 20, 'x');
  while (joined.size() < (2 << 20)) joined += "\\boxed{},";
  EXPECT_EQ(math_reward("1", joined), 0);
  std::string escaped;
  while (escaped.size() < (1 << 20)) escaped += "\\%";
  for (const std::string& signs : {std::string(1 << 20, '%'), escaped})
    for (const std::string& response : {"#### " + signs, "\\boxed{" + signs + "}"})
      EXPECT_EQ(math_reward("#### 1", response), 0) << response.substr(0, 20);
  EXPECT_LT(seconds_of(std::chrono::steady_clock::now() - start), 20);
}

TEST(MathVerifier, RandomBytesAndPiecesNeverCrash) {
  static constexpr const char* kPieces[] = {
      "\\frac", "\\sqrt", "[",     "]",        "{",      "}",    "(",        ")",    "\\{",
      "\\}",    "1",      "234",   ",",        "^",      "_",    "\\text{",  "cm",   "=",
      "<",      "\\in",   "\\cup", "or",       "\\pm",   "|",    "\\left.",  "%",    "!",
      "\\sin",  "\\log",  "x",     "\\begin{", "matrix", "&",    "\\\\",     "$",    "\\boxed{",
      "####",   "e",      ".5",    "-",        "\xff",   "√",    "\\binom",  "0",    "/",
      "*",      " ",      "\n",    "\\",       "i",      "\\pi", "\\lfloor", "1e99", "answer is"};
  Rng rng(7);
  for (int round = 0; round < 4000; ++round) {
    std::string text = round % 2 ? "\\boxed{" : "";
    for (int64_t n = rng.below(40); n > 0; --n) {
      if (round % 4 == 0)
        text += static_cast<char>(rng.below(256));
      else
        text += kPieces[rng.below(std::size(kPieces))];
    }
    if (round % 2) text += "}";
    for (const char* gold : {"1", "(1, x]", "x = 2"}) {
      const Result<Score> result = math_score({{"answer", gold}, {"response", text}});
      ASSERT_TRUE(result.ok()) << text;
    }
    // As right answers too, which then are their own.
    const Result<Score> own = math_score({{"ground_truth", text}, {"response", text}});
    if (own.ok()) {
      ASSERT_LE(own.value().reward, 1);
    }
  }
}

}  // namespace
}  // namespace tailrace
