// Reward models: the body of a policy, and in the place of its head one row (kScoreName) that gives
// a score. They are what transformers has as AutoModelForSequenceClassification with num_labels 1.
//
// Thread: any. Errors: UserError, with file and key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "core/model/model_config.h"
#include "core/model/reward_names.h"

namespace tailrace {

bool is_reward_model(const ModelConfig& config);

// The same body under the architecture that transformers has for it. Throws UserError for a family
// that has none here: sparse models.
ModelConfig reward_model_config(const ModelConfig& policy);

// read_model_config() for who needs a model that gives tokens, or one that gives scores: the other
// kind is refused in one line.
ModelConfig read_policy_config(const std::filesystem::path& directory);
ModelConfig read_reward_config(const std::filesystem::path& directory);

// pad_token_id of DIR/config.json; -1: none.
int64_t read_padding(const std::filesystem::path& directory);

// The place of the token whose hidden state is scored, as transformers chooses it: the last one
// that is not `padding`; the first where all are. `ids` is not empty.
size_t scored_token(std::span<const int32_t> ids, int64_t padding);

}  // namespace tailrace
