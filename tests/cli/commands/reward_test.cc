// `reward check` on the real binary: programs that score, and others that do not.
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/commands/stories.h"
#include "tests/cli/run_binary.h"

namespace tailrace {
namespace {

using nlohmann::json;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class RewardCheck : public ::testing::Test {
 protected:
  // A program in Python: `body` has `episode`, and `print` is its answer.
  std::string program(const std::string& body) {
    return folder_
        .write("reward.py",
               "import json, sys, time\nfor line in sys.stdin:\n  episode = json.loads(line)\n  " +
                   body + "\n")
        .string();
  }
  BinaryResult check(const std::string& arguments) {
    return run_binary("reward check " + arguments);
  }
  // The config of a run of prompts, whose rows are `rows`.
  std::string config(const std::string& rows, const std::string& more) {
    folder_.write("rows.jsonl", rows);
    return folder_
        .write("a.yaml", "run: {steps: 1}\nmodel: {path: " + kStories +
                             "}\nenv: {name: text, dataset: rows.jsonl" + more + "\n")
        .string();
  }

  TemporaryDirectory folder_;
};

TEST_F(RewardCheck, ShowsWhatAProgramGivesEachAnswer) {
  const std::string file = program(
      "print('seen', episode['row']['answer'], file=sys.stderr)\n"
      "  right = episode['response'] == episode['row']['answer']\n"
      "  print(json.dumps({'id': episode['id'], 'reward': right, 'metrics': {'length': "
      "len(episode['response'])}}))");
  const std::string arguments = "--command 'python3 " + file +
                                "' --row '{\"prompt\": \"2 + 2\", \"answer\": \"4\"}' --answer 4 "
                                "--answer four";
  const auto text = check(arguments);
  EXPECT_EQ(text.exit_code, 0) << text.err;
  for (const char* part :
       {"prompt    2 + 2\nanswer    4\nreward    1, of reward.command\nmetric    length 1\ntime ",
        "answer    four\nreward    0, of reward.command\nmetric    length 4\n",
        " s\nstderr    seen 4\n"})
    EXPECT_TRUE(has(text.out, part)) << part << "\n" << text.out;
  EXPECT_EQ(text.err, "");
  const auto rows = check(arguments + " --json");
  EXPECT_EQ(rows.exit_code, 0) << rows.err;
  const json first = json::parse(rows.out.substr(0, rows.out.find('\n')));
  EXPECT_EQ(first.at("reward"), 1.0);
  EXPECT_EQ(first.at("metrics").at("length"), 1.0);
  EXPECT_EQ(first.at("stderr"), json::array({"seen 4"}));
  EXPECT_GT(first.at("seconds").get<double>(), 0);
}

TEST_F(RewardCheck, AProgramThatGivesNoVerdictIsOneMessage) {
  struct Case {
    std::string body, said;
  };
  for (const auto& [body, said] :
       {Case{"raise ValueError('no answer key')", "ValueError: no answer key"},
        Case{"sys.exit(3)", "has ended with status 3 before its answer"},
        Case{"time.sleep(60)", "has not answered an episode within 0.5 s"},
        Case{"print('forty-two')", "forty-two"},
        Case{"print(json.dumps({'id': episode['id'], 'reward': 1e300}))", "1e+300"},
        Case{"print(json.dumps({'id': episode['id'], 'error': 'no key'}))", "no key"}}) {
    const auto result = check("--command 'python3 " + program(body) + "' --answer a --timeout-s " +
                              (body.starts_with("time") ? "0.5" : "30"));
    EXPECT_EQ(result.exit_code, 2) << body;
    EXPECT_TRUE(has(result.out, "FAILED ")) << result.out;
    EXPECT_EQ(result.err.find("error: 1 of 1 answers has no verdict: "), 0u) << result.err;
    EXPECT_TRUE(has(result.err, said)) << said << "\n" << result.err;
  }
  const auto missing = check("--command ./no-such-program --answer a");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_TRUE(has(missing.err, "no-such-program")) << missing.err;
}

// One that hangs would take its deadline for each of a thousand rows.
TEST_F(RewardCheck, StopsAtTheThirdAnswerWithoutAVerdict) {
  const auto result = check("--command 'python3 " + program("sys.exit(1)") +
                            "' --answer a --answer b --answer c --answer d --answer e");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err.find("error: 3 of 3 answers have no verdict: "), 0u) << result.err;
  EXPECT_TRUE(has(result.err, "2 more were not tried.")) << result.err;
}

TEST_F(RewardCheck, TriesTheVerifierOfAConfig) {
  const std::string file = config(
      "{\"prompt\": \"1 + 1 = \", \"answer\": \"2\"}\n{\"prompt\": \"2 + 2 = \", \"answer\": "
      "\"4\"}\n",
      ", settings: {verifier: number}}");
  const auto first = check(file + " --answer 'It is 2.' --answer 'It is 3.'");
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_TRUE(has(first.out, "prompt    1 + 1 = \nanswer    It is 2.\nreward    1, of number\n"))
      << first.out;
  EXPECT_TRUE(has(first.out, "answer    It is 3.\nreward    0, of number\n")) << first.out;
  EXPECT_TRUE(has(check(file + " --seed 1 --answer 4").out, "2 + 2 = \nanswer    4\nreward    1"));
  const std::string rows =
      folder_
          .write("tried.jsonl",
                 "{\"prompt\": \"5 = \", \"answer\": \"5\", \"response\": \"5\"}\n"
                 "{\"prompt\": \"6 = \", \"answer\": \"6\", \"response\": \"7\"}\n")
          .string();
  const auto tried = check(file + " --rows " + rows);
  EXPECT_EQ(tried.exit_code, 0) << tried.err;
  EXPECT_TRUE(has(tried.out, "5 = \nanswer    5\nreward    1")) << tried.out;
  EXPECT_TRUE(has(tried.out, "6 = \nanswer    7\nreward    0")) << tried.out;
  const auto lacking = check(file + " --rows " + (folder_ / "rows.jsonl").string());
  EXPECT_EQ(lacking.exit_code, 2);
  EXPECT_TRUE(has(lacking.err, "rows.jsonl:1: \"response\" is missing;")) << lacking.err;
}

TEST_F(RewardCheck, ShowsThePartsOfASum) {
  const std::string file =
      program("print(json.dumps({'id': episode['id'], 'reward': 0.5, 'metrics': {'words': 3}}))");
  const std::string parts = config(
      "{\"prompt\": \"1 + 1 = \", \"answer\": \"2\"}\n",
      "}\nreward:\n  parts:\n    - {name: correct, verifier: number}\n    - {name: style, weight: "
      "0.2, command: [python3, " +
          file + "]}");
  const auto result = check(parts + " --answer 2");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(
      has(result.out,
          "reward    1.1, of reward.parts\n          correct: 1 x 1\n          style: 0.5 x "
          "0.2\n"))
      << result.out;
  EXPECT_TRUE(has(result.out, "metric    style_words 3\n")) << result.out;
}

TEST_F(RewardCheck, SaysWhatItWants) {
  for (const auto& [arguments, said] :
       {std::pair<std::string, std::string>("--answer a", "no reward is given. Give a config, or"),
        {"--command x", "no answer is given. Give --answer TEXT, or --rows FILE.jsonl."},
        {"a.yaml --command x --answer a", "a config and --command are both given."},
        {"--command x --answer a --rows b", "--answer and --rows are both given."},
        {"none.yaml --answer a", "cannot open none.yaml"},
        {"--command cat --answer a --row '{'", "--row: not valid JSON: {"}}) {
    const auto result = check(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_TRUE(has(result.err, said)) << arguments << "\n" << result.err;
  }
}

}  // namespace
}  // namespace tailrace
