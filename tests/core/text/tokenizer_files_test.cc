#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/text/tokenizer.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace::text {
namespace {

TEST(CheckVocabulary, RefusesATokenizerWithMoreIdsThanTheModelHasEmbeddings) {
  TemporaryDirectory folder;
  write_word_tokenizer(folder.path(), std::vector<std::string>{"left", "right"});
  auto tokenizer = load_tokenizer(folder.path());
  check_vocabulary(*tokenizer, kFirstWord + 2, "here");
  check_vocabulary(*tokenizer, 100, "here");  // padded embeddings
  try {
    check_vocabulary(*tokenizer, kFirstWord + 1, "here");
    FAIL() << "no error";
  } catch (const UserError& e) {
    EXPECT_EQ(std::string(e.what()),
              "here: the tokenizer has 5 tokens, and the model's vocab_size is 4. They belong to "
              "different models.\n       Try the tokenizer that was saved with this model.");
  }
}

TEST(CopyTokenizer, TakesWhatBelongsToTheTokenizerAndNothingElse) {
  TemporaryDirectory from, to;
  write_word_tokenizer(from.path(), std::vector<std::string>{"left"});
  from.write("generation_config.json", "{}");
  from.write("model.safetensors", "weights");
  copy_tokenizer(from.path(), to.path());
  EXPECT_EQ(load_tokenizer(to.path())->vocab_size(), kFirstWord + 1);
  EXPECT_EQ(load_tokenizer(to.path())->eos(), kEosWord);
  EXPECT_EQ(read_file(to / "generation_config.json").value(), "{}");
  EXPECT_FALSE(std::filesystem::exists(to / "model.safetensors"));
}

TEST(CopyTokenizer, TokenizerJsonComesLast) {
  TemporaryDirectory from, to;
  write_word_tokenizer(from.path(), std::vector<std::string>{"left"});
  // A file that cannot take its place stands for a crash in between.
  std::filesystem::create_directories(to / "tokenizer_config.json" / "in the way");
  EXPECT_THROW(copy_tokenizer(from.path(), to.path()), UserError);
  EXPECT_FALSE(std::filesystem::exists(to / "tokenizer.json"));
}

}  // namespace
}  // namespace tailrace::text
