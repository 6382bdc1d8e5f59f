#include "trainer/loss/preference.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/base/error.h"
#include "kernels/base/check.h"

namespace tailrace {

namespace {

// A function of one number at a point.
struct Term {
  double value = 0, slope = 0;
};

// A number with its slopes in the two sums of log-probabilities.
struct PairTerm {
  double value = 0, dchosen = 0, drejected = 0;
};

double sigmoid(double x) {
  const double e = std::exp(-std::abs(x));
  return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

double log_sigmoid(double x) { return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))); }

Term minus_log_sigmoid(double x) { return {-log_sigmoid(x), -sigmoid(-x)}; }

// s(scale u) of u.
Term scaled_sigmoid(double scale, double u) {
  const double x = scale * u;
  return {sigmoid(x), scale * sigmoid(x) * sigmoid(-x)};
}

Term square(double x) { return {x * x, 2 * x}; }

// Divergence of (s(x), s(-x)) from (1 - e, e). Its slope has no term of the logarithms' own slopes,
// as these cancel.
Term exo(double x, double e) {
  const double p = sigmoid(x), q = sigmoid(-x);
  const double toward = log_sigmoid(x) - std::log1p(-e), away = log_sigmoid(-x) - std::log(e);
  return {p * toward + q * away, p * q * (toward - away)};
}

Term discopop(double x, double tau) {
  const double w = sigmoid(x / tau), rest = sigmoid(-x / tau);
  const Term logistic = minus_log_sigmoid(x);
  // exp(-x) alone overflows where w is 0. Their product is at most 1 for tau up to 1.
  const double exponential = std::exp(log_sigmoid(x / tau) - x);
  return {rest * logistic.value + exponential,
          rest * logistic.slope - w * rest / tau * logistic.value + exponential * (rest / tau - 1)};
}

// Losses of one logit.
Term of_logit(const PreferenceLossOptions& o, double x) {
  const double e = o.label_smoothing;
  switch (o.kind) {
    case PreferenceLoss::kHinge:
      return x < 1 ? Term{1 - x, -1} : Term{};
    case PreferenceLoss::kExoPair:
      return exo(x, e == 0 ? 1e-3 : e);
    case PreferenceLoss::kDiscopop:
      return discopop(x, o.discopop_tau);
    case PreferenceLoss::kRobust: {
      const Term kept = minus_log_sigmoid(x), swapped = minus_log_sigmoid(-x);
      return {((1 - e) * kept.value - e * swapped.value) / (1 - 2 * e),
              ((1 - e) * kept.slope + e * swapped.slope) / (1 - 2 * e)};
    }
    default: {
      const Term kept = minus_log_sigmoid(x), swapped = minus_log_sigmoid(-x);
      return {(1 - e) * kept.value + e * swapped.value, (1 - e) * kept.slope - e * swapped.slope};
    }
  }
}

// (exp(-rate u) - 1) / -rate. The constant cancels between chosen and rejected, and with it a rate
// of 0 is reverse KL.
Term exponential_score(double rate, double u) {
  if (rate == 0) return {u, 1};
  constexpr double kLargest = 64;  // exp(88) is the largest that a float holds
  const double exponent = -rate * u, held = std::min(exponent, kLargest);
  const double slope = std::exp(held);
  return {(std::expm1(held) + slope * (exponent - held)) / -rate, slope};
}

Term f_score(const PreferenceLossOptions& o, double u) {
  switch (o.f_divergence) {
    case FDivergence::kReverseKl:
      return {u, 1};
    case FDivergence::kForwardKl:
      return exponential_score(1, u);
    case FDivergence::kJs:
      return {log_sigmoid(u), sigmoid(-u)};
    case FDivergence::kAlpha:
      return exponential_score(1 - o.f_alpha, u);
  }
  TR_CHECK(false);
}

// Logarithm of the odds of a probability by its logarithm.
Term log_odds(double l) {
  // Log-probabilities come from floats, where a certain token has 0 and its odds are infinite.
  constexpr double kHighest = -0x1p-24;
  const double held = std::min(l, kHighest);
  // Each form loses no digits on its side of 1/2 (Maechler, "Accurately computing log(1 - exp)").
  const double log_other =
      held > -0.6931471805599453 ? std::log(-std::expm1(held)) : std::log1p(-std::exp(held));
  return {held - log_other, -1 / std::expm1(held)};
}

