#include "core/text/stream_decoder.h"

#include <gtest/gtest.h>

#include "core/base/random.h"

namespace tailrace::text {
namespace {

const std::vector<std::string> kFolders = {"models/stories260K", "tokenizers/minimind",
                                           "tokenizers/mistral", "tokenizers/mistral_tekken"};

std::unique_ptr<Tokenizer> tokenizer_in(const std::string& folder) {
  return load_tokenizer(std::string(TAILRACE_SOURCE_DIR) + "/tests/data/" + folder);
}

// At every length.
void expect_decoded(const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                    const std::string& what) {
  for (const bool keep_special : {false, true}) {
    StreamDecoder decoder(tokenizer, keep_special);
    for (size_t i = 0; i < ids.size(); ++i) {
      decoder.add(ids[i]);
      ASSERT_EQ(decoder.text(), tokenizer.decode(std::span(ids).first(i + 1), keep_special))
          << what << ", token " << i;
    }
  }
}

TEST(StreamDecoder, GivesWhatDecodeGivesOfText) {
  std::string text;
  for (int i = 0; i < 20; ++i)
    text +=
        " Once, \xE2\x82\xAC 5 \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80 don't\n\n  {\"a\": 1}. "
        "\xE4\xB8\xAD\xE6\x96\x87";
  for (const std::string& folder : kFolders) {
    const auto tokenizer = tokenizer_in(folder);
    expect_decoded(*tokenizer, tokenizer->encode(text, {.framed = true}), folder);
  }
}

// Halves of characters, special tokens and bytes in any order.
TEST(StreamDecoder, GivesWhatDecodeGivesOfAnyTokens) {
  Rng rng(3);
  for (const std::string& folder : kFolders) {
    const auto tokenizer = tokenizer_in(folder);
    for (const int64_t most : {int64_t{300}, tokenizer->vocab_size()}) {
      std::vector<TokenId> ids;
      for (int i = 0; i < 400; ++i) ids.push_back(static_cast<TokenId>(rng.below(most)));
      expect_decoded(*tokenizer, ids, folder);
    }
  }
}

// Behind a page of special tokens, which are not shown, a word still stands behind a word.
TEST(StreamDecoder, HiddenTokensDoNotMakeABeginning) {
  const auto tokenizer = tokenizer_in("models/stories260K");
  std::vector<TokenId> ids = tokenizer->encode("Once upon");
  ids.insert(ids.end(), 200, tokenizer->bos());
  for (const TokenId id : tokenizer->encode("a time")) ids.push_back(id);
  expect_decoded(*tokenizer, ids, "hidden");
}

}  // namespace
}  // namespace tailrace::text
