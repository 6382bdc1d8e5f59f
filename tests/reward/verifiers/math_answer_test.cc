#include "reward/verifiers/math_answer.h"

#include <fstream>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

bool equal(const std::string& gold, const std::string& given) {
  const auto a = parse_math(gold), b = parse_math(given);
  return a && b && same(*a, *b);
}

struct Pair {
  const char *gold, *given;
};

void expect_all(const std::vector<Pair>& pairs, bool wanted) {
  for (const auto& [gold, given] : pairs)
    EXPECT_EQ(equal(gold, given), wanted) << "gold " << gold << "   given " << given;
}

TEST(MathAnswer, NumbersAreTheSameHoweverTheyAreWritten) {
  expect_all({{"0.5", "1/2"},
              {"1/2", ".5"},
              {"\\frac{1}{2}", "\\frac12"},
              {"\\frac{1}{2}", "\\dfrac{1}{2}"},
              {"\\frac{1}{2}", "\\tfrac12"},
              {"-\\frac{2}{3}", "\\frac{-2}{3}"},
              {"-\\frac{2}{3}", "-2/3"},
              {"3/4", "\\frac{-3}{-4}"},
              {"3/4", "6/8"},
              {"1/3", "0.333333"},
              {"1234", "1,234"},
              {"1234567", "1{,}234{,}567"},
              {"362,\\!880", "362880"},
              {"1000", "1e3"},
              {"1000", "10^3"},
              {"1000", "10**3"},
              {"18", "18.00"},
              {"18", "$18"},
              {"18", "\\$18.00"},
              {"42", "42."},
              {"42", "$42$."},
              {"42", "\\(42\\)"},
              {"42", "{42}"},
              {"42", "\\boxed{42}"},
              {"0.1", "10%"},
              {"0.1", "10\\%"},
              {"90", "90^\\circ"},
              {"90", "90^{\\circ}"},
              {"90", "90°"},
              {"5", "x=5"},
              {"5", "x = 5"},
              {"x=5", "5"},
              {"12", "3 \\cdot 4 = 12"},
              {"3/2", "1\\frac{1}{2}"},
              {"3/2", "1 1/2"},
              {"3.4 \\times 10^{-31}", "3.4e-31"},
              {"-3", "−3"},
              {"\\binom{5}{2}", "10"},
              {"24", "4!"},
              {"2^{1000}", "4^{500}"},
              {"\\lfloor 3.7 \\rfloor", "3"},
              {"2/3", "0.\\overline{6}"},
              {"1/6", "0.1\\overline{6}"},
              {"10,000,000", "10 million"},
              {"1500000", "$1.5 million"},
              {"0.05", "5 percent"},
              {"7", "|-7|"}},
             true);
}

TEST(MathAnswer, NearMissesAreNotTheSame) {
  expect_all({{"1/3", "0.33"},
              {"10", "10%"},
              {"0.1", "10"},
              {"\\pi", "3.14"},
              {"\\sqrt{2}", "1.4142"},
              {"5", "5 or 6"},
              {"6", "5 or 6"},
              {"18", "18.01"},
              {"18", "-18"},
              {"10000001", "10000002"},
              {"100000000000000000001", "100000000000000000002"},
              {"2^{1000}", "2^{1000}+1"},
              {"4611686018427387848", "1"},  // apart by the prime of exact values
              {"2^{2015}", "4"},
              {"2^{2015}", "2^{2016}"},
              {"12", "x + y = 12"},
              {"1000000", "1000000.9"},
              {"3.4 \\times 10^{-31}", "0"},
              {"0.0185", "0.0186"},
              {"1234", "1,235"},
              {"1234", "1, 234"},
              {"3/2", "1 \\cdot \\frac{1}{2}"},
              {"776_8", "776"},
              {"10", "10 million"},
              {"5", "5 percent"},
              {"0.6", "0.\\overline{6}"},
              {"2/3", "2"},
              {"12", "12 = 4 + 9"},
              {"x=5", "y=5"},
              {"\\frac{1}{0}", "\\frac{2}{0}"},
              {"5", ""}},
             false);
}

