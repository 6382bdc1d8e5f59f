// Golden numbers and pitfalls of the algorithms, by the function that computes them. The numbers
// were made in double precision outside of this project, from the papers' formulas.
#include <cmath>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/loss/tokens.h"
#include "trainer/loss/advantage.h"
#include "trainer/loss/credit.h"
#include "trainer/loss/policy_loss.h"
#include "trainer/loss/returns.h"
#include "trainer/loss/shaping.h"

namespace tailrace {
namespace {

using namespace testing;  // NOLINT: the columns of a loss call

constexpr double kTolerance = 2e-6;

void expect_numbers(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], kTolerance) << i;
}

PolicyLossConfig with_surrogate(SurrogateKind kind) {
  PolicyLossConfig config = plain(.2, .2);
  config.surrogate.kind = kind;
  return config;
}

// The same log-ratios -0.2, -0.1 and 0.1 as in a later update of a step.
Tokens f2(float advantage) {
  Tokens tokens;
  tokens.add({-1.4f, -1.3f, -0.4f}, {-1.2f, -1.2f, -0.5f}, advantage);
  return tokens;
}

// --- Surrogates ---------------------------------------------------------------------------------

TEST(Algorithms, TwoSidedClipIsTheDualClipAndMatchesGoldenPpo4) {
  PolicyLossConfig config = plain(.2, .2);
  config.surrogate.clip_c = 4;
  for (const auto& [ratio, loss] : {std::pair{.5, .8}, {1.0, 1.0}, {1.5, 1.5}, {5.0, 4.0}}) {
    Tokens tokens;
    tokens.add({static_cast<float>(std::log(ratio) - 3)}, {-3}, -1);
    EXPECT_NEAR(evaluate(config, tokens).result.loss, loss, kTolerance) << ratio;
  }
}

TEST(Algorithms, ReinforceMatchesTheVanillaGolden) {
  Evaluated found = evaluate(with_surrogate(SurrogateKind::kReinforce), f1(1));
  EXPECT_NEAR(found.result.loss, 0.933333, kTolerance);
  expect_grads(found, {-1, -1, -1});
}

TEST(Algorithms, KimiMatchesItsGolden) {
  Evaluated up = evaluate(with_surrogate(SurrogateKind::kKimi), f1(1));
  EXPECT_NEAR(up.result.loss, (.9045 + 1.5045 + .4005) / 3, kTolerance);
  expect_grads(up, {-.97, -1.03, -.99});
  Evaluated down = evaluate(with_surrogate(SurrogateKind::kKimi), f1(-1));
  EXPECT_NEAR(down.result.loss, -(.8955 + 1.4955 + .3995) / 3, kTolerance);
  expect_grads(down, {1.03, .97, 1.01});
}

TEST(Algorithms, SapoMatchesGoldenSapo1) {
  Evaluated up = evaluate(with_surrogate(SurrogateKind::kSapo), f1(1));
  EXPECT_NEAR(up.result.loss, -2.064556, kTolerance);
  expect_grads(up, {-1.309381, -0.728515, -1.102120});
  Evaluated down = evaluate(with_surrogate(SurrogateKind::kSapo), f1(-1));
  EXPECT_NEAR(down.result.loss, 1.969244, kTolerance);
  expect_grads(down, {1.305324, 0.727269, 1.101808});
}

