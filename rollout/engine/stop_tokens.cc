#include "rollout/engine/stop_tokens.h"

#include <set>

namespace tailrace {

std::vector<TokenId> stop_tokens(const ModelConfig& model, const chat::PromptFormat& format) {
  std::set<TokenId> ids(model.eos_tokens.begin(), model.eos_tokens.end());
  for (const TokenId end : {format.tokenizer().eos(), format.end_of_turn()})
    if (end >= 0) ids.insert(end);
  return {ids.begin(), ids.end()};
}

}  // namespace tailrace
