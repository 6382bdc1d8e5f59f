// Rows of preferences in the forms that people bring, with the tokenizer of MiniMind.
#include "cli/inputs/preference_rows.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/random.h"
#include "core/chat/chat_template.h"
#include "core/chat/options.h"
#include "core/chat/prompt_format.h"
#include "core/text/tokenizer.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
const fs::path kTokenizerFolder = fs::path(TAILRACE_SOURCE_DIR) / "tests/data/tokenizers/minimind";

class PreferenceRowsTest : public testing::Test {
 protected:
  PreferenceRowsTest() : tokenizer_(text::load_tokenizer(kTokenizerFolder)) {
    chat_.emplace(chat::PromptFormat::of({}, kTokenizerFolder, *tokenizer_));
    reading_ = {.format = &*chat_, .vocab_size = tokenizer_->vocab_size(), .max_tokens = 256};
  }
  PreferenceRows read(const std::string& text) {
    return read_preferences(folder_.write("rows.jsonl", text), form_, reading_);
  }
  std::string error_of(const std::string& text) {
    try {
      (void)read(text);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  void expect_error(const std::string& text, const std::string& part) {
    const std::string error = error_of(text);
    EXPECT_NE(error.find(part), std::string::npos) << text << "\n" << error;
  }
  std::string words(const std::vector<TokenId>& ids) const {
    return tokenizer_->decode(ids, /*keep_special=*/true);
  }

  TemporaryDirectory folder_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::optional<chat::PromptFormat> chat_;
  PreferenceForm form_;
  SftReading reading_;
};

std::string user(const std::string& content) {
  return R"({"role": "user", "content": ")" + content + "\"}";
}
std::string assistant(const std::string& content) {
  return R"({"role": "assistant", "content": ")" + content + "\"}";
}

constexpr const char* kTexts = R"({"prompt": "2 + 2?", "chosen": "4", "rejected": "5"})";
const std::string kIds = R"({"prompt_ids": [5, 6], "chosen_ids": [7, 2], "rejected_ids": [8, 2])";
constexpr const char* kLabelled = R"({"prompt": "2 + 2?", "completion": "4", "label": )";

TEST_F(PreferenceRowsTest, EachRowIsOfTheFormThatItsColumnsSay) {
  const std::string prompt = R"("prompt": [)" + user("2 + 2?") + "], ";
  const std::string whole = R"("chosen": [)" + user("2 + 2?") + "," + assistant("4") +
                            R"(], "rejected": [)" + user("2 + 2?") + "," + assistant("5") + "]";
  const PreferenceRows all = read(
      std::string(kTexts) + "\n{" + prompt + R"("chosen": [)" + assistant("4") +
      R"(], "rejected": [)" + assistant("5") + "]}\n{" + prompt +
      R"("chosen": "4", "rejected": "5", "source": "mixed", "completion": null})" + "\n" +
      R"({"prompt": "2 + 2?", "chosen": [)" + assistant("4") + R"(], "rejected": "5"})" + "\n{" +
      whole + "}\n" + R"({"prompt": "2 + 2?", )" + whole + "}\n" + kIds + R"(, "margin": 2})");
  ASSERT_EQ(all.rows.size(), 7u);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(all.rows[i], all.rows[0]) << i;
  EXPECT_EQ(words(all.rows[0].chosen), "4<|im_end|>");
  EXPECT_EQ(words(all.rows[0].rejected), "5<|im_end|>");
  EXPECT_NE(words(all.rows[0].prompt).find("2 + 2?<|im_end|>"), std::string::npos);
  EXPECT_EQ(all.rows[6],
            (PreferenceRow{.prompt = {5, 6}, .chosen = {7, 2}, .rejected = {8, 2}, .margin = 2}));
  EXPECT_EQ(all.tokens(), 6 * std::ssize(all.rows[0].prompt) + 6 * std::ssize(all.rows[0].chosen) +
                              6 * std::ssize(all.rows[0].rejected) + 6);
}

