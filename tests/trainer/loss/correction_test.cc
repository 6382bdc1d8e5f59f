#include "trainer/loss/correction.h"

#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/loss/tokens.h"

namespace tailrace {
namespace {

using namespace testing;  // NOLINT: the columns of a loss call

TEST(EffectiveSampleShare, IsTheSquaredSumOverTheSumOfSquares) {
  // Weights 0.818731, 1.491825 and 1: 3.310556^2 / (3 * 3.895861).
  const std::vector<double> log_weight = {-0.2, 0.4, 0};
  EXPECT_NEAR(effective_sample_share(log_weight), 0.937728, 1e-6);
  // 2 and 1 / 2: 6.25 / (2 * 4.25).
  EXPECT_NEAR(effective_sample_share(std::vector{std::log(2.0), std::log(0.5)}), 0.735294, 1e-6);
}

TEST(EffectiveSampleShare, OfEqualWeightsIsExactlyOne) {
  for (size_t n : {1, 2, 3, 7, 1000, 100'003}) {
    EXPECT_EQ(effective_sample_share(std::vector(n, 0.0)), 1) << n;
    EXPECT_EQ(effective_sample_share(std::vector(n, -0.3)), 1) << n;
  }
}

TEST(EffectiveSampleShare, OfOneWeightThatOutweighsTheOthersIsItsShareOfTheNumber) {
  // exp(800) is beyond a double, and so is the square of exp(400).
  EXPECT_DOUBLE_EQ(effective_sample_share(std::vector<double>{800, 0, -800, 0}), 0.25);
  EXPECT_DOUBLE_EQ(effective_sample_share(std::vector<double>{-900, -400, -900, -900, -900}), 0.2);
}

std::vector<double> weights_of(const CorrectionOptions& options, std::vector<double> ratios) {
  for (double& ratio : ratios) ratio = std::log(ratio);
  std::vector<double> weight(ratios.size());
  correction_weights(options, ratios, std::vector<int32_t>(ratios.size()), weight);
  return weight;
}

TEST(Correction, CorrectionsMatchGoldenMm1AndMm4) {
  const std::vector<double> w = {0.818731, 1.491825, 1};
  expect_numbers(weights_of({.kind = CorrectionKind::kTis, .cap = 2}, w), w);
  expect_numbers(weights_of({.kind = CorrectionKind::kTis, .cap = 1.2}, w), {0.818731, 1.2, 1});
  expect_numbers(weights_of({.kind = CorrectionKind::kIcePop, .low = .5, .cap = 5}, w), w);
  expect_numbers(weights_of({.kind = CorrectionKind::kIcePop, .low = .9, .cap = 1.2}, w),
                 {0, 0, 1});
  const auto whole = [&](CorrectionLevel level) {
    return weights_of({.kind = CorrectionKind::kTis, .level = level, .cap = 2}, w).front();
  };
  EXPECT_NEAR(whole(CorrectionLevel::kSequence), 1.221403, kTolerance);
  EXPECT_NEAR(whole(CorrectionLevel::kSequenceMean), 1.068939, kTolerance);

  const CorrectionOptions mis = {.kind = CorrectionKind::kMis, .low = .5, .cap = 2, .veto = 1e-4};
  expect_numbers(weights_of(mis, {.9, 1.2}), {.9, 1.2});
  expect_numbers(weights_of(mis, {2.5, 1}), {0, 1});
  expect_numbers(weights_of(mis, {5e-5, 1}), {0, 0});
}

// F12: a rejected token that stays in the denominator makes the step smaller.
TEST(Correction, RejectedTokensStayInTheDenominatorAsGoldenMm3HasIt) {
  PolicyLossConfig config = plain(.2, .2);
  config.correction = {.kind = CorrectionKind::kIcePop, .low = .9, .cap = 1.2};
  Tokens tokens = f1(1);
  EXPECT_NEAR(evaluate(config, tokens).result.loss, -0.368390, kTolerance);
  // Without them, as what leaves them out does it.
  tokens.mask = {0, 0, 1};
  EXPECT_NEAR(evaluate(config, tokens).result.loss, -1.105171, kTolerance);
}

TEST(Correction, SequenceMaskingMatchesGoldenOpsm) {
  PolicyLossConfig config = plain(.2, .2);
  config.correction.sequence_mask = .2;
  const auto masked = [&](std::vector<float> l, float advantage) {
    Tokens tokens;
    tokens.add(std::move(l), {-1.2f, -1.2f, -0.5f}, advantage);
    return evaluate(config, tokens).result.stats.sequence_masked;
  };
  // mean(l_inf - l) is -0.033333 and 0.333333.
  EXPECT_EQ(masked({-0.9f, -1.5f, -0.4f}, -1), 0);
  EXPECT_EQ(masked({-1.4f, -1.9f, -.6f}, -1), 3);
  EXPECT_EQ(masked({-1.4f, -1.9f, -.6f}, 1), 0);
}

}  // namespace
}  // namespace tailrace
