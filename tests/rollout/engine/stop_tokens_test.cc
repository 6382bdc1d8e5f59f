#include "rollout/engine/stop_tokens.h"

#include <gtest/gtest.h>

#include "tests/rollout/engine/fake_tokenizer.h"

namespace tailrace {
namespace {

TEST(StopTokens, AreThoseOfTheTokenizerAndOfTheConfigEachOnce) {
  const FakeTokenizer without({"a", "b"}), with({"a", "b"}, /*eos=*/6);
  ModelConfig model;
  EXPECT_TRUE(stop_tokens(model, without).empty());
  EXPECT_EQ(stop_tokens(model, with), std::vector<TokenId>{6});
  model.eos_tokens = {9, 6, 2};
  EXPECT_EQ(stop_tokens(model, without), (std::vector<TokenId>{2, 6, 9}));
  EXPECT_EQ(stop_tokens(model, with), (std::vector<TokenId>{2, 6, 9}));
}

}  // namespace
}  // namespace tailrace
