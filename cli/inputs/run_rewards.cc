#include "cli/inputs/run_rewards.h"

#include <algorithm>
#include <chrono>

#include "core/config/options.h"

namespace tailrace {

std::string RunReward::key(std::string_view key) const { return join_key(item, key); }

RunRewards rewards_of(const RewardSection& reward) {
  // The least that a reward worker scores at once, whatever scores.
  constexpr int64_t kLeastAtOnce = 8;
  RunRewards rewards{.at_once = kLeastAtOnce};
  if (!reward.command.empty()) {
    rewards.scorer = kRewardCommand;
    rewards.parts.push_back({{.command = reward.command}, "reward"});
  }
  // It scores one text after the other: what waits at a worker waits in vain.
  if (reward.has_model()) {
    rewards.scorer = kRewardModel;
    rewards.at_once = 1;
  }
  if (reward.judge.is_given()) {
    rewards.scorer = kRewardJudge;
    rewards.at_once = reward.judge.at_once;
  }
  std::vector<std::string> names;
  for (const RewardPart& part : reward.parts) names.push_back(part.name);
  for (size_t i = 0; i < names.size(); ++i)
    rewards.parts.push_back({reward.parts[i], item_key(kRewardParts, names, i)});
  if (!names.empty()) rewards.scorer = kRewardParts;
  if (reward.has_commands()) {
    rewards.at_once = std::max(kLeastAtOnce, reward.batch);
    rewards.start =
        std::chrono::duration_cast<Time>(std::chrono::duration<double>(reward.start_timeout_s));
  }
  return rewards;
}

}  // namespace tailrace
