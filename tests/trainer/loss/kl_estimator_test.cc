#include "trainer/loss/kl_estimator.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/loss/tokens.h"

namespace tailrace {
namespace {

using namespace testing;  // NOLINT: the columns of a loss call

TEST(Kl, KlTimesTheRatioMatchesGoldenKl1) {
  PolicyLossConfig config = plain(.2, .2);
  config.kl.coef = 1;
  config.kl.unbiased = true;
  expect_grads(evaluate(config, f1(0)), {0.134986, -0.370409, 0.663103});
}

// The expected gradient with regard to the logits, by enumeration of three tokens that `sampler`
// draws. coefficient(x, token): of grad log pi.
template <class Coefficient>
std::vector<double> expected_gradient(const std::vector<double>& sampler,
                                      const Coefficient& coefficient) {
  const std::vector<double> pi = {.5, .3, .2}, ref = {.2, .2, .6};
  std::vector<double> gradient(3);
  for (size_t a = 0; a < 3; ++a) {
    const double x = std::log(pi[a] / ref[a]);
    for (size_t j = 0; j < 3; ++j)
      gradient[j] += sampler[a] * coefficient(x, a) * ((a == j) - pi[j]);
  }
  return gradient;
}

// F5: k1 teaches nothing as a loss, k2 and k3 mislead as a reward.
TEST(Kl, ExpectedKlGradientsMatchGoldenKl2) {
  const std::vector<double> pi = {.5, .3, .2};
  const std::vector<double> exact = {0.278114, 0.013621, -0.291735};
  const auto in_loss = [&](KlEstimator estimator) {
    return expected_gradient(pi, [&](double x, size_t) { return kl_term(estimator, x).d_logprob; });
  };
  const auto in_reward = [&](KlEstimator estimator) {
    return expected_gradient(pi, [&](double x, size_t) { return kl_term(estimator, x).value; });
  };
  expect_numbers(in_loss(KlEstimator::kK1), {0, 0, 0});
  expect_numbers(in_loss(KlEstimator::kK2), exact);
  expect_numbers(in_loss(KlEstimator::kK3), {.3, .1, -.4});
  expect_numbers(in_reward(KlEstimator::kK1), exact);
  expect_numbers(in_reward(KlEstimator::kK2), {0.032271, -0.081915, 0.049644});
  expect_numbers(in_reward(KlEstimator::kK3), {-0.021886, -0.086379, 0.108265});
}

TEST(Kl, OffPolicyTheRatioMakesK3ExactAsGoldenKl3HasIt) {
  const std::vector<double> pi = {.5, .3, .2}, old = {.4, .4, .2};
  // What policy_loss() gives a token: the derivative of exp(l - l_old) k3 with regard to l.
  const auto found = expected_gradient(old, [&](double x, size_t a) {
    PolicyLossConfig config = plain(.2, .2);
    config.kl = {.coef = 1, .estimator = KlEstimator::kK3, .unbiased = true};
    Tokens token;
    const auto l = static_cast<float>(std::log(pi[a]));
    token.add({l}, {static_cast<float>(std::log(old[a]))}, 0, {},
              {static_cast<float>(std::log(pi[a]) - x)});
    return evaluate(config, token).dl[0];
  });
  expect_numbers(found, {0.278114, 0.013621, -0.291735});
  const auto without = expected_gradient(
      old, [](double x, size_t) { return kl_term(KlEstimator::kK2, x).d_logprob; });
  expect_numbers(without, {0.212026, 0.069492, -0.281518});
}

TEST(Kl, AKlInTheRewardIsNoTermOfTheLoss) {
  PolicyLossConfig config = plain(.2, .2);
  config.kl = {.coef = 1, .estimator = KlEstimator::kK1, .placement = KlPlacement::kReward};
  Evaluated found = evaluate(config, f1(0));
  EXPECT_EQ(found.result.loss, 0);
  for (float g : found.dl) EXPECT_EQ(g, 0);
  EXPECT_NEAR(found.result.kl_term, .066667, kTolerance) << "it is measured all the same";
}

// The mean over three tokens that `sampler` draws; `times_ratio`: weighted by pi / sampler.
double expected_kl(KlEstimator estimator, const std::vector<double>& sampler, bool times_ratio) {
  const std::vector<double> pi = {.5, .3, .2}, ref = {.2, .2, .6};
  double sum = 0;
  for (size_t a = 0; a < pi.size(); ++a) {
    const double ratio = times_ratio ? pi[a] / sampler[a] : 1;
    sum += sampler[a] * ratio * kl_term(estimator, std::log(pi[a] / ref[a])).value;
  }
  return sum;
}

// KL(pi || ref) is 0.360062: k1 and k3 have it exactly, k2 nearly.
TEST(KlEstimator, ExpectedValuesMatchGoldenKl2) {
  const std::vector<double> pi = {.5, .3, .2};
  EXPECT_NEAR(expected_kl(KlEstimator::kK1, pi, false), 0.360062, 2e-6);
  EXPECT_NEAR(expected_kl(KlEstimator::kK2, pi, false), 0.355252, 2e-6);
  EXPECT_NEAR(expected_kl(KlEstimator::kK3, pi, false), 0.360062, 2e-6);
}

TEST(KlEstimator, OffPolicyTheRatioTakesTheBiasFromK3AsGoldenKl3HasIt) {
  const std::vector<double> old = {.4, .4, .2};
  EXPECT_NEAR(expected_kl(KlEstimator::kK3, old, false), 0.335647, 2e-6);
  EXPECT_NEAR(expected_kl(KlEstimator::kK3, old, true), 0.360062, 2e-6);
}

}  // namespace
}  // namespace tailrace
