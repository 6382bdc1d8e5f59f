// The preference losses: goldens in double precision from the papers' formulas (made outside of
// this project), gradients, extremes, and the keys that a loss reads.
#include "trainer/loss/preference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/config/config_printer.h"
#include "tests/core/base/enum_contract.h"

namespace tailrace {
namespace {

using enum PreferenceLoss;
using Options = PreferenceLossOptions;

constexpr PairLogprobs kPair = {.chosen = -12,
                                .rejected = -15,
                                .ref_chosen = -13,
                                .ref_rejected = -14.5,
                                .chosen_tokens = 10,
                                .rejected_tokens = 12};
// KTO's completions are those of the pair, at z = .3.
constexpr UnpairedLogprobs kDesirable = {
    .logprob = -12, .ref = -13, .desirable = true, .kl = .3, .tokens = 10};
constexpr UnpairedLogprobs kUndesirable = {
    .logprob = -15, .ref = -14.5, .desirable = false, .kl = .3, .tokens = 12};

struct Golden {
  Options options;
  double loss;
};

std::vector<Golden> goldens() {
  return {
      {{.kind = kSigmoid}, 0.620957047790},
      {{.kind = kSigmoid, .label_smoothing = .1}, 0.635957047790},
      {{.kind = kRobust, .label_smoothing = .1}, 0.602207047790},
      {{.kind = kHinge}, 0.85},
      {{.kind = kIpo}, 23.603402777778},
      {{.kind = kExoPair, .label_smoothing = 1e-3}, 2.505516555478},
      {{.kind = kExoPair}, 2.505516555478},
      {{.kind = kNcaPair}, 1.350824814117},
      {{.kind = kBcoPair}, 1.312856308087},
      {{.kind = kSppoHard}, 36.25},
      {{.kind = kApoZero}, 0.962523416037},
      {{.kind = kApoDown}, 0.987549342135},
      {{.kind = kDiscopop}, 0.849337579289},
      {{.kind = kSigmoidNorm}, 0.686088933822},
      {{.f_divergence = FDivergence::kForwardKl}, 0.631154383572},
      {{.f_divergence = FDivergence::kJs}, 0.660652162510},
      {{.f_divergence = FDivergence::kAlpha}, 0.627690947069},
      // The golden is the term alone; by default the loss adds the likelihood, 12 / 10.
      {{.kind = kOrpo, .nll_coef = 0}, 0.065837225382},
      {{.kind = kOrpo}, 1.265837225382},
      {{.kind = kSimpo, .beta = 2}, 0.913015252400},
      {{.kind = kCpo, .nll_coef = 0}, 0.554355244469},
      {{.kind = kCpo, .nll_coef = .5}, 1.154355244469},
  };
}

std::string told(const Options& options) {
  std::string text = print_config(options);
  for (char& c : text)
    if (c == '\n') c = ' ';
  return text;
}

double rounded(double x) { return static_cast<float>(x); }

Options rounded(Options o) {
  for (double* x : {&o.beta, &o.label_smoothing, &o.f_alpha, &o.gamma, &o.nll_coef,
                    &o.desirable_weight, &o.undesirable_weight, &o.discopop_tau})
    *x = rounded(*x);
  return o;
}

PairLogprobs rounded(PairLogprobs p) {
  for (double* x : {&p.chosen, &p.rejected, &p.ref_chosen, &p.ref_rejected}) *x = rounded(*x);
  return p;
}

// Each loss of pairs with each of the settings that it reads.
std::vector<Options> paired_options() {
  std::vector<Options> all;
  for (const Golden& golden : goldens()) all.push_back(golden.options);
  for (PreferenceLoss kind : {kSigmoid, kHinge, kRobust, kExoPair, kDiscopop})
    for (FDivergence f : {FDivergence::kForwardKl, FDivergence::kJs, FDivergence::kAlpha})
      for (double smoothing : {0.0, .2})
        all.push_back({.kind = kind, .label_smoothing = smoothing, .f_divergence = f});
  for (PreferenceLoss kind : {kHinge, kIpo, kNcaPair, kSppoHard, kApoZero, kSigmoidNorm, kSimpo})
    all.push_back({.kind = kind, .beta = .7, .nll_coef = .3});
  all.push_back({.kind = kDiscopop, .beta = .7, .discopop_tau = 1});
  return all;
}

TEST(Preference, LossesMatchTheirGoldens) {
  for (const Golden& golden : goldens())
    EXPECT_NEAR(pair_loss(golden.options, kPair).loss, golden.loss, 1e-9) << told(golden.options);
  const Options kto = {.kind = kKto};
  EXPECT_NEAR(unpaired_loss(kto, kDesirable).loss, 0.482507142334, 1e-9);
  EXPECT_NEAR(unpaired_loss(kto, kUndesirable).loss, 0.480010659844, 1e-9);
  EXPECT_NEAR(reward_pair_loss(1.3, .4, 0, 0).loss, 0.341153874732, 1e-9);
  EXPECT_NEAR(reward_pair_loss(1.3, .4, .5, 0).loss, 0.513015252400, 1e-9);
  EXPECT_NEAR(reward_pair_loss(1.3, .4, 0, .01).loss, 0.370053874732, 1e-9);
}

// A float is off by 6e-8 of its value, and no loss here multiplies that by more than 30.
TEST(Preference, GoldensHoldFromInputsThatAreFloats) {
  const auto expect = [](double found, double golden, const std::string& what) {
    EXPECT_NEAR(found, golden, 2e-6 * golden) << what;
  };
  for (const Golden& golden : goldens())
    expect(pair_loss(rounded(golden.options), rounded(kPair)).loss, golden.loss,
           told(golden.options));
  const Options kto = rounded({.kind = kKto});
  for (const bool desirable : {true, false}) {
    UnpairedLogprobs sample = desirable ? kDesirable : kUndesirable;
    sample.kl = rounded(sample.kl);
    expect(unpaired_loss(kto, sample).loss, desirable ? 0.482507142334 : 0.480010659844, "kto");
  }
  expect(reward_pair_loss(rounded(1.3), rounded(.4), 0, 0).loss, 0.341153874732, "reward");
  expect(reward_pair_loss(rounded(1.3), rounded(.4), .5, 0).loss, 0.513015252400, "margin");
  expect(reward_pair_loss(rounded(1.3), rounded(.4), 0, rounded(.01)).loss, 0.370053874732,
         "centering");
}

// Central differences at a step h are off by h^2 and by the loss's last digit over h: 1e-10 each,
// times the size of the loss and of its third derivative (discopop's tau of .05 makes it large).
constexpr double kSlopeStep = 1e-5;

void expect_slope(double slope, double up, double down, const std::string& what) {
  const double found = (up - down) / (2 * kSlopeStep);
  EXPECT_NEAR(slope, found, 1e-7 * (1 + std::abs(found)) + 1e-10 * std::abs(up)) << what;
}

TEST(Preference, GradientsOfPairsMatchFiniteDifferences) {
  // The log-ratios lie on both sides of 0 and the logits on both sides of the hinge.
  const std::vector<PairLogprobs> points = {
      kPair,
      {.chosen = -4,
       .rejected = -3,
       .ref_chosen = -3.5,
       .ref_rejected = -4.2,
       .chosen_tokens = 3,
       .rejected_tokens = 7},
      {.chosen = -20,
       .rejected = -60,
       .ref_chosen = -25,
       .ref_rejected = -40,
       .chosen_tokens = 40,
       .rejected_tokens = 50},
      {.chosen = -2,
       .rejected = -.3,
       .ref_chosen = -1,
       .ref_rejected = -1.5,
       .chosen_tokens = 5,
       .rejected_tokens = 2},
  };
  for (const Options& options : paired_options()) {
    for (size_t i = 0; i < points.size(); ++i) {
      const std::string what = told(options) + " at " + std::to_string(i);
      const PairLoss at = pair_loss(options, points[i]);
      PairLogprobs up = points[i], down = points[i];
      up.chosen += kSlopeStep, down.chosen -= kSlopeStep;
      expect_slope(at.dchosen, pair_loss(options, up).loss, pair_loss(options, down).loss, what);
      up = down = points[i];
      up.rejected += kSlopeStep, down.rejected -= kSlopeStep;
      expect_slope(at.drejected, pair_loss(options, up).loss, pair_loss(options, down).loss, what);
    }
  }
}

TEST(Preference, GradientsOfSingleCompletionsAndOfScoresMatchFiniteDifferences) {
  const Options kto = {
      .kind = kKto, .beta = .4, .nll_coef = .3, .desirable_weight = 1.3, .undesirable_weight = .7};
  for (UnpairedLogprobs sample : {kDesirable, kUndesirable}) {
    for (double logprob : {-25.0, -14.0, -6.0}) {
      UnpairedLogprobs up = sample, down = sample;
      sample.logprob = logprob, up.logprob = logprob + kSlopeStep,
      down.logprob = logprob - kSlopeStep;
      expect_slope(unpaired_loss(kto, sample).dlogprob, unpaired_loss(kto, up).loss,
                   unpaired_loss(kto, down).loss, "kto");
    }
  }
  for (double chosen : {-3.0, .2, 5.0}) {
    const auto loss = [](double c, double r) { return reward_pair_loss(c, r, .5, .01); };
    const RewardPairLoss at = loss(chosen, .4);
    expect_slope(at.dchosen, loss(chosen + kSlopeStep, .4).loss, loss(chosen - kSlopeStep, .4).loss,
                 "c");
    expect_slope(at.drejected, loss(chosen, .4 + kSlopeStep).loss,
                 loss(chosen, .4 - kSlopeStep).loss, "r");
  }
}

bool fits_a_float(double x) {
  return std::isfinite(x) && std::abs(x) <= std::numeric_limits<float>::max();
}

TEST(Preference, FarLogProbabilitiesGiveFiniteLossesAndGradients) {
  const std::vector<double> far = {0, -1e-300, -1e-9, -700, -5000};
  for (const Options& options : paired_options())
    for (double c : far)
      for (double r : far)
        for (double ref_c : far)
          for (double ref_r : far) {
            const PairLoss found = pair_loss(options, {.chosen = c,
                                                       .rejected = r,
                                                       .ref_chosen = ref_c,
                                                       .ref_rejected = ref_r,
                                                       .chosen_tokens = 1,
                                                       .rejected_tokens = 1});
            for (double x : {found.loss, found.dchosen, found.drejected})
              ASSERT_TRUE(fits_a_float(x))
                  << told(options) << ' ' << c << ' ' << r << ' ' << ref_c << ' ' << ref_r;
          }
  for (double l : far)
    for (double ref : far)
      for (bool desirable : {false, true}) {
        const UnpairedLoss found = unpaired_loss(
            {.kind = kKto},
            {.logprob = l, .ref = ref, .desirable = desirable, .kl = 4000, .tokens = 1});
        EXPECT_TRUE(fits_a_float(found.loss) && fits_a_float(found.dlogprob)) << l << ' ' << ref;
      }
  for (double score : {-5000.0, 5000.0})
    EXPECT_TRUE(fits_a_float(reward_pair_loss(score, -score, 1, .01).loss));
}

// Where a pair is ordered wrongly by far, the loss is its logit and the gradient is whole; ordered
// rightly by far, both vanish.
TEST(Preference, AFarLogitHasTheLossOfItsAsymptote) {
  PairLogprobs pair = {
      .chosen = -5000, .rejected = -1000, .chosen_tokens = 9, .rejected_tokens = 9};
  const PairLoss wrong = pair_loss({}, pair);
  EXPECT_DOUBLE_EQ(wrong.loss, 400);
  EXPECT_DOUBLE_EQ(wrong.dchosen, -.1);
  EXPECT_DOUBLE_EQ(wrong.drejected, .1);
  std::swap(pair.chosen, pair.rejected);
  const PairLoss right = pair_loss({}, pair);
  EXPECT_NEAR(right.loss, std::exp(-400), 1e-184);
  EXPECT_NEAR(right.dchosen, -.1 * std::exp(-400), 1e-185);
}

PairLogprobs swapped(const PairLogprobs& p) {
  return {p.rejected, p.chosen, p.ref_rejected, p.ref_chosen, p.rejected_tokens, p.chosen_tokens};
}

TEST(Preference, SmoothingIsTheShareOfSwappedLabels) {
  const double plain = pair_loss({}, kPair).loss, other = pair_loss({}, swapped(kPair)).loss;
  for (double e : {0.0, .1, .4}) {
    const PairLoss kept = pair_loss({.label_smoothing = e}, kPair);
    const PairLoss turned = pair_loss({.label_smoothing = 1 - e}, swapped(kPair));
    EXPECT_NEAR(kept.loss, (1 - e) * plain + e * other, 1e-12) << e;
    EXPECT_NEAR(kept.loss, turned.loss, 1e-12) << e;
    EXPECT_NEAR(kept.dchosen, turned.drejected, 1e-12) << e;
    // A share e of swapped labels leaves the mean of the robust loss where it is without them.
    const Options robust = {.kind = kRobust, .label_smoothing = e};
    EXPECT_NEAR(
        (1 - e) * pair_loss(robust, kPair).loss + e * pair_loss(robust, swapped(kPair)).loss, plain,
        1e-12)
        << e;
  }
}

TEST(Preference, AlphaGoesFromForwardToReverseKl) {
  Options alpha = {.f_divergence = FDivergence::kAlpha, .f_alpha = 0};
  EXPECT_EQ(pair_loss(alpha, kPair).loss,
            pair_loss({.f_divergence = FDivergence::kForwardKl}, kPair).loss);
  alpha.f_alpha = 1;
  EXPECT_EQ(pair_loss(alpha, kPair).loss, pair_loss({}, kPair).loss);
  alpha.f_alpha = 1 - 1e-9;
  EXPECT_NEAR(pair_loss(alpha, kPair).loss, pair_loss({}, kPair).loss, 1e-9);
}

TEST(Preference, RewardsAreScaledLogRatiosOrLogProbabilities) {
  const auto expect = [](const PairLoss& found, double chosen, double rejected) {
    EXPECT_NEAR(found.chosen_reward, chosen, 1e-12);
    EXPECT_NEAR(found.rejected_reward, rejected, 1e-12);
  };
  expect(pair_loss({}, kPair), .1, -.05);
  expect(pair_loss({.f_divergence = FDivergence::kJs}, kPair), .1, -.05);
  expect(pair_loss({.kind = kIpo}, kPair), .1, -.05);
  expect(pair_loss({.kind = kCpo}, kPair), -1.2, -1.5);
  expect(pair_loss({.kind = kSimpo, .beta = 2}, kPair), -2.4, -2.5);
  expect(pair_loss({.kind = kOrpo}, kPair), -.12, -.125);
  EXPECT_NEAR(unpaired_loss({.kind = kKto}, kUndesirable).reward, -.05, 1e-12);
}

TEST(Preference, LossesWithoutAReferenceIgnoreIt) {
  PairLogprobs without = kPair;
  without.ref_chosen = without.ref_rejected = std::nan("");
  for (PreferenceLoss kind : {kOrpo, kSimpo, kCpo}) {
    EXPECT_FALSE(needs_reference(kind)) << name_of(kind);
    EXPECT_EQ(pair_loss({.kind = kind}, without).loss, pair_loss({.kind = kind}, kPair).loss);
  }
  EXPECT_TRUE(needs_reference(kSigmoid));
  EXPECT_TRUE(needs_reference(kKto));
  EXPECT_TRUE(is_paired(kOrpo));
  EXPECT_FALSE(is_paired(kKto));
}

TEST(Preference, EveryLossAndEveryDivergenceHasAName) {
  check_enum_names<PreferenceLoss>();
  check_enum_names<FDivergence>();
}

// Why nothing reads the key; empty where something does.
std::string idle(const Options& options, const std::string& key) {
  for (const SectionDoc& section : describe_options(options))
    for (const OptionDoc& option : section.options)
      if (option.key == key) return option.idle.reason;
  return "no such key";
}

TEST(Preference, KeysThatTheLossDoesNotReadAreIdle) {
  for (const auto& [key, readers] :
       std::vector<std::pair<std::string, std::vector<PreferenceLoss>>>{
           {"label_smoothing", {kSigmoid, kRobust, kExoPair}},
           {"f_divergence", {kSigmoid, kHinge, kRobust, kExoPair, kDiscopop}},
           {"gamma", {kSimpo}},
           {"desirable_weight", {kKto}},
           {"undesirable_weight", {kKto}},
           {"discopop_tau", {kDiscopop}}}) {
    for (size_t i = 0; i < kEnumNames<PreferenceLoss>.size(); ++i) {
      const auto kind = static_cast<PreferenceLoss>(i);
      const bool reads = std::find(readers.begin(), readers.end(), kind) != readers.end();
      EXPECT_EQ(idle({.kind = kind}, key).empty(), reads) << name_of(kind) << ' ' << key;
    }
  }
  EXPECT_EQ(idle({.kind = kIpo}, "f_divergence"), "loss is ipo, which has no choice of divergence");
  EXPECT_EQ(idle({.f_divergence = FDivergence::kJs}, "f_alpha"), "f_divergence is js");
  EXPECT_EQ(idle({.f_divergence = FDivergence::kAlpha}, "f_alpha"), "");
}

std::string refused(const Options& options) {
  try {
    validate(options, "dpo");
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

TEST(Preference, ValidateRefusesWhatALossCannotUse) {
  EXPECT_EQ(refused({}), "");
  EXPECT_EQ(refused({.label_smoothing = .5}), "");
  EXPECT_EQ(refused({.kind = kRobust, .label_smoothing = .49}), "");
  EXPECT_EQ(refused({.kind = kRobust, .label_smoothing = .5}),
            "dpo.label_smoothing is 0.5 with loss robust; it must be below 0.5, where labels say "
            "nothing. Try 0.1.");
  EXPECT_EQ(refused({.nll_coef = -.5}),
            "dpo.nll_coef is -0.5; it must be 0 or more, or -1 for the weight that the loss has by "
            "itself. Try 0.");
}

TEST(PreferenceDeathTest, EachLossTakesItsOwnKindOfData) {
  EXPECT_DEATH(pair_loss({.kind = kKto}, kPair), "kto has no pairs");
  EXPECT_DEATH(unpaired_loss({.kind = kSigmoid}, kDesirable), "sigmoid is of pairs");
  PairLogprobs empty = kPair;
  empty.rejected_tokens = 0;
  EXPECT_DEATH(pair_loss({}, empty), "10 and 0 tokens");
}

}  // namespace
}  // namespace tailrace
