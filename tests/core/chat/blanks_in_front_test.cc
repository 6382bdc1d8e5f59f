// Tokenizers that put a blank in front of a text (SentencePiece's, as Metaspace or as the older
// Prepend), held against transformers' apply_chat_template(tokenize=True): a conversation that is
// encoded in pieces has no other blanks than its whole. tests/data/tokenizers/make_blank_vectors.py
// makes the vectors.
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/file.h"
#include "core/chat/prompt_format.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace::chat {
namespace {

using nlohmann::ordered_json;
using TokenIds = std::vector<TokenId>;

class BlanksInFront : public ::testing::TestWithParam<const char*> {
 protected:
  BlanksInFront() {
    const auto data = std::filesystem::path(TAILRACE_SOURCE_DIR) / "tests/data/tokenizers";
    ordered_json file = ordered_json::parse(read_file(data / "mistral/tokenizer.json").value());
    const std::string variant = GetParam();
    if (variant == "always") file["pre_tokenizer"]["prepend_scheme"] = "always";
    if (variant == "legacy") {
      file["pre_tokenizer"] = nullptr;
      file["normalizer"] = {
          {"type", "Sequence"},
          {"normalizers",
           {{{"type", "Prepend"}, {"prepend", "\u2581"}},
            {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}};
    }
    folder_.write("tokenizer.json", file.dump());
    folder_.write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
    tokenizer_ = text::load_tokenizer(folder_.path());
    vectors_ = ordered_json::parse(read_file(data / "blank_vectors.json").value());
  }

  PromptFormat format_of(const std::string& name) const {
    std::string source = vectors_.at("templates").at(name).get<std::string>();
    for (const auto& [token, text] : {std::pair{"bos_token", "<s>"}, {"eos_token", "</s>"}})
      source = "{% set " + std::string(token) + " = '" + text + "' %}" + source;
    return PromptFormat(*tokenizer_, ChatTemplate::parse(source, name), {});
  }

  TemporaryDirectory folder_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  ordered_json vectors_;
};
INSTANTIATE_TEST_SUITE_P(Tokenizers, BlanksInFront, ::testing::Values("first", "always", "legacy"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(BlanksInFront, PiecesHaveTheTokensOfTheWhole) {
  int num_checked = 0;
  for (const ordered_json& one : vectors_.at("cases")) {
    if (one.at("variant") != GetParam()) continue;
    SCOPED_TRACE(one.dump());
    const std::string name = one.at("template").get<std::string>();
    const PromptFormat format = format_of(name);
    ordered_json talk = ordered_json::array();
    for (const ordered_json& text : one.at("talk"))
      talk.push_back({{"role", talk.size() % 2 == 0 ? "user" : "assistant"}, {"content", text}});
    const TokenIds all = one.at("all").get<TokenIds>();
    const Lesson lesson = format.lesson(talk, "").value();
    if (name == "roles") {
      // Its answers begin behind a blank, which is a token by itself where a policy answers. The
      // text is the same, without another blank.
      const std::string text = tokenizer_->decode(lesson.tokens, true);
      EXPECT_EQ(text, tokenizer_->decode(all, true).substr(0, text.size()));
    } else {
      ASSERT_LE(lesson.tokens.size(), all.size());
      EXPECT_EQ(lesson.tokens, TokenIds(all.begin(), all.begin() + std::ssize(lesson.tokens)));
      EXPECT_LE(all.size() - lesson.tokens.size(), 2u);  // a newline behind the end of the turn
    }
    talk.erase(talk.size() - 1);
    EXPECT_EQ(format.first({.messages = talk.dump()}).value(), one.at("prompt").get<TokenIds>());
    // An episode: said, answered with the tokens of an answer, and said again.
    if (talk.size() == 3 && name != "roles") {
      TokenIds tokens =
          format
              .lesson(ordered_json::array(
                          {talk[0], {{"role", "assistant"}, {"content", one.at("talk").at(1)}}}),
                      "")
              .value()
              .tokens;
      const TokenIds more = format.next({.text = one.at("talk").at(2)}, tokens.back()).value();
      tokens.insert(tokens.end(), more.begin(), more.end());
      EXPECT_EQ(tokens, one.at("prompt").get<TokenIds>());
    }
    ++num_checked;
  }
  EXPECT_EQ(num_checked, 40);
}

}  // namespace
}  // namespace tailrace::chat
