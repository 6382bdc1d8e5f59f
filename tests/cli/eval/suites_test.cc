#include "cli/eval/suites.h"

#include <cstdlib>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "reward/verifiers/built_in.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

using nlohmann::json;

std::vector<text::DatasetRow> rows_of_suite(const std::string& suite,
                                            const std::filesystem::path& file) {
  return read_suite(find_suite(suite), file, built_in_verifiers(), kScoreBudget);
}

double reward_of(const std::string& suite, const text::DatasetRow& row,
                 const std::string& response) {
  json evidence = json::parse(row.json);
  evidence["response"] = response;
  const auto score = built_in_verifiers()
                         .at(std::string(find_suite(suite).verifier))
                         .score(evidence.dump(), kScoreBudget);
  EXPECT_TRUE(score.ok()) << row.json;
  return score.ok() ? score.value().reward : -1;
}

TEST(Suites, PutTheQuestionsOfTheirFiles) {
  TemporaryDirectory folder;
  folder.write("gsm8k.jsonl", R"({"question": "2 + 2?", "answer": "2 + 2 = <<2+2=4>>4\n#### 4"})"
                              "\n");
  const auto gsm8k = rows_of_suite("gsm8k", folder / "gsm8k.jsonl");
  ASSERT_EQ(gsm8k.size(), 1u);
  EXPECT_EQ(json::parse(gsm8k[0].json)["prompt"].get<std::string>().substr(0, 13),
            "2 + 2?\n\nSolve");
  EXPECT_EQ(reward_of("gsm8k", gsm8k[0], "So it is\n#### 4.00"), 1);
  EXPECT_EQ(reward_of("gsm8k", gsm8k[0], "#### 5"), 0);

  folder.write(
      "countdown.jsonl",
      "{\"target\": 98, \"nums\": [44, 19, 35]}\n\n{\"numbers\": [2, 3], \"target\": 6}\n");
  const auto countdown = rows_of_suite("countdown", folder / "countdown.jsonl");
  ASSERT_EQ(countdown.size(), 2u);
  EXPECT_EQ(countdown[1].line, 3);
  EXPECT_NE(countdown[0].json.find("equal to 98 and uses each of the numbers 44, 19, 35 exactly"),
            std::string::npos);
  EXPECT_EQ(reward_of("countdown", countdown[0], "<answer>44 + 19 + 35</answer>"), 1);
  EXPECT_EQ(reward_of("countdown", countdown[1], "<answer>2 + 3</answer>"), 0.1);

  folder.write("game24.csv", "Rank,Puzzles,AMT (s)\r\n1,1 1 4 6,4.4\r\n2,1 1 11 11,4.41");
  const auto game24 = rows_of_suite("game24", folder / "game24.csv");
  ASSERT_EQ(game24.size(), 2u);
  EXPECT_EQ(game24[0].line, 2);
  EXPECT_EQ(reward_of("game24", game24[0], "<answer>4 * 6 * 1 * 1</answer>"), 1);
}

TEST(Suites, NameTheLineThatDoesNotFit) {
  TemporaryDirectory folder;
  const auto error = [&](const std::string& suite, const std::string& text) -> std::string {
    folder.write("file", text);
    try {
      rows_of_suite(suite, folder / "file");
    } catch (const UserError& mistake) {
      const std::string what = mistake.what();
      return what.substr(what.find("file:") == std::string::npos ? 0 : what.find("file:"));
    }
    return "none";
  };
  EXPECT_EQ(error("gsm8k", "{\"question\": \"?\", \"answer\": \"\"}"),
            "file:1: its right answer is empty, or nested too deep (for the suite gsm8k)");
  EXPECT_EQ(error("gsm8k", "{\"question\": [{\"role\": \"user\"}], \"answer\": \"1\"}"),
            "file:1: \"question\" is not a string; each line must be of the form {\"question\": "
            "\"...\", \"answer\": \"... #### 4\"}");
  EXPECT_EQ(error("gsm8k", "{\"prompt\": \"?\", \"answer\": \"1\"}").substr(0, 59),
            "file:1: there is no \"question\"; the row has prompt, answer;");
  const std::string form =
      "; each line must be of the form {\"target\": 98, \"nums\": [44, 19, 35]}";
  EXPECT_EQ(error("countdown", "{\"target\": 98}"), "file:1: there is no \"nums\"" + form);
  EXPECT_EQ(error("countdown", "{\"nums\": [1]}"), "file:1: there is no \"target\"" + form);
  EXPECT_EQ(error("countdown", "{\"nums\": [1.5], \"target\": 3}"),
            "file:1: \"nums\" is not a list of integers" + form);
  EXPECT_EQ(error("countdown", "[1]"), "file:1: the line is not a JSON object" + form);
  EXPECT_EQ(error("game24", "Rank,Puzzle\n"),
            "file:1: the first line of the CSV names no column \"Puzzles\" (four numbers with "
            "blanks between: 1 1 4 6)");
  EXPECT_EQ(error("game24", "Puzzles\n1 2 3\n"),
            "file:2: the column \"Puzzles\" must hold four numbers, for example 1 1 4 6");
  EXPECT_EQ(error("gsm8", ""),
            "there is no suite 'gsm8'; did you mean 'gsm8k'? Suites: gsm8k, countdown, game24");
}

TEST(Suites, ReadTheFilesOfTheirAuthors) {
  const char* data = std::getenv("TAILRACE_DATA");
  if (data == nullptr) GTEST_SKIP() << "TAILRACE_DATA is not set: no folder with whole datasets";
  const std::filesystem::path folder = data;
  EXPECT_EQ(rows_of_suite("gsm8k", folder / "math/gsm8k_test.jsonl").size(), 1319u);
  EXPECT_EQ(rows_of_suite("game24", folder / "games/game24.csv").size(), 1362u);
}

}  // namespace
}  // namespace tailrace
