#include "trainer/loss/policy_loss.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/fixtures.h"
#include "tests/trainer/loss/tokens.h"
#include "trainer/loss/options.h"

namespace tailrace {
namespace {

using namespace testing;  // NOLINT: the columns of a loss call

TEST(PolicyLoss, PpoClipMatchesGoldenPpo1And2) {
  Evaluated up = evaluate(plain(.2, .2), f1(1));
  EXPECT_NEAR(up.result.loss, -1.015330, 2e-6);
  expect_grads(up, {0, -0.740818, -1.105171});
  Evaluated down = evaluate(plain(.2, .2), f1(-1));
  EXPECT_NEAR(down.result.loss, 1.085010, 2e-6);
  expect_grads(down, {1.349859, 0, 1.105171});
  EXPECT_EQ(down.result.stats.clipped_low, 1);
  EXPECT_EQ(up.result.stats.clipped_high, 1);
  EXPECT_NEAR(evaluate(plain(.2, .28), f1(1)).result.loss, -(1.28 + 0.740818 + 1.105171) / 3, 2e-6);
}

TEST(PolicyLoss, DualClipMatchesGoldenPpo3) {
  auto with = [](float log_ratio, double c) {
    Tokens tokens;
    tokens.add({log_ratio - 3}, {-3}, -1);
    PolicyLossConfig config = plain(.2, .2);
    config.surrogate.clip_c = c;
    return evaluate(config, tokens);
  };
  // e^1.5. With A < 0 the clip has no upper bound; dual clip (Ye et al. 2020, 1912.09729) gives it
  // one, c.
  EXPECT_NEAR(with(1.5f, 0).result.loss, 4.481689, 2e-6);
  EXPECT_NEAR(with(1.5f, 0).dl[0], 4.481689, 2e-6);
  EXPECT_NEAR(with(1.5f, 3).result.loss, 3, 2e-6);
  EXPECT_EQ(with(1.5f, 3).dl[0], 0);
  EXPECT_NEAR(with(.35f, 1.4).result.loss, 1.4, 2e-6);
  EXPECT_NEAR(with(.3f, 1.4).dl[0], 1.349859, 2e-6);
}

TEST(PolicyLoss, PpoClipMatchesTheIndependentReferenceFile) {
  auto block = testing::read_json(testing::data_dir() / "golden/rl_math.json").at("ppo_clip");
  auto l = block.at("logprobs").get<std::vector<float>>(),
       old = block.at("old_logprobs").get<std::vector<float>>();
  auto advantages = block.at("advantages").get<std::vector<float>>();
  for (const auto& wanted : block.at("cases")) {
    PolicyLossConfig config = plain(wanted.at("clip_low"), wanted.at("clip_high"));
    if (!wanted.at("dual_clip").is_null()) config.surrogate.clip_c = wanted.at("dual_clip");
    for (size_t t = 0; t < l.size(); ++t) {
      Tokens one;
      one.add({l[t]}, {old[t]}, advantages[t]);
      Evaluated found = evaluate(config, one);
      EXPECT_NEAR(found.result.loss, wanted.at("per_token_loss")[t].get<double>(), 1e-6)
          << wanted << t;
      EXPECT_NEAR(found.dl[0], wanted.at("d_loss_d_logprob")[t].get<double>(), 1e-6) << wanted << t;
      int64_t clipped = found.result.stats.clipped_low + found.result.stats.clipped_high;
      EXPECT_EQ(clipped, wanted.at("clipped")[t].get<int64_t>()) << wanted << t;
    }
  }
}

TEST(PolicyLoss, SequenceRatioMatchesGoldenGspo1) {
  auto with = [](double low, double high, float advantage) {
    PolicyLossConfig config = plain(low, high);
    config.ratio = RatioUnit::kSequence;
    config.aggregation.kind = AggregationKind::kSeqMeanTokenMean;
    return evaluate(config, f1(advantage));
  };
  EXPECT_NEAR(with(3e-4, 4e-4, 1).result.loss, -1.0004, 2e-6);
  for (float g : with(3e-4, 4e-4, 1).dl) EXPECT_EQ(g, 0);
  EXPECT_NEAR(with(3e-4, 4e-4, -1).result.loss, 1.033895, 2e-6);
  for (float g : with(3e-4, 4e-4, -1).dl) EXPECT_NEAR(g, .344632, 2e-6);
  EXPECT_NEAR(with(.2, .2, 1).result.loss, -1.033895, 2e-6);
  for (float g : with(.2, .2, 1).dl) EXPECT_NEAR(g, -.344632, 2e-6);
}

TEST(PolicyLoss, TurnRatioIsTheGeometricMeanOfItsTokens) {
  // Turns {0, 1} and {2} have ratios e^0 and e^0.1.
  Tokens tokens = f1(-1);
  tokens.turn = {0, 0, 1};
  PolicyLossConfig config = plain(.2, .2);
  config.ratio = RatioUnit::kTurn;
  Evaluated found = evaluate(config, tokens);
  EXPECT_NEAR(found.result.loss, (1 + 1 + 1.105171) / 3, 2e-6);
  expect_grads(found, {1, 1, 1.105171});
}

TEST(PolicyLoss, CispoMatchesGoldenCispo1) {
  PolicyLossConfig config = plain(.2, .28);
  config.surrogate.kind = SurrogateKind::kCispo;
  Evaluated found = evaluate(config, f1(1));
  // The golden losses are -sg(w) A l with l < 0: positive for A = 1.
  EXPECT_NEAR(found.result.loss, 0.901765, 2e-6);
  expect_grads(found, {-1.28, -0.740818, -1.105171});
  config.surrogate.clip_high = 4;
  EXPECT_NEAR(evaluate(config, f1(1)).result.loss, 0.922723, 2e-6);
}

// The preset is axes that stand already: the clip is around l_old, and token TIS weighs by
// exp(l_old - l_inf).
TEST(PolicyLoss, DecoupledPpoMatchesGoldenDec1) {
  const PolicyLossConfig config =
      policy_loss_config(AlgoOptions::preset(AlgoPreset::kDecoupledPpo));
  Evaluated up = evaluate(config, f1(1));
  // -0.982477, -1.105171, -1.105171: min(r A, 1.2 A) of r = e^0.3, e^-0.3, e^0.1 times e^-0.2,
  // e^0.4 and 1.
  EXPECT_NEAR(up.result.loss, -1.064273, 2e-6);
  expect_grads(up, {0, -1.105171, -1.105171});
  expect_grads(evaluate(config, f1(-1)), {1.105171, 0, 1.105171});
  EXPECT_EQ(up.result.stats.clipped_high, 1);
  EXPECT_EQ(up.result.stats.correction_cut, 0) << "e^0.4 is far below the cap";
  // The coupled form, around what sampled, sees e^0.1 everywhere and clips nothing.
  Tokens coupled = f1(1);
  coupled.l_old = coupled.l_inf;
  expect_grads(evaluate(config, coupled), {-1.105171, -1.105171, -1.105171});
  // The weight has its own cap.
  Tokens far = f1(1);
  far.l_inf[1] = -1.2f - 2;  // e^2 = 7.389
  expect_grads(evaluate(config, far), {0, -5 * 0.740818, -1.105171});
}

// The preset's ratio is that of a token against what sampled; its golden numbers have l_inf =
// l_old.
PolicyLossConfig topr() { return policy_loss_config(AlgoOptions::preset(AlgoPreset::kTopr)); }

TEST(PolicyLoss, ToprMatchesGoldenTopr1) {
  auto with = [](float advantage) {
    Tokens tokens;
    tokens.add({-0.9f, -1.5f, -0.4f}, {-1.2f, -1.2f, -0.5f}, advantage);
    return evaluate(topr(), tokens);
  };
  EXPECT_NEAR(with(1).result.loss, (.9 + 1.5 + .4) / 3, 2e-6);
  expect_grads(with(1), {-1, -1, -1});
  EXPECT_NEAR(with(-1).result.loss, -(.9 + 1.111227 + .4) / 3, 2e-6);
  expect_grads(with(-1), {1, 0.740818, 1});
  EXPECT_EQ(with(-1).result.stats.clipped_high, 2);
  EXPECT_EQ(with(1).result.stats.clipped_high, 0);
}

TEST(PolicyLoss, ToprTapersAWholeSequenceByItsProduct) {
  // Log-ratios -0.2, -0.1 and 0.1: their product is e^-0.2.
  Tokens tokens;
  tokens.add({-1.4f, -1.3f, -0.4f}, {-1.2f, -1.2f, -0.5f}, -1);
  expect_grads(evaluate(topr(), tokens), {0.818731, 0.904837, 1});
  PolicyLossConfig config = topr();
  config.ratio = RatioUnit::kSequence;
  config.aggregation.kind = AggregationKind::kSeqMeanTokenMean;
  expect_grads(evaluate(config, tokens), {0.818731, 0.818731, 0.818731});
}

TEST(PolicyLoss, ToprWeighsAgainstWhatSampledAndByTheSignOfTheReward) {
  // l - l_inf is 0.1, -0.4 and -0.6, whatever l_old is.
  Tokens tokens = f1(-1);
  tokens.l_inf = {-1.0f, -1.1f, 0.2f};
  expect_grads(evaluate(topr(), tokens), {1, std::exp(-.4), std::exp(-.6)});
  // A success that is below its group's mean is not tapered, a failure above it is.
  tokens.positive = {1, 1, 1};
  expect_grads(evaluate(topr(), tokens), {1, 1, 1});
  tokens.advantage = {1, 1, 1};
  tokens.positive = {0, 0, 0};
  expect_grads(evaluate(topr(), tokens), {-1, -std::exp(-.4), -std::exp(-.6)});
}

TEST(PolicyLoss, KlEstimatorsMatchGoldenKl1) {
  auto with = [](KlEstimator estimator) {
    PolicyLossConfig config = plain(.2, .2);
    config.kl.coef = 1;
    config.kl.estimator = estimator;
    return evaluate(config, f1(0));
  };
  EXPECT_NEAR(with(KlEstimator::kK1).result.kl_term, .066667, 2e-6);
  EXPECT_NEAR(with(KlEstimator::kK2).result.kl_term, .103333, 2e-6);
  EXPECT_NEAR(with(KlEstimator::kK3).result.kl_term, .100790, 2e-6);
  expect_grads(with(KlEstimator::kK1), {1, 1, 1});
  expect_grads(with(KlEstimator::kK2), {.1, -.5, .6});
  expect_grads(with(KlEstimator::kK3), {0.095163, -0.648721, 0.451188});

  auto block = testing::read_json(testing::data_dir() / "golden/rl_math.json").at("kl_estimators");
  for (size_t t = 0; t < block.at("k1").size(); ++t) {
    double x = block.at("logprobs")[t].get<double>() - block.at("ref_logprobs")[t].get<double>();
    EXPECT_NEAR(kl_term(KlEstimator::kK1, x).value, block.at("k1")[t].get<double>(), 1e-10);
    EXPECT_NEAR(kl_term(KlEstimator::kK2, x).value, block.at("k2")[t].get<double>(), 1e-10);
    EXPECT_NEAR(kl_term(KlEstimator::kK3, x).value, block.at("k3")[t].get<double>(), 1e-10);
  }
}

TEST(PolicyLoss, KlToTheBehaviourPolicyReadsTheRecordedLogprobs) {
  PolicyLossConfig config = plain(.2, .2);
  config.kl.coef = 1;
  config.kl.estimator = KlEstimator::kK1;
  config.kl.target = KlTarget::kBehaviour;
  EXPECT_NEAR(evaluate(config, f1(0)).result.kl_term, (.1 + .1 + .1) / 3, 2e-6);
}

TEST(PolicyLoss, TruncatedImportanceWeightsMatchGoldenMm1And2) {
  PolicyLossConfig config = plain(.2, .2);
  config.correction = {.kind = CorrectionKind::kTis, .cap = 1.2};
  Evaluated found = evaluate(config, f1(1));
  // Weights e^-0.2, min(e^0.4, 1.2) and 1 times the terms of PPO.
  EXPECT_NEAR(found.result.loss, -0.992210, 2e-6);
  EXPECT_EQ(found.result.stats.correction_cut, 1);
  EXPECT_NEAR(found.result.stats.correction_max, 1.2, 1e-12);
  // The mean of e^x - 1 - x over -0.2, 0.4 and 0.
  EXPECT_NEAR(found.result.stats.mismatch_k3_sum / 3, 0.036852, 2e-6);
  // The product over the sequence is exp(0.2).
  config.correction = {.kind = CorrectionKind::kTis, .level = CorrectionLevel::kSequence, .cap = 2};
  EXPECT_NEAR(evaluate(config, f1(1)).result.loss, -1.015330 * 1.221403, 3e-6);

  auto block =
      testing::read_json(testing::data_dir() / "golden/rl_math.json").at("truncated_importance");
  std::vector<double> log_weight;
  for (size_t t = 0; t < block.at("weight").size(); ++t) {
    log_weight.push_back(block.at("train_logprobs")[t].get<double>() -
                         block.at("rollout_logprobs")[t].get<double>());
  }
  std::vector<double> weight(log_weight.size());
  correction_weights({.kind = CorrectionKind::kTis, .cap = block.at("cap")}, log_weight,
                     std::vector<int32_t>(log_weight.size()), weight);
  for (size_t t = 0; t < weight.size(); ++t)
    EXPECT_NEAR(weight[t], block.at("weight")[t].get<double>(), 1e-10);
}

TEST(PolicyLoss, AggregationMatchesGoldenAgg1) {
  // Token losses [[1, 2, 3], [5]]: ratio 1 and advantages of minus the loss.
  Tokens tokens;
  tokens.add({-1, -1, -1}, {-1, -1, -1}, 0);
  tokens.add({-1}, {-1}, 0);
  tokens.advantage = {-1, -2, -3, -5};
  auto with = [&](AggregationKind kind, int64_t const_tokens = 0) {
    PolicyLossConfig config = plain(.2, .2);
    config.aggregation = {kind, const_tokens};
    return evaluate(config, tokens).result.loss;
  };
  EXPECT_NEAR(with(AggregationKind::kTokenMean), 2.75, 1e-12);
  EXPECT_NEAR(with(AggregationKind::kSeqMeanTokenMean), 3.5, 1e-12);
  EXPECT_NEAR(with(AggregationKind::kSeqMeanTokenSumConst, 8), .6875, 1e-12);
}

TEST(PolicyLoss, ATrajectoryOfManySegmentsCountsOnce) {
  Tokens tokens;
  tokens.add({-1, -1}, {-1, -1}, -1);
  tokens.add({-1}, {-1}, -4);
  tokens.add({-1}, {-1}, -10);
  tokens.trajectory = {0, 0, 0, 1};
  PolicyLossConfig config = plain(.2, .2);
  config.aggregation.kind = AggregationKind::kSeqMeanTokenMean;
  EXPECT_NEAR(evaluate(config, tokens).result.loss, ((1 + 1 + 4) / 3.0 + 10) / 2, 1e-12);
}

TEST(PolicyLoss, IntegrationMatchesGoldenB17) {
  // What rewards 1 and 0 give with the unbiased deviation: 0.5 / (sqrt(1/2) + 1e-6).
  Tokens tokens = f1(0.707106f);
  tokens.add({-.7f, -1.1f}, {-.8f, -.9f}, -0.707106f, {}, {-.9f, -1.0f});
  PolicyLossConfig config = plain(.2, .28);
  config.kl.coef = .001;
  Evaluated mean = evaluate(config, tokens);
  EXPECT_NEAR(mean.result.loss, -0.169935, 2e-6);
  std::vector<double> expected = {0.000019, -0.104897, -0.156204, 0.156331, 0.115765};
  for (size_t t = 0; t < expected.size(); ++t) EXPECT_NEAR(mean.dl[t], expected[t], 2e-6) << t;
  // e^0.3 is above 1.28; in the other sequence e^0.1 and e^-0.2 are inside, and A < 0 is cut from
  // below only.
  EXPECT_EQ(mean.result.stats.clipped_high + mean.result.stats.clipped_low, 1);
  EXPECT_NEAR(mean.result.stats.old_minus_new_sum, 0, 1e-6);

  config.aggregation.kind = AggregationKind::kSeqMeanTokenMean;
  EXPECT_NEAR(evaluate(config, tokens).result.loss, -0.028244, 2e-6);
  config.kl.coef = 0;
  config.aggregation = {AggregationKind::kSeqMeanTokenSumConst, 4};
  EXPECT_NEAR(evaluate(config, tokens).result.loss, -0.106250, 2e-6);
  config.aggregation.kind = AggregationKind::kSeqMeanTokenSum;
  EXPECT_NEAR(evaluate(config, tokens).result.loss, -0.425001, 2e-6);
}

std::vector<PolicyLossConfig> all_configs() {
  std::vector<PolicyLossConfig> configs = {
      policy_loss_config(AlgoOptions::preset(AlgoPreset::kDecoupledPpo))};
  for (RatioUnit ratio : {RatioUnit::kToken, RatioUnit::kTurn, RatioUnit::kSequence}) {
    for (AggregationKind aggregation :
         {AggregationKind::kTokenMean, AggregationKind::kSeqMeanTokenMean,
          AggregationKind::kSeqMeanTokenSumConst}) {
      for (KlEstimator kl : {KlEstimator::kK1, KlEstimator::kK2, KlEstimator::kK3}) {
        for (CorrectionLevel level :
             {CorrectionLevel::kToken, CorrectionLevel::kSequence, CorrectionLevel::kTurnMean}) {
          PolicyLossConfig config = plain(.2, .28);
          config.ratio = ratio;
          config.surrogate.clip_c = 1.5;
          config.aggregation = {aggregation, 7};
          config.kl.coef = .3;
          config.kl.estimator = kl;
          config.kl.unbiased = level == CorrectionLevel::kTurnMean;
          config.entropy_coef = .1;
          config.correction = {.kind = CorrectionKind::kTis, .level = level, .cap = 1.3};
          configs.push_back(config);
        }
      }
    }
  }
  return configs;
}

TEST(PolicyLoss, GradientsMatchFiniteDifferencesForEveryCombination) {
  for (const PolicyLossConfig& config : all_configs()) {
    Tokens tokens = random_tokens(5);
    Evaluated at = evaluate(config, tokens);
    auto slope = [&](float& value) {
      float before = value;
      // The step is what float actually stored, so that only the O(h^2) term of the difference is
      // left.
      value = before + 1e-3f;
      double up = value, loss_up = evaluate(config, tokens).result.loss;
      value = before - 1e-3f;
      double down = value, loss_down = evaluate(config, tokens).result.loss;
      value = before;
      return (loss_up - loss_down) / (up - down);
    };
    for (size_t t = 0; t < tokens.l.size(); ++t) {
      EXPECT_NEAR(at.dl[t], slope(tokens.l[t]), 2e-6) << "token " << t;
      EXPECT_NEAR(at.dh[t], slope(tokens.entropy[t]), 2e-6) << "token " << t;
    }
  }
}

TEST(PolicyLoss, DetachedFactorsGiveNoGradient) {
  // Moving l and l_old together keeps every ratio: PPO's loss stands still, CISPO's moves by its
  // direct term.
  Tokens tokens = random_tokens(6);
  std::fill(tokens.mask.begin(), tokens.mask.end(), uint8_t{1});
  PolicyLossConfig config = plain(.2, .28);
  config.surrogate.kind = SurrogateKind::kCispo;
  expect_slope_beside(config, tokens, &Tokens::l_old);
  for (size_t t = 0; t < tokens.l.size(); ++t) {
    Tokens moved = tokens;
    constexpr float kStep = 1.0f / 1024;
    moved.l[t] += kStep;
    moved.l_old[t] += kStep;
    EXPECT_NEAR(evaluate(plain(.2, .28), moved).result.loss,
                evaluate(plain(.2, .28), tokens).result.loss, 1e-6);
  }
}

TEST(PolicyLoss, ToprsTaperGivesNoGradient) {
  // Moving l and l_inf together keeps every taper, and leaves the direct term.
  for (RatioUnit ratio : {RatioUnit::kToken, RatioUnit::kTurn, RatioUnit::kSequence}) {
    PolicyLossConfig config = topr();
    config.ratio = ratio;
    int64_t tapered = 0;
    for (uint64_t seed = 6; seed < 10; ++seed) {
      Tokens tokens = random_tokens(seed);
      std::fill(tokens.mask.begin(), tokens.mask.end(), uint8_t{1});
      expect_slope_beside(config, tokens, &Tokens::l_inf);
      Evaluated at = evaluate(config, tokens);
      auto n = static_cast<double>(tokens.l.size());
      for (size_t t = 0; t < tokens.l.size(); ++t)
        tapered += std::abs(at.dl[t] * n + tokens.advantage[t]) > 1e-3;
    }
    EXPECT_GT(tapered, 0) << name_of(ratio);
  }
}

// Of every kind of surrogate.
std::vector<PolicyLossConfig> configs_of_all_surrogates() {
  std::vector<PolicyLossConfig> configs = all_configs();
  configs.push_back(topr());
  for (SurrogateKind kind : {SurrogateKind::kCispo, SurrogateKind::kReinforce, SurrogateKind::kKimi,
                             SurrogateKind::kSapo, SurrogateKind::kIpa}) {
    configs.push_back(plain(.2, .28));
    configs.back().surrogate.kind = kind;
  }
  for (CorrectionKind kind :
       {CorrectionKind::kIcePop, CorrectionKind::kMis, CorrectionKind::kMask}) {
    configs.push_back(plain(.2, .28));
    configs.back().correction = {.kind = kind, .low = .8, .cap = 1.3, .sequence_mask = .1};
  }
  configs.push_back(plain(.2, .28));
  configs.back().ratio = RatioUnit::kSequenceToken;
  return configs;
}

TEST(PolicyLoss, MaskedTokensChangeNothingWhateverTheyHold) {
  for (const PolicyLossConfig& config : configs_of_all_surrogates()) {
    Tokens tokens = random_tokens(7);
    Evaluated before = evaluate(config, tokens);
    for (size_t t = 0; t < tokens.l.size(); ++t) {
      if (tokens.mask[t]) continue;
      float nan = std::numeric_limits<float>::quiet_NaN();
      tokens.l[t] = tokens.l_old[t] = tokens.l_inf[t] = tokens.l_ref[t] = nan;
      tokens.entropy[t] = tokens.advantage[t] = nan;
      tokens.positive[t] ^= 1;
      EXPECT_EQ(before.dl[t], 0);
      EXPECT_EQ(before.dh[t], 0);
    }
    Evaluated after = evaluate(config, tokens);
    EXPECT_EQ(after.result.loss, before.result.loss);
    EXPECT_EQ(after.dl, before.dl);
    EXPECT_EQ(after.dh, before.dh);
  }
}

TEST(PolicyLoss, PartsOfAMinibatchAddUp) {
  Tokens tokens = random_tokens(8);
  // Some successes above their baseline.
  for (size_t t = 0; t < tokens.positive.size(); ++t)
    if (tokens.positive[t] != 0) tokens.advantage[t] = std::abs(tokens.advantage[t]);
  std::vector<int32_t> per_trajectory = tokens.trajectory_tokens();
  // Any will do: denominators are of the whole minibatch and come from outside.
  LossCounts counts{
      .tokens = 11, .trajectories = 3, .trajectory_tokens = per_trajectory, .mean_correction = 1.7};
  for (PolicyLossConfig config : configs_of_all_surrogates()) {
    config.correction.normalize = true;
    config.imitation.coef = .3;
    size_t n = tokens.l.size(), cut = 0;
    // Between two sequences: a sequence is never split.
    while (tokens.sequence[cut] < 2) ++cut;
    std::vector<float> dl(n), dh(n), dl_parts(n), dh_parts(n);
    PolicyLossResult whole = policy_loss(config, tokens.input(), counts, dl, dh), sum;
    for (auto [begin, end] : {std::pair<size_t, size_t>{0, cut}, {cut, n}}) {
      auto part = [&](auto column) { return column.subspan(begin, end - begin); };
      PolicyLossInput in = tokens.input();
      sum.add(
          policy_loss(config,
                      {part(in.logprob), part(in.old_logprob), part(in.behaviour_logprob),
                       part(in.ref_logprob), part(in.entropy), part(in.advantage), part(in.mask),
                       part(in.sequence), part(in.turn), part(in.trajectory), part(in.positive)},
                      counts, part(std::span(dl_parts)), part(std::span(dh_parts))));
    }
    // The sum has another order than the whole; gradients are of each token alone and equal.
    EXPECT_NEAR(sum.loss, whole.loss, 1e-14);
    EXPECT_NE(whole.imitation_term, 0);
    EXPECT_NEAR(sum.imitation_term, whole.imitation_term, 1e-14);
    EXPECT_EQ(dl, dl_parts);
    EXPECT_EQ(dh, dh_parts);
    EXPECT_EQ(sum.stats.tokens, whole.stats.tokens);
    EXPECT_EQ(sum.stats.ratio_max, whole.stats.ratio_max);
  }
}

TEST(PolicyLoss, LogRatiosAreCutAtTwentyCountedAndGiveNoGradient) {
  Tokens tokens;
  // 25 and -29, beyond 20 on either side.
  tokens.add({-1, -30}, {-26, -1}, -1, {}, /*ref=*/{-1, -30});
  PolicyLossConfig config = plain(1, 1e12);
  Evaluated found = evaluate(config, tokens);
  EXPECT_EQ(found.result.stats.clamped, 2);
  EXPECT_EQ(found.dl[0], 0);
  EXPECT_EQ(found.dl[1], 0);
  EXPECT_NEAR(found.result.stats.ratio_max, std::exp(20.0), 1);
  EXPECT_TRUE(std::isfinite(found.result.loss));
}

TEST(PolicyLoss, OnPolicyEveryRatioUnitGivesTheSameGradient) {
  // With l = l_old and a constant A every objective's gradient is -A times the aggregation weight.
  Tokens tokens;
  tokens.add({-1, -2, -.5f}, {-1, -2, -.5f}, .7f);
  for (RatioUnit ratio :
       {RatioUnit::kToken, RatioUnit::kTurn, RatioUnit::kSequence, RatioUnit::kSequenceToken}) {
    for (SurrogateKind kind : {SurrogateKind::kPpoClip, SurrogateKind::kCispo, SurrogateKind::kTopr,
                               SurrogateKind::kReinforce, SurrogateKind::kKimi,
                               SurrogateKind::kSapo, SurrogateKind::kIpa}) {
      PolicyLossConfig config = plain(.2, .28);
      config.ratio = ratio;
      config.surrogate.kind = kind;
      for (uint8_t positive : {0, 1}) {
        tokens.positive.assign(3, positive);
        for (float g : evaluate(config, tokens).dl) EXPECT_FLOAT_EQ(g, -.7f / 3);
      }
    }
  }
}

TEST(PolicyLoss, SumsOfTokensMatchGoldenAgg1AndMicroBatchMeansAreNotAveraged) {
  Tokens tokens;
  tokens.add({-1, -1, -1}, {-1, -1, -1}, 0);
  tokens.add({-1}, {-1}, 0);
  tokens.advantage = {-1, -2, -3, -5};
  PolicyLossConfig config = plain(.2, .2);
  config.aggregation.kind = AggregationKind::kSeqMeanTokenSum;
  EXPECT_NEAR(evaluate(config, tokens).result.loss, 5.5, 1e-12);
  // F1: two micro-batches of a sequence each, with the counts of both, are 2.75 together. The mean
  // of their means is 3.5.
  config.aggregation.kind = AggregationKind::kTokenMean;
  EXPECT_NEAR(evaluate(config, tokens).result.loss, 2.75, 1e-12);
}

// F27: with filter_zero_signal none, tokens of advantage 0 still carry KL and entropy and count.
TEST(PolicyLoss, TokensWithoutAdvantageStillCount) {
  PolicyLossConfig config = plain(.2, .2);
  config.kl.coef = 1;
  Tokens tokens = f1(1);
  const double alone = evaluate(config, tokens).result.policy_term;
  tokens.add({-1, -1, -1}, {-1, -1, -1}, 0, {}, {-2, -2, -2});
  Evaluated found = evaluate(config, tokens);
  EXPECT_NEAR(found.result.policy_term, alone / 2, 1e-9);
  for (size_t t = 3; t < 6; ++t) EXPECT_NE(found.dl[t], 0);
}

}  // namespace
}  // namespace tailrace
