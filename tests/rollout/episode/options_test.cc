#include "rollout/episode/options.h"

#include <string>

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
  EXPECT_NE(complaint(options).find("Try max_context_tokens = 96"), std::string::npos);
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

}  // namespace
}  // namespace tailrace
