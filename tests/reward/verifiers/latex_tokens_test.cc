#include "reward/verifiers/latex_tokens.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

std::string plain(std::string_view text) {
  const auto tokens = latex_tokens(text);
  return tokens ? plain_text(*tokens) : "none";
}

TEST(LatexTokens, DoNotDependOnTypesetting) {
  EXPECT_EQ(plain("\\dfrac12"), "\\frac 1 2");
  EXPECT_EQ(plain("\\frac{1}{2}"), "\\frac 1 2");
  EXPECT_EQ(plain("$\\tfrac 1{23}$."), "\\frac 1 23");
  EXPECT_EQ(plain("\\sqrt3"), "\\sqrt 3");
  EXPECT_EQ(plain("\\left( x \\right)"), "( x )");
  EXPECT_EQ(plain("1{,}234\\!,\\,5"), "1234 , 5");
  EXPECT_EQ(plain("(1,234)"), "( 1 , 234 )");
  EXPECT_EQ(plain("1,234,56"), "1234 , 56");
  EXPECT_EQ(plain(".5"), "0.5");
  EXPECT_EQ(plain("5."), "5");
  EXPECT_EQ(plain("2 × 3 ≤ π²"), "2 * 3 <= \\pi ^ 2");
}

TEST(LatexTokens, TellWordsFromProductsOfLetters) {
  EXPECT_EQ(plain("2ab"), "2 a b");
  EXPECT_EQ(plain("\\text{ab}"), "ab");
  EXPECT_EQ(plain("Even"), "even");
  EXPECT_EQ(plain("5 \\text{ m}^2"), "5");
  EXPECT_EQ(plain("5m"), "5 m");
  EXPECT_EQ(plain("\\text{(B)}"), "( B )");
  EXPECT_EQ(plain("3 \\text{ or } 4"), "3 or 4");
}

TEST(LatexTokens, HaveBounds) {
  EXPECT_EQ(plain(std::string(kMaxAnswerBytes + 1, 'x')), "none");
  std::string nested = "x";
  for (int i = 0; i < 100; ++i) nested = "\\text{" + nested + "}";
  EXPECT_EQ(plain(nested), "none");
  EXPECT_EQ(plain("\\frac{1"), "\\frac 1 { }");
  EXPECT_EQ(plain("\\"), "");
}

}  // namespace
}  // namespace tailrace
