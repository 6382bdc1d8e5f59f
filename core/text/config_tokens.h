// Added tokens that the files beside tokenizer.json know: `added_tokens_decoder` of
// tokenizer_config.json, else added_tokens.json of older folders; and special tokens that a config
// names and only the vocabulary has.
//
// Thread: any.
#pragma once

#include <filesystem>
#include <vector>

#include "core/text/added_tokens.h"
#include "core/text/json_part.h"
#include "core/text/token_model.h"

namespace tailrace::text {

// Joins them to those of tokenizer.json, as transformers does: a token that both have is looked for
// as the config says, and a new one has the id of the vocabulary, or the next one. `config`: of
// tokenizer_config.json in `directory`. Throws UserError for a token with another id than that.
void join_config_tokens(const JsonPart& config, const std::filesystem::path& directory,
                        const TokenModel& model, std::vector<AddedToken>& tokens);

}  // namespace tailrace::text
