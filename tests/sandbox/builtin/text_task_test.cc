#include <set>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/text/dataset.h"
#include "reward/verifiers/built_in.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/sandbox/environment_contract.h"

namespace tailrace::sandbox {
namespace {

std::unique_ptr<Environment> make_text_task(const EnvironmentSettings& settings) {
  return built_in("text", settings);
}

TEST(TextTask, KeepsTheContract) {
  check_environment({.make =
                         [] {
                           return make_text_task({{"verifier", "text_rules"}});
                         },
                     .data =
                         [](uint64_t seed) {
                           return fmt::format(R"({{"prompt": "Story {}.", "words": ["park"]}})",
                                              seed);
                         }});
}

TEST(TextTask, ThePromptIsShownAsItIsAndTheEvidenceIsTheRow) {
  auto environment = make_text_task({{"verifier", "number"}});
  Result<Observation> seen =
      environment->reset({.seed = 1, .data = R"({"prompt": "2 + 2 = ", "answer": "4"})"});
  EXPECT_EQ(seen.value().text, "2 + 2 = ");
  StepResult result = environment->step("It is 4.").value();
  EXPECT_TRUE(result.terminated);
  EXPECT_EQ(result.verifier, "number");
  EXPECT_EQ(result.evidence, R"({"prompt":"2 + 2 = ","answer":"4","response":"It is 4."})");
}

TEST(TextTask, ABadRowIsAFailure) {
  auto environment = make_text_task({{"verifier", "text_rules"}});
  for (const char* data : {"", "[]", "{", R"({"text": "x"})", R"({"prompt": 3})"}) {
    EXPECT_FALSE(environment->reset({.seed = 1, .data = data}).ok()) << data;
    EXPECT_FALSE(environment->step("x").ok()) << data;
  }
}

TEST(TextTask, SaysWhatItNeeds) {
  auto environment =
      make_text_task({{"verifier", "text_rules"}, {"stop", "."}, {"max_tokens", "40"}});
  EXPECT_TRUE(environment->info().needs_dataset);
  EXPECT_EQ(environment->info().stop_strings, std::vector<std::string>{"."});
  EXPECT_EQ(environment->info().max_action_tokens, 40);
  EXPECT_EQ(environment->info().verifier, "text_rules");
  EXPECT_THROW(make_text_task({{"verifier", "number"}, {"columns", "question"}}),
               UserError);  // env.columns
  EXPECT_THROW(make_text_task({{"verifier", ""}}), UserError);
  EXPECT_THROW(make_text_task({}), UserError);
}

// From a row of verl or ROLL to a reward, without a word about its columns.
TEST(TextTask, TheAnswersOfOtherFrameworksReachTheVerifier) {
  const TemporaryDirectory folder;
  const auto file = folder.write(
      "rows.jsonl",
      R"({"prompt": "2 + 2", "reward_model": {"style": "rule", "ground_truth": "4"}, "ability": "math", "data_source": "d", "extra_info": {"index": 0}})"
      "\n"
      R"({"id": "0", "messages": [{"role": "user", "content": "2 + 2"}], "tag": "t", "difficulty": 1, "ground_truth": "4"})");
  auto environment = make_text_task({{"verifier", "number"}});
  const auto verifiers = built_in_verifiers();
  const Verifier& number = *verifiers.find("number");
  const auto rows = text::read_dataset(file);
  ASSERT_EQ(rows.size(), 2u);
  for (const text::DatasetRow& row : rows) {
    EXPECT_TRUE(number.check_row(row.json, kScoreBudget).ok()) << row.json;
    for (const auto& [answer, reward] : {std::pair{"It is 4.", 1.0}, {"It is 5.", 0.0}}) {
      const std::string said = answer;
      Episode episode =
          play(*environment, {.seed = 1, .data = row.json}, [&](int64_t) { return said; });
      const Result<Score> score = number.score(episode.evidence, kScoreBudget);
      ASSERT_TRUE(score.ok()) << row.json;
      EXPECT_EQ(score.value().reward, reward) << row.json << said;
    }
  }
}

TEST(TextTask, TheCommittedPromptsAreFitToTrainAndToEvaluate) {
  auto environment = make_text_task({{"verifier", "text_rules"}});
  std::set<std::string> seen;
  auto check_file = [&](const char* name, size_t num_rows) {
    auto folder = std::filesystem::path(TAILRACE_SOURCE_DIR) / "tests/data/prompts";
    std::vector<text::DatasetRow> rows = text::read_dataset(folder / name);
    EXPECT_EQ(rows.size(), num_rows);
    for (const text::DatasetRow& row : rows) {
      const auto prompt = nlohmann::json::parse(row.json).at("prompt").get<std::string>();
      EXPECT_TRUE(seen.insert(prompt).second) << "twice, or in both files: " << prompt;
      // A story that repeats the opening and its other words keeps all rules but the length.
      Episode episode = play(*environment, {.seed = 1, .data = row.json}, [&](int64_t) {
        return prompt + " They were happy friends, mom, all day.";
      });
      Result<Score> score =
          built_in_verifiers().find("text_rules")->score(episode.evidence, kScoreBudget);
      ASSERT_TRUE(score.ok()) << row.json;
      EXPECT_GE(score.value().reward, 0.75) << row.json;
    }
  };
  check_file("tinystories_prompts.jsonl", 512);
  check_file("tinystories_held_out.jsonl", 128);
}

}  // namespace
}  // namespace tailrace::sandbox
