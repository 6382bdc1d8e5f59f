// Columns of a loss call, as tests of losses make them, and what a call gave. Golden numbers of
// these tests were made in double precision outside of this project, from the papers' formulas.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/random.h"
#include "trainer/loss/policy_loss.h"

namespace tailrace::testing {

// Columns of a loss call with one advantage and one trajectory a sequence.
struct Tokens {
  std::vector<float> l, l_old, l_inf, l_ref, entropy, advantage;
  std::vector<uint8_t> mask, positive;
  std::vector<int32_t> sequence, turn, trajectory;

  void add(std::vector<float> logprobs, std::vector<float> old, float a,
           std::vector<float> behaviour = {}, std::vector<float> ref = {}) {
    int32_t id = sequence.empty() ? 0 : sequence.back() + 1;
    if (behaviour.empty()) behaviour = old;
    if (ref.empty()) ref = old;
    for (size_t t = 0; t < logprobs.size(); ++t) {
      l.push_back(logprobs[t]);
      l_old.push_back(old[t]);
      l_inf.push_back(behaviour[t]);
      l_ref.push_back(ref[t]);
      entropy.push_back(1.0f);
      advantage.push_back(a);
      mask.push_back(1);
      positive.push_back(a > 0);
      sequence.push_back(id);
      trajectory.push_back(id);
      turn.push_back(0);
    }
  }

  PolicyLossInput input() const {
    return {l, l_old, l_inf, l_ref, entropy, advantage, mask, sequence, turn, trajectory, positive};
  }

  std::vector<int32_t> trajectory_tokens() const {
    std::vector<int32_t> counts(static_cast<size_t>(1 + *std::ranges::max_element(trajectory)));
    for (size_t t = 0; t < l.size(); ++t) counts[static_cast<size_t>(trajectory[t])] += mask[t];
    return counts;
  }
};

struct Evaluated {
  PolicyLossResult result;
  std::vector<float> dl, dh;
};

inline Evaluated evaluate(const PolicyLossConfig& config, const Tokens& tokens) {
  std::vector<int32_t> per_trajectory = tokens.trajectory_tokens();
  LossCounts counts{.trajectory_tokens = per_trajectory};
  for (int32_t n : per_trajectory) {
    counts.tokens += n;
    counts.trajectories += n > 0;
  }
  // 9, so that a token which is passed over shows.
  Evaluated out{{}, std::vector<float>(tokens.l.size(), 9), std::vector<float>(tokens.l.size(), 9)};
  out.result = policy_loss(config, tokens.input(), counts, out.dl, out.dh);
  return out;
}

// Numbers whose results can be made by hand: the ratios are e^0.3, e^-0.3 and e^0.1 (1.349859,
// 0.740818, 1.105171), their geometric mean over the sequence is e^(0.1/3) = 1.033895. l - l_ref is
// 0.1, -0.5, 0.6; l_old - l_inf is -0.2, 0.4, 0.
inline Tokens f1(float advantage) {
  Tokens tokens;
  tokens.add({-0.9f, -1.5f, -0.4f}, {-1.2f, -1.2f, -0.5f}, advantage, {-1.0f, -1.6f, -0.5f},
             {-1, -1, -1});
  return tokens;
}

inline PolicyLossConfig plain(double low, double high) {
  PolicyLossConfig config;
  config.surrogate.clip_low = low;
  config.surrogate.clip_high = high;
  config.correction.kind = CorrectionKind::kNone;
  return config;
}

inline PolicyLossConfig with_surrogate(SurrogateKind kind) {
  PolicyLossConfig config = plain(.2, .2);
  config.surrogate.kind = kind;
  return config;
}

constexpr double kTolerance = 2e-6;  // of golden numbers with six digits

inline void expect_numbers(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], kTolerance) << i;
}

// Gradients before aggregation: times the number of tokens of a token mean.
inline void expect_grads(const Evaluated& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.dl.size(), expected.size());
  auto n = static_cast<double>(expected.size());
  for (size_t t = 0; t < expected.size(); ++t) EXPECT_NEAR(found.dl[t] * n, expected[t], 2e-6) << t;
}

// Moving l of a token together with another of its columns gives the slope that it is told, since
// what rests on their difference stands still: no gradient goes through that.
inline void expect_slope_beside(const PolicyLossConfig& config, const Tokens& tokens,
                                std::vector<float> Tokens::*column) {
  // l + step is exact to an ulp of l, far below the tolerance.
  constexpr float kStep = 1.0f / 1024;
  const Evaluated at = evaluate(config, tokens);
  for (size_t t = 0; t < tokens.l.size(); ++t) {
    Tokens moved = tokens;
    moved.l[t] += kStep;
    (moved.*column)[t] += kStep;
    EXPECT_NEAR((evaluate(config, moved).result.loss - at.result.loss) / kStep, at.dl[t], 1e-4)
        << t;
  }
}

inline Tokens random_tokens(uint64_t seed) {
  Rng rng(seed);
  Tokens tokens;
  for (int s = 0; s < 4; ++s) {
    std::vector<float> l, old, inf, ref;
    auto n = 1 + rng.below(6);
    for (int64_t t = 0; t < n; ++t) {
      old.push_back(static_cast<float>(-3 * rng.uniform() - .1));
      l.push_back(old.back() + static_cast<float>(.5 * rng.normal()));
      inf.push_back(old.back() + static_cast<float>(.5 * rng.normal()));
      ref.push_back(old.back() + static_cast<float>(.5 * rng.normal()));
    }
    tokens.add(l, old, static_cast<float>(rng.normal()), inf, ref);
  }
  for (size_t t = 0; t < tokens.l.size(); ++t) {
    tokens.mask[t] = rng.chance(.8);
    tokens.turn[t] = static_cast<int32_t>(t / 2);
    tokens.entropy[t] = static_cast<float>(rng.uniform());
    // Of the reward: an advantage may have the other sign.
    tokens.positive[t] = tokens.trajectory[t] % 2;
  }
  // At least one token counts, and the last sequence belongs to the first trajectory.
  tokens.mask[0] = 1;
  tokens.trajectory[tokens.l.size() - 1] = tokens.trajectory[0];
  return tokens;
}

}  // namespace tailrace::testing
