// The text of tokens that come one after the other: what Tokenizer::decode() gives for all of them,
// without decoding all of them each time.
//
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/text/tokenizer.h"

namespace tailrace::text {

class StreamDecoder {
 public:
  // Borrows the tokenizer; `keep_special` as of decode().
  StreamDecoder(const Tokenizer& tokenizer, bool keep_special)
      : tokenizer_(tokenizer), keep_special_(keep_special) {}

  void add(TokenId id) { ids_.push_back(id); }
  size_t num_tokens() const { return ids_.size(); }
  // The text of all tokens so far. Later ones may change its end: half of a character is U+FFFD.
  std::string text();

 private:
  std::string decode_from(size_t begin, size_t end) const;
  void settle(const std::string& text);

  const Tokenizer& tokenizer_;
  const bool keep_special_;
  std::vector<TokenId> ids_;
  // The text of the first num_settled_ tokens, and of the last few of them alone.
  std::string settled_, overlap_;
  size_t num_settled_ = 0, overlap_begin_ = 0;
};

}  // namespace tailrace::text
