// The reward that an agent reports for its episode: the last line of its stdout, or of a file.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/metric_list.h"
#include "core/base/result.h"

namespace tailrace {

struct AgentReward {
  double reward = 0;
  std::optional<int64_t> episode = {};  // of the task that it answers, where it says so
  MetricList metrics = {};
};

// A number, or {"reward": NUMBER, "metrics": {NAME: NUMBER}, "episode": N}; of several lines the
// last. A Failure says what it is not.
Result<AgentReward> parse_agent_reward(const std::string& text);

}  // namespace tailrace
