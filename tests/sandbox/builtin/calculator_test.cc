#include "tests/sandbox/environment_contract.h"

namespace tailrace::sandbox {
namespace {

class CalculatorEnvironment : public ::testing::Test {
 protected:
  StepResult step(const std::string& action) { return environment_->step(action).value(); }
  std::unique_ptr<Environment> environment_ = built_in("calculator");
};

TEST_F(CalculatorEnvironment, KeepsTheContract) {
  check_environment({.make = [] { return built_in("calculator"); }});
  check_environment({.make = [] {
    return built_in("calculator", {{"score_by", "number"}, {"max_terms", "5"}});
  }});
}

TEST_F(CalculatorEnvironment, TheToolAnswersWithWordsOfTheVocabulary) {
  environment_->reset({.seed = 1}).value();
  EXPECT_EQ(step("calc 12 * 7\n").observation.text, "84 >");
  EXPECT_EQ(step("calc 12*(7-6)\n").observation.text, "12 >");
  EXPECT_EQ(step("calc 12 * 12\n").observation.text, "error >");  // over max_number
  environment_->reset({.seed = 1}).value();
  EXPECT_EQ(step("calc 7 / 2\n").observation.text, "error >");
  EXPECT_EQ(step("calc 7 / 0\n").observation.text, "error >");
  EXPECT_EQ(step("calc 7 +\n").observation.text, "error >");
}

TEST_F(CalculatorEnvironment, ARightAnswerGivesOneAndAWrongOneNothing) {
  std::string question = environment_->reset({.seed = 7}).value().text;
  ASSERT_TRUE(question.starts_with("solve ") && question.ends_with(" >")) << question;
  std::string formula = question.substr(6, question.size() - 8);
  std::string value = step("calc " + formula + "\n").observation.text;
  value.resize(value.size() - 2);
  StepResult right = step("answer " + value + "\n");
  EXPECT_TRUE(right.terminated);
  EXPECT_EQ(right.reward, 1);
  environment_->reset({.seed = 7}).value();
  StepResult wrong = step("answer " + value + "0\n");
  EXPECT_TRUE(wrong.terminated);
  EXPECT_EQ(wrong.reward, 0);
}

TEST_F(CalculatorEnvironment, OtherTextCostsATurnAndThePenalty) {
  environment_->reset({.seed = 1}).value();
  for (const char* action : {"calc\n", "answer\n", "answer 1 2\n", "84\n"}) {
    environment_->reset({.seed = 1}).value();
    StepResult result = step(action);
    EXPECT_EQ(result.observation.text, "what ? >") << action;
    EXPECT_EQ(result.reward, -0.05) << action;
  }
}

// Per turn 0.05 invalid; then 0.5 the tool, and once it has shown the value, the answer: within
// four turns 0.475 * 0.95 * (1 + 2 * 0.05 + 3 * 0.05^2) succeed.
TEST_F(CalculatorEnvironment, TheDemonstratorIsImperfect) {
  constexpr int kEpisodes = 4000;
  EXPECT_NEAR(demonstrated_success(*environment_, kEpisodes), 0.49976, share_bound(0.5, kEpisodes));
  auto by_verifier = built_in("calculator", {{"score_by", "number"}});
  EXPECT_NEAR(demonstrated_success(*by_verifier, kEpisodes), 0.49976, share_bound(0.5, kEpisodes));
}

}  // namespace
}  // namespace tailrace::sandbox
