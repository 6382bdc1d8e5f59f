// Scores of tokens that were given rather than sampled: what the gateway asks of whoever has the
// model, for answers that repeat their prompt or name several likely tokens.
//
// Thread: any (values).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/generate.h"

namespace tailrace::gateway {

inline constexpr int64_t kMaxTopLogprobs = 100;

struct LikelyToken {
  TokenId id = 0;
  float logprob = 0;  // natural log
};

// Entry i is about position first + i.
struct TokenScores {
  std::vector<float> logprobs;
  std::vector<std::vector<LikelyToken>> top;  // the likeliest first; empty: none were wanted
};

struct TokensToScore {
  std::span<const TokenId> ids;
  int64_t first = 1;  // position
  int64_t top = 0;    // likeliest tokens of each position
  float inverse_temperature = 1;
};

// Runs on the generator's thread, between its steps.
using ScoreTokens = std::function<TokenScores(const TokensToScore&)>;

}  // namespace tailrace::gateway
