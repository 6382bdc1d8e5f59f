// The "model" of a tokenizer.json: pieces of text to token ids.
//
// Thread: any (immutable).
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/generate.h"
#include "core/text/json_part.h"
#include "core/text/pre_tokenizer.h"

namespace tailrace::text {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using Vocabulary = std::unordered_map<std::string, TokenId, StringHash, std::equal_to<>>;

class TokenModel {
 public:
  explicit TokenModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~TokenModel() = default;

  // Appends the ids of all pieces.
  virtual void encode(const Pieces& pieces, std::vector<TokenId>& out) const = 0;

  // Each character of a piece, or each of its bytes, ends up in a token of the vocabulary or in an
  // unknown token of its own: no text is left out, and no token stands for text without end.
  virtual bool covers_all_text() const { return false; }

  virtual TokenId unknown() const { return -1; }  // stands for what the vocabulary lacks; -1: none

  const Vocabulary& vocabulary() const { return vocabulary_; }
  TokenId find(std::string_view token) const {  // -1: none
    auto it = vocabulary_.find(token);
    return it == vocabulary_.end() ? -1 : it->second;
  }

 private:
  Vocabulary vocabulary_;
};

// The "vocab" object of a model. Throws UserError for ids that are negative, doubled or above 2^24.
Vocabulary parse_vocabulary(const JsonPart& part);

}  // namespace tailrace::text
