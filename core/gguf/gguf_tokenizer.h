// The tokenizer of a GGUF file as the files of Hugging Face.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/gguf/gguf_file.h"

namespace tailrace {

// The longest token: merges follow from all cuts of it. Released models have some hundred bytes,
// where a token is a run of blanks.
constexpr size_t kMaxGgufTokenBytes = 1024;

struct TokenizerTexts {
  std::string tokenizer;           // tokenizer.json
  std::string config;              // tokenizer_config.json, with the chat template
  std::vector<std::string> notes;  // what the file says and these cannot
};

// Throws UserError: a kind of tokenizer or of pre-tokenizer that is not known by its name, arrays
// that do not fit each other, ids that are no tokens, a chat template that cannot be read.
TokenizerTexts tokenizer_texts(const GgufFile& file);

// The names of pre-tokenizers (tokenizer.ggml.pre) that are read.
std::string all_gguf_pre_tokenizers();

}  // namespace tailrace
