// Losses of on-policy distillation: a student learns, at tokens that it sampled itself, from the
// log-probabilities that a teacher gives there (GKD, 2306.13649; Thinking Machines, "On-Policy
// Distillation", 2025). All of it is in double, for one token; means over a batch, and the weight
// `coef` of a loss, are the caller's.
//
// Notation: S, T and mu are the probabilities that the student, the teacher and the policy that
// sampled give a token, s, t and m their natural logarithms, b is beta, sg() has no gradient.
//
// Thread: any; pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/base/enum_names.h"
#include "core/config/options.h"

namespace tailrace {

// The loss k1 = s - t is missing: its gradient is that of s alone and knows nothing of the teacher
// (verl refuses it too). Its value is a metric (distill_estimates()), and policy_gradient is how it
// is learned from.
enum class DistillLoss : uint8_t {
  // The advantage of each sampled token loses coef (m - t): distill_advantages(). There is no other
  // loss than that of the policy.
  kPolicyGradient,
  // Generalised Jensen-Shannon divergence over a support of k tokens, with the mixture
  // M = (1 - b) S + b T:
  //
  //   b KL(T || M) + (1 - b) KL(S || M);    b = 0: KL(T || S),   b = 1: KL(S || T)
  //
  // As b goes to 0 or 1 the sum goes to 0, and so the ends are no limits of it: as in GKD and TRL.
  kJsd,
  // (s - t)^2 / 2 of the sampled token. On-policy its expected gradient is that of KL(S || T).
  kK2,
  // exp(t - s) - 1 + s - t of the sampled token. Its expected gradient is that of KL(T || S).
  kK3,
  // prime-rl's, of the sampled token: -keep sg(t - s) exp(s - m) + 1e-3 (s - m)^2, with keep = 0
  // where S - mu is below -0.2, else 1.
  kRefKl,
};
constexpr auto enum_names(DistillLoss) {
  using enum DistillLoss;
  return name_table<DistillLoss>({{kPolicyGradient, "policy_gradient"},
                                  {kJsd, "jsd"},
                                  {kK2, "k2"},
                                  {kK3, "k3"},
                                  {kRefKl, "ref_kl"}});
}

// Whose likeliest tokens are the support.
enum class SupportOf : uint8_t {
  kTeacher,  // verl, NeMo
  kStudent,  // as it was when it sampled, since the teacher gives numbers of those tokens then
};
constexpr auto enum_names(SupportOf) {
  using enum SupportOf;
  return name_table<SupportOf>({{kTeacher, "teacher"}, {kStudent, "student"}});
}

struct DistillLossOptions {
  DistillLoss kind = DistillLoss::kPolicyGradient;  // the key `loss`
  double coef = 1;
  double beta = 0.5;
  int64_t top_k = 64;
  SupportOf support = SupportOf::kTeacher;
  // One more element for all tokens outside of the support, log(1 - sum of exp). The elements are
  // then two distributions, and their divergence is a lower bound of that of the vocabulary.
  bool tail = true;
  // The elements are conditioned on the support. Read where there is no tail.
  bool renormalize = false;
  double discount = 0;              // Tinker's kl_discount_factor
  double log_prob_min_clamp = -10;  // 0: none
  double loss_max_clamp = 10;       // 0: none

  void visit(OptionVisitor& v);
};

// The section `algo.distill`.
struct DistillOptions : DistillLossOptions {
  std::string policy;   // the teacher, one of `policies`; empty: nobody teaches
  bool rewards = true;  // false: the teacher alone teaches

  void visit(OptionVisitor& v);
  bool has_teacher() const { return !policy.empty(); }
};

// Rules over several fields. `section`: their full key. Throws UserError with the key.
void validate(const DistillLossOptions& options, std::string_view section);

// True: the loss is distill_token() over a support of top_k tokens.
bool needs_support(DistillLoss kind);

// True: the loss is distill_sampled(), of the sampled token alone.
bool is_sampled(DistillLoss kind);

struct TokenLoss {
  double loss = 0;
  // Probability that each has on the support, as given: no clamp and no conditioning.
  double student_mass = 0, teacher_mass = 0;
};

// The loss kJsd at one token over a support of k > 0 different tokens.
//
//   student, teacher  [k] log-probabilities of the whole vocabulary, finite
//   dstudent          [k] written: dL/ds of each, every s a variable of its own, through tail and
//                     conditioning. The gradient in the logits is sum over i of
//                     dstudent[i] (onehot_i - S), over the vocabulary.
//
// Without tail and conditioning the sums are over the k tokens alone, and may be negative (verl's
// forward_kl_topk). The logarithms of all elements (conditioned ones and the tail too) are at least
// log_prob_min_clamp, and have no gradient below it; the loss is at most loss_max_clamp from 0, and
// has no gradient beyond. At a bound itself there is one.
TokenLoss distill_token(const DistillLossOptions& options, std::span<const double> student,
                        std::span<const double> teacher, std::span<double> dstudent);

// Log-probabilities of the sampled token.
struct SampledLogprobs {
  double student = 0, teacher = 0;
  double behaviour = 0;  // m; read by kRefKl alone
};

struct SampledLoss {
  double loss = 0;
  double dstudent = 0;  // dL/ds
};

// The loss of the sampled token, of a kind that is_sampled(). Clamped as distill_token() is, but
// for kRefKl.
SampledLoss distill_sampled(const DistillLossOptions& options, const SampledLogprobs& logprobs);

// The loss kPolicyGradient:  A_t -= coef * sum over k >= 0 of discount^k (m - t)_{t + k}
//
// All are of the sampled tokens of one sequence, or of one turn where the discount shall end with
// it, in their order.
void distill_advantages(const DistillLossOptions& options, std::span<const double> behaviour,
                        std::span<const double> teacher, std::span<double> advantages);

// Estimates of KL(S || T) at a sampled token, for metrics (J. Schulman, "Approximating KL
// divergence", 2020): k1 = s - t, k2 = k1^2 / 2, k3 = exp(-k1) - 1 + k1.
struct DistillEstimates {
  double k1 = 0, k2 = 0, k3 = 0;
};
DistillEstimates distill_estimates(double student, double teacher);

// Share of the first set that the second has too (2604.13016 follows it over a training): two sets
// of equal size, each without repetition, in any order.
double overlap_ratio(std::span<const int32_t> first, std::span<const int32_t> second);

}  // namespace tailrace
