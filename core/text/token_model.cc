#include "core/text/token_model.h"

#include <unordered_set>

#include <nlohmann/json.hpp>

#include "core/base/error.h"

namespace tailrace::text {

namespace {

// The tables are as long as the largest id: without a bound a file of one line could ask for all
// memory.
constexpr int64_t kMaxId = 1 << 24;

class WordLevel final : public TokenModel {
 public:
  WordLevel(Vocabulary vocabulary, std::string unk, std::string where)
      : TokenModel(std::move(vocabulary)), unk_(std::move(unk)), where_(std::move(where)) {}

  void encode(const Pieces& pieces, std::vector<TokenId>& out) const override {
    for (const Span& span : pieces.spans) {
      TokenId id = find(pieces.piece(span));
      if (id < 0) id = find(unk_);
      if (id < 0) {
        throw UserError(
            "{}: the word '{}' is not in the vocabulary of {} words, and there is no unknown "
            "token. "
            "Was this vocabulary made for another environment?",
            where_, pieces.piece(span).substr(0, 40), vocabulary().size());
      }
      out.push_back(id);
    }
  }

 private:
  std::string unk_;
  std::string where_;
};

}  // namespace

Vocabulary parse_vocabulary(const JsonPart& part) {
  if (!part.value().is_object()) part.refuse("an object of token: id");
  Vocabulary vocabulary;
  vocabulary.reserve(part.value().size());
  std::unordered_set<int64_t> seen;
  seen.reserve(part.value().size());
  for (const auto& [token, id] : part.value().items()) {
    bool fits = id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < kMaxId;
    JsonPart entry(id, part.where() + "[\"" + token + "\"]");
    if (!fits) entry.refuse("an integer from 0 to 16777215");
    if (!seen.insert(id.get<int64_t>()).second) entry.refuse("an id that no other token has");
    vocabulary.emplace(token, id.get<TokenId>());
  }
  return vocabulary;
}

std::unique_ptr<TokenModel> parse_word_level(const JsonPart& part) {
  return std::make_unique<WordLevel>(parse_vocabulary(part.at("vocab")),
                                     part.text("unk_token", "<unk>"), part.where());
}

std::unique_ptr<TokenModel> parse_token_model(const JsonPart& part) {
  // Files of before 2020 have no type; only BPE has merges.
  std::string type = !part.has("type") && part.has("merges") ? "BPE" : part.text("type");
  if (type == "BPE") return parse_bpe(part);
  if (type == "WordLevel") return parse_word_level(part);
  part.at("type").refuse("BPE, WordLevel");
}

}  // namespace tailrace::text