TEST(MathAnswer, RootsPowersAndFunctionsHaveValues) {
  expect_all({{"2\\sqrt{2}", "\\sqrt{8}"},
              {"2\\sqrt{2}", "\\sqrt8"},
              {"2\\sqrt{2}", "2√2"},
              {"2\\sqrt{2}", "2*sqrt(2)"},
              {"\\frac{\\sqrt{3}}{3}", "\\frac{1}{\\sqrt{3}}"},
              {"\\sqrt[3]{9}", "9^{1/3}"},
              {"-2", "\\sqrt[3]{-8}"},
              {"2\\pi", "2π"},
              {"\\frac{\\pi}{2}", "\\pi/2"},
              {"\\frac{\\pi}{2}", "0.5\\pi"},
              {"\\pi", "3.141593"},
              {"\\pi \\ln 2", "\\ln(2)\\pi"},
              {"2 \\ln 2", "\\ln 4"},
              {"e^{-2}", "\\frac{1}{e^2}"},
              {"1", "\\sin^2 3 + \\cos^2 3"},
              {"3", "\\log_2 8"},
              {"2-6i", "-6i+2"},
              {"1 \\pm \\sqrt{2}", "1+\\sqrt{2}, 1-\\sqrt{2}"}},
             true);
  expect_all({{"2\\sqrt{2}", "\\sqrt{10}"},
              {"10000001\\pi", "10000002\\pi"},
              {"\\ln 2", "\\ln 3"},
              {"2-6i", "2+6i"},
              {"1 \\pm \\sqrt{2}", "1+\\sqrt{2}"}},
             false);
}

TEST(MathAnswer, ExpressionsWithLettersAreTheSameWhereTheyAgreeEverywhere) {
  expect_all({{"p - 1", "-1 + p"},
              {"k^2 - 1", "(k-1)(k+1)"},
              {"\\frac{n(n+1)}{2}", "n(n+1)/2"},
              {"\\frac{n(n+1)}{2}", "(n^2+n)/2"},
              {"2^{n+1}", "2 \\cdot 2^n"},
              {"a_n", "a_{n}"},
              {"\\frac{x}{N}", "x/N"},
              {"e^{2x}", "\\exp(2x)"},
              {"x^2 + y", "f(x) = x^2 + y"},
              {"12", "A = 3 \\cdot 4 = 12"},
              {"n(n+1)2^{n-3}", "2^{n-3}n(n+1)"},
              {"\\sqrt{2}\\,x", "x\\sqrt{2}"}},
             true);
  expect_all({{"p - 1", "p + 1"},
              {"x^2", "x^3"},
              {"x", "X"},
              {"a_1", "a_2"},
              {"ab", "ac"},
              {"0", "f(0)"},
              {"2x", "|2x|"},
              {"1", "\\lfloor x \\rfloor"},
              {"\\frac{W(4)}{2}", "W(2)"},
              {"O", "O(1)"},
              {"0", "a + 2b + 3c = 0"},
              {"C", "x + yz = C"},
              {"2^n", "2n"}},
             false);
}

TEST(MathAnswer, TuplesIntervalsSetsAndListsKeepTheirRules) {
  expect_all({{"(1,2)", "( 1 , 2 )"},
              {"(1,2)", "\\left(1, \\frac{4}{2}\\right)"},
              {"\\{1,2\\}", "\\{2,1\\}"},
              {"\\{1,2\\}", "2, 1"},
              {"1,2", "2 and 1"},
              {"-12 \\text{ or } -30", "-30, -12"},
              {"1, 2, 3", "1, 2, and 3"},
              {"[1, +\\infty)", "[1,\\infty)"},
              {"(-\\infty,-2) \\cup (1, \\infty)", "(1,\\infty)\\cup(-\\infty,-2)"},
              {"(3, \\infty)", "x \\in (3, \\infty)"},
              {"x > 3", "(3, \\infty)"},
              {"(0, 2]", "0 < x \\le 2"},
              {"c > 1", "1 < c"},
              {"x=1 or x=2", "2, 1"},
              {"\\begin{pmatrix} 1 \\\\ 2 \\\\ -3 \\end{pmatrix}", "(1, 2, -3)"},
              {"\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}",
               "\\begin{bmatrix} 1 & 2 \\\\ 3 & \\frac{8}{2} \\end{bmatrix}"},
              {"(91,600)", "(91, 600)"},
              {"\\{1\\pm\\sqrt{5},-2\\}", "\\{-2, 1+\\sqrt{5}, 1-\\sqrt{5}\\}"},
              {"\\{\\}", "\\{ \\}"}},
             true);
  expect_all({{"(1,2)", "(2,1)"},
              {"(1,2)", "[1,2]"},
              {"(1,2)", "(1,2]"},
              {"(1,2)", "(1,2,3)"},
              {"(1,2)", "1,2"},
              {"\\{1,2\\}", "\\{1,3\\}"},
              {"\\{1,2\\}", "\\{1,2,2\\}"},
              {"\\{1,1,2\\}", "\\{1,2,2\\}"},
              {"E, D, A, C, B", "A, B, C, D, E"},
              {"c > 1", "c < 1"},
              {"c > 1", "c \\ge 1"},
              {"x > 3", "[3, \\infty)"},
              {"(-\\infty, 3)", "(3, \\infty)"},
              {"\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}",
               "\\begin{pmatrix} 1 & 3 \\\\ 2 & 4 \\end{pmatrix}"}},
             false);
}

