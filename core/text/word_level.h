// Whole words as tokens: the tokenizers of environments with a vocabulary of their own.
#pragma once

#include <memory>

#include "core/text/token_model.h"

namespace tailrace::text {

// Whole pieces. A piece that is not in the vocabulary is unk_token; encode() throws UserError when
// that is not in the vocabulary either.
std::unique_ptr<TokenModel> parse_word_level(const JsonPart& part);

}  // namespace tailrace::text