// The log-ratios, or the log-probabilities where there is no reference.
struct Ratios {
  double chosen = 0, rejected = 0;
};

Ratios ratios(PreferenceLoss kind, const PairLogprobs& p) {
  if (!needs_reference(kind)) return {p.chosen, p.rejected};
  return {p.chosen - p.ref_chosen, p.rejected - p.ref_rejected};
}

Ratios over_tokens(const Ratios& sums, const PairLogprobs& p) {
  return {sums.chosen / static_cast<double>(p.chosen_tokens),
          sums.rejected / static_cast<double>(p.rejected_tokens)};
}

// scale times the difference of the means.
PairTerm mean_difference(double scale, const Ratios& means, const PairLogprobs& p) {
  return {scale * (means.chosen - means.rejected), scale / static_cast<double>(p.chosen_tokens),
          -scale / static_cast<double>(p.rejected_tokens)};
}

PairTerm through(const Term& outer, const PairTerm& inner) {
  return {outer.value, outer.slope * inner.dchosen, outer.slope * inner.drejected};
}

PairTerm sum(const Term& of_chosen, const Term& of_rejected) {
  return {of_chosen.value + of_rejected.value, of_chosen.slope, of_rejected.slope};
}

// The logit that f_divergence shapes.
PairTerm shaped_logit(const PreferenceLossOptions& o, const Ratios& u) {
  const Term chosen = f_score(o, u.chosen), rejected = f_score(o, u.rejected);
  return {o.beta * (chosen.value - rejected.value), o.beta * chosen.slope,
          -o.beta * rejected.slope};
}

PairTerm nca(double beta, const Ratios& u) {
  const Term up = minus_log_sigmoid(beta * u.chosen), down = minus_log_sigmoid(-beta * u.chosen),
             other = minus_log_sigmoid(-beta * u.rejected);
  return {up.value + (down.value + other.value) / 2, beta * (up.slope - down.slope / 2),
          -beta * other.slope / 2};
}

PairTerm bco(double beta, const Ratios& u) {
  const Term up = minus_log_sigmoid(beta * u.chosen), down = minus_log_sigmoid(-beta * u.rejected);
  return {up.value + down.value, beta * up.slope, -beta * down.slope};
}

PairTerm apo_down(double beta, const Ratios& u) {
  const Term chosen = scaled_sigmoid(beta, u.chosen),
             margin = scaled_sigmoid(-beta, u.chosen - u.rejected);
  return {chosen.value + margin.value, chosen.slope + margin.slope, -margin.slope};
}

PairTerm orpo(double beta, const Ratios& means, const PairLogprobs& p) {
  const Term chosen = log_odds(means.chosen), rejected = log_odds(means.rejected);
  const Term loss = minus_log_sigmoid(chosen.value - rejected.value);
  return {beta * loss.value,
          beta * loss.slope * chosen.slope / static_cast<double>(p.chosen_tokens),
          -beta * loss.slope * rejected.slope / static_cast<double>(p.rejected_tokens)};
}

