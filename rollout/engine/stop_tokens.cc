#include "rollout/engine/stop_tokens.h"

#include <set>

namespace tailrace {

std::vector<TokenId> stop_tokens(const ModelConfig& model, const text::Tokenizer& tokenizer) {
  std::set<TokenId> ids(model.eos_tokens.begin(), model.eos_tokens.end());
  if (tokenizer.eos() >= 0) ids.insert(tokenizer.eos());
  return {ids.begin(), ids.end()};
}

}  // namespace tailrace
