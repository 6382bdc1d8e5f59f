// The right answers of whole datasets, each against itself in the usual spellings, and against near
// misses. Without $TAILRACE_DATA only a small sample in tests/data is read.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "reward/verifiers/built_in.h"

namespace tailrace {
namespace {

using nlohmann::json;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

class Grader {
 public:
  double operator()(const std::string& row, const std::string& response) const {
    json evidence = json::parse(row);
    evidence["response"] = response;
    const Result<Score> score = verifiers_.at("math").score(evidence.dump(), kScoreBudget);
    EXPECT_TRUE(score.ok()) << row;
    return score.ok() ? score.value().reward : -1;
  }
  void expect_fits(const std::string& row) const {
    const Result<void> fit = verifiers_.at("math").check_row(row, kScoreBudget);
    EXPECT_TRUE(fit.ok()) << fit.failure().message << "\n" << row;
  }

 private:
  const VerifierRegistry verifiers_ = built_in_verifiers();
};

// The answer of a row: the field itself, or what follows its mark.
std::string gold_of(const json& row) {
  if (row.contains("ground_truth")) return row["ground_truth"];
  const std::string answer = row["answer"];
  const size_t mark = answer.find("#### ");
  return mark == std::string::npos ? answer : answer.substr(mark + 5);
}

int64_t check_file(const std::filesystem::path& path) {
  const Grader grade;
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  int64_t rows = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    const json row = json::parse(line);
    const std::string gold = gold_of(row);
    grade.expect_fits(line);
    const std::string spellings[] = {
        "\\boxed{" + gold + "}",
        "So it is $\\boxed{ " + gold + " }$.",
        "<think>\\boxed{nothing}</think>\n#### " + gold,
        "\\[ \\boxed{\\displaystyle " + replaced(gold, "\\dfrac", "\\frac") + "} \\]",
        "\\boxed{" + replaced(gold, "\\frac", "\\tfrac") + "}",
        "\\boxed{" + replaced(gold, ",", ", \\, ") + "}",
        "\\boxed{" + replaced(gold, " ", "\\ ") + ".}"};
    for (const std::string& spelling : spellings) {
      // Where a comma is of a number, a blank behind it makes a list.
      if (spelling.find(", \\, ") != std::string::npos && isdigit(gold[0])) continue;
      EXPECT_EQ(grade(line, spelling), 1) << gold << "   as   " << spelling;
    }
    EXPECT_EQ(grade(line, ""), 0) << gold;
    EXPECT_EQ(grade(line, "I do not know."), 0) << gold;
    EXPECT_EQ(grade(line, "\\boxed{7\\left(" + gold + "\\right) + 31}"), 0) << gold;
    EXPECT_EQ(grade(line, "\\boxed{" + gold), 0) << gold;  // cut off
    // A list such as 3,-3 or 2,16 is not one number.
    const std::string whole = replaced(gold, ",", "");
    const bool thousands = whole == gold || (gold.size() > 4 && gold[gold.size() - 4] == ',');
    if (whole.find_first_not_of("-0123456789") != std::string::npos || gold == "0" || !thousands ||
        gold.rfind('-') + 1 > 1)
      continue;
    // A whole number.
    const int64_t value = std::stoll(whole);
    const std::string digits = std::to_string(value);
    // Of GSM8K alone the sign is a unit.
    const bool unit = line.find("####") != std::string::npos;
    const std::string hundred = std::to_string(100 * value) + "\\%";
    for (const std::string& right :
         {digits, digits + ".0", digits + ".00 dollars", "x = " + digits, digits + "/1",
          std::to_string(2 * value) + "/2", "\\$" + digits, digits + "\\text{ cm}",
          unit ? digits + "%" : hundred})
      EXPECT_EQ(grade(line, "\\boxed{" + right + "}"), 1) << gold << "   as   " << right;
    for (const std::string& wrong :
         {std::to_string(value + 1), digits + ".5", unit ? hundred : digits + "\\%", digits + "0",
          "-" + digits, digits + "\\pi"})
      EXPECT_EQ(grade(line, "\\boxed{" + wrong + "}"), 0) << gold << "   as   " << wrong;
  }
  return rows;
}

TEST(MathData, ASampleOfRightAnswersIsItsOwn) {
  EXPECT_EQ(
      check_file(std::string(TAILRACE_SOURCE_DIR) + "/tests/data/prompts/gsm8k_held_out.jsonl"),
      64);
}

TEST(MathData, AllRightAnswersOfTheDatasetsAreTheirOwn) {
  const char* data = std::getenv("TAILRACE_DATA");
  if (data == nullptr) GTEST_SKIP() << "TAILRACE_DATA is not set: no folder with whole datasets";
  const std::filesystem::path folder = std::filesystem::path(data) / "math";
  EXPECT_EQ(check_file(folder / "gsm8k_test.jsonl"), 1319);
  EXPECT_EQ(check_file(folder / "gsm8k_train.jsonl"), 7473);
  EXPECT_EQ(check_file(folder / "deepmath_sample.jsonl"), 4994);
}

}  // namespace
}  // namespace tailrace