PairTerm paired_term(const PreferenceLossOptions& o, const Ratios& u, const PairLogprobs& p) {
  const Ratios means = over_tokens(u, p);
  const double beta = o.beta;
  switch (o.kind) {
    case PreferenceLoss::kSigmoid:
    case PreferenceLoss::kHinge:
    case PreferenceLoss::kRobust:
    case PreferenceLoss::kExoPair:
    case PreferenceLoss::kDiscopop: {
      const PairTerm logit = shaped_logit(o, u);
      return through(of_logit(o, logit.value), logit);
    }
    case PreferenceLoss::kIpo: {
      const PairTerm margin = mean_difference(1, means, p);
      return through(square(margin.value - 0.5 / beta), margin);
    }
    case PreferenceLoss::kNcaPair:
      return nca(beta, u);
    case PreferenceLoss::kBcoPair:
      return bco(beta, u);
    case PreferenceLoss::kSppoHard:
      return sum(square(u.chosen - 0.5 / beta), square(u.rejected + 0.5 / beta));
    case PreferenceLoss::kApoZero:
      return sum(scaled_sigmoid(-beta, u.chosen), scaled_sigmoid(beta, u.rejected));
    case PreferenceLoss::kApoDown:
      return apo_down(beta, u);
    case PreferenceLoss::kSigmoidNorm: {
      const PairTerm logit = mean_difference(beta, means, p);
      return through(minus_log_sigmoid(logit.value), logit);
    }
    case PreferenceLoss::kOrpo:
      return orpo(beta, means, p);
    case PreferenceLoss::kSimpo: {
      const PairTerm logit = mean_difference(beta, means, p);
      return through(minus_log_sigmoid(logit.value - o.gamma), logit);
    }
    case PreferenceLoss::kCpo: {
      const PairTerm logit = {beta * (u.chosen - u.rejected), beta, -beta};
      return through(minus_log_sigmoid(logit.value), logit);
    }
    case PreferenceLoss::kKto:
      break;
  }
  TR_CHECK(false, "{} has no pairs", name_of(o.kind));
}

bool has_means(PreferenceLoss kind) {
  return kind == PreferenceLoss::kOrpo || kind == PreferenceLoss::kSimpo;
}

bool has_divergence(PreferenceLoss kind) {
  using enum PreferenceLoss;
  return kind == kSigmoid || kind == kHinge || kind == kRobust || kind == kExoPair ||
         kind == kDiscopop;
}

bool has_smoothing(PreferenceLoss kind) {
  using enum PreferenceLoss;
  return kind == kSigmoid || kind == kRobust || kind == kExoPair;
}

}  // namespace

// People know the loss that TRL calls sigmoid by its paper.
constexpr OptionInfo::Alias kLossAliases[] = {{"dpo", "sigmoid"}};

void PreferenceLossOptions::visit(OptionVisitor& v) {
  const auto idle_unless = [&](bool reads, std::string_view lacks) {
    return idle_if(!reads, fmt::format("{{loss}} is {}, which has no {}", name_of(kind), lacks),
                   {"loss"});
  };
  v.field("loss", kind,
          {.help = "what is minimised. orpo, simpo and cpo need no reference; kto takes single "
                   "completions with a label, all others take pairs",
           .aliases = kLossAliases});
  v.field("beta", beta,
          {.help = "scale of the log-ratios (orpo: weight of the odds ratio); a smaller one lets "
                   "the policy go further from the reference",
           .min = 1e-6,
           .max = 1000});
  v.field("label_smoothing", label_smoothing,
          {.help = "share of the pairs whose label is taken to be swapped (sigmoid: cDPO; robust; "
                   "exo_pair, where 0 stands for 1e-3)",
           .min = 0,
           .max = 0.5,
           .idle = idle_unless(has_smoothing(kind), "smoothing")});
  const Idle no_divergence = idle_unless(has_divergence(kind), "choice of divergence");
  v.field("f_divergence", f_divergence,
          {.help = "divergence from the reference that holds the policy (sigmoid, hinge, robust, "
                   "exo_pair, discopop)",
           .idle = no_divergence});
  v.field(
      "f_alpha", f_alpha,
      {.help = "order of the alpha divergence, between forward_kl at 0 and reverse_kl at 1",
       .min = 0,
       .max = 1,
       .idle = no_divergence ? no_divergence
                             : idle_if(f_divergence != FDivergence::kAlpha,
                                       fmt::format("{{f_divergence}} is {}", name_of(f_divergence)),
                                       {"f_divergence"})});
  v.field("gamma", gamma,
          {.help = "margin that the scaled difference is to have (simpo)",
           .min = 0,
           .max = 1000,
           .idle = idle_unless(kind == PreferenceLoss::kSimpo, "margin")});
  v.field("nll_coef", nll_coef,
          {.help = "weight of the negative log-likelihood of the chosen (kto: desirable) "
                   "completion, its mean over the tokens, beside the loss; -1: 1 with orpo "
                   "and cpo, 0 with any other loss",
           .min = -1,
           .max = 1000});
  const Idle no_label = idle_unless(!is_paired(kind), "single completions");
  v.field(
      "desirable_weight", desirable_weight,
      {.help = "weight of desirable completions (kto)", .min = 0, .max = 1000, .idle = no_label});
  v.field(
      "undesirable_weight", undesirable_weight,
      {.help = "weight of undesirable completions (kto)", .min = 0, .max = 1000, .idle = no_label});
  v.field("discopop_tau", discopop_tau,
          {.help = "temperature of the weight between the two losses that discopop mixes",
           .min = 1e-3,
           .max = 1,
           .idle = idle_unless(kind == PreferenceLoss::kDiscopop, "mixture")});
}

