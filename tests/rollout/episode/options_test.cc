#include "rollout/episode/options.h"

#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/error.h"

namespace tailrace {
namespace {

std::string complaint(RolloutOptions options) {
  try {
    options.validate();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(RolloutOptions, TheContextDefaultsToPromptAndResponse) {
  RolloutOptions options;
  EXPECT_NE(complaint(options).find("rollout.max_context_tokens is missing"), std::string::npos);
  options.max_prompt_tokens = 32;
  options.max_response_tokens = 64;
  options.validate();
  EXPECT_EQ(options.engine.max_context_tokens, 96);
}

TEST(RolloutOptions, RefusesAContextThatDoesNotHoldPromptAndResponse) {
  RolloutOptions options;
  options.engine.max_context_tokens = 95;
  options.max_prompt_tokens = 32;
  options.max_response_tokens = 64;
  EXPECT_NE(complaint(options).find("Try rollout.max_context_tokens = 96"), std::string::npos);
}

TEST(RolloutOptions, RefusesAContextWithoutRoomForAnAnswer) {
  RolloutOptions options;
  options.engine.max_context_tokens = 1;
  EXPECT_NE(complaint(options).find("a prompt and its answer need at least 2"), std::string::npos);
}

TEST(RolloutOptions, RefusesABlockSizeThatIsNoPowerOfTwo) {
  RolloutOptions options;
  options.engine.max_context_tokens = 95;
  options.engine.block_tokens = 12;
  EXPECT_NE(complaint(options).find(
                "rollout.block_tokens is 12; it must be a power of two from 8 to 128"),
            std::string::npos);
}

TEST(RolloutOptions, AnEvaluationSamplesAsTrainingButForWhatIsSaid) {
  RolloutOptions options;
  options.sampling = {.temperature = 0.8, .top_p = 0.9, .min_p = 0.1, .top_k = 40};
  const auto as_text = [](const SamplingOptions& s) {
    return fmt::format("{} {} {} {}", s.temperature, s.top_p, s.min_p, s.top_k);
  };
  EXPECT_EQ(as_text(options.sampling_in(Lane::kEval)), "0.8 0.9 0.1 40");
  options.evaluation.sampling = {.temperature = 0, .top_p = 1, .min_p = 0, .top_k = -1};
  EXPECT_EQ(as_text(options.sampling_in(Lane::kEval)), "0 1 0 -1");
  EXPECT_EQ(as_text(options.sampling_in(Lane::kTrain)), "0.8 0.9 0.1 40");
  options.engine.max_context_tokens = 95;
  EXPECT_EQ(complaint(options), "");
  options.evaluation.sampling.temperature = -0.5;
  EXPECT_EQ(complaint(options),
            "eval.sampling.temperature is -0.5; it must be 0 (greedy), from 0.001 to 1000, or -1 "
            "(as rollout.sampling).");
  options.evaluation.sampling = {.top_p = 0};
  EXPECT_NE(complaint(options).find("eval.sampling.top_p is 0"), std::string::npos);
  options.evaluation.sampling = {.min_p = -0.1};
  EXPECT_NE(complaint(options).find("eval.sampling.min_p is -0.1"), std::string::npos);
}

}  // namespace
}  // namespace tailrace
