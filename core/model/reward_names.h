// The names of reward models: what transformers calls those that families have.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace tailrace {

// The name of the head, [1, hidden_size], which gives the score of a text.
inline constexpr std::string_view kScoreName = "score.weight";

struct RewardArchitecture {
  std::string_view policy, reward;
};
inline constexpr std::array<RewardArchitecture, 5> kRewardArchitectures = {{
    {"LlamaForCausalLM", "LlamaForSequenceClassification"},
    {"MistralForCausalLM", "MistralForSequenceClassification"},
    {"Qwen2ForCausalLM", "Qwen2ForSequenceClassification"},
    {"Qwen3ForCausalLM", "Qwen3ForSequenceClassification"},
    {"Gemma3ForCausalLM", "Gemma3TextForSequenceClassification"},
}};

// The row of an architecture of either kind; null: it has none.
inline const RewardArchitecture* reward_architecture(std::string_view name) {
  const auto* found = std::ranges::find_if(kRewardArchitectures, [&](const auto& row) {
    return name == row.policy || name == row.reward;
  });
  return found == kRewardArchitectures.end() ? nullptr : found;
}

// The id that fills rows of a batch up, where no file says one: transformers refuses batches
// without it. It takes it for no part of the text where it ends one, so it is the begin of a text,
// which never does, else the last of the ends; -1: neither.
inline int64_t padding_of(int64_t begin, std::span<const int64_t> ends) {
  return begin >= 0 ? begin : ends.empty() ? -1 : ends.back();
}

}  // namespace tailrace
