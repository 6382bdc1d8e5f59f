#include "core/model/reward_head.h"

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "core/base/json_file.h"
#include "core/model/config_reader.h"
#include "kernels/base/check.h"

namespace tailrace {

bool is_reward_model(const ModelConfig& config) {
  const RewardArchitecture* row = reward_architecture(config.architecture);
  return row != nullptr && row->reward == config.architecture;
}

ModelConfig reward_model_config(const ModelConfig& policy) {
  const RewardArchitecture* row = reward_architecture(policy.architecture);
  if (row == nullptr) {
    std::vector<std::string_view> accepted;
    for (const RewardArchitecture& each : kRewardArchitectures) accepted.push_back(each.policy);
    throw UserError("a {} cannot be made a reward model; accepted: {}", policy.architecture,
                    join_texts(accepted, ", "));
  }
  ModelConfig config = policy;
  config.architecture = row->reward;
  return config;
}

ModelConfig read_policy_config(const std::filesystem::path& directory) {
  ModelConfig config = read_model_config(directory);
  if (is_reward_model(config))
    throw UserError(
        "{}: {} is a reward model; it gives scores, not tokens. Name a model whose architecture "
        "ends in ForCausalLM.",
        (directory / "config.json").string(), config.architecture);
  return config;
}

ModelConfig read_reward_config(const std::filesystem::path& directory) {
  ModelConfig config = read_model_config(directory);
  if (!is_reward_model(config))
    throw UserError(
        "{}: {} is no reward model; it gives tokens, not scores. Name a model whose architecture "
        "ends in ForSequenceClassification, with num_labels 1.",
        (directory / "config.json").string(), config.architecture);
  return config;
}

int64_t read_padding(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  const nlohmann::json json = read_json_object(path);
  // Some files write -1 for none.
  const std::vector<int64_t> ids = ConfigReader(path.string(), json).tokens("pad_token_id");
  return ids.empty() ? -1 : ids.front();
}

size_t scored_token(std::span<const int32_t> ids, int64_t padding) {
  TR_CHECK(!ids.empty());
  size_t last = ids.size() - 1;
  while (last > 0 && ids[last] == padding) --last;
  return last;
}

}  // namespace tailrace
