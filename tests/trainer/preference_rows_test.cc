#include "trainer/preference_rows.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

class PreferenceFile : public ::testing::Test {
 protected:
  std::vector<PreferenceRow> read(const std::string& text) {
    return read_preference_rows(dir_.write("rows.jsonl", text), /*vocab_size=*/19,
                                /*max_tokens=*/8);
  }
  void expect_refused(const std::string& text, const std::string& part) {
    try {
      (void)read(text);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const UserError& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }

  TemporaryDirectory dir_;
};

constexpr const char* kPairRow =
    "{\"prompt_ids\": [1, 2], \"chosen_ids\": [3, 4], \"rejected_ids\": [5]}\n";
constexpr const char* kUnpaired =
    "{\"prompt_ids\": [1, 2], \"completion_ids\": [3, 4], \"label\": true}\n";

TEST_F(PreferenceFile, ReadsPairsWithTheirMargins) {
  const std::vector<PreferenceRow> rows =
      read(std::string(kPairRow) + "\n" +
           "{\"prompt_ids\": [1], \"chosen_ids\": [3], \"rejected_ids\": [3, 0], \"margin\": -1, "
           "\"completion_ids\": null, \"extra\": {}}\r\n");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0], (PreferenceRow{.prompt = {1, 2}, .chosen = {3, 4}, .rejected = {5}}));
  EXPECT_EQ(rows[1],
            (PreferenceRow{.prompt = {1}, .chosen = {3}, .rejected = {3, 0}, .margin = -1}));
  EXPECT_TRUE(rows[0].is_pair());
  EXPECT_EQ(rows[0].sequence_tokens(), 4);
  EXPECT_EQ(rows[1].sequence_tokens(), 3);
}

TEST_F(PreferenceFile, ReadsUnpairedRowsWithTheirLabels) {
  const std::string row = "{\"prompt_ids\": [1], \"completion_ids\": [3], \"label\": ";
  const std::vector<PreferenceRow> rows =
      read(row + "true}\n" + row + "false}\n" + row + "1}\n" + row + "0}\n");
  ASSERT_EQ(rows.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_FALSE(rows[i].is_pair());
    EXPECT_EQ(rows[i].chosen, std::vector<TokenId>{3});
    EXPECT_EQ(rows[i].desirable, i % 2 == 0) << i;
  }
}

TEST_F(PreferenceFile, WhatIsWrittenIsReadAgain) {
  const std::vector<PreferenceRow> pairs = {
      {.prompt = {1, 2}, .chosen = {3, 4}, .rejected = {5}},
      {.prompt = {1}, .chosen = {3}, .rejected = {3, 0}, .margin = 0.1},
      {.prompt = {1}, .chosen = {3}, .rejected = {4}, .margin = -1e-300}};
  const std::vector<PreferenceRow> unpaired = {
      {.prompt = {1}, .chosen = {3}, .rejected = {}},
      {.prompt = {1}, .chosen = {3}, .rejected = {}, .desirable = false}};
  for (const auto& rows : {pairs, unpaired}) {
    std::string text;
    for (const PreferenceRow& row : rows) text += format_preference_row(row);
    EXPECT_EQ(read(text), rows) << text;
  }
  EXPECT_EQ(format_preference_row(pairs[1]),
            "{\"prompt_ids\":[1],\"chosen_ids\":[3],\"rejected_ids\":[3,0],\"margin\":0.1}\n");
  EXPECT_EQ(format_preference_row(unpaired[1]),
            "{\"prompt_ids\":[1],\"completion_ids\":[3],\"label\":false}\n");
}

