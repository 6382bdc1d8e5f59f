// Byte-pair encoding (Sennrich et al. 2016), as Hugging Face's tokenizers write it down.
#pragma once

#include <memory>

#include "core/text/token_model.h"

namespace tailrace::text {

// The fields of their BPE model: byte_fallback, ignore_merges, unk_token, fuse_unk; merges as "a b"
// or ["a", "b"].
std::unique_ptr<TokenModel> parse_bpe(const JsonPart& part);

}  // namespace tailrace::text