// The prompt of a row is the beginning of an episode, and a completion is an answer in it.
TEST_F(PreferenceRowsTest, HasTheTokensOfAnEpisode) {
  const PreferenceRow row = read(kTexts).rows.at(0);
  EXPECT_EQ(row.prompt, chat_->first({.text = "2 + 2?"}).value());
  EXPECT_EQ(row.chosen.back(), chat_->end_of_turn());
  const chat::Lesson lesson = chat_->lesson_of_texts("2 + 2?", "5").value();
  std::vector<TokenId> tokens = row.prompt;
  tokens.insert(tokens.end(), row.rejected.begin(), row.rejected.end());
  EXPECT_EQ(tokens, lesson.tokens);
}

TEST_F(PreferenceRowsTest, EarlierAnswersBelongToThePrompt) {
  const std::string talk = user("a") + "," + assistant("one") + "," + user("b") + ",";
  const PreferenceRow row = read(R"({"chosen": [)" + talk + assistant("two") +
                                 R"(], "rejected": [)" + talk + assistant("three") + "]}")
                                .rows.at(0);
  EXPECT_EQ(words(row.chosen), "two<|im_end|>");
  EXPECT_EQ(words(row.rejected), "three<|im_end|>");
  EXPECT_NE(words(row.prompt).find("one<|im_end|>"), std::string::npos);
}

TEST_F(PreferenceRowsTest, WithoutATemplateTextsStandAsTheyAre) {
  chat_.emplace(*tokenizer_);
  const PreferenceRow row = read(kTexts).rows.at(0);
  EXPECT_EQ(words(row.prompt), "2 + 2?");
  EXPECT_EQ(row.chosen.back(), tokenizer_->eos());
  expect_error(R"({"prompt": [)" + user("a") + R"(], "chosen": "b", "rejected": "c"})",
               ":1: \"chosen\": it is a list of messages, which only a chat template can write");
  expect_error(
      R"({"prompt": "a", "chosen": "b", "rejected": "c", "tools": [{"type": "function"}]})",
      ":1: \"tools\" are written by a chat template");
  expect_error(R"({"prompt": "", "chosen": "b", "rejected": "c"})", ":1: \"prompt\" is empty");
}

TEST_F(PreferenceRowsTest, ToolsGoToTheTemplateAndNullsAreCounted) {
  const auto row = [](const std::string& tool) {
    return R"({"prompt": "a", "chosen": "b", "rejected": "c", "tools": [{"type": "function", )"
           R"("function": {"name": "get_weather", "parameters": {"type": "object", )"
           R"("properties": {"city": )" +
           tool + "}}}}]}";
  };
  const PreferenceRows bare = read(row(R"({"type": "string"})"));
  EXPECT_NE(words(bare.rows.at(0).prompt).find("get_weather"), std::string::npos);
  const PreferenceRows padded = read(row(R"({"type": "string", "enum": null})"));
  EXPECT_EQ(padded.nulls, 1);
  EXPECT_EQ(padded.rows, bare.rows);
}

TEST_F(PreferenceRowsTest, MarginsAreOfPairs) {
  const std::string pair = R"({"prompt": "a", "chosen": "b", "rejected": "c", "margin": )";
  EXPECT_EQ(read(pair + "0.5}").rows.at(0).margin, 0.5);
  EXPECT_EQ(read(pair + "null}").rows.at(0).margin, 0);
  expect_error(pair + "\"x\"}", "rows.jsonl:1: \"margin\" is \"x\"; it must be a finite number");
}

