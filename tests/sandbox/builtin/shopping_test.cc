#include <nlohmann/json.hpp>

#include "tests/sandbox/environment_contract.h"

namespace tailrace::sandbox {
namespace {

// The call of the form `words`.
std::string price_of(const std::string& item) {
  return R"(<tool_call> {"name": "price", "arguments": {"item": ")" + item + R"("}} </tool_call>)";
}

// "buy milk and bread >"
std::vector<std::string> items_of(std::string question) {
  EXPECT_TRUE(question.starts_with("buy ") && question.ends_with(" >")) << question;
  std::vector<std::string> items;
  std::istringstream words(question.substr(4, question.size() - 6));
  for (std::string word; words >> word;)
    if (word != "and") items.push_back(word);
  return items;
}

class ShoppingEnvironment : public ::testing::Test {
 protected:
  StepResult step(const std::string& action) { return environment_->step(action).value(); }
  std::vector<std::string> begin(uint64_t seed) {
    return items_of(environment_->reset({.seed = seed}).value().text);
  }
  std::unique_ptr<Environment> environment_ = built_in("shopping");
};

TEST_F(ShoppingEnvironment, KeepsTheContract) {
  for (const char* form : {"words", "hermes", "llama3"})
    check_environment({.make = [form] { return built_in("shopping", {{"form", form}}); }});
  check_environment({.make = [] {
    return built_in("shopping", {{"max_items", "8"}, {"max_price", "99"}, {"max_turns", "2"}});
  }});
}

TEST_F(ShoppingEnvironment, CallsOfOneTurnAreAnsweredInTheirOrder) {
  int64_t total = 0;
  std::string calls, expected;
  const std::vector<std::string> items = begin(5);
  for (const std::string& item : items) calls += price_of(item) + " ";
  std::istringstream seen(step(calls + "\n").observation.text);
  for (const std::string& item : items) {
    std::string name;
    int64_t price = 0;
    seen >> name >> price;
    EXPECT_EQ(name, item);
    EXPECT_GE(price, 1);
    total += price;
  }
  const StepResult right = step("total " + std::to_string(total) + "\n");
  EXPECT_TRUE(right.terminated);
  EXPECT_EQ(right.reward, 1);
  const std::map<std::string, double> metrics(right.metrics.begin(), right.metrics.end());
  EXPECT_EQ(metrics,
            (std::map<std::string, double>{{"success", 1},
                                           {"tool_calls", static_cast<double>(items.size())},
                                           {"malformed_calls", 0},
                                           {"invalid_actions", 0}}));
  begin(5);
  const StepResult wrong = step("total " + std::to_string(total + 1) + "\n");
  EXPECT_TRUE(wrong.terminated);
  EXPECT_EQ(wrong.reward, 0);
}

TEST_F(ShoppingEnvironment, MalformedCallsAreCountedAndCost) {
  const std::string good = price_of("milk"), bad = "<tool_call> {\"name\": </tool_call>";
  for (const std::string& action : {bad, good + " " + bad, std::string("total"), std::string()}) {
    begin(1);
    const StepResult result = step(action + "\n");
    EXPECT_TRUE(result.observation.text.ends_with("what ? >")) << result.observation.text;
    EXPECT_EQ(result.observation.text.starts_with("milk "), action.starts_with(good));
    EXPECT_EQ(result.reward, -0.05) << action;
    for (const auto& [name, value] : result.metrics) {
      if (name != "malformed_calls") continue;
      EXPECT_EQ(value, action.ends_with(bad) ? 1 : 0) << action;
    }
  }
  begin(1);
  EXPECT_EQ(step(price_of("gold") + " <tool_call> {\"name\": \"sell\", \"arguments\": {\"item\": "
                                    "\"milk\"}} </tool_call>\n")
                .observation.text,
            "unknown unknown >");
  // Without its newline a line is not finished.
  begin(1);
  EXPECT_EQ(step("total 1").observation.text, "what ? >");
}

TEST_F(ShoppingEnvironment, OnePriceATurnRunsOutOfTurns) {
  uint64_t seed = 0;
  std::vector<std::string> items;
  while (items.size() < 3) items = begin(++seed);
  EXPECT_FALSE(step(price_of(items[0]) + "\n").truncated);
  EXPECT_FALSE(step(price_of(items[1]) + "\n").truncated);
  EXPECT_TRUE(step(price_of(items[2]) + "\n").truncated);
}

TEST_F(ShoppingEnvironment, AChatTemplateGetsToolsAndMessages) {
  for (const char* form : {"hermes", "llama3"}) {
    auto chat =
        built_in("shopping", {{"form", form}, {"demo_malformed", "0"}, {"demo_parallel", "1"}});
    const Observation first = chat->reset({.seed = 3}).value();
    EXPECT_EQ(nlohmann::json::parse(first.tools).at(0).at("function").at("name"), "price");
    Rng rng(1);
    const std::string calls = chat->demonstrate(rng).value();
    const StepResult result = chat->step(calls).value();
    const auto messages = nlohmann::json::parse(result.observation.messages);
    ASSERT_GE(messages.size(), 2u);
    int64_t total = 0;
    for (const auto& message : messages) {
      EXPECT_EQ(message.at("role"), "tool");
      EXPECT_TRUE(message.at("tool_call_id").get<std::string>().starts_with("call_"));
      total += std::stoll(message.at("content").get<std::string>());
    }
    EXPECT_NE(messages[0].at("tool_call_id"), messages[1].at("tool_call_id"));
    EXPECT_EQ(chat->step("<think>\n7?\n</think>\n\nThe total is " + std::to_string(total) + ".")
                  .value()
                  .reward,
              1);
    (void)chat->reset({.seed = 3}).value();
    const auto told = nlohmann::json::parse(chat->step("Hm.").value().observation.messages);
    EXPECT_EQ(told.at(0).at("role"), "user");
  }
}

// Two items or three. With p the share of malformed answers (0.1) and a that of asking for all
// (0.3), of three turns: two items take (1-p) a (1-p) + [p (1-p) a + (1-p) (1-a) (1-p)] (1-p),
// where the second of two calls asks for what is left; three take (1-p)^2 a + p (1-p)^2 a + (1-p)^3
// (1-a) a.
TEST_F(ShoppingEnvironment, TheDemonstratorIsImperfect) {
  constexpr int kEpisodes = 4000;
  const double q = 0.9, p = 0.1, a = 0.3;
  const double all = q * a * (q + p * q) + p * q * a * q;
  const double two = all + q * (1 - a) * q * q, three = all + q * (1 - a) * q * a * q;
  const double expected = (two + three) / 2;
  EXPECT_NEAR(demonstrated_success(*environment_, kEpisodes), expected,
              share_bound(expected, kEpisodes));
}

}  // namespace
}  // namespace tailrace::sandbox
