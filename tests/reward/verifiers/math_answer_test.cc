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
              {"5", "--5"},
              {"8", "5 - -3"},
              {"7", "|-7|"}},
             true);
}

// The rule of reward/README.md#mathematics.
TEST(MathAnswer, DecimalsAreRoundingsToTheDigitsThatTheyShow) {
  expect_all({{"1234567.25", "1234567.3"},
              {"1234567.3", "1234567.25"},
              {"1234567.25", "4938269/4"},
              {"2/3", "0.666667"},
              {"2/3", "0.666666"},
              {"2/3", "0.66666666666"},
              {"0.0333333", "1/30"},
              {"18", "17.999999999999996"},  // as a program prints it
              {"x/6", "0.166667x"},
              {"\\frac{\\pi}{3}", "0.333333\\pi"},
              {"1000000\\pi", "3141592.65"},
              {"100000000000000000000.5", "100000000000000000000.50"},
              {"1/3", "33.33333\\%"}},
             true);
  expect_all({{"1234567.50", "1234566.75"},
              {"1234567.50", "1234568.50"},
              {"123456789.5", "123456700.5"},
              {"10000000.5", "10000009.5"},
              {"4938269/4", "1234567.75"},
              {"1000000\\pi", "3141595.5"},
              {"1234567.5x", "1234568.5x"},
              {"1234567.5 \\cdot 1", "1234568.5"},
              {"0.333333", "0.333334"},
              {"1/3", "0.333334"},
              {"5", "5.000001"},
              {"5", "5.0000001"},
              {"1234567", "1234567.25"},
              {"100000000000000000000.5", "100000000000000000001.5"},
              {"100000000000000000000.5", "100000000000000000001.55"},
              {"0", "0.0000001"},
              {"0", "1.0e-400"},
              {"1e-13", "1.00001e-13"},
              {"0", "\\pi - 3.14159265358979"}},
             false);
  const std::string threes = "0." + std::string(1000, '3');
  EXPECT_TRUE(equal(threes, "1/3"));
  EXPECT_TRUE(equal("1/3", threes));
  EXPECT_FALSE(equal(threes, "1/3 + 1e-6"));
  EXPECT_FALSE(equal(std::string(1000, '9') + ".5", std::string(999, '9') + "8.5"));
}

TEST(MathAnswer, SmallAndCloseNumbersAreToldApart) {
  expect_all({{"0", "\\sin \\pi"},
              {"0", "\\cos(\\pi/2)"},
              {"\\sin \\pi", "\\cos \\frac{\\pi}{2}"},
              {"e^{-30}", "\\frac{1}{e^{30}}"},
              {"e^{-40}", "(e^{-20})^2"},
              {"i", "\\sqrt{-1}"},
              {"-1", "i^2"},
              {"2i", "\\sqrt{-4}"},
              {"10^9", "\\sqrt{10^{18}}"},
              {"2^{3/2}", "\\sqrt{8}"},
              {"\\sqrt{6}", "\\sqrt2\\sqrt3"},
              {"\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}"},
              {"5", "(\\sqrt{5})^2"},
              {"x", "\\sqrt{x^2}"},
              {"1 + \\sqrt 2", "\\sqrt{3 + 2\\sqrt{2}}"}},
             true);
  expect_all({{"e^{-30}", "e^{-31}"},
              {"e^{-30}", "0"},
              {"0", "e^{-40}"},
              {"0", "\\exp(-1000)"},
              {"e^{-1000}", "e^{-1001}"},
              {"1", "1 - 2^{-2^{2001}}"},
              {"\\frac{\\pi}{10^{13}}", "0"},
              {"0", "10^{-13}\\pi"},
              {"2^{-50}\\pi", "2^{-60}\\pi"},
              {"\\sqrt{2} \\cdot 10^{-13}", "\\sqrt{3} \\cdot 10^{-13}"},
              {"10^9", "\\sqrt{10^{18}+1}"},
              {"\\sqrt[3]{10^{27}+1}", "10^9"},
              {"i", "-i"},
              {"-2", "\\sqrt{4}"},
              {"10^{10}\\pi", "10^{10}\\pi + 1"},
              {"5", "10^{20}\\pi - 10^{20}\\pi + 5"},  // no digit of it is known
              {"\\tan(\\pi/2)", "1.633123935319537e16"}},
             false);
}

TEST(MathAnswer, AnglesInDegreesAreConvertedInFunctions) {
  expect_all({{"\\sin 30^\\circ", "\\frac12"},
              {"\\sin 30^{\\circ}", "\\sin(30°)"},
              {"1", "\\tan 45^\\circ"},
              {"\\sin 30", "\\sin(30)"},
              {"30^\\circ", "30"},
              {"5/3", "1\\frac{2}{3}^\\circ"},
              {"\\sin 30^\\circ", "\\sin(29 \\frac{2}{2})^\\circ"},
              {"A = 30^\\circ", "30"}},
             true);
  expect_all({{"\\sin 30^\\circ", "\\sin 30"}, {"\\sin 30", "\\frac12"}}, false);
}

