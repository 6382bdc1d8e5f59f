// A reward model of a folder, on the CPU: the ids of a text in, its score out.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "core/base/result.h"
#include "core/generate.h"
#include "core/model/model_config.h"

namespace tailrace {

class RewardModel {
 public:
  // A folder that read_reward_config() takes, with products in bfloat16 where its files are, as
  // `tailrace model score` has them. max_tokens: of the longest text; 0: the model's positions.
  // Memory for the keys and values of a text is taken when one of its length comes. Throws
  // UserError for a folder that cannot be read, and for more tokens than the model has positions.
  RewardModel(const std::filesystem::path& folder, int threads, int64_t max_tokens = 0);
  ~RewardModel();

  const ModelConfig& config() const;
  int64_t max_tokens() const;

  // The product of score.weight and the hidden state of one token after the final norm: the last
  // one, but for padding (pad_token_id of the folder) at the end, as transformers has it. The same
  // bits for every number of threads. Failure, which is final: no ids or too many, an id that is no
  // token of the model, a score that is not finite.
  Result<double> score(std::span<const TokenId> ids);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace tailrace