TEST_F(PreferenceRowsTest, UnpairedRowsHaveTheirLabels) {
  form_.paired = false;
  const std::string good = kLabelled;
  const PreferenceRows all =
      read(good + "true}\n" + R"({"prompt": [)" + user("2 + 2?") + R"(], "completion": [)" +
           assistant("5") + R"(], "label": 0})" + "\n" +
           R"({"prompt_ids": [5], "completion_ids": [6], "label": false})");
  ASSERT_EQ(all.rows.size(), 3u);
  EXPECT_EQ(words(all.rows[0].chosen), "4<|im_end|>");
  EXPECT_EQ(words(all.rows[1].chosen), "5<|im_end|>");
  EXPECT_EQ(all.rows[0].prompt, all.rows[1].prompt);
  EXPECT_TRUE(all.rows[0].desirable);
  for (size_t i = 1; i < 3; ++i) EXPECT_FALSE(all.rows[i].desirable) << i;
  for (const PreferenceRow& row : all.rows) EXPECT_FALSE(row.is_pair());
  expect_error(good + "\"yes\"}", ":1: \"label\" is \"yes\"; it must be true or false");
  expect_error(good + "null}", ":1: \"label\" is missing");
  expect_error(R"({"completion": "4", "label": true})",
               ":1: the row has completion, label, and no \"prompt\"");
  expect_error(good + "true}\n" + good + "true}\n",
               "rows.jsonl: every label is true; loss kto needs rows of both, true and false");
  expect_error(good + "false}\n", "every label is false");
}

TEST_F(PreferenceRowsTest, APairIsTwoUnpairedRows) {
  const PreferenceRow pair = read(kTexts).rows.at(0);
  form_.paired = false;
  const PreferenceRows all = read(std::string(kTexts) + "\n" + kIds + R"(, "margin": 2})");
  ASSERT_EQ(all.rows.size(), 4u);
  EXPECT_EQ(all.rows[0],
            (PreferenceRow{.prompt = pair.prompt, .chosen = pair.chosen, .rejected = {}}));
  EXPECT_EQ(
      all.rows[1],
      (PreferenceRow{
          .prompt = pair.prompt, .chosen = pair.rejected, .rejected = {}, .desirable = false}));
  EXPECT_EQ(
      all.rows[3],
      (PreferenceRow{.prompt = {5, 6}, .chosen = {8, 2}, .rejected = {}, .desirable = false}));
}

TEST_F(PreferenceRowsTest, PairsTakeNoUnpairedRow) {
  for (const std::string& row : {std::string(kLabelled) + "true}",
                                 std::string(R"({"prompt_ids": [5], "completion_ids": [6]})")})
    expect_error(std::string(kTexts) + "\n" + row, "with loss kto takes such rows");
  EXPECT_EQ(error_of(std::string(kLabelled) + "true}").find('\n'), std::string::npos);
}

TEST_F(PreferenceRowsTest, ColumnsMayHaveOtherNames) {
  form_.columns = {{"prompt", "question"}, {"chosen", "answers.good"}, {"rejected", "answers.bad"}};
  const PreferenceRow row =
      read(R"({"question": "2 + 2?", "answers": {"good": "4", "bad": "5"}})").rows.at(0);
  form_.columns.clear();
  EXPECT_EQ(row, read(kTexts).rows.at(0));
}

