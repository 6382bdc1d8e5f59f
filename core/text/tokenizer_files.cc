#include <algorithm>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/text/tokenizer.h"

namespace tailrace::text {
namespace {

// generation_config.json is among them for its ends of a turn: transformers' generate() reads them
// there.
constexpr const char* kTokenizerFiles[] = {"tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "generation_config.json",
                                           "added_tokens.json",
                                           "vocab.json",
                                           "merges.txt",
                                           "tokenizer.model",
                                           kTemplateFile,
                                           "tokenizer.json"};

}  // namespace

void check_vocabulary(const Tokenizer& tokenizer, int64_t vocab_size, std::string_view where) {
  // A model may have more: many pad vocab_size to a round number.
  if (tokenizer.vocab_size() <= vocab_size) return;
  throw UserError(
      "{}: the tokenizer has {} tokens, and the model's vocab_size is {}. They belong to different "
      "models.\n       Try the tokenizer that was saved with this model.",
      where, tokenizer.vocab_size(), vocab_size);
}

int64_t num_non_blank(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return c != ' ' && (c < '\t' || c > '\r'); });
}

int64_t least_num_tokens(const Tokenizer& tokenizer, int64_t num_bytes) {
  const int64_t longest = tokenizer.max_token_bytes();
  return longest <= 0 ? 0 : num_bytes / longest + (num_bytes % longest != 0 ? 1 : 0);
}

int64_t least_num_tokens(const Tokenizer& tokenizer, std::string_view text) {
  if (tokenizer.max_token_bytes() <= 0) return 0;
  return least_num_tokens(tokenizer, std::ssize(text) - tokenizer.num_stripped(text));
}

void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to,
                    const std::filesystem::path& chat_template) {
  for (const std::string_view name : kTokenizerFiles) {
    const bool given = name == kTemplateFile && !chat_template.empty();
    const std::filesystem::path source = given ? chat_template : from / name;
    if (!std::filesystem::exists(source)) continue;
    const Result<std::string> text = read_file(source);
    if (!text) throw UserError("{}", text.failure().message);
    if (auto written = write_file_atomic(to / name, text.value()); !written)
      throw UserError("{}", written.failure().message);
  }
}

}  // namespace tailrace::text
