#include "core/text/stream_decoder.h"

#include <algorithm>
#include <span>
#include <utility>

namespace tailrace::text {
namespace {

// Tokens that are decoded again with those behind them: what is around a token may change its text,
// such as a blank in front of a word, or the other bytes of a character.
constexpr size_t kOverlapTokens = 16;
constexpr size_t kSettledTogether = 64;

}  // namespace

std::string StreamDecoder::decode_from(size_t begin, size_t end) const {
  return tokenizer_.decode(std::span(ids_).subspan(begin, end - begin), keep_special_);
}

std::string StreamDecoder::text() {
  std::string text;
  const std::string last = decode_from(overlap_begin_, ids_.size());
  if (last.starts_with(overlap_)) {
    text = settled_ + last.substr(overlap_.size());
  } else {
    // The new tokens have changed the text before them.
    text = decode_from(0, ids_.size());
    settled_.clear();
    overlap_.clear();
    num_settled_ = overlap_begin_ = 0;
  }
  if (ids_.size() - num_settled_ >= kSettledTogether) settle(text);
  return text;
}

void StreamDecoder::settle(const std::string& text) {
  // The rest of the character may come yet.
  if (text.ends_with("\xEF\xBF\xBD")) return;
  const size_t begin = ids_.size() - std::min(ids_.size(), kOverlapTokens);
  std::string overlap = decode_from(begin, ids_.size());
  // The text that follows would be decoded as the beginning of a text.
  if (overlap.empty()) return;
  num_settled_ = ids_.size();
  overlap_begin_ = begin;
  overlap_ = std::move(overlap);
  settled_ = text;
}

}  // namespace tailrace::text
