// Supervised rows in the forms that people bring, with the tokenizer of MiniMind.
#include "cli/inputs/sft_rows.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
const fs::path kMiniMind = fs::path(TAILRACE_SOURCE_DIR) / "tests/data/tokenizers/minimind";

class SftRowsTest : public testing::Test {
 protected:
  SftRowsTest() : tokenizer_(text::load_tokenizer(kMiniMind)) {
    chat_.emplace(chat::PromptFormat::of({}, kMiniMind, *tokenizer_));
    reading_ = {.format = &*chat_, .vocab_size = tokenizer_->vocab_size(), .max_tokens = 256};
  }
  SftRows read(const std::string& text) {
    return read_supervised(folder_.write("rows.jsonl", text), options_, reading_);
  }
  std::string error_of(const std::string& text) {
    try {
      (void)read(text);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  // The tokens that count.
  std::string learned(const SftRow& row) const {
    std::vector<TokenId> ids;
    for (const int32_t target : row.targets) ids.push_back(row.tokens[static_cast<size_t>(target)]);
    return tokenizer_->decode(ids, /*keep_special=*/true);
  }

  TemporaryDirectory folder_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::optional<chat::PromptFormat> chat_;
  SftOptions options_;
  SftReading reading_;
};

constexpr const char* kMessages =
    R"({"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]})";

TEST_F(SftRowsTest, EachRowIsOfTheFormThatItsColumnsSay) {
  const std::string forms =
      std::string(kMessages) + "\n" + R"({"prompt": "2 + 2?", "completion": "4"}
{"prompt": [{"role": "user", "content": "2 + 2?"}], "completion": [{"role": "assistant", "content": "4"}]}
{"prompt": [{"role": "user", "content": "2 + 2?"}], "completion": "4", "source": "mixed"}
{"input_ids": null, "messages": "[{\"role\": \"user\", \"content\": \"2 + 2?\"}, {\"role\": \"assistant\", \"content\": \"4\"}]"}
)";
  const SftRows all = read(forms + R"({"input_ids": [5, 6, 7], "loss_mask": [0, 0, 1]})");
  ASSERT_EQ(all.rows.size(), 6u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(all.rows[i].tokens, all.rows[0].tokens) << i;
    EXPECT_EQ(learned(all.rows[i]), "4<|im_end|>") << i;
  }
  EXPECT_EQ(all.rows[5].targets, std::vector<int32_t>{2});
}

TEST_F(SftRowsTest, AllAnswersOfMessagesCountAndOfAPromptNone) {
  const std::string talk =
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "one"},
          {"role": "user", "content": "b"})";
  std::string line = R"({"messages": )" + talk + R"(, {"role": "assistant", "content": "two"}]})";
  std::erase(line, '\n');
  EXPECT_EQ(learned(read(line).rows.at(0)), "one<|im_end|>two<|im_end|>");
  line = R"({"prompt": )" + talk + R"(], "completion": [{"role": "assistant", "content": "two"}]})";
  std::erase(line, '\n');
  EXPECT_EQ(learned(read(line).rows.at(0)), "two<|im_end|>");
}

TEST_F(SftRowsTest, WhatAMessageSaysIsText) {
  const auto talk = [](const std::string& content) {
    return R"({"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": )" +
           content + "}]}\n";
  };
  EXPECT_EQ(learned(read(talk(R"([{"type": "text", "text": "4"}])")).rows.at(0)), "4<|im_end|>");
  EXPECT_NE(error_of(talk("\"4\"") + talk("null"))
                .find("rows.jsonl:2: \"messages\": message 2 (assistant) has no content"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"prompt": [{"role": "user", "content": {"a": 1}}], "completion": "4"})")
                .find(":1: \"prompt\": the content of message 1 (user) is {\"a\":1}; it must be"),
            std::string::npos);
}

// As ms-swift, axolotl, Tinker and torchtune say which answers are left out.
TEST_F(SftRowsTest, AnAnswerThatAFlagLeavesOutIsNotLearned) {
  const auto talk = [](const std::string& bad, const std::string& good) {
    return R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "BAD")" + bad +
           R"(}, {"role": "user", "content": "b"}, {"role": "assistant", "content": "good")" +
           good + "}]";
  };
  const auto row = [&](const std::string& bad, const std::string& good) {
    return R"({"messages": )" + talk(bad, good) + "}\n";
  };
  const std::string whole = learned(read(row("", "")).rows.at(0));
  EXPECT_EQ(whole, "BAD<|im_end|>good<|im_end|>");
  for (const auto& [bad, good] : {std::pair{R"(, "loss": false)", R"(, "loss": true)"},
                                  {R"(, "train": false)", ""},
                                  {R"(, "training": false)", ""},
                                  {R"(, "trainable": false)", R"(, "trainable": true)"},
                                  {R"(, "loss_scale": 0.0)", R"(, "loss_scale": 1.0)"},
                                  {R"(, "masked": true)", R"(, "masked": false)"},
                                  {R"(, "weight": 0)", R"(, "weight": null)"}}) {
    EXPECT_EQ(learned(read(row(bad, good)).rows.at(0)), "good<|im_end|>") << bad;
    const std::string pair =
        R"({"prompt": "a", "completion": [{"role": "assistant", "content": "x")" +
        std::string(bad) + "}]}\n";
    EXPECT_NE(error_of(pair).find("nothing to learn"), std::string::npos) << error_of(pair);
  }
  EXPECT_NE(error_of(row("", "") + row(R"(, "train_detail": [])", ""))
                .find("rows.jsonl:2: message 2 has \"train_detail\", which is not read"),
            std::string::npos);
  for (const char* mask : {"loss_mask", "completion_mask", "assistant_masks"})
    EXPECT_NE(error_of(R"({"messages": )" + talk("", "") + ", \"" + mask + "\": [0, 1]}")
                  .find(std::string(":1: \"") + mask + "\" goes with \"input_ids\""),
              std::string::npos);
}

