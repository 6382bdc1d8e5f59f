// The tokens that end an answer, the same wherever a model generates.
#pragma once

#include <vector>

#include "core/chat/prompt_format.h"
#include "core/generate.h"
#include "core/model/model_config.h"

namespace tailrace {

// The tokenizer's end-of-sequence token, every one that config.json lists, and the one with which
// the chat template ends a turn: each once, ascending.
std::vector<TokenId> stop_tokens(const ModelConfig& model, const chat::PromptFormat& format);

}  // namespace tailrace
