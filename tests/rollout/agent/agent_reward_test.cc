#include "rollout/agent/agent_reward.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

TEST(AgentRewards, AreANumberOrAnObjectInTheLastLine) {
  EXPECT_EQ(parse_agent_reward("0.5").value().reward, 0.5);
  EXPECT_EQ(parse_agent_reward("thinking...\n1\n\n").value().reward, 1);
  EXPECT_EQ(parse_agent_reward("true").value().reward, 1);
  const AgentReward whole =
      parse_agent_reward("a\n{\"reward\": -2, \"metrics\": {\"solved\": false, \"steps\": 3}}")
          .value();
  EXPECT_EQ(whole.reward, -2);
  EXPECT_EQ(whole.metrics, (MetricList{{"solved", 0}, {"steps", 3}}));
}

TEST(AgentRewards, AnythingElseIsToldOf) {
  EXPECT_EQ(parse_agent_reward(" \n ").failure().message, "it gives no reward");
  for (const char* text :
       {"done", "NaN", "Infinity", "1e999", "[1]", "\"1\"", "{}", "{\"reward\": \"1\"}",
        "{\"reward\": null}", "{\"reward\": 1, \"metrics\": [1]}",
        "{\"reward\": 1, \"metrics\": {\"a\": \"b\"}}", "1\nbye", "1e31", "{\"reward\": -1e300}",
        "{\"reward\": 1, \"metrics\": {\"a b\": 1}}", "{\"reward\": 1, \"metrics\": {\"\": 1}}"})
    EXPECT_FALSE(parse_agent_reward(text)) << text;
}

}  // namespace
}  // namespace tailrace
