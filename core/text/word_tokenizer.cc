#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_text.h"
#include "core/text/tokenizer.h"
#include "core/text/utf8.h"

namespace tailrace::text {

namespace {

using json = nlohmann::ordered_json;

void write_json(const std::filesystem::path& path, const json& value) {
  if (auto done = write_file_atomic(path, json_text(value, 1) + "\n"); !done) {
    throw UserError("{}", done.failure().message);
  }
}

// Encoding cuts at white space, so such a word would never be found again; a newline is cut out by
// itself.
void check_word(const std::string& word) {
  if (word.empty() || !is_utf8(word))
    throw UserError("'{}' cannot be a word of a vocabulary", word);
  if (word == "\n") return;
  for (size_t at = 0; at < word.size();) {
    if (is_white_space(next_code_point(word, at))) {
      throw UserError(
          "the word '{}' of the vocabulary holds white space; a newline may only stand alone",
          word);
    }
  }
}

json special_token(TokenId id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

}  // namespace

void write_word_tokenizer(const std::filesystem::path& directory,
                          std::span<const std::string> words) {
  // No unknown token: a word that an environment did not announce is an error to be told, not a
  // token to learn from.
  json vocabulary = {{"<pad>", kPadWord}, {"<s>", kBosWord}, {"</s>", kEosWord}};
  for (const std::string& word : words) {
    check_word(word);
    if (vocabulary.contains(word))
      throw UserError("the word '{}' is in the vocabulary twice", word);
    vocabulary[word] = vocabulary.size();
  }
  auto replace = [](const char* from, const char* to) {
    return json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  // The decoder's WordPiece (with a prefix that no word has) puts the blanks between words; then
  // those around a newline go again.
  json decoders = json::array({{{"type", "WordPiece"}, {"prefix", "\n\n"}, {"cleanup", false}},
                               {{"type", "Fuse"}},
                               replace(" \n", "\n"),
                               replace("\n ", "\n")});
  // A WordLevel of Hugging Face wants the name of an unknown token even where, as here, the
  // vocabulary has none: a strange word is then an error there as well.
  json tokenizer = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens",
       json::array({special_token(kPadWord, "<pad>"), special_token(kBosWord, "<s>"),
                    special_token(kEosWord, "</s>")})},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "Split"},
        {"pattern", {{"Regex", "\\n|[^\\s]+"}}},
        {"behavior", "Removed"},
        {"invert", true}}},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", json::array({{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                                {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}})},
        {"pair", json::array({{{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                              {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}})},
        {"special_tokens",
         {{"<s>",
           {{"id", "<s>"}, {"ids", json::array({kBosWord})}, {"tokens", json::array({"<s>"})}}}}}}},
      {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
      {"model", {{"type", "WordLevel"}, {"vocab", vocabulary}, {"unk_token", "<unk>"}}}};
  json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"bos_token", "<s>"},
                 {"eos_token", "</s>"},
                 {"pad_token", "<pad>"},
                 {"clean_up_tokenization_spaces", false}};
  std::error_code error;
  // A failure shows when the files are written.
  std::filesystem::create_directories(directory, error);
  // The one that a run looks for comes last: where it is, both are.
  write_json(directory / "tokenizer_config.json", config);
  write_json(directory / "tokenizer.json", tokenizer);
}

}  // namespace tailrace::text
