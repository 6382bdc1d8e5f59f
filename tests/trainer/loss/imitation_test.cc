// The imitation term of IPA: golden IPA-5, its gradient, and what is no demonstration.
#include "trainer/loss/imitation.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tests/core/base/enum_contract.h"
#include "tests/trainer/loss/tokens.h"
#include "trainer/loss/options.h"

namespace tailrace {
namespace {

using namespace testing;  // NOLINT: the columns of a loss call

PolicyLossConfig with_imitation(ImitationLevel level, double coef) {
  PolicyLossConfig config = policy_loss_config(AlgoOptions::preset(AlgoPreset::kIpa));
  config.correction.kind = CorrectionKind::kNone;
  config.imitation = {.coef = coef, .level = level};
  return config;
}

// Chunk {0, 1} with the return .9 and chunk {2} with 0.
Tokens success() {
  Tokens tokens = f1(1);
  tokens.turn = {4, 4, 5};
  tokens.advantage = {.9f, .9f, 0};
  return tokens;
}

TEST(Imitation, MatchesGoldenIpa5) {
  const std::vector<double> chunk = {-.9, -1.5};
  EXPECT_NEAR(turn_probability(ImitationLevel::kTurn, chunk), 0.090718, 2e-6);
  EXPECT_NEAR(turn_probability(ImitationLevel::kTokenMean, chunk), std::exp(-1.2), 1e-12);
  const Evaluated found = evaluate(with_imitation(ImitationLevel::kTurn, 1), success());
  // The golden loss is a sum; the mean is over three tokens.
  EXPECT_NEAR(found.result.imitation_term * 3, 0.195951, 2e-6);
  const Evaluated without = evaluate(with_imitation(ImitationLevel::kTurn, 0), success());
  EXPECT_EQ(without.result.imitation_term, 0);
  EXPECT_NEAR(found.result.loss, without.result.loss + found.result.imitation_term, 1e-12);
  for (size_t t : {0, 1}) EXPECT_NEAR((without.dl[t] - found.dl[t]) * 3, 0.081646, 2e-6) << t;
  EXPECT_EQ(found.dl[2], without.dl[2]) << "a return of 0 is no example";
}

TEST(Imitation, ALongTurnUnderflowsAsAProductAndNotAsAMean) {
  const std::vector<double> turn(2000, -1);
  EXPECT_EQ(turn_probability(ImitationLevel::kTurn, turn), 0);
  EXPECT_NEAR(turn_probability(ImitationLevel::kTokenMean, turn), std::exp(-1), 1e-12);
}

TEST(Imitation, FailuresAndTurnsBelowTheBaselineAreNoDemonstrations) {
  const PolicyLossConfig config = with_imitation(ImitationLevel::kTokenMean, 1);
  Tokens tokens = success();
  EXPECT_GT(evaluate(config, tokens).result.imitation_term, 0);
  tokens.positive.assign(3, 0);
  EXPECT_EQ(evaluate(config, tokens).result.imitation_term, 0);
  tokens = success();
  tokens.advantage = {-.9f, -.9f, -1};
  EXPECT_EQ(evaluate(config, tokens).result.imitation_term, 0);
}

// Of the turn {0, 1} the second token is left, whose golden weight is alone.
TEST(Imitation, MaskedTokensAreInNoTurnAndNoCorrectionWeighsIt) {
  PolicyLossConfig config = with_imitation(ImitationLevel::kTurn, 1);
  Tokens tokens = success();
  tokens.mask[0] = 0;
  tokens.l[0] = std::nanf("");
  EXPECT_NEAR(evaluate(config, tokens).result.imitation_term * 2, .9 * std::exp(-1.5) * 1.5, 1e-6);
  config.correction = {.kind = CorrectionKind::kMask, .low = 1.5, .cap = 2};
  EXPECT_NEAR(evaluate(config, tokens).result.imitation_term * 2, .9 * std::exp(-1.5) * 1.5, 1e-6);
}

// The weight is detached: the gradient is the difference quotient of -sg(w) l, at the weight of
// where it is taken.
TEST(Imitation, GradientsMatchFiniteDifferencesAtAWeightThatStandsStill) {
  for (const ImitationLevel level : {ImitationLevel::kTurn, ImitationLevel::kTokenMean}) {
    for (const AggregationKind kind :
         {AggregationKind::kTokenMean, AggregationKind::kSeqMeanTokenMean}) {
      PolicyLossConfig config = with_imitation(level, .3), off = with_imitation(level, 0);
      config.aggregation.kind = off.aggregation.kind = kind;
      Tokens tokens = random_tokens(17);
      tokens.positive[0] = 1;  // a trained token, so that there is a demonstration
      tokens.advantage[0] = .7f;
      const Evaluated on = evaluate(config, tokens), none = evaluate(off, tokens);
      const std::vector<int32_t> counts = tokens.trajectory_tokens();
      int64_t all = 0, trajectories = 0, imitated = 0;
      for (int32_t n : counts) all += n, trajectories += n > 0;
      // The loss of the term by itself, of `l` with the weights of `tokens.l`.
      const auto loss = [&](const std::vector<float>& l) {
        double sum = 0;
        for (size_t t = 0; t < l.size(); ++t) {
          if (!tokens.mask[t] || !tokens.positive[t] || tokens.advantage[t] <= 0) continue;
          double log_turn = 0, size = 0;
          for (size_t u = 0; u < l.size(); ++u) {
            if (!tokens.mask[u] || tokens.sequence[u] != tokens.sequence[t] ||
                tokens.turn[u] != tokens.turn[t])
              continue;
            log_turn += tokens.l[u];
            size += 1;
          }
          if (level == ImitationLevel::kTokenMean) log_turn /= size;
          const double aggregated = kind == AggregationKind::kTokenMean
                                        ? static_cast<double>(all)
                                        : static_cast<double>(trajectories) *
                                              counts[static_cast<size_t>(tokens.trajectory[t])];
          sum -= std::exp(log_turn) * tokens.advantage[t] * l[t] / aggregated;
          ++imitated;
        }
        return sum;
      };
      EXPECT_NEAR(on.result.imitation_term, loss(tokens.l), 1e-12);
      EXPECT_GT(imitated, 0);
      for (size_t t = 0; t < tokens.l.size(); ++t) {
        std::vector<float> up = tokens.l, down = tokens.l;
        up[t] += 1.0f / 1024, down[t] -= 1.0f / 1024;
        const double slope = (loss(up) - loss(down)) / (double{up[t]} - down[t]);
        EXPECT_NEAR(double{on.dl[t]} - none.dl[t], .3 * slope, 2e-7) << t;
      }
    }
  }
}

TEST(Imitation, EveryLevelHasAName) { check_enum_names<ImitationLevel>(); }

}  // namespace
}  // namespace tailrace
