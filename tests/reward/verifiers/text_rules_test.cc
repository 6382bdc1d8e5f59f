#include "reward/verifiers/text_rules.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "reward/verifiers/built_in.h"

namespace tailrace {
namespace {

Score score(const std::string& response, nlohmann::json evidence = nlohmann::json::object()) {
  evidence["response"] = response;
  Result<Score> result =
      built_in_verifiers().find("text_rules")->score(evidence.dump(), kScoreBudget);
  EXPECT_TRUE(result.ok());
  return result.value();
}

double rules_reward(const std::string& response,
                    nlohmann::json evidence = nlohmann::json::object()) {
  return score(response, std::move(evidence)).reward;
}

const nlohmann::json kPark = {{"words", {"park", "dog"}}, {"min_words", 4}, {"max_words", 8}};

TEST(TextRules, EachRuleHasItsPart) {
  EXPECT_EQ(rules_reward(" She saw a dog in the park.", kPark), 1);
  EXPECT_EQ(rules_reward(" She saw a dog in the", kPark), 0.5);       // half the words, length
  EXPECT_EQ(rules_reward(" She saw a cat in the sun.", kPark), 0.5);  // full stop, length
  // Too long: the words only, then the words and the full stop.
  EXPECT_EQ(rules_reward(" She saw a dog and a cat and a bird in the park", kPark), 0.5);
  EXPECT_EQ(rules_reward(" She saw a dog and a cat and a bird in the park.", kPark), 0.75);
}

TEST(TextRules, SilenceEarnsNothing) {
  EXPECT_EQ(rules_reward("", kPark), 0);
  EXPECT_EQ(rules_reward(".", kPark), 0);
  EXPECT_EQ(rules_reward(" dog park.", kPark), 0);
}

TEST(TextRules, WordsAreWholeAndOfAnyCase) {
  EXPECT_EQ(rules_reward("Dog! The PARK was big.", kPark), 1);
  EXPECT_EQ(rules_reward("The dogs were in parks.", kPark), 0.5);
  EXPECT_EQ(rules_reward("It was the dog's park.", kPark), 0.75)
      << "an apostrophe belongs to its word";
  EXPECT_EQ(rules_reward("\"dog\", he said, \"park.\"", kPark), 1);
}

TEST(TextRules, SentencesEndInThreeWays) {
  for (const char* text :
       {"one two three.", "one two three!", "one two three? \n", "\"one two three.\""}) {
    EXPECT_EQ(rules_reward(text), 1) << text;
  }
  for (const char* text : {"one two three", "one two three,", "one. two three"})
    EXPECT_EQ(rules_reward(text), 0.75) << text;
}

TEST(TextRules, SuccessIsAllRulesTogether) {
  auto success = [](const Score& s) { return s.metrics.at(0); };
  EXPECT_EQ(success(score("She saw a dog in the park.", kPark)),
            (std::pair<std::string, double>("success", 1)));
  EXPECT_EQ(success(score("She saw a dog in the park", kPark)),
            (std::pair<std::string, double>("success", 0)));
}

TEST(TextRules, BadEvidenceIsAFailure) {
  for (const char* evidence :
       {"", "3", "{}", R"({"response": 1})", R"({"response": "x", "words": "park"})",
        R"({"response": "x", "words": [1]})"}) {
    EXPECT_FALSE(built_in_verifiers().find("text_rules")->score(evidence, kScoreBudget).ok())
        << evidence;
  }
}

TEST(VerifierRegistry, KnowsFiveByName) {
  VerifierRegistry registry = built_in_verifiers();
  EXPECT_EQ(registry.list().size(), 5u);
  EXPECT_EQ(registry.find("no_such"), nullptr);
}

}  // namespace
}  // namespace tailrace