TEST(Algorithms, GspoMatchesGoldenGspo2AndGspoTokenItsOwn) {
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
TEST(Algorithms, GspoTokenIsGspoWhereTheAdvantageIsConstant) {
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

TEST(Algorithms, CispoHasNoLowerBoundAndItsBoundIsTheLargestRatio) {
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

TEST(Algorithms, IpaMatchesGoldenIpa2To4) {
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
TEST(Algorithms, IpaSplitsByTheRewardAndNotByTheSignOfTheAdvantage) {
  Tokens tokens = chunks(f2(1), 1);
  tokens.positive.assign(3, 0);
  expect_grads(evaluate(ipa(), tokens), {-.9 * 0.860708, -.9 * 0.860708, -1});
}

// F31: ratios that cancel in the geometric mean of a chunk. The veto of mis is of tokens at any
// level, and sees the far one.
TEST(Algorithms, AGeometricMeanHidesOutliersThatCancelAndAVetoSeesThem) {
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
TEST(Algorithms, ChunksAreTurnsAndNotRunsOfTrainedTokens) {
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

// F32: a failure of reward 0 without a baseline has no negative signal.
TEST(Algorithms, AFailureOfRewardZeroTeachesNothingWithoutABaseline) {
  const std::vector<double> rewards = {1, 0};
  const std::vector<int32_t> groups = {0, 2};
  EXPECT_EQ(group_advantages(AdvantageKind::kReward, 0, rewards, groups).advantage[1], 0);
  EXPECT_LT(group_advantages(AdvantageKind::kGroupMean, 0, rewards, groups).advantage[1], 0);
}

// --- Advantages ---------------------------------------------------------------------------------

TEST(Algorithms, RemaxTakesTheGreedyMembersReward) {
  const std::vector<int32_t> groups = {0, 3, 6};
  const std::vector<uint8_t> greedy = {1, 0, 0, 1, 0, 0};
  const std::vector<double> rewards = {0, 1, 0, 1, 0, 1};
  const auto found = group_advantages(AdvantageKind::kGreedy, 0, rewards, groups, greedy);
  EXPECT_EQ(found.advantage, (std::vector<double>{0, 1, 0, 0, -1, 0}));
  // Without it, as a leave-one-out.
  const auto lost = group_advantages(AdvantageKind::kGreedy, 0, rewards, groups);
  EXPECT_NEAR(lost.advantage[1], 1, 1e-12);
}

TEST(Algorithms, ARewardWithoutABaselineIsASignalAlsoInAGroupOfEquals) {
  const std::vector<double> rewards = {1, 1};
  const std::vector<int32_t> groups = {0, 2};
  const auto found = group_advantages(AdvantageKind::kReward, 0, rewards, groups);
  EXPECT_EQ(found.advantage, rewards);
  EXPECT_FALSE(found.zero_signal[0]);
}

TEST(Algorithms, ReinforcePlusPlusMatchesGoldenRfpp1) {
  // Rewards 1 and 0 on the last tokens, minus 0.1 k1 on each.
  std::vector<double> first = {1, 1}, second = {0, 0, 0};
  const std::vector<double> k1_first = {-.01, .005}, k1_second = {-.02, -0.0, -.01};
  add_rewards_to_go(k1_first, 1, first);
  add_rewards_to_go(k1_second, 1, second);
  expect_numbers(first, {.995, 1.005});
  expect_numbers(second, {-.03, -.01, -.01});
  std::vector<double> all = first;
  all.insert(all.end(), second.begin(), second.end());
  whiten(all);
  expect_numbers(all, {1.086327, 1.104283, -0.754145, -0.718233, -0.718233});
}

TEST(Algorithms, ReinforcePlusPlusBaselineMatchesGoldenRfpp2) {
  const std::vector<double> rewards = {1, 0, 0, 1, 1, 1, 1, 0};
  const std::vector<int32_t> groups = {0, 4, 8};
  const auto centred = group_advantages(AdvantageKind::kGroupMean, 0, rewards, groups).advantage;
  std::vector<double> one_each = centred;
  whiten(one_each);
  expect_numbers(one_each, {1, -1, -1, 1, .5, .5, .5, -1.5});
  // F11: not Lite PPO's raw deviation, .517549.
  EXPECT_GT(std::abs(one_each[0] - centred[0] / .517549), .03);
  std::vector<double> by_token;
  const std::vector<size_t> lengths = {2, 1, 1, 2, 1, 1, 1, 3};
  for (size_t i = 0; i < lengths.size(); ++i)
    by_token.insert(by_token.end(), lengths[i], centred[i]);
  whiten(by_token);
  expect_numbers({by_token[0], by_token[2], by_token[3], by_token[4], by_token[6], by_token[9]},
                 {0.980926, -0.830014, -0.830014, 0.980926, 0.528191, -1.282749});
}

TEST(Algorithms, WhiteningMatchesGoldenWh1) {
  std::vector<double> values = {1, 2, 4};
  whiten(values);
  expect_numbers(values, {-0.872872, -0.218218, 1.091089});
  std::vector<double> one = {3};
  whiten(one);
  EXPECT_EQ(one[0], 3);
}

TEST(Algorithms, GaeMatchesGoldenGae1) {
  const std::vector<double> rewards = {0, 0, 1}, values = {.2, .5, .8};
  std::vector<double> advantages(3), returns(3);
  const auto with = [&](double gamma, double lambda) {
    gae(rewards, values, 0, gamma, lambda, advantages, returns);
  };
  with(1, 1);
  expect_numbers(advantages, {.8, .5, .2});
  with(1, .95);
  expect_numbers(advantages, {.7655, .49, .2});
  expect_numbers(returns, {.9655, .99, 1});
  with(.9, .95);
  expect_numbers(advantages, {0.584305, .391, .2});
  expect_numbers(returns, {0.784305, .891, 1});
}

TEST(Algorithms, GaeOfACutEpisodeGoesOnWithTheValueBehindIt) {
  const std::vector<double> rewards = {0, 0}, values = {.5, .5};
  std::vector<double> advantages(2), returns(2);
  gae(rewards, values, 0, 1, 1, advantages, returns);
  expect_numbers(advantages, {-.5, -.5});
  gae(rewards, values, .5, 1, 1, advantages, returns);
  expect_numbers(advantages, {0, 0});
}

// --- Credit -------------------------------------------------------------------------------------

TEST(Algorithms, TurnReturnsMatchGoldenIpa1) {
  expect_numbers(discounted_returns(std::vector<double>{0, 0, 1}, .9), {.81, .9, 1});
  expect_numbers(discounted_returns(std::vector<double>{0, -.1, 1}, .95), {.8075, .85, 1});
  // Of a trajectory with a baseline: the last turn has its advantage, those before it a part.
  const std::vector<double> rewards = {0, 0, 1};
  const std::vector<TurnFacts> group = {
      {.advantage = .25, .baseline = .75, .scale = 1, .rewards = rewards}};
  expect_numbers(
      turn_credit({.kind = CreditKind::kTurnReturn, .gamma = .9}, false, 0, group).front(),
      {.25 * .81, .25 * .9, .25});
  // Without a discount the first turn has all of it, whatever the turns were paid.
  const std::vector<double> paid = {-.1, .3, .8};
  const std::vector<TurnFacts> other = {
      {.advantage = .5, .baseline = .75, .scale = 2, .rewards = paid}};
  EXPECT_NEAR(
      turn_credit({.kind = CreditKind::kTurnReturn, .gamma = 1}, false, 0, other).front().front(),
      .5, 1e-12);
}

TEST(Algorithms, GigpoMatchesGoldenGigpo1) {
  const std::vector<double> won = {0, 1}, lost = {0, 0};
  const std::vector<uint64_t> ab = {11, 22}, aa = {11, 11};
  const auto credit = [&](AdvantageKind kind) {
    const std::vector<double> rewards = {1, 0};
    const std::vector<int32_t> groups = {0, 2};
    const auto a = group_advantages(kind, 1e-6, rewards, groups);
    const std::vector<TurnFacts> group = {
        {.advantage = a.advantage[0], .rewards = won, .anchors = ab},
        {.advantage = a.advantage[1], .rewards = lost, .anchors = aa}};
    return turn_credit({.kind = CreditKind::kGigpo, .gamma = .95, .weight = 1},
                       divides_by_std(kind), 1e-6, group);
  };
  const auto mean = credit(AdvantageKind::kGroupMean);
  expect_numbers(mean[0], {1.133333, .5});
  expect_numbers(mean[1], {-0.816667, -0.816667});
  const auto std = credit(AdvantageKind::kGroupMeanStd);
  expect_numbers(std[0], {1.861804, 0.707106});
  expect_numbers(std[1], {-1.284455, -1.284455});
}

// F18: the statistics of an episode are over trajectories: a success of 2 turns and a failure of 4
// have the mean .5 and not 2 / 6.
TEST(Algorithms, GigposEpisodeStatisticsAreOverTrajectories) {
  const std::vector<double> won = {0, 1}, lost = {0, 0, 0, 0};
  const std::vector<double> rewards = {1, 0};
  const std::vector<int32_t> groups = {0, 2};
  const auto a = group_advantages(AdvantageKind::kGroupMean, 0, rewards, groups);
  const std::vector<TurnFacts> group = {{.advantage = a.advantage[0], .rewards = won},
                                        {.advantage = a.advantage[1], .rewards = lost}};
  const auto credit = turn_credit({.kind = CreditKind::kGigpo}, false, 0, group);
  for (double value : credit[0]) EXPECT_EQ(value, .5);
  for (double value : credit[1]) EXPECT_EQ(value, -.5);
}

// Equal returns at a state are no noise over eps.
TEST(Algorithms, AStateWhoseReturnsAreEqualGivesNothing) {
  const std::vector<double> same = {.1, .2};
  const std::vector<uint64_t> anchors = {7, 8};
  const std::vector<TurnFacts> group(3, {.rewards = same, .anchors = anchors});
  for (const auto& turns : turn_credit({.kind = CreditKind::kGigpo}, true, 1e-9, group))
    for (double value : turns) EXPECT_EQ(value, 0);
}

TEST(Algorithms, TurningPointsMatchGoldenTp1To3) {
  const auto rewards = [](std::vector<double> values) { return turning_point_rewards(values); };
  expect_numbers(rewards({.5, .4, .7, .6, .9}), {-.1, .5, -.1, .3});
  expect_numbers(rewards({.8, .9, .5, .6, .3}), {.1, -.6, .1, -.3});
  expect_numbers(rewards({.2, .5, .4, .6, .8}), {.3, -.1, .4, .2});
  // No difference as a whole, no turning point.
  expect_numbers(rewards({.5, .4, .5}), {-.1, .1});
  std::vector<std::vector<double>> group = {
      {-.1, .5, -.1, .3}, {.1, -.6, .1, -.3}, {.3, -.1, .4, .2}};
  normalise_by_turn(group);
  const std::vector<std::vector<double>> expected = {{-1.223995, 1.259844, -1.134998, 0.888662},
                                                     {0, -1.185735, -0.162143, -1.396469},
                                                     {1.223995, -0.074108, 1.297140, 0.507807}};
  for (size_t i = 0; i < 3; ++i) expect_numbers(group[i], expected[i]);
}

// The prefix value of a state is the mean outcome of those who met it.
TEST(Algorithms, TurningPointCreditIsThatOfTheTurnThatLeftASharedState) {
  // All start in 1; two go on to 2, of which one wins; the third goes to 3 and loses.
  const std::vector<double> won = {0, 1}, lost = {0, 0};
  const std::vector<uint64_t> to_2 = {1, 2}, to_3 = {1, 3};
  const std::vector<TurnFacts> group = {{.rewards = won, .anchors = to_2},
                                        {.rewards = lost, .anchors = to_2},
                                        {.rewards = lost, .anchors = to_3}};
  const auto credit = turn_credit({.kind = CreditKind::kTurningPoint}, false, 0, group);
  // First turn: V goes from 1/3 to 1/2, 1/2 and 0. To 2 was right, to 3 wrong, the same for both.
  EXPECT_GT(credit[0][0], 0);
  EXPECT_LT(credit[2][0], 0);
  // Second turn: from 1/2 to 1, from 1/2 to 0, and from 0 to 0.
  EXPECT_GT(credit[0][1], 0);
  EXPECT_LT(credit[1][1], credit[2][1]);
}

// --- Reward shaping -----------------------------------------------------------------------------

TEST(Algorithms, SoftOverlongMatchesGoldenDapo1) {
  const LengthOptions options = {
      .penalty = LengthPenalty::kSoftOverlong, .factor = 1, .limit = 20480, .buffer = 4096};
  const std::vector<int64_t> lengths = {16000, 16384, 18432, 20480, 21000};
  const std::vector<uint8_t> success(5, 1);
  const std::vector<int32_t> groups = {0, 5};
  expect_numbers(length_penalties(options, lengths, success, groups), {0, 0, -.5, -1, -1});
}

TEST(Algorithms, KimisLengthPenaltyMatchesItsGolden) {
  const std::vector<int64_t> lengths = {100, 300, 500, 100, 300, 500, 7, 7};
  const std::vector<uint8_t> success = {1, 1, 1, 0, 0, 0, 1, 0};
  const std::vector<int32_t> groups = {0, 3, 6, 8};
  expect_numbers(length_penalties({.penalty = LengthPenalty::kKimi}, lengths, success, groups),
                 {.5, 0, -.5, 0, 0, -.5, 0, 0});
}

// --- Corrections --------------------------------------------------------------------------------

std::vector<double> weights_of(const CorrectionOptions& options, std::vector<double> ratios) {
  for (double& ratio : ratios) ratio = std::log(ratio);
  std::vector<double> weight(ratios.size());
  correction_weights(options, ratios, std::vector<int32_t>(ratios.size()), weight);
  return weight;
}

TEST(Algorithms, CorrectionsMatchGoldenMm1AndMm4) {
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
TEST(Algorithms, RejectedTokensStayInTheDenominatorAsGoldenMm3HasIt) {
  PolicyLossConfig config = plain(.2, .2);
  config.correction = {.kind = CorrectionKind::kIcePop, .low = .9, .cap = 1.2};
  Tokens tokens = f1(1);
  EXPECT_NEAR(evaluate(config, tokens).result.loss, -0.368390, kTolerance);
  // Without them, as what leaves them out does it.
  tokens.mask = {0, 0, 1};
  EXPECT_NEAR(evaluate(config, tokens).result.loss, -1.105171, kTolerance);
}

TEST(Algorithms, SequenceMaskingMatchesGoldenOpsm) {
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

// --- KL -----------------------------------------------------------------------------------------

TEST(Algorithms, KlTimesTheRatioMatchesGoldenKl1) {
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
TEST(Algorithms, ExpectedKlGradientsMatchGoldenKl2) {
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

TEST(Algorithms, OffPolicyTheRatioMakesK3ExactAsGoldenKl3HasIt) {
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

TEST(Algorithms, AKlInTheRewardIsNoTermOfTheLoss) {
  PolicyLossConfig config = plain(.2, .2);
  config.kl = {.coef = 1, .estimator = KlEstimator::kK1, .placement = KlPlacement::kReward};
  Evaluated found = evaluate(config, f1(0));
  EXPECT_EQ(found.result.loss, 0);
  for (float g : found.dl) EXPECT_EQ(g, 0);
  EXPECT_NEAR(found.result.kl_term, .066667, kTolerance) << "it is measured all the same";
}

// --- Aggregation --------------------------------------------------------------------------------

TEST(Algorithms, SumsOfTokensMatchGoldenAgg1AndMicroBatchMeansAreNotAveraged) {
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
TEST(Algorithms, TokensWithoutAdvantageStillCount) {
  PolicyLossConfig config = plain(.2, .2);
  config.kl.coef = 1;
  Tokens tokens = f1(1);
  const double alone = evaluate(config, tokens).result.policy_term;
  tokens.add({-1, -1, -1}, {-1, -1, -1}, 0, {}, {-2, -2, -2});
  Evaluated found = evaluate(config, tokens);
  EXPECT_NEAR(found.result.policy_term, alone / 2, 1e-9);
  for (size_t t = 3; t < 6; ++t) EXPECT_NE(found.dl[t], 0);
}

// F16: finite differences through what is not detached, for the surrogates that have such a part.
TEST(Algorithms, GradientsOfTheNewSurrogatesMatchFiniteDifferences) {
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
TEST(Algorithms, IpasTaperGivesNoGradient) {
  PolicyLossConfig config = ipa();
  Tokens tokens = random_tokens(12);
  std::fill(tokens.mask.begin(), tokens.mask.end(), uint8_t{1});
  const Evaluated at = evaluate(config, tokens);
  for (size_t t = 0; t < tokens.l.size(); ++t) {
    Tokens moved = tokens;
    constexpr float kStep = 1.0f / 1024;
    moved.l[t] += kStep;
    moved.l_old[t] += kStep;
    EXPECT_NEAR((evaluate(config, moved).result.loss - at.result.loss) / kStep, at.dl[t], 1e-4);
  }
}

// F28.
TEST(Algorithms, FarRatiosAreCutAndCountedInEverySurrogate) {
  Tokens tokens;
  tokens.add({-1, -30}, {-26, -1}, -1);
  for (SurrogateKind kind : {SurrogateKind::kSapo, SurrogateKind::kIpa, SurrogateKind::kCispo}) {
    Evaluated found = evaluate(with_surrogate(kind), tokens);
    EXPECT_GE(found.result.stats.clamped, 2) << name_of(kind);
    EXPECT_TRUE(std::isfinite(found.result.loss)) << name_of(kind);
    for (float g : found.dl) EXPECT_TRUE(std::isfinite(g)) << name_of(kind);
  }
}

}  // namespace
}  // namespace tailrace