TEST(MathAnswer, ChainsOfUnequalNumbersAreNoAnswer) {
  expect_all({{"72", "x = 70 + 2 = 72"},
              {"72", "70 + 2 = 144/2 = 72"},
              {"\\pi", "\\pi \\approx 3.14"},
              {"3.14", "\\pi \\approx 3.14"},
              {"\\frac{22}{7}", "x = \\frac{22}{7} \\approx 3.142"},
              {"x = \\frac{22}{7} \\approx 3.142", "22/7"},
              {"72", "71.9 ≈ 72"},
              {"72", "71 \\approx 72"},
              {"1230", "1234.5 \\approx 1.23 \\times 10^3"},
              {"33.33", "100/3 = 33.33"},
              {"7/3", "x = 2.33 = 7/3"},
              {"45", "\\theta = \\arctan(1) = 45^\\circ"},
              {"\\frac{\\pi}{4}", "\\theta = \\frac{\\pi}{4} = 45^\\circ"},
              {"5", "x \\approx 5"}},
             true);
  expect_all({{"72", "3 = 72"},
              {"72", "x = 71 = 72"},
              {"72", "71 = 72"},
              {"72", "72 = 71"},
              {"72", "3 \\approx 72"},
              {"0.34", "1/3 = 0.34"},
              {"1/3", "1/3 \\approx 0.34"},
              {"71.9", "71.9 = 72"},
              {"71.4", "71.4 \\approx 71 \\approx 73"},
              {"72", "71.9 = 72"},
              {"45", "\\theta = \\frac{\\pi}{3} = 45^\\circ"},
              {"71", "71 \\approx 72"},
              {"72", "not = 72"},
              {"72", "\\not= 72"}},
             false);
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
              {"e^{-x^9}", "\\frac{1}{e^{x^9}}"},
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
              {"\\{1,2\\}", "\\{1,2,2\\}"},
              {"\\{1,1,2\\}", "\\{1,2,2\\}"},
              {"\\{x,y\\}", "y, x"},
              {"A, B, C", "\\{A, B, C\\}"},
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
              {"\\{1,2\\}", "\\{1,2,3\\}"},
              {"1, 2", "1, 2, 2"},
              {"1, 1, 2", "1, 2, 2"},
              {"\\{1,2\\}", "1, 2, 2"},
              {"A, B, C", "\\{C, B, A\\}"},
              {"x, y", "\\{y, x\\}"},
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
              {"5 cm", "5 centimetres"},
              {"5 cm", "5"},
              {"5 \\text{ cm}^2", "5 square centimeters"},
              {"5 dollars per day", "5 dollars"},
              {"5 boxes", "5 crates"},
              {"500000", "5 lakh"},
              {"G/N \\cong K", "G / N \\cong K"}},
             true);
  expect_all({{"B", "C"},
              {"True", "False"},
              {"\\text{Dana}", "Dan"},
              {"5", "5 apples and 6 pears"},
              {"5", "5 hundredths"},
              {"5", "5 tenths"},
              {"5", "5 squared"},
              {"5", "5 \\text{ cubed}"},
              {"5", "5 plus six"},
              {"5", "5 lakh"},
              {"5", "5 factorial"},
              {"5", "5 below zero"},
              {"7", "7 minus one"},
              {"3", "3 halves"},
              {"3", "3 quarters"},
              {"5 cm", "5 km"},
              {"5 \\text{ m}^2", "5 \\text{ m}^3"},
              {"60 km/h", "60 km/s"},
              {"5 dollars", "5 cents"},
              {"G/N \\cong K", "G/K \\cong N"}},
             false);
}

// Nothing says that the letters of AB are factors.
TEST(MathAnswer, LettersWithoutAFormulaAreAText) {
  expect_all({{"ABC", "\\text{ABC}"},
              {"ABC", "A B C"},
              {"ab", "a \\cdot b"},
              {"AB", "(AB)"},
              {"x = ab", "ab"},
              {"2ab", "2ba"},
              {"ab + 1", "1 + ba"},
              {"\\frac{ab}{c}", "\\frac{ba}{c}"},
              {"\\pi r", "r\\pi"}},
             true);
  expect_all({{"ABC", "CBA"},
              {"BA", "AB"},
              {"Amy", "May"},
              {"dog", "god"},
              {"ii", "-1"},
              {"II", "I^2"},
              {"Mia", "-aM*i*(-1)"},
              {"f(x)", "fx"},
              {"(AB, CD)", "(BA, CD)"}},
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
  EXPECT_EQ(rows, 15);
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
