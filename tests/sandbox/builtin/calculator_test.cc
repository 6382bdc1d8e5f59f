#include <nlohmann/json.hpp>

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
  for (const char* form : {"hermes", "llama3"})
    check_environment({.make = [form] { return built_in("calculator", {{"form", form}}); }});
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

// "What is 7 * 8 + 6? ...": the question's expression.
std::string expression_of(const Observation& first) {
  constexpr std::string_view kBefore = "What is ";
  EXPECT_TRUE(first.text.starts_with(kBefore)) << first.text;
  return first.text.substr(kBefore.size(), first.text.find('?') - kBefore.size());
}

TEST_F(CalculatorEnvironment, AChatTemplateGetsToolsAndMessages) {
  for (const std::string form : {"hermes", "llama3"}) {
    auto chat = built_in("calculator", {{"form", form}, {"max_turns", "5"}});
    const auto call = [&](const std::string& name, const std::string& arguments) {
      return form == "hermes" ? "<tool_call>\n{\"name\": \"" + name +
                                    "\", \"arguments\": " + arguments + "}\n</tool_call>"
                              : "{\"name\": \"" + name + "\", \"parameters\": " + arguments + "}";
    };
    const auto say = [&](const std::string& action) { return chat->step(action).value(); };
    const auto heard = [](const StepResult& result) {
      return nlohmann::json::parse(result.observation.messages);
    };
    const Observation first = chat->reset({.seed = 3}).value();
    EXPECT_EQ(nlohmann::json::parse(first.tools).at(0).at("function").at("name"), "calculator");
    // An empty answer, another tool and another argument: each is a turn.
    const StepResult nothing = say("Hm.");
    EXPECT_EQ(heard(nothing).at(0).at("role"), "user");
    EXPECT_EQ(nothing.reward, -0.05);
    const StepResult wrong = say(call("price", R"({"item": "milk"})"));
    EXPECT_EQ(heard(wrong).at(0).at("content"), "error");
    EXPECT_EQ(wrong.reward, 0);
    EXPECT_EQ(heard(say(call("calculator", R"({"expression": 7})"))).at(0).at("content"), "error");
    const auto value =
        heard(say(call("calculator", R"({"expression": ")" + expression_of(first) + "\"}")));
    ASSERT_EQ(value.size(), 1u);
    EXPECT_EQ(value[0].at("role"), "tool");
    EXPECT_TRUE(value[0].at("tool_call_id").get<std::string>().starts_with("call_"));
    const StepResult end = say("The answer is " + value[0].at("content").get<std::string>() + ".");
    EXPECT_TRUE(end.terminated);
    EXPECT_EQ(end.reward, 1);
    const std::map<std::string, double> metrics(end.metrics.begin(), end.metrics.end());
    EXPECT_EQ(metrics, (std::map<std::string, double>{
                           {"success", 1}, {"tool_calls", 3}, {"invalid_actions", 1}}));
    EXPECT_NEAR(demonstrated_success(*chat, 4000), 0.5, share_bound(0.5, 4000));
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