TEST_F(PreferenceRowsTest, ARowOfNoFormIsToldTheForms) {
  const std::string error = error_of(std::string(kTexts) + "\n{\"question\": \"a\"}\n");
  EXPECT_NE(error.find("rows.jsonl:2: the row has question; a row is one of"), std::string::npos)
      << error;
  for (const char* form :
       {"\"chosen\": ", "\"label\": true", "\"prompt_ids\": [", "preference.columns says"})
    EXPECT_NE(error.find(form), std::string::npos) << error;
  expect_error(R"({"prompt": "a", "chosen": "b"})",
               ":1: the row has prompt, chosen, and no \"rejected\"");
  expect_error(R"({"prompt": "a", "rejected": "b"})", "and no \"chosen\"");
  expect_error("{\"prompt\"", ":1: the line is not valid JSON");
  expect_error("", "rows.jsonl: the file has no row; there is nothing to learn");
  expect_error(R"({"prompt_ids": [99999999], "chosen_ids": [1], "rejected_ids": [2]})",
               ":1: prompt_ids holds 99999999");
  expect_error(R"({"prompt": 3, "chosen": "b", "rejected": "c"})",
               ":1: \"prompt\" is not a list of messages");
  expect_error(R"({"prompt": "a", "chosen": [1], "rejected": "c"})",
               ":1: \"chosen\" is not a list of messages");
  expect_error(R"({"prompt": "a", "chosen": "b", "rejected": "c", "completion": "d"})",
               ":1: the row has \"chosen\" and \"rejected\", and \"completion\"; it may have one");
  expect_error(kIds + R"(, "chosen": "b", "rejected": "c"})", "it may have one of these forms");
  // Only token ids without a tokenizer.
  reading_.format = nullptr;
  expect_error(kTexts, ":1: there is no \"prompt_ids\"");
  EXPECT_EQ(read(kIds + "}").rows.size(), 1u);
}

TEST_F(PreferenceRowsTest, TextsNeedTheirPrompt) {
  expect_error(R"({"chosen": "Human: a Assistant: b", "rejected": "Human: a Assistant: c"})",
               ":1: there is no \"prompt\", and of texts nothing says where it ends; write "
               "{\"prompt\": \"...\", \"chosen\": \"...\", \"rejected\": \"...\"}");
}

TEST_F(PreferenceRowsTest, ConversationsThatDoNotShareTheirPromptAreRefused) {
  const auto row = [](const std::string& chosen, const std::string& rejected) {
    return R"({"chosen": [)" + chosen + R"(], "rejected": [)" + rejected + "]}";
  };
  const std::string a = user("a"), x = assistant("x"), y = assistant("y");
  expect_error(row(a + "," + x, user("b") + "," + x), "begin with different messages");
  expect_error(row(a + "," + x, a + "," + x), ":1: \"chosen\" and \"rejected\" are equal");
  expect_error(row(a + "," + x, a), ":1: \"rejected\" is empty; it must be an answer");
  expect_error(row(a + "," + x + "," + user("b") + "," + x, a + "," + y),
               ":1: \"chosen\" has 3 messages behind the prompt");
  expect_error(row(a + "," + user("b"), a + "," + y),
               ":1: \"chosen\" begins with a message of role \"user\"");
  expect_error(R"({"prompt": "other", "chosen": [)" + a + "," + x + R"(], "rejected": [)" + a +
                   "," + y + "]}",
               ":1: \"prompt\" is a text that no message says");
  // A prompt that stands in the completions as well would be written twice.
  expect_error(R"({"prompt": [)" + a + R"(], "chosen": [)" + a + "," + x + R"(], "rejected": [)" +
                   a + "," + y + "]}",
               ":1: \"chosen\" begins with a message of role \"user\"");
}

TEST_F(PreferenceRowsTest, EmptyAndEqualCompletionsAreRefused) {
  expect_error(R"({"prompt": "a", "chosen": "", "rejected": "c"})", ":1: \"chosen\" is empty");
  for (const char* content : {R"("content": "")", R"("content": null)", R"("content": [])",
                              R"("content": "", "id": "7")"})
    EXPECT_NE(error_of(R"({"prompt": "a", "chosen": "b", "rejected": [{"role": "assistant", )" +
                       std::string(content) + "}]}")
                  .find(":1: \"rejected\""),
              std::string::npos)
        << content;
  expect_error(std::string(kTexts) + "\n" + R"({"prompt": "a", "chosen": "b", "rejected": "b"})",
               "rows.jsonl:2: \"chosen\" and \"rejected\" are equal: the row prefers neither");
  expect_error(R"({"prompt": "a", "chosen": "b", "rejected": [)" + assistant("b") + "]}",
               ":1: \"chosen\" and \"rejected\" are equal");
  expect_error(R"({"prompt": "a", "chosen": "b", "rejected": [{"role": "assistant", )"
               R"("content": "c", "weight": 0}]})",
               ":1: \"rejected\": a flag of the answer says that it does not count");
  form_.paired = false;
  expect_error(R"({"prompt": "a", "completion": "", "label": true})",
               ":1: \"completion\" is empty");
}

