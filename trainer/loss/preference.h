// Preference losses: from the log-probabilities of a chosen and a rejected completion to a number
// and its gradient. KTO takes one completion that is desirable or not; the loss of a reward model
// takes two scores. All of it is in double, for one pair; means over a batch are the caller's.
//
// Notation: c, r are the sums of the log-probabilities of the chosen and of the rejected
// completion, a = c - c_ref and d = r - r_ref their log-ratios to the reference, n_c, n_r their
// tokens, b is beta, e is label_smoothing, s is the sigmoid, and x = b (a - d) is the logit.
//
// Thread: any; pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/enum_names.h"
#include "core/config/options.h"

namespace tailrace {

// Names are TRL's.
enum class PreferenceLoss : uint8_t {
  // DPO (2305.18290), -log s(x). With e above 0 it is cDPO: -(1 - e) log s(x) - e log s(-x).
  kSigmoid,
  // SLiC (2305.10425), max(0, 1 - x).
  kHinge,
  // IPO (2310.12036), (a / n_c - d / n_r - 1 / (2 b))^2. TRL divides by the tokens, the paper does
  // not.
  kIpo,
  // Robust DPO (2403.00409), (-(1 - e) log s(x) + e log s(-x)) / (1 - 2 e): unbiased where a share
  // e
  // of the labels is swapped.
  kRobust,
  // EXO (2402.00856), the divergence KL((s(x), s(-x)) || (1 - e, e)). An e of 0 stands for 1e-3.
  kExoPair,
  // NCA (2402.05369), -log s(b a) - (log s(-b a) + log s(-b d)) / 2.
  kNcaPair,
  // BCO (2404.04656), -log s(b a) - log s(-b d), without the paper's shift by a mean reward.
  kBcoPair,
  // SPPO (2405.00675), (a - 1 / (2 b))^2 + (d + 1 / (2 b))^2.
  kSppoHard,
  // APO (2408.06266), s(-b a) + s(b d): raises the chosen one and lowers the rejected one.
  kApoZero,
  // APO (2408.06266), s(b a) + s(-x): lowers both, the rejected one further.
  kApoDown,
  // DiscoPOP (2406.08414), -(1 - w) log s(x) + w exp(-x) with w = s(x / discopop_tau).
  kDiscopop,
  // DPO over mean log-ratios, -log s(b (a / n_c - d / n_r)) (Tulu 3, 2411.15124).
  kSigmoidNorm,
  // ORPO (2403.07691), -b log s(o(c / n_c) - o(r / n_r)) with o(l) = l - log(1 - exp l), and the
  // negative log-likelihood of the chosen one. Its beta is the paper's lambda.
  kOrpo,
  // SimPO (2405.14734), -log s(b (c / n_c - r / n_r) - gamma).
  kSimpo,
  // CPO (2401.08417), -log s(b (c - r)), and the negative log-likelihood of the chosen one.
  kCpo,
  // KTO (2402.01306), with z = kl. Desirable: desirable_weight s(b (z - a)). Undesirable:
  // undesirable_weight s(b (a - z)).
  kKto,
};
constexpr auto enum_names(PreferenceLoss) {
  using enum PreferenceLoss;
  return name_table<PreferenceLoss>({{kSigmoid, "sigmoid"},
                                     {kHinge, "hinge"},
                                     {kIpo, "ipo"},
                                     {kRobust, "robust"},
                                     {kExoPair, "exo_pair"},
                                     {kNcaPair, "nca_pair"},
                                     {kBcoPair, "bco_pair"},
                                     {kSppoHard, "sppo_hard"},
                                     {kApoZero, "apo_zero"},
                                     {kApoDown, "apo_down"},
                                     {kDiscopop, "discopop"},
                                     {kSigmoidNorm, "sigmoid_norm"},
                                     {kOrpo, "orpo"},
                                     {kSimpo, "simpo"},
                                     {kCpo, "cpo"},
                                     {kKto, "kto"}});
}

// Divergence from the reference that the policy is held by (f-DPO, 2309.16240). The logit becomes
// x = b (f(a) - f(d)) with the score f. Losses of the logit alone read it: sigmoid, hinge, robust,
// exo_pair and discopop.
enum class FDivergence : uint8_t {
  kReverseKl,  // f(u) = u
  kForwardKl,  // f(u) = -exp(-u)
  kJs,         // f(u) = log s(u)
  kAlpha,      // f(u) = exp((f_alpha - 1) u) / (f_alpha - 1); at 0 forward_kl, at 1 reverse_kl
};
constexpr auto enum_names(FDivergence) {
  using enum FDivergence;
  return name_table<FDivergence>(
      {{kReverseKl, "reverse_kl"}, {kForwardKl, "forward_kl"}, {kJs, "js"}, {kAlpha, "alpha"}});
}

struct PreferenceLossOptions {
  PreferenceLoss kind = PreferenceLoss::kSigmoid;  // the key `loss`
  double beta = 0.1;
  double label_smoothing = 0;
  FDivergence f_divergence = FDivergence::kReverseKl;
  double f_alpha = 0.5;
  double gamma = 0.5;
  double nll_coef = -1;  // -1: the loss's own (nll_weight)
  double desirable_weight = 1, undesirable_weight = 1;
  double discopop_tau = 0.05;