// Parquet gives each call the keys of all calls, and each schema those of all schemas.
TEST_F(SftRowsTest, KeysThatAreNullInArgumentsAreLeftOutAndCounted) {
  const auto row = [](const std::string& arguments, const std::string& parameter) {
    return R"({"messages": [{"role": "user", "content": "a", "tool_calls": null}, )"
           R"({"role": "assistant", "content": "", "tool_calls": [{"type": "function", )"
           R"("function": {"name": "f", "arguments": )" +
           arguments +
           R"(}}]}], "tools": [{"type": "function", "function": {"name": "f", "parameters": )"
           R"({"type": "object", "properties": {"city": )" +
           parameter + "}}}}]}\n";
  };
  const SftRows bare = read(row(R"({"city": "A", "at": {"x": [{"y": 1}]}})", R"({"type": "s"})"));
  EXPECT_EQ(bare.nulls, 0);
  EXPECT_EQ(nulls_note(bare.nulls), "");
  const SftRows padded =
      read(row(R"({"city": "A", "b": null, "at": {"z": null, "x": [{"y": 1, "w": null}]}})",
               R"({"type": "s", "enum": null})"));
  EXPECT_EQ(padded.nulls, 4);
  EXPECT_EQ(nulls_note(4), "4 keys that are null in arguments or tools are left out");
  EXPECT_EQ(padded.rows.at(0).tokens, bare.rows.at(0).tokens);
  EXPECT_EQ(learned(padded.rows.at(0)).find("null"), std::string::npos);
  // A text says what it says, and the elements of a list are no keys.
  const std::string text = R"("{\"city\": \"A\", \"b\": null}")";
  EXPECT_EQ(read(row(text, R"({"type": "s"})")).nulls, 0);
  const SftRows list = read(row(R"({"city": [null, 1]})", R"({"type": "s"})"));
  EXPECT_EQ(list.nulls, 0);
  EXPECT_NE(learned(list.rows.at(0)).find("null"), std::string::npos);
}

TEST_F(SftRowsTest, MasksOfOtherNamesAreRead) {
  options_.columns = {{"loss_mask", "answer_mask"}};
  EXPECT_EQ(read(R"({"input_ids": [5, 6, 7], "answer_mask": [0, 0, 1]})").rows.at(0).targets,
            std::vector<int32_t>{2});
  options_.columns.clear();
  EXPECT_NE(error_of(R"({"input_ids": [5, 6, 7], "answer_mask": [0, 0, 1]})")
                .find(":1: the mask \"answer_mask\" is not known"),
            std::string::npos);
}

TEST_F(SftRowsTest, ColumnsMayHaveOtherNames) {
  options_.columns = {{"prompt", "question"}, {"completion", "output.text"}};
  const SftRows all = read(R"({"question": "2 + 2?", "output": {"text": "4"}})");
  EXPECT_EQ(learned(all.rows.at(0)), "4<|im_end|>");
}

TEST_F(SftRowsTest, ARowOfNoFormIsToldTheForms) {
  const std::string error = error_of(std::string(kMessages) + "\n{\"question\": \"a\"}\n");
  EXPECT_NE(error.find("rows.jsonl:2: the row has question; a row is one of"), std::string::npos)
      << error;
  for (const char* form :
       {"\"messages\": [", "\"completion\": ", "\"loss_mask\": [", "sft.columns"})
    EXPECT_NE(error.find(form), std::string::npos) << error;
  EXPECT_NE(error_of(R"({"messages": [1]})").find(":1: \"messages\" is not a list of messages"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"messages": [{"role": "user", "content": "a"}]})")
                .find(":1: there is no answer of the assistant"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"input_ids": [99999999]})").find(":1: input_ids holds 99999999"),
            std::string::npos);
  EXPECT_NE(error_of("{\"prompt\"").find(":1: the line is not valid JSON"), std::string::npos);
  EXPECT_NE(error_of(R"({"input_ids": [1, 2], "loss_mask": [1, 0]})").find("nothing to learn"),
            std::string::npos);
  // Only token ids without a tokenizer.
  reading_.format = nullptr;
  EXPECT_NE(error_of(kMessages).find(":1: there is no \"input_ids\""), std::string::npos);
  EXPECT_EQ(read(R"({"input_ids": [1, 2]})").rows.size(), 1u);
}