TEST_F(PreferenceFile, MistakesAreNamedWithFileAndLine) {
  const std::string good = kPairRow;
  expect_refused(good + "{oops}\n", (dir_ / "rows.jsonl").string() + ":2: not valid JSON");
  expect_refused(good + "[1]\n", ":2: not a JSON object");
  expect_refused(good + "{\"prompt_ids\": [1]}\n", ":2: the row has no completion; a row is {");
  expect_refused("{\"chosen_ids\": [1], \"rejected_ids\": [2]}", ":1: \"prompt_ids\" is missing");
  expect_refused("{\"prompt_ids\": [1], \"chosen_ids\": [1]}", "\"rejected_ids\" is missing");
  expect_refused("{\"prompt_ids\": [1], \"rejected_ids\": [1]}", "\"chosen_ids\" is missing");
  expect_refused("{\"prompt_ids\": [], \"chosen_ids\": [1], \"rejected_ids\": [2]}",
                 ":1: \"prompt_ids\" is empty");
  expect_refused("{\"prompt_ids\": [1], \"chosen_ids\": [1], \"rejected_ids\": []}",
                 ":1: \"rejected_ids\" is empty");
  expect_refused("{\"prompt_ids\": [1], \"completion_ids\": [], \"label\": true}",
                 ":1: \"completion_ids\" is empty");
  expect_refused("{\"prompt_ids\": [1], \"chosen_ids\": [7, 1], \"rejected_ids\": [7, 1]}",
                 ":1: chosen_ids and rejected_ids are equal");
  expect_refused("{\"prompt_ids\": 5, \"chosen_ids\": [1], \"rejected_ids\": [2]}",
                 ":1: \"prompt_ids\" must be a list");
  for (const char* id : {"true", "2.5", "\"a\"", "null", "[1]"})
    expect_refused(
        std::string("{\"prompt_ids\": [1, ") + id +
            "], \"chosen_ids\": [1], \"rejected_ids\": [2]}",
        std::string(":1: \"prompt_ids\" holds ") + id + "; it must be a list of integers");
  for (const char* id : {"19", "-1", "18446744073709551615", "4294967297"})
    expect_refused(
        std::string("{\"prompt_ids\": [1], \"chosen_ids\": [") + id + "], \"rejected_ids\": [2]}",
        std::string(":1: chosen_ids holds ") + id + "; the model's vocabulary has 19");
  expect_refused("", "it has no row");
  expect_refused("\n \n", "it has no row");
  std::filesystem::remove(dir_ / "rows.jsonl");
  EXPECT_THROW(read_preference_rows(dir_ / "rows.jsonl", 19, 8), UserError);
}

TEST_F(PreferenceFile, LabelsAndMarginsAreVerified) {
  const std::string row = "{\"prompt_ids\": [1], \"completion_ids\": [3]";
  expect_refused(row + "}", ":1: \"label\" is missing");
  for (const char* label : {"2", "-1", "\"true\"", "1.0", "[]"})
    expect_refused(row + ", \"label\": " + label + "}",
                   std::string(":1: \"label\" is ") + label + "; it must be true or false");
  const std::string pair = "{\"prompt_ids\": [1], \"chosen_ids\": [3], \"rejected_ids\": [4]";
  for (const char* margin : {"\"1\"", "true", "[1.0]"})
    expect_refused(pair + ", \"margin\": " + margin + "}",
                   std::string(":1: \"margin\" is ") + margin + "; it must be a finite number");
  // The parser may refuse what no double holds; no row may have it.
  expect_refused(pair + ", \"margin\": 1e999}", ":1: ");
}

TEST_F(PreferenceFile, RowsHaveOneKind) {
  expect_refused(std::string(kPairRow) + kUnpaired,
                 ":2: the row is unpaired, and the first row is a pair");
  expect_refused(std::string(kUnpaired) + kPairRow,
                 ":2: the row is a pair, and the first row is unpaired");
  expect_refused(
      "{\"prompt_ids\": [1], \"chosen_ids\": [3], \"rejected_ids\": [4], \"completion_ids\": [5]}",
      ":1: the row has \"completion_ids\" beside a pair");
}

TEST_F(PreferenceFile, TheLongerCompletionMustFit) {
  const std::string prompt = "{\"prompt_ids\": [1, 1, 1, 1], ";
  EXPECT_EQ(read(prompt + "\"chosen_ids\": [2], \"rejected_ids\": [1, 2, 3, 4]}").size(), 1u);
  expect_refused(prompt + "\"chosen_ids\": [2], \"rejected_ids\": [1, 2, 3, 4, 5]}",
                 ":1: the row has 9 tokens; the context holds 8");
  expect_refused(prompt + "\"chosen_ids\": [1, 2, 3, 4, 5], \"rejected_ids\": [2]}",
                 "has 9 tokens");
}

// Bytes of good rows are replaced at random: each text is read or told with its line.
TEST_F(PreferenceFile, DamagedRowsAreReadOrRefused) {
  constexpr std::string_view kBytes = "{}[]\",:0123456789-.e tfn\\\n\x01\xff";
  Rng rng(7);
  int refused = 0;
  for (int i = 0; i < 600; ++i) {
    std::string text = i % 2 == 0 ? kPairRow : kUnpaired;
    for (int64_t changes = 1 + rng.below(3); changes > 0; --changes)
      text[static_cast<size_t>(rng.below(std::ssize(text)))] =
          kBytes[static_cast<size_t>(rng.below(std::ssize(kBytes)))];
    try {
      for (const PreferenceRow& row : read(text)) {
        EXPECT_FALSE(row.prompt.empty() || row.chosen.empty());
        EXPECT_LE(row.sequence_tokens(), 8);
      }
    } catch (const UserError& e) {
      ++refused;
      EXPECT_NE(std::string(e.what()).find("rows.jsonl:"), std::string::npos) << e.what();
    }
  }
  EXPECT_GT(refused, 300);
}

}  // namespace
}  // namespace tailrace