// The template writes the third answer differently where it sees the whole history, which is
// rendered if the fourth answer needs it.
TEST_F(PreferenceRowsTest, APromptThatDependsOnTheAnswerIsRefused) {
  chat_.emplace(*tokenizer_,
                chat::ChatTemplate::parse(
                    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
                    "{% if loop.index > 5 and 'long' in m.content %}!{% endif %}<|im_end|>\n"
                    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
                    "t.jinja"),
                chat::ChatOptions{});
  std::string prompt;
  for (const char* answer : {"one", "two", "a long one"})
    prompt += user("a") + "," + assistant(answer) + ",";
  expect_error(R"({"prompt": [)" + prompt + user("b") + R"(], "chosen": "a long answer", )" +
                   R"("rejected": "a short one"})",
               ":1: the chat template writes the prompt differently");
}

TEST_F(PreferenceRowsTest, ARowThatIsTooLongIsRefusedDroppedOrCut) {
  const std::string text =
      "{\"prompt_ids\": [1, 2], \"chosen_ids\": [3, 4], \"rejected_ids\": [5]}\n"
      "{\"prompt_ids\": [1, 2], \"chosen_ids\": [3], \"rejected_ids\": [4, 5, 6]}\n"
      "{\"prompt_ids\": [1, 2], \"chosen_ids\": [3, 4, 5], \"rejected_ids\": [3, 4, 6]}\n"
      "{\"prompt_ids\": [1, 2, 3, 4], \"chosen_ids\": [3], \"rejected_ids\": [4]}\n";
  reading_.max_tokens = 4;
  const std::string error = error_of(text);
  for (const char* part :
       {"3 of 4 rows are too long", "rows.jsonl:2: 5 tokens", "rows.jsonl:3: 5 tokens",
        "rows.jsonl:4: 5 tokens", "try preference.too_long=drop, or cut"})
    EXPECT_NE(error.find(part), std::string::npos) << error;
  form_.too_long = TooLong::kDrop;
  const PreferenceRows dropped = read(text);
  EXPECT_EQ(dropped.too_long, (std::vector<LongRow>{{2, 5}, {3, 5}, {4, 5}}));
  EXPECT_EQ(dropped.rows.size(), 1u);
  EXPECT_EQ(dropped.dropped, 3);
  EXPECT_EQ(dropped.cut, 0);
  form_.too_long = TooLong::kCut;
  const PreferenceRows cut = read(text);
  ASSERT_EQ(cut.rows.size(), 2u);
  EXPECT_EQ(cut.rows[1], (PreferenceRow{.prompt = {1, 2}, .chosen = {3}, .rejected = {4, 5}}));
  EXPECT_EQ(cut.cut, 1);
  EXPECT_EQ(cut.dropped, 2) << "the completions of one are equal now, and of the other empty";
  reading_.max_tokens = 2;
  expect_error(text,
               "no row is left; there is nothing to learn (4 rows were too long and dropped)");
  // Half of a pair that is too long is not learned by itself.
  reading_.max_tokens = 4;
  form_ = {.too_long = TooLong::kDrop, .paired = false};
  EXPECT_EQ(read(text).rows.size(), 2u);
}

TEST_F(PreferenceRowsTest, WhatIsWrittenIsWhatTheTrainerReads) {
  const std::string text = std::string(kTexts) + "\n" + kIds + R"(, "margin": 0.25})";
  for (const bool paired : {true, false}) {
    form_.paired = paired;
    const PreferenceRows all = read(text);
    std::string lines;
    for (const PreferenceRow& row : all.rows) lines += format_preference_row(row);
    EXPECT_EQ(read_preference_rows(folder_.write("out.jsonl", lines), reading_.vocab_size, 256),
              all.rows);
  }
}