TEST_F(SftRowsTest, ARowOfTwoFormsIsRefused) {
  const std::string pair = R"("prompt": "2 + 2?", "completion": "4")",
                    ids = R"("input_ids": [5, 6])",
                    messages = std::string(kMessages).substr(1, std::string(kMessages).size() - 2);
  EXPECT_NE(error_of(std::string(kMessages) + "\n{" + pair + ", " + ids + "}\n")
                .find("rows.jsonl:2: the row has \"input_ids\", and \"prompt\" and "
                      "\"completion\"; it may have one of these forms"),
            std::string::npos);
  for (const std::string& row : {messages + ", " + ids, messages + ", " + pair})
    EXPECT_NE(error_of("{" + row + "}").find(":1: the row has "), std::string::npos) << row;
  // No form by itself.
  EXPECT_EQ(error_of("{" + messages + R"(, "prompt": "a"})"), "");
  EXPECT_EQ(error_of("{" + ids + R"(, "prompt": "a", "messages": null})"), "");
}

TEST_F(SftRowsTest, CallsThatAreNoCallsAreToldWithTheirLine) {
  const auto talk = [](const std::string& call) {
    return R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", )"
           R"("tool_calls": [)" +
           call + "]}]}\n";
  };
  for (const char* call : {"null", R"({"function": {"name": "f", "arguments": null}})",
                           R"({"function": {"name": "f", "arguments": ["a"]}})"})
    EXPECT_NE(error_of(std::string(kMessages) + "\n" + talk(call))
                  .find("rows.jsonl:2: \"messages\": message 2 (assistant): its call 1 is "),
              std::string::npos)
        << call;
}

TEST_F(SftRowsTest, ARowThatIsTooLongIsRefusedDroppedOrCut) {
  const std::string text =
      "{\"input_ids\": [1, 2, 3], \"loss_mask\": [0, 1, 1]}\n"
      "{\"input_ids\": [1, 2, 3, 4, 5]}\n"
      "{\"input_ids\": [1, 2, 3, 4, 5], \"loss_mask\": [0, 0, 0, 0, 1]}\n";
  reading_.max_tokens = 4;
  EXPECT_NE(error_of(text).find("rows.jsonl:2: 5 tokens"), std::string::npos) << error_of(text);
  // All of them at once.
  EXPECT_NE(error_of(text).find("2 of 3 rows are too long"), std::string::npos) << error_of(text);
  EXPECT_NE(error_of(text).find("rows.jsonl:3: 5 tokens"), std::string::npos) << error_of(text);
  EXPECT_NE(error_of("{\"input_ids\": [1, 2, 3, 4, 5]}\n")
                .find("rows.jsonl:1: the row has 5 tokens; the context holds 4"),
            std::string::npos);
  options_.too_long = TooLong::kDrop;
  const SftRows dropped = read(text);
  EXPECT_EQ(dropped.too_long, (std::vector<LongRow>{{2, 5}, {3, 5}}));
  EXPECT_EQ(dropped.rows.size(), 1u);
  EXPECT_EQ(dropped.dropped, 2);
  options_.too_long = TooLong::kCut;
  const SftRows cut = read(text);
  ASSERT_EQ(cut.rows.size(), 2u);
  EXPECT_EQ(cut.rows[1].tokens, (std::vector<TokenId>{1, 2, 3, 4}));
  EXPECT_EQ(cut.rows[1].targets, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(cut.cut, 1);
  EXPECT_EQ(cut.dropped, 1) << "nothing that counts was left";
}

TEST_F(SftRowsTest, WhatIsWrittenIsWhatTheTrainerReads) {
  const SftRows all = read(std::string(kMessages) + "\n{\"input_ids\": [5, 6, 7]}\n");
  std::string lines;
  for (const SftRow& row : all.rows) lines += format_sft_row(row);
  const auto rows = read_sft_rows(folder_.write("out.jsonl", lines), reading_.vocab_size, 256);
  ASSERT_EQ(rows.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(rows[i].tokens, all.rows[i].tokens);
    EXPECT_EQ(rows[i].targets, all.rows[i].targets);
  }
}

// docs/data.md: the rows below "Supervised rows".
TEST_F(SftRowsTest, ReadsTheRowsOfItsPage) {
  const std::string page = read_file(fs::path(TAILRACE_SOURCE_DIR) / "docs/data.md").value();
  const std::string fence = "```json\n";
  const size_t begin = page.find(fence, page.find("## Supervised rows")) + fence.size();
  ASSERT_GT(begin, fence.size());
  const SftRows all = read(page.substr(begin, page.find("```", begin) - begin));
  ASSERT_EQ(all.rows.size(), 4u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(learned(all.rows[i]), "4<|im_end|>") << i;
}

}  // namespace
}  // namespace tailrace
