#include "trainer/loss/surrogate.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/loss/tokens.h"

namespace tailrace {
namespace {

using namespace testing;  // NOLINT: the columns of a loss call

// The same log-ratios -0.2, -0.1 and 0.1 as in a later update of a step.
Tokens f2(float advantage) {
  Tokens tokens;
  tokens.add({-1.4f, -1.3f, -0.4f}, {-1.2f, -1.2f, -0.5f}, advantage);
  return tokens;
}

TEST(Surrogate, TwoSidedClipIsTheDualClipAndMatchesGoldenPpo4) {
  PolicyLossConfig config = plain(.2, .2);
  config.surrogate.clip_c = 4;
  for (const auto& [ratio, loss] : {std::pair{.5, .8}, {1.0, 1.0}, {1.5, 1.5}, {5.0, 4.0}}) {
    Tokens tokens;
    tokens.add({static_cast<float>(std::log(ratio) - 3)}, {-3}, -1);
    EXPECT_NEAR(evaluate(config, tokens).result.loss, loss, kTolerance) << ratio;
  }
}

TEST(Surrogate, ReinforceMatchesTheVanillaGolden) {
  Evaluated found = evaluate(with_surrogate(SurrogateKind::kReinforce), f1(1));
  EXPECT_NEAR(found.result.loss, 0.933333, kTolerance);
  expect_grads(found, {-1, -1, -1});
}

TEST(Surrogate, KimiMatchesItsGolden) {
  Evaluated up = evaluate(with_surrogate(SurrogateKind::kKimi), f1(1));
  EXPECT_NEAR(up.result.loss, (.9045 + 1.5045 + .4005) / 3, kTolerance);
  expect_grads(up, {-.97, -1.03, -.99});
  Evaluated down = evaluate(with_surrogate(SurrogateKind::kKimi), f1(-1));
  EXPECT_NEAR(down.result.loss, -(.8955 + 1.4955 + .3995) / 3, kTolerance);
  expect_grads(down, {1.03, .97, 1.01});
}

TEST(Surrogate, SapoMatchesGoldenSapo1) {
  Evaluated up = evaluate(with_surrogate(SurrogateKind::kSapo), f1(1));
  EXPECT_NEAR(up.result.loss, -2.064556, kTolerance);
  expect_grads(up, {-1.309381, -0.728515, -1.102120});
  Evaluated down = evaluate(with_surrogate(SurrogateKind::kSapo), f1(-1));
  EXPECT_NEAR(down.result.loss, 1.969244, kTolerance);
  expect_grads(down, {1.305324, 0.727269, 1.101808});
}

TEST(Surrogate, GspoMatchesGoldenGspo2AndGspoTokenItsOwn) {
  PolicyLossConfig config = plain(3e-4, 4e-4);
  config.ratio = RatioUnit::kSequence;
  config.aggregation.kind = AggregationKind::kSeqMeanTokenMean;
  Tokens tokens;
  tokens.add({-1.0001f, -.5002f}, {-1, -.5f}, 1);
  Evaluated inside = evaluate(config, tokens);
  EXPECT_NEAR(inside.result.loss, -0.999850, kTolerance);
  for (float g : inside.dl) EXPECT_NEAR(g, -0.499925, kTolerance);

  config = plain(.2, .2);
  config.ratio = RatioUnit::kSequenceToken;
  config.aggregation.kind = AggregationKind::kSeqMeanTokenMean;
  tokens = f1(1);
  tokens.advantage = {1, .5f, -1};
  Evaluated own = evaluate(config, tokens);
  EXPECT_NEAR(own.result.loss, -0.172316, kTolerance);
  std::vector<double> expected = {-0.344632, -0.172316, 0.344632};
  for (size_t t = 0; t < 3; ++t) EXPECT_NEAR(own.dl[t], expected[t], kTolerance) << t;
}

// With one advantage for all it is GSPO.
TEST(Surrogate, GspoTokenIsGspoWhereTheAdvantageIsConstant) {
  for (uint64_t seed = 1; seed < 6; ++seed) {
    Tokens tokens = random_tokens(seed);
    tokens.trajectory = tokens.sequence;
    for (size_t t = 0; t < tokens.l.size(); ++t)
      tokens.advantage[t] = tokens.sequence[t] % 2 == 0 ? .6f : -1.2f;
    PolicyLossConfig config = plain(.2, .28);
    config.aggregation.kind = AggregationKind::kSeqMeanTokenMean;
    config.ratio = RatioUnit::kSequence;
    Evaluated whole = evaluate(config, tokens);
    config.ratio = RatioUnit::kSequenceToken;
    Evaluated own = evaluate(config, tokens);
    EXPECT_NEAR(own.result.loss, whole.result.loss, 1e-14);
    for (size_t t = 0; t < tokens.l.size(); ++t) EXPECT_NEAR(own.dl[t], whole.dl[t], 1e-7) << t;
  }
}

TEST(Surrogate, CispoHasNoLowerBoundAndItsBoundIsTheLargestRatio) {
  PolicyLossConfig config = plain(.2, .28);
  config.surrogate.kind = SurrogateKind::kCispo;
  expect_grads(evaluate(config, f1(-1)), {1.28, 0.740818, 1.105171});
  // TRL's epsilon_high = 5 is a largest ratio: clip_high 4 here.
  config.surrogate.clip_high = 4;
  expect_grads(evaluate(config, f1(1)), {-1.349859, -0.740818, -1.105171});
}

PolicyLossConfig ipa() {
  PolicyLossConfig config = with_surrogate(SurrogateKind::kIpa);
  config.ratio = RatioUnit::kTurn;
  return config;
}

// Chunks {0, 1} and {2} with the credit .9 and 1 of a discount of .9 a chunk.
Tokens chunks(Tokens tokens, float sign) {
  tokens.turn = {4, 4, 5};
  tokens.advantage = {sign * .9f, sign * .9f, sign};
  tokens.positive.assign(3, sign > 0);
  return tokens;
}

TEST(Surrogate, IpaMatchesGoldenIpa2To4) {
  // Mismatch: geometric means 1.105171 and 1 of l_old - l_inf.
  const auto mask = [](CorrectionLevel level, double cap) {
    std::vector<double> log_weight = {-.2, .4, 0}, weight(3);
    const std::vector<int32_t> turn = {4, 4, 5};
    correction_weights({.kind = CorrectionKind::kMask, .level = level, .low = 0, .cap = cap},
                       log_weight, turn, weight);
    return weight;
  };
  EXPECT_EQ(mask(CorrectionLevel::kTurnMean, 1.05), (std::vector<double>{0, 0, 1}));
  EXPECT_EQ(mask(CorrectionLevel::kTurnMean, 1.15), (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(mask(CorrectionLevel::kToken, 1.2), (std::vector<double>{1, 0, 1}));

  // The golden losses are sums over tokens.
  Evaluated up = evaluate(ipa(), chunks(f1(1), 1));
  EXPECT_NEAR(up.result.loss * 3, 2.56, kTolerance);
  expect_grads(up, {-.9, -.9, -1});
  Evaluated down = evaluate(ipa(), chunks(f1(-1), -1));
  EXPECT_NEAR(down.result.loss * 3, -2.56, kTolerance);
  expect_grads(down, {.9, .9, 1});
  Evaluated later = evaluate(ipa(), chunks(f2(-1), -1));
  EXPECT_NEAR(later.result.loss * 3, -2.491520, kTolerance);
  expect_grads(later, {0.774637, 0.774637, 1});
}

// F14: a failure above its group's mean is still a failure, whose weight is tapered.
TEST(Surrogate, IpaSplitsByTheRewardAndNotByTheSignOfTheAdvantage) {
  Tokens tokens = chunks(f2(1), 1);
  tokens.positive.assign(3, 0);
  expect_grads(evaluate(ipa(), tokens), {-.9 * 0.860708, -.9 * 0.860708, -1});
}

// F31: ratios that cancel in the geometric mean of a chunk. The veto of mis is of tokens at any
// level, and sees the far one.
TEST(Surrogate, AGeometricMeanHidesOutliersThatCancelAndAVetoSeesThem) {
  const std::vector<double> log_weight = {10, -10};
  const std::vector<int32_t> turn = {0, 0};
  std::vector<double> weight(2);
  CorrectionOptions options = {
      .kind = CorrectionKind::kMask, .level = CorrectionLevel::kTurnMean, .low = .8, .cap = 1.2};
  EXPECT_EQ(correction_weights(options, log_weight, turn, weight), 0);
  options.kind = CorrectionKind::kMis;
  EXPECT_EQ(correction_weights(options, log_weight, turn, weight), 2);
  options.kind = CorrectionKind::kMask;
  options.level = CorrectionLevel::kToken;
  EXPECT_EQ(correction_weights(options, log_weight, turn, weight), 2);
}

// F15: two turns that touch are two chunks, and a masked token does not split one.
TEST(Surrogate, ChunksAreTurnsAndNotRunsOfTrainedTokens) {
  Tokens tokens = f2(-1);
  tokens.turn = {0, 1, 1};
  Evaluated touching = evaluate(ipa(), tokens);
  // exp(-.2) alone, and exp(0) of -.1 and .1.
  expect_grads(touching, {0.818731, 1, 1});
  tokens.turn = {0, 0, 0};
  tokens.mask[1] = 0;
  Evaluated split = evaluate(ipa(), tokens);
  // One chunk: the mean of -.2 and .1, over two trained tokens.
  for (size_t t : {0, 2}) EXPECT_NEAR(split.dl[t] * 2, std::exp(-.05), kTolerance);
}

// F16: finite differences through what is not detached, for the surrogates that have such a part.
TEST(Surrogate, GradientsOfTheNewSurrogatesMatchFiniteDifferences) {
  for (SurrogateKind kind :
       {SurrogateKind::kReinforce, SurrogateKind::kKimi, SurrogateKind::kSapo}) {
    for (RatioUnit ratio : {RatioUnit::kToken, RatioUnit::kTurn, RatioUnit::kSequence}) {
      PolicyLossConfig config = with_surrogate(kind);
      config.ratio = ratio;
      config.aggregation.kind = AggregationKind::kSeqMeanTokenMean;
      Tokens tokens = random_tokens(11);
      const Evaluated at = evaluate(config, tokens);
      for (size_t t = 0; t < tokens.l.size(); ++t) {
        const float before = tokens.l[t];
        tokens.l[t] = before + 1e-3f;
        const double up = tokens.l[t], loss_up = evaluate(config, tokens).result.loss;
        tokens.l[t] = before - 1e-3f;
        const double down = tokens.l[t], loss_down = evaluate(config, tokens).result.loss;
        tokens.l[t] = before;
        EXPECT_NEAR(at.dl[t], (loss_up - loss_down) / (up - down), kTolerance)
            << name_of(kind) << ' ' << name_of(ratio) << ' ' << t;
      }
    }
  }
}

// And the taper of IPA gives none: l and l_old move together.
TEST(Surrogate, IpasTaperGivesNoGradient) {
  PolicyLossConfig config = ipa();
  Tokens tokens = random_tokens(12);
  std::fill(tokens.mask.begin(), tokens.mask.end(), uint8_t{1});
  expect_slope_beside(config, tokens, &Tokens::l_old);
}

// F28.
TEST(Surrogate, FarRatiosAreCutAndCountedInEverySurrogate) {
  Tokens tokens;
  tokens.add({-1, -30}, {-26, -1}, -1);
  for (SurrogateKind kind : {SurrogateKind::kSapo, SurrogateKind::kIpa, SurrogateKind::kCispo}) {
    Evaluated found = evaluate(with_surrogate(kind), tokens);
    EXPECT_GE(found.result.stats.clamped, 2) << name_of(kind);
    EXPECT_TRUE(std::isfinite(found.result.loss)) << name_of(kind);
    for (float g : found.dl) EXPECT_TRUE(std::isfinite(g)) << name_of(kind);
  }
}

SurrogateTerm at_ratio(const SurrogateConfig& config, double ratio, double advantage) {
  return surrogate(config, {.log_ratio = std::log(ratio), .advantage = advantage});
}

TEST(Surrogate, ClipHigherLeavesARatioBetweenTheTwoBoundsAsGoldenPpo2HasIt) {
  const SurrogateTerm symmetric = at_ratio({.clip_low = .2, .clip_high = .2}, 1.25, 1);
  EXPECT_NEAR(symmetric.value, -1.2, 1e-12);
  EXPECT_EQ(symmetric.d_log_ratio, 0);
  const SurrogateTerm higher = at_ratio({.clip_low = .2, .clip_high = .28}, 1.25, 1);
  EXPECT_NEAR(higher.value, -1.25, 1e-12);
  EXPECT_NEAR(higher.d_log_ratio, -1.25, 1e-12);
  // Failures do not see the upper bound.
  const testing::Evaluated down = testing::evaluate(testing::plain(.2, .28), testing::f1(-1));
  EXPECT_NEAR(down.result.loss, 1.085010, 2e-6);
  testing::expect_grads(down, {1.349859, 0, 1.105171});
}

TEST(Surrogate, DualClipOf14MatchesGoldenPpo3) {
  const SurrogateTerm far = at_ratio({.clip_c = 1.4}, std::exp(1.5), -1);
  EXPECT_NEAR(far.value, 1.4, 1e-12);
  EXPECT_EQ(far.d_log_ratio, 0);
}

// Its gate is one half there, whatever the temperature.
TEST(Surrogate, SapoAtARatioOfOneMatchesGoldenSapo1) {
  const SurrogateConfig sapo = {.kind = SurrogateKind::kSapo, .tau_pos = 1.0, .tau_neg = 1.05};
  EXPECT_NEAR(at_ratio(sapo, 1, 1).value, -2, 1e-12);
  EXPECT_NEAR(at_ratio(sapo, 1, 1).d_log_ratio, -1, 1e-12);
  EXPECT_NEAR(at_ratio(sapo, 1, -1).value, 1.904762, 2e-6);
  EXPECT_NEAR(at_ratio(sapo, 1, -1).d_log_ratio, 1, 1e-12);
}

// The trajectory's ratio e^(0.1 / 3) = 1.033895 is above the taper's bound of 1.
TEST(Surrogate, IpaOverAWholeTrajectoryMatchesGoldenIpa5) {
  PolicyLossConfig config = testing::plain(.2, .2);
  config.surrogate.kind = SurrogateKind::kIpa;
  config.ratio = RatioUnit::kSequence;
  const testing::Evaluated found = testing::evaluate(config, testing::f1(-1));
  EXPECT_NEAR(found.result.stats.ratio_max, 1.033895, 2e-6);
  testing::expect_grads(found, {1, 1, 1});
}

}  // namespace
}  // namespace tailrace