  void visit(OptionVisitor& v);
};

// Rules over several fields. `section`: their full key. Throws UserError with the key.
void validate(const PreferenceLossOptions& options, std::string_view section);

// False: the loss ignores the log-probabilities of the reference.
bool needs_reference(PreferenceLoss kind);

// True: the loss is pair_loss(); false: it is unpaired_loss().
bool is_paired(PreferenceLoss kind);

// Weight of the term -c / n_c that stands beside the loss: nll_coef, or at -1 what the loss has by
// itself, which is 1 for orpo and cpo, and 0 for the others.
double nll_weight(const PreferenceLossOptions& options);

// Sums over the tokens of a completion, natural logarithms. Each completion has at least one token.
struct PairLogprobs {
  double chosen = 0, rejected = 0;
  double ref_chosen = 0, ref_rejected = 0;  // not read where needs_reference() is false
  int64_t chosen_tokens = 0, rejected_tokens = 0;
};

struct PairLoss {
  double loss = 0;
  double dchosen = 0, drejected = 0;  // dL/dc and dL/dr
  // TRL's rewards/chosen and rewards/rejected: b times the log-ratio. Without a reference it is b
  // times the log-probability: the sum (cpo), or the mean over the tokens (orpo, simpo).
  double chosen_reward = 0, rejected_reward = 0;
};

// The loss of one pair, of a kind that is_paired(). All is finite for log-probabilities in the
// thousands. Two terms are bent so that gradients fit a float: scores of f_divergence go on along
// their tangent past exp(64), and ORPO's odds stop at the largest probability below 1 that a float
// has.
PairLoss pair_loss(const PreferenceLossOptions& options, const PairLogprobs& pair);

struct UnpairedLogprobs {
  double logprob = 0, ref = 0;  // as in PairLogprobs
  bool desirable = true;
  double kl = 0;  // z, 0 or more: divergence of the policy from the reference; has no gradient
  int64_t tokens = 0;
};

struct UnpairedLoss {
  double loss = 0;
  double dlogprob = 0;
  double reward = 0;  // b times the log-ratio
};

// The loss of one completion, of a kind that is not is_paired(). The term of nll_weight() is of
// desirable completions.
UnpairedLoss unpaired_loss(const PreferenceLossOptions& options, const UnpairedLogprobs& sample);

struct RewardPairLoss {
  double loss = 0;
  double dchosen = 0, drejected = 0;  // slopes in the two scores
};

// The loss of a reward model (Bradley-Terry) from the scores of a pair:
//
//   -log s(chosen - rejected - margin) + centering (chosen + rejected)^2
//
// centering: weight of the term that holds the mean score at 0 (2312.09244); 0 is off.
RewardPairLoss reward_pair_loss(double chosen, double rejected, double margin, double centering);

}  // namespace tailrace
