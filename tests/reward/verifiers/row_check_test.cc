#include "reward/verifiers/row_check.h"

#include <gtest/gtest.h>

#include "reward/verifiers/built_in.h"

namespace tailrace {
namespace {

// What the verifier says of the row; empty: nothing.
std::string fault_of(const char* verifier, const std::string& row) {
  const Result<void> fit = built_in_verifiers().at(verifier).check_row(row, kScoreBudget);
  return fit ? "" : fit.failure().message;
}

TEST(RowCheck, TextRulesNameWhatTheyCannotRead) {
  const auto fault = [](const std::string& row) { return fault_of("text_rules", row); };
  EXPECT_EQ(fault(R"({"prompt": "a", "words": ["dog"], "min_words": 3, "max_words": 9})"), "");
  EXPECT_EQ(fault(R"({"prompt": "a", "max_words": 9, "id": 7, "source": "book"})"), "")
      << "columns of others";
  EXPECT_EQ(fault(R"({"prompt": "a", "word": ["dog"]})"),
            "there is no column \"word\"; did you mean \"words\"?");
  EXPECT_EQ(fault(R"({"prompt": "a", "words": "dog"})"),
            "\"words\" is \"dog\"; it must be a list of texts");
  EXPECT_EQ(fault(R"({"prompt": "a", "words": ["dog", 3]})"),
            "\"words\" is [\"dog\",3]; it must be a list of texts");
  EXPECT_EQ(fault(R"({"prompt": "a", "max_words": "9"})"),
            "\"max_words\" is \"9\"; it must be an integer from 1 to 1000000");
  EXPECT_EQ(fault(R"({"prompt": "a", "max_words": 1e30})"),
            "\"max_words\" is 1e+30; it must be an integer from 1 to 1000000");
  EXPECT_EQ(fault(R"({"prompt": "a", "min_words": 9, "max_words": 3})"),
            "\"min_words\" is 9 and \"max_words\" 3: no answer has so many");
  EXPECT_EQ(fault(R"({"prompt": "a", "min_words": 50})"),
            "\"min_words\" is 50 and \"max_words\" 40: no answer has so many")
      << "the default";
  EXPECT_EQ(fault("[]"), "it is not a JSON object");
}

// As an exception's message it would end there.
TEST(RowCheck, ANulOfARowEndsNoMessage) {
  const std::string fault = fault_of("text_rules", R"({"prompt": "a", "words": ["a\u0000b"]})");
  EXPECT_NE(fault.find("'a\\x00b', which is not one word"), std::string::npos) << fault;
}

// The default bounds would reward any short sentence, whatever the prompt is.
TEST(RowCheck, TextRulesNeedARule) {
  const auto fault = [](const std::string& row) { return fault_of("text_rules", row); };
  const std::string none =
      "it has no rule; give it \"words\" (a list of words that the answer must hold), "
      "\"min_words\" or \"max_words\", or name another verifier";
  EXPECT_EQ(fault(R"({"prompt": "a", "answer": "4"})"), none);
  EXPECT_EQ(fault(R"({"prompt": "a", "words": []})"), none);
  EXPECT_EQ(fault(R"({"prompt": "a", "words": [], "min_words": 0})"), none) << "it asks nothing";
  for (const char* rule : {R"("words": ["dog"])", R"("min_words": 1)", R"("max_words": 9)"})
    EXPECT_EQ(fault(std::string(R"({"prompt": "a", )") + rule + "}"), "") << rule;
}

TEST(RowCheck, ANumberNeedsOne) {
  const auto fault = [](const std::string& row) { return fault_of("number", row); };
  EXPECT_EQ(fault(R"({"prompt": "2+2?", "answer": "so #### 4"})"), "");
  EXPECT_EQ(fault(R"({"prompt": "2+2?", "answer": 4, "extract": "strict"})"), "");
  EXPECT_EQ(fault(R"({"prompt": "2+2?"})"), "there is no \"answer\"");
  EXPECT_EQ(fault(R"({"prompt": "2+2?", "anwser": 4})"), "there is no \"answer\"");
  EXPECT_EQ(fault(R"({"prompt": "2+2?", "answer": "four"})"),
            "\"answer\" holds no number that can be compared with");
  EXPECT_EQ(fault(R"({"prompt": "2+2?", "answer": 4, "extract": "stict"})"),
            "\"extract\" is \"stict\"; it must be \"strict\", or left out");
}

TEST(RowCheck, CountdownNeedsItsNumbers) {
  const auto fault = [](const std::string& row) { return fault_of("countdown", row); };
  EXPECT_EQ(fault(R"({"prompt": "?", "numbers": [1, 2], "target": 3})"), "");
  EXPECT_EQ(fault(R"({"prompt": "?", "numbers": [1, 2.5], "target": 3})"),
            "\"numbers\" must be a list of integers");
  EXPECT_EQ(fault(R"({"prompt": "?", "numbers": [1, 2]})"), "there is no \"target\"");
}

}  // namespace
}  // namespace tailrace
