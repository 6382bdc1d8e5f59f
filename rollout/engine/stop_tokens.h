// The tokens that end an answer, the same wherever a model generates.
#pragma once

#include <vector>

#include "core/generate.h"
#include "core/model/model_config.h"
#include "core/text/tokenizer.h"

namespace tailrace {

// The tokenizer's end-of-sequence token and every one that config.json lists: each once, ascending.
std::vector<TokenId> stop_tokens(const ModelConfig& model, const text::Tokenizer& tokenizer);

}  // namespace tailrace
