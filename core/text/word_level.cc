#include "core/text/word_level.h"

#include "core/base/error.h"

namespace tailrace::text {

namespace {

class WordLevel final : public TokenModel {
 public:
  WordLevel(Vocabulary vocabulary, std::string unk, std::string where)
      : TokenModel(std::move(vocabulary)), unk_(std::move(unk)), where_(std::move(where)) {}

  void encode(const Pieces& pieces, std::vector<TokenId>& out) const override {
    for (const Span& span : pieces.spans) {
      TokenId id = find(pieces.piece(span));
      // Looked up only now: a vocabulary without it is good as long as every word is known.
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

  TokenId unknown() const override { return find(unk_); }

 private:
  std::string unk_;
  std::string where_;
};

}  // namespace

std::unique_ptr<TokenModel> parse_word_level(const JsonPart& part) {
  return std::make_unique<WordLevel>(parse_vocabulary(part.at("vocab")),
                                     part.text("unk_token", "<unk>"), part.where());
}

}  // namespace tailrace::text