// Columns of each form get values of other kinds at random: a row is read or told with its line.
TEST_F(PreferenceRowsTest, RandomRowsAreReadOrRefused) {
  const std::string talk = "[" + user("a") + ",";
  using Columns = std::vector<std::pair<std::string, std::string>>;
  const std::vector<Columns> forms = {
      {{"prompt", "\"a\""}, {"chosen", "\"b\""}, {"rejected", "\"c\""}, {"margin", "1"}},
      {{"chosen", talk + assistant("b") + "]"}, {"rejected", talk + assistant("c") + "]"}},
      {{"prompt", "\"a\""}, {"completion", "\"b\""}, {"label", "true"}},
      {{"prompt_ids", "[1]"}, {"chosen_ids", "[2]"}, {"rejected_ids", "[3]"}},
      {{"prompt_ids", "[1]"}, {"completion_ids", "[2]"}, {"label", "false"}}};
  const std::vector<std::string> values = {"null",
                                           "true",
                                           "0",
                                           "-1.5",
                                           "\"\"",
                                           "\"a\"",
                                           "[]",
                                           "[1, 2]",
                                           "{}",
                                           "[null]",
                                           "[" + user("a") + "]",
                                           "[" + assistant("b") + "]",
                                           talk + assistant("d") + "]",
                                           R"([{"role": 1}])",
                                           R"([{"role": "assistant"}])",
                                           R"([{"role": "b", "content": {}}])"};
  const auto any = [](Rng & rng, const auto& of) -> const auto& {
    return of[static_cast<size_t>(rng.below(std::ssize(of)))];
  };
  Rng rng(11);
  int taken = 0, refused = 0;
  for (int i = 0; i < 1000; ++i) {
    Columns columns = any(rng, forms);
    for (auto& [name, value] : columns)
      if (rng.chance(0.3)) value = any(rng, values);
    if (rng.chance(0.1)) columns.emplace_back("tools", any(rng, values));
    std::string row;
    for (const auto& [name, value] : columns)
      row += (row.empty() ? "\"" : ", \"") + name + "\": " + value;
    form_.paired = rng.chance(0.5);
    try {
      // The second one has both labels.
      for (const PreferenceRow& made : read("{" + row + "}\n" + kTexts).rows) {
        EXPECT_FALSE(made.prompt.empty() || made.chosen.empty()) << row;
        EXPECT_EQ(made.is_pair(), form_.paired) << row;
        EXPECT_NE(made.chosen, made.rejected) << row;
      }
      ++taken;
    } catch (const UserError& error) {
      ++refused;
      EXPECT_NE(std::string(error.what()).find("rows.jsonl:1: "), std::string::npos)
          << error.what();
    }
  }
  EXPECT_GT(taken, 200);
  EXPECT_GT(refused, 200);
}

// docs/data.md: the rows below "Rows of preferences".
TEST_F(PreferenceRowsTest, ReadsTheRowsOfItsPage) {
  const std::string page = read_file(fs::path(TAILRACE_SOURCE_DIR) / "docs/data.md").value();
  const std::string fence = "```json\n";
  const auto block = [&](size_t number) {
    size_t begin = page.find("## Rows of preferences");
    for (size_t i = 0; i <= number; ++i) begin = page.find(fence, begin) + fence.size();
    return page.substr(begin, page.find("```", begin) - begin);
  };
  const PreferenceRows pairs = read(block(0));
  ASSERT_EQ(pairs.rows.size(), 4u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(pairs.rows[i], pairs.rows[0]) << i;
  form_.paired = false;
  const PreferenceRows unpaired = read(block(1));
  ASSERT_EQ(unpaired.rows.size(), 3u);
  EXPECT_EQ(words(unpaired.rows[0].chosen), "4<|im_end|>");
}

}  // namespace
}  // namespace tailrace
