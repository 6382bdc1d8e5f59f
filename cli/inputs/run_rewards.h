// Who scores the episodes of a run, whichever way its config says so: the list `reward.parts`, or
// `reward.command`, which is one part without a name, or `reward.model` or `reward.judge`, which have none. Neither:
// the verifiers that environments name.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/config/options.h"
#include "core/base/time.h"

namespace tailrace {

// The verifier that the rewards of a config are together has the name of their key, which no
// verifier of a library can have: messages say it.
inline constexpr const char* kRewardCommand = "reward.command";
inline constexpr const char* kRewardParts = "reward.parts";
inline constexpr const char* kRewardModel = "reward.model";
inline constexpr const char* kRewardJudge = "reward.judge";
inline constexpr const char* kJudgePart = "judge";  // the verifier of a part that the judge scores

struct RunReward : RewardPart {
  std::string item;  // as a person has written it: "reward.parts.style", or "reward"

  // The full name of one of its keys: "reward.parts.style.command", "reward.command".
  std::string key(std::string_view key) const;
};

struct RunRewards {
  std::string scorer = {};  // one of the names above; empty: the verifiers of environments score
  std::vector<RunReward> parts = {};
  int64_t at_once = 0;  // episodes that a reward worker scores at once
  // The time for the start of a program, which whoever waits for a score has patience for besides;
  // 0 where none scores.
  Time start{0};

  bool is_sum() const { return scorer == kRewardParts; }
};

// For resolve(), and for what is done before the options are known to be valid; all others have
// ResolvedRun::rewards.
RunRewards rewards_of(const RewardSection& reward);

}  // namespace tailrace