TEST(MathAnswer, EquationsAreTheSameUpToAFactor) {
  expect_all({{"y = x - 1", "y = -1 + x"},
              {"y = -x + 2", "x + y = 2"},
              {"4x + 7y + 5 = 0", "8x + 14y = -10"},
              {"a + 2b + 3c = 0", "0 = 3c + 2b + a"}},
             true);
  expect_all(
      {{"y = x - 1", "y = x + 1"}, {"4x + 7y + 5 = 0", "4x + 7y = 5"}, {"AB = AC", "AB = BC"}},
      false);
}

TEST(MathAnswer, UnitsAndWords) {
  expect_all({{"\\text{(B)}", "B"},
              {"B", "(B)"},
              {"\\text{odd}", "odd"},
              {"\\text{Dana}", "Dana"},
              {"Arithmetic Progression", "\\text{arithmetic progression}"},
              {"True", "true"},
              {"No", "no"},
              {"5", "5\\text{ cm}"},
              {"5", "5 cm"},
              {"5", "5\\,\\mathrm{m}^2"},
              {"5", "5 dollars per day"},
              {"5", "$5 per day."},
              {"18", "18 eggs"},
              {"\\frac{1}{2}", "\\frac{1}{2} \\text{ hours}"},
              {"60", "60 km/h"},
              {"G/N \\cong K", "G / N \\cong K"}},
             true);
  expect_all({{"B", "C"},
              {"True", "False"},
              {"\\text{Dana}", "Dan"},
              {"5", "5 apples and 6 pears"},
              {"G/N \\cong K", "G/K \\cong N"}},
             false);
}

// What stands between backticks in a cell of a table.
std::vector<std::string> quoted(const std::string& cell) {
  std::vector<std::string> texts;
  size_t open = cell.find('`');
  while (open != std::string::npos) {
    const size_t close = cell.find('`', open + 1);
    texts.push_back(cell.substr(open + 1, close - open - 1));
    open = cell.find('`', close + 1);
  }
  return texts;
}

TEST(MathAnswer, TheTableOfTheReadmeIsTrue) {
  std::ifstream page(std::string(TAILRACE_SOURCE_DIR) + "/reward/README.md");
  int rows = 0;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    inside = line.starts_with("| right answer |") || (inside && line.starts_with("|"));
    if (!inside || line.find('`') == std::string::npos) continue;
    ++rows;
    const size_t second = line.find(" | ", 2), third = line.find(" | ", second + 3);
    const std::string gold = quoted(line.substr(0, second)).at(0);
    for (const std::string& right : quoted(line.substr(second, third - second)))
      EXPECT_TRUE(equal(gold, right)) << gold << "   as   " << right;
    for (const std::string& wrong : quoted(line.substr(third)))
      EXPECT_FALSE(equal(gold, wrong)) << gold << "   as   " << wrong;
  }
  EXPECT_EQ(rows, 12);
}

// Bounded by construction: each of these is read in no time, and none is a number.
TEST(MathAnswer, WhatWouldTakeLongIsNotComputed) {
  EXPECT_FALSE(equal("1", "10**10**10"));
  EXPECT_TRUE(equal("10**10**10", "10**10**10"));
  EXPECT_FALSE(equal("10^{10^{10}}", "10^{10^{11}}"));
  EXPECT_FALSE(equal("1", "1000000!"));
  EXPECT_FALSE(equal("1", "((9!)!)!"));
  EXPECT_FALSE(equal("1", "1e999999999999"));
  EXPECT_FALSE(equal("1", std::string(1900, '(') + "1"));
  EXPECT_TRUE(parse_math(std::string(100, '{')).has_value());  // compared as text
  EXPECT_FALSE(parse_math(std::string(3000, '1')).has_value());
  std::string nested = "1";
  for (int i = 0; i < 200; ++i) nested = "\\frac{" + nested + "}2";
  EXPECT_FALSE(parse_math(nested).has_value());
}

}  // namespace
}  // namespace tailrace
