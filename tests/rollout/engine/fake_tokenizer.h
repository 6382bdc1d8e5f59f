// A tokenizer whose tokens are given strings, joined without blanks. Encoding takes the longest
// match.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/text/tokenizer.h"

namespace tailrace {

class FakeTokenizer final : public text::Tokenizer {
 public:
  explicit FakeTokenizer(std::vector<std::string> pieces, TokenId eos = -1)
      : pieces_(std::move(pieces)), eos_(eos) {}

  std::vector<TokenId> encode(std::string_view text,
                              const text::EncodeOptions& options) const override {
    if (!options.find_special && text.find("</s>") != text.npos) throw UserError("it holds </s>");
    std::vector<TokenId> ids;
    while (!text.empty()) {
      size_t best = 0, length = 0;
      for (size_t id = 0; id < pieces_.size(); ++id) {
        if (text.starts_with(pieces_[id]) && pieces_[id].size() > length) {
          best = id;
          length = pieces_[id].size();
        }
      }
      if (length > 0) ids.push_back(static_cast<TokenId>(best));
      text.remove_prefix(length > 0 ? length : 1);
    }
    return ids;
  }
  std::string decode(std::span<const TokenId> ids, bool) const override {
    std::string text;
    for (TokenId id : ids)
      if (id < vocab_size()) text += pieces_[static_cast<size_t>(id)];
    return text;
  }
  std::string bytes_of(TokenId id) const override { return decode(std::span(&id, 1), true); }
  int64_t vocab_size() const override { return static_cast<int64_t>(pieces_.size()); }
  TokenId id_of(std::string_view token) const override {
    for (size_t id = 0; id < pieces_.size(); ++id)
      if (pieces_[id] == token) return static_cast<TokenId>(id);
    return -1;
  }
  TokenId bos() const override { return -1; }
  TokenId eos() const override { return eos_; }
  std::vector<std::string> special_tokens() const override { return {}; }
  bool is_special(TokenId) const override { return false; }

 private:
  std::vector<std::string> pieces_;
  TokenId eos_;
};

// One printable character a token, and "\n" as the last: a vocabulary of tiny_config()'s size.
inline FakeTokenizer letters() {
  std::vector<std::string> pieces;
  for (char c = 'A'; pieces.size() < 60; ++c) pieces.emplace_back(1, c);
  pieces.emplace_back("\n");
  return FakeTokenizer(std::move(pieces));
}

}  // namespace tailrace
