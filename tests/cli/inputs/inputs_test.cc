#include "cli/inputs/inputs.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

class Inputs : public testing::Test {
 protected:
  Inputs() {
    folder_.write("run/tokenizer/tokenizer.json", "{}");
    std::filesystem::create_directories(paths_.journal());
    options_.env.dataset = folder_.write("train.jsonl", "a").string();
  }
  // Key and message of what it refuses; empty: nothing.
  std::string prove() const {
    try {
      prove_inputs(paths_, resolve(options_));
    } catch (const UserError& error) {
      return error.key() + ": " + error.what();
    }
    return "";
  }

  TemporaryDirectory folder_;
  RunPaths paths_{folder_ / "run"};
  RunOptions options_;
};

TEST_F(Inputs, AFileThatHasChangedIsNamedWithItsKey) {
  EXPECT_EQ(prove(), "");
  EXPECT_EQ(prove(), "") << "nothing has changed";
  folder_.write("train.jsonl", "b");
  EXPECT_EQ(prove(), "env.dataset: " + options_.env.dataset +
                         ": it has changed since the run began, and a run keeps what it began "
                         "with. Put the file back, or start a new run directory.");
  folder_.write("train.jsonl", "a");
  EXPECT_EQ(prove(), "");
  folder_.write("run/tokenizer/tokenizer.json", "{ }");
  EXPECT_NE(prove().find("model.path: "), std::string::npos) << prove();
}

TEST_F(Inputs, EachDatasetHasADigest) {
  const auto file = [&](const char* name) { return folder_.write(name, "a").string(); };
  options_.datasets = {
      {.name = "a", .env = "text", .dataset = file("a.jsonl")},
      {.name = "b", .env = "text", .dataset = file("b.jsonl"), .eval_dataset = file("held.jsonl")}};
  options_.eval.prompts = 1;
  EXPECT_EQ(prove(), "");
  folder_.write("held.jsonl", "b");
  EXPECT_EQ(prove().find("datasets.b.eval_dataset: "), 0u) << prove();
  folder_.write("held.jsonl", "a");
  folder_.write("a.jsonl", "b");
  EXPECT_EQ(prove().find("datasets.a.dataset: "), 0u) << prove();
}

TEST_F(Inputs, ATokenizerKeepsItsFiles) {
  EXPECT_EQ(prove(), "");
  folder_.write("run/tokenizer/tokenizer_config.json", "{}");
  EXPECT_NE(prove().find("tokenizer_config.json: it was added"), std::string::npos) << prove();
  std::filesystem::remove(paths_.tokenizer() / "tokenizer_config.json");
  EXPECT_EQ(prove(), "");
  std::filesystem::remove(paths_.tokenizer() / "tokenizer.json");
  EXPECT_NE(prove().find("tokenizer.json: it is gone"), std::string::npos) << prove();
}

// It names tokens that end an answer, and is read whenever the run goes on.
TEST_F(Inputs, AGenerationConfigThatComesLaterIsNoticed) {
  options_.model.path = (folder_ / "model").string();
  folder_.write("model/config.json", "{}");
  EXPECT_EQ(prove(), "");
  folder_.write("model/generation_config.json", "{}");
  EXPECT_NE(prove().find("generation_config.json: it has changed"), std::string::npos) << prove();
}

TEST_F(Inputs, WhatIsReadLaterIsNotedThen) {
  options_.env.eval_dataset = folder_.write("eval.jsonl", "a").string();
  EXPECT_EQ(prove(), "");
  folder_.write("eval.jsonl", "b");
  EXPECT_EQ(prove(), "") << "nobody reads it";
  options_.eval.prompts = 1;
  EXPECT_EQ(prove(), "");
  folder_.write("eval.jsonl", "c");
  EXPECT_NE(prove(), "");
}

TEST_F(Inputs, NotesThatAreGoneOrDamagedAreNotWrittenAnew) {
  EXPECT_EQ(prove(), "");
  folder_.write("run/journal/journal-000001.log", "x");
  EXPECT_EQ(prove(), "");
  folder_.write("run/inputs.json", "{\"env.dataset\": \"0\"}");
  EXPECT_NE(prove().find("inputs.json: it was changed or damaged"), std::string::npos) << prove();
  std::filesystem::remove(paths_.inputs());
  EXPECT_NE(prove().find("inputs.json is gone"), std::string::npos) << prove();
}

}  // namespace
}  // namespace tailrace
