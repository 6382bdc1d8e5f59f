#include "sandbox/builtin/expression.h"

#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "core/base/random.h"

namespace tailrace::sandbox {
namespace {

std::optional<Rational> value_of(const std::string& text) {
  auto evaluation = evaluate(text);
  return evaluation ? evaluation->value : std::nullopt;
}

TEST(Expression, KnowsPrecedenceAndBrackets) {
  EXPECT_EQ(value_of("1 + 2*3"), (Rational{7, 1}));
  EXPECT_EQ(value_of("(1+2) * 3"), (Rational{9, 1}));
  EXPECT_EQ(value_of("8-2-1"), (Rational{5, 1}));
  EXPECT_EQ(value_of("16/4/2"), (Rational{2, 1}));
  EXPECT_EQ(value_of("1/3*3"), (Rational{1, 1}));
  EXPECT_EQ(value_of("1-2"), (Rational{-1, 1}));
  EXPECT_EQ(value_of("2/4"), (Rational{1, 2}));
  EXPECT_EQ(value_of("1/(2-5)"), (Rational{-1, 3}));
  EXPECT_EQ(evaluate("12*(3+12)")->numbers, (std::vector<int64_t>{12, 3, 12}));
}

TEST(Expression, RefusesWhatIsNotInTheGrammar) {
  for (const char* text :
       {"", " ", "2**3", "7//2", "1.5*2", "-3", "2+-3", "(1", "1)", "()", "1 2", "1=1", "a", "1e3",
        "__import__", "1,000", "2^3", "1234567890123456789"}) {
    EXPECT_FALSE(evaluate(text).has_value()) << text;
  }
  EXPECT_FALSE(evaluate(std::string(100000, '(')).has_value());
  EXPECT_FALSE(evaluate(std::string(200, '(') + "1" + std::string(200, ')')).has_value());
}

TEST(Expression, ValuesThatDoNotExistAreNoneAndTheNumbersStay) {
  for (const char* text : {"5/(3-3)", "999999999999999999*999999999999999999", "1/0"}) {
    auto evaluation = evaluate(text);
    ASSERT_TRUE(evaluation.has_value()) << text;
    EXPECT_FALSE(evaluation->value.has_value()) << text;
    EXPECT_EQ(evaluation->numbers.size(),
              std::string(text).find('(') == std::string::npos ? 2u : 3u);
  }
}

// Against doubles, over random trees of small numbers.
TEST(ExpressionStress, AgreesWithFloatingPoint) {
  constexpr uint64_t kSeed = 7;
  SCOPED_TRACE(kSeed);
  Rng rng(kSeed);
  std::function<std::pair<std::string, double>(int)> draw =
      [&](int depth) -> std::pair<std::string, double> {
    if (depth == 0 || rng.chance(0.3)) {
      int64_t n = rng.below(20);
      return {std::to_string(n), static_cast<double>(n)};
    }
    auto [left, a] = draw(depth - 1);
    auto [right, b] = draw(depth - 1);
    char op = "+-*/"[rng.below(4)];
    double value = op == '+' ? a + b : op == '-' ? a - b : op == '*' ? a * b : a / b;
    return {"(" + left + " " + op + right + ")", value};
  };
  int compared = 0;
  for (int i = 0; i < 3000; ++i) {
    auto [text, want] = draw(4);
    auto got = value_of(text);
    if (!std::isfinite(want) || !got || std::abs(want) > 1e9) continue;
    double value = static_cast<double>(got->numerator) / static_cast<double>(got->denominator);
    EXPECT_NEAR(value, want, 1e-9 * std::max(1.0, std::abs(want))) << text;
    ++compared;
  }
  EXPECT_GT(compared, 2000);
}

}  // namespace
}  // namespace tailrace::sandbox
