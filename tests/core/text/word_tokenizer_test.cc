#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/text/tokenizer.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace::text {
namespace {

using Ids = std::vector<TokenId>;

class WordTokenizer : public ::testing::Test {
 protected:
  TemporaryDirectory folder_;
  const std::filesystem::path& dir_ = folder_.path();
};

TEST_F(WordTokenizer, NumbersWordsAfterTheSpecialTokens) {
  std::vector<std::string> words = {"\n", "left", "what", "?", "N-", ">"};
  write_word_tokenizer(dir_, words);
  auto tokenizer = load_tokenizer(dir_);
  EXPECT_EQ(tokenizer->vocab_size(), 9);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  for (size_t i = 0; i < words.size(); ++i) {
    EXPECT_EQ(tokenizer->id_of(words[i]), static_cast<TokenId>(i + 3));
  }
}

TEST_F(WordTokenizer, NewlinesAreTokensAndBlanksVanish) {
  write_word_tokenizer(dir_, std::vector<std::string>{"\n", "left", "what", "?", "N-", ">"});
  auto tokenizer = load_tokenizer(dir_);
  Ids ids = tokenizer->encode("N- > left\nwhat ?  N- >");
  EXPECT_EQ(ids, (Ids{7, 8, 4, 3, 5, 6, 7, 8}));
  EXPECT_EQ(tokenizer->decode(ids), "N- > left\nwhat ? N- >");
  EXPECT_EQ(tokenizer->encode(tokenizer->decode(ids)), ids);
  EXPECT_EQ(tokenizer->decode(Ids{4, 3}), "left\n");
  EXPECT_EQ(tokenizer->decode(Ids{3, 3, 4}), "\n\nleft");
  EXPECT_EQ(tokenizer->encode("left", {.framed = true}), (Ids{1, 4}));
}

TEST_F(WordTokenizer, RefusesWordsItCouldNotFindAgain) {
  EXPECT_THROW(write_word_tokenizer(dir_, std::vector<std::string>{"a", "a"}), UserError);
  EXPECT_THROW(write_word_tokenizer(dir_, std::vector<std::string>{"a b"}), UserError);
  EXPECT_THROW(write_word_tokenizer(dir_, std::vector<std::string>{""}), UserError);
  EXPECT_THROW(write_word_tokenizer(dir_, std::vector<std::string>{"<s>"}), UserError);
}

// Here a special token is a word, so it can be found or refused, but not be text.
TEST_F(WordTokenizer, ASpecialTokenThatMustNotBeFoundIsRefused) {
  write_word_tokenizer(dir_, std::vector<std::string>{"left"});
  auto tokenizer = load_tokenizer(dir_);
  EXPECT_EQ(tokenizer->encode("left </s>"), (Ids{3, 2}));
  EXPECT_EQ(tokenizer->encode("left", {.framed = true, .find_special = false}), (Ids{1, 3}));
  try {
    tokenizer->encode("left </s>", {.find_special = false});
    FAIL() << "no error";
  } catch (const UserError& e) {
    EXPECT_STREQ(e.what(),
                 "the text holds '</s>', which the vocabulary knows as a special token alone");
  }
}

TEST_F(WordTokenizer, AWordOutsideTheVocabularyIsNamed) {
  write_word_tokenizer(dir_, std::vector<std::string>{"left"});
  auto tokenizer = load_tokenizer(dir_);
  try {
    tokenizer->encode("left jump");
    FAIL() << "no error";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("the word 'jump' is not in the vocabulary"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace tailrace::text
