#include "sandbox/text_task.h"

#include "core/base/error.h"
#include "tests/sandbox/environment_contract.h"

namespace tailrace {
namespace {

TEST(TextTask, KeepsTheContract) {
  check_environment({.make = [] { return make_text_task({}); },
                     .data =
                         [](uint64_t seed) {
                           return fmt::format(R"({{"prompt": "Story {}.", "words": ["park"]}})",
                                              seed);
                         }});
}

TEST(TextTask, ThePromptIsShownAsItIsAndTheEvidenceIsTheRow) {
  auto environment = make_text_task({{"verifier", "number"}, {"prompt_key", "question"}});
  Result<Observation> seen =
      environment->reset({.seed = 1, .data = R"({"question": "2 + 2 = ", "answer": "4"})"});
  EXPECT_EQ(seen.value().text, "2 + 2 = ");
  StepResult result = environment->step("It is 4.").value();
  EXPECT_TRUE(result.terminated);
  EXPECT_EQ(result.verifier, "number");
  EXPECT_EQ(result.evidence, R"({"answer":"4","question":"2 + 2 = ","response":"It is 4."})");
}

TEST(TextTask, ABadRowIsAFailure) {
  auto environment = make_text_task({});
  for (const char* data : {"", "[]", "{", R"({"text": "x"})", R"({"prompt": 3})"}) {
    EXPECT_FALSE(environment->reset({.seed = 1, .data = data}).ok()) << data;
    EXPECT_FALSE(environment->step("x").ok()) << data;
  }
}

TEST(TextTask, SaysWhatItNeeds) {
  auto environment = make_text_task({{"stop", "."}, {"max_tokens", "40"}});
  EXPECT_TRUE(environment->info().needs_dataset);
  EXPECT_EQ(environment->info().stop_strings, std::vector<std::string>{"."});
  EXPECT_EQ(environment->info().max_action_tokens, 40);
  EXPECT_THROW(make_text_task({{"verifier", ""}}), UserError);
}

}  // namespace
}  // namespace tailrace