void validate(const PreferenceLossOptions& o, std::string_view section) {
  if (o.nll_coef < 0 && o.nll_coef != -1)
    throw UserError::at(join_key(section, "nll_coef"),
                        "is {}; it must be 0 or more, or -1 for the weight that the loss has by "
                        "itself. Try 0.",
                        o.nll_coef);
  // The loss divides by 1 - 2 e.
  if (o.kind == PreferenceLoss::kRobust && o.label_smoothing >= 0.5)
    throw UserError::at(join_key(section, "label_smoothing"),
                        "is {} with loss robust; it must be below 0.5, where labels say nothing. "
                        "Try 0.1.",
                        o.label_smoothing);
}

bool needs_reference(PreferenceLoss kind) {
  return !has_means(kind) && kind != PreferenceLoss::kCpo;
}

bool is_paired(PreferenceLoss kind) { return kind != PreferenceLoss::kKto; }

double nll_weight(const PreferenceLossOptions& options) {
  if (options.nll_coef != -1) return options.nll_coef;
  return options.kind == PreferenceLoss::kOrpo || options.kind == PreferenceLoss::kCpo ? 1 : 0;
}

PairLoss pair_loss(const PreferenceLossOptions& options, const PairLogprobs& pair) {
  TR_CHECK(pair.chosen_tokens > 0 && pair.rejected_tokens > 0, "{} and {} tokens",
           pair.chosen_tokens, pair.rejected_tokens);
  const Ratios sums = ratios(options.kind, pair);
  const PairTerm term = paired_term(options, sums, pair);
  const double nll = nll_weight(options) / static_cast<double>(pair.chosen_tokens);
  const Ratios rewarded = has_means(options.kind) ? over_tokens(sums, pair) : sums;
  return {.loss = term.value - nll * pair.chosen,
          .dchosen = term.dchosen - nll,
          .drejected = term.drejected,
          .chosen_reward = options.beta * rewarded.chosen,
          .rejected_reward = options.beta * rewarded.rejected};
}

UnpairedLoss unpaired_loss(const PreferenceLossOptions& options, const UnpairedLogprobs& sample) {
  TR_CHECK(!is_paired(options.kind), "{} is of pairs", name_of(options.kind));
  TR_CHECK(sample.tokens > 0 && sample.kl >= 0, "{} tokens, kl {}", sample.tokens, sample.kl);
  const double ratio = sample.logprob - sample.ref;
  const double weight = sample.desirable ? options.desirable_weight : options.undesirable_weight;
  const Term term =
      scaled_sigmoid(sample.desirable ? -options.beta : options.beta, ratio - sample.kl);
  const double nll =
      sample.desirable ? nll_weight(options) / static_cast<double>(sample.tokens) : 0;
  return {.loss = weight * term.value - nll * sample.logprob,
          .dlogprob = weight * term.slope - nll,
          .reward = options.beta * ratio};
}

RewardPairLoss reward_pair_loss(double chosen, double rejected, double margin, double centering) {
  const Term term = minus_log_sigmoid(chosen - rejected - margin);
  const Term mean = square(chosen + rejected);
  return {.loss = term.value + centering * mean.value,
          .dchosen = term.slope + centering * mean.slope,
          .drejected = -term.slope + centering * mean.slope};
}

}  // namespace tailrace
