#include "trainer/loss/distillation.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "kernels/base/check.h"
#include "kernels/ops/loss_terms.h"
#include "trainer/loss/returns.h"

namespace tailrace {

namespace {

// The mass of a tail whose logarithm is still taken. Log-probabilities come from floats, whose sum
// of a whole vocabulary is off from 1 by about this, to either side.
constexpr double kLeastTail = 0x1p-24;

// A number and its slope in another.
struct Sloped {
  double value = 0, slope = 0;
};

double log_sum(double x, double y) {
  const double most = std::max(x, y);
  return most + std::log1p(std::exp(-std::abs(x - y)));
}

double log_sum(std::span<const double> x) {
  const double most = *std::ranges::max_element(x);
  double sum = 0;
  for (const double value : x) sum += std::exp(value - most);
  return most + std::log(sum);
}

double sum_exp(std::span<const double> x) {
  double sum = 0;
  for (const double value : x) sum += std::exp(value);
  return sum;
}

// At the bound itself the slope is kept, as clamps of other frameworks have it.
Sloped at_least(double x, double least) {
  if (least == 0 || x >= least) return {x, 1};
  return {least, 0};
}

// 0 where the loss is cut, else 1.
double cut_loss(double& loss, double most) {
  if (most == 0 || std::abs(loss) <= most) return 1;
  loss = std::copysign(most, loss);
  return 0;
}

// The part of one element in the divergence, and its slope in s. The slope is that of the sum over
// elements which need not add up to 1.
Sloped divergence(double beta, double s, double t) {
  const double student = std::exp(s), teacher = std::exp(t);
  if (beta == 0) return {teacher * (t - s), -teacher};
  if (beta == 1) return {student * (s - t), student * (s - t + 1)};
  const double mixed = log_sum(std::log1p(-beta) + s, std::log(beta) + t);
  // The slope has no term of the mixture's own, b T + (1 - b) S over M, which takes away the 1 that
  // the slope of S s brings.
  const double of_student = (1 - beta) * student * (s - mixed);
  return {beta * teacher * (t - mixed) + of_student, of_student};
}

// The same through the clamp of both.
Sloped clamped_divergence(const DistillLossOptions& o, double s, double t) {
  const Sloped held = at_least(s, o.log_prob_min_clamp);
  const Sloped term = divergence(o.beta, held.value, at_least(t, o.log_prob_min_clamp).value);
  return {term.value, term.slope * held.slope};
}

// Logarithm of 1 - mass, and its slope in the mass.
Sloped log_tail(double mass) {
  const double rest = 1 - mass;
  if (rest < kLeastTail) return {std::log(kLeastTail), 0};
  return {std::log(rest), -1 / rest};
}

double add_tail(const DistillLossOptions& o, const TokenLoss& masses,
                std::span<const double> student, std::span<double> dstudent) {
  const Sloped rest = log_tail(masses.student_mass);
  const Sloped term = clamped_divergence(o, rest.value, log_tail(masses.teacher_mass).value);
  for (size_t i = 0; i < student.size(); ++i)
    dstudent[i] += term.slope * rest.slope * std::exp(student[i]);
  return term.value;
}

SampledLoss estimator_loss(const DistillLossOptions& o, const SampledLogprobs& l,
                           KlEstimator estimator) {
  const Sloped s = at_least(l.student, o.log_prob_min_clamp);
  const ClampedLog x = clamp_log(s.value - at_least(l.teacher, o.log_prob_min_clamp).value);
  const KlTerm term = kl_term(estimator, x.value);
  SampledLoss result{.loss = term.value, .dstudent = x.cut ? 0 : s.slope * term.d_logprob};
  result.dstudent *= cut_loss(result.loss, o.loss_max_clamp);
  return result;
}

SampledLoss ref_kl(const SampledLogprobs& l) {
  constexpr double kFarBelow = -0.2, kDrift = 1e-3;
  const double drift = l.student - l.behaviour;
  const bool keep = std::exp(l.student) - std::exp(l.behaviour) >= kFarBelow;
  const ClampedLog ratio = clamp_log(drift);
  const double pull = keep ? -(l.teacher - l.student) * std::exp(ratio.value) : 0;
  return {.loss = pull + kDrift * drift * drift,
          .dstudent = (ratio.cut ? 0 : pull) + 2 * kDrift * drift};
}

bool has_clamps(DistillLoss kind) {
  return kind != DistillLoss::kPolicyGradient && kind != DistillLoss::kRefKl;
}

// Names from elsewhere.
constexpr OptionInfo::Alias kDistillAliases[] = {{"gkd", "jsd"}};
constexpr OptionInfo::Stranger kDistillStrangers[] = {
    {"forward_kl", "It is jsd with beta 0."},
    {"forward_kl_topk", "It is jsd with beta 0, and with tail and renormalize off."},
    {"k1",
     "The gradient of k1 as a loss knows nothing of the teacher. Try policy_gradient, which takes "
     "k1 out of the advantage, or k2."},
    {"reverse_kl", "It is jsd with beta 1."},
};

}  // namespace

void DistillLossOptions::visit(OptionVisitor& v) {
  const auto idle_unless = [&](bool reads, std::string_view lacks) {
    return idle_if(!reads, fmt::format("{{loss}} is {}, which has no {}", name_of(kind), lacks),
                   {"loss"});
  };
  const Idle no_support = idle_unless(needs_support(kind), "support");
  v.field("loss", kind,
          {.help = "how the teacher is learned from: policy_gradient takes log mu - log T of each "
                   "sampled token out of its advantage; jsd is a divergence over a support of "
                   "likely tokens; k2, k3 and ref_kl are losses of the sampled token",
           .strangers = kDistillStrangers,
           .aliases = kDistillAliases});
  v.field("coef", coef, {.help = "weight of the teacher's term", .min = 0, .max = 1000});
  v.field("beta", beta,
          {.help = "kind of the divergence: 0 is KL(T || S), which covers the teacher; 1 is "
                   "KL(S || T), which seeks its mode; Jensen-Shannon between them",
           .min = 0,
           .max = 1,
           .idle = no_support});
  v.field("top_k", top_k,
          {.help = "tokens of the support", .min = 1, .max = 65536, .idle = no_support});
  v.field("support", support,
          {.help = "whose likeliest tokens are the support: the teacher's, or those of the student "
                   "when it sampled",
           .idle = no_support});
  v.field("tail", tail,
          {.help = "the tokens outside of the support count as one more", .idle = no_support});
  v.field("renormalize", renormalize,
          {.help = "both distributions are conditioned on the support",
           .idle = no_support ? no_support : idle_if(tail, "{tail} is true", {"tail"})});
  v.field("discount", discount,
          {.help = "share at which later tokens' terms count for a token: 0 is its own term alone",
           .min = 0,
           .max = 1,
           .idle = idle_unless(kind == DistillLoss::kPolicyGradient, "later tokens")});
  const Idle no_clamp = idle_unless(has_clamps(kind), "clamps");
  v.field("log_prob_min_clamp", log_prob_min_clamp,
          {.help = "least log-probability that the loss sees, of both; 0: none",
           .min = -1000,
           .max = 0,
           .idle = no_clamp});
  v.field("loss_max_clamp", loss_max_clamp,
          {.help = "largest loss of a token, to either side of 0; beyond it a token has no "
                   "gradient; 0: none",
           .min = 0,
           .max = 1e6,
           .idle = no_clamp});
}

void DistillOptions::visit(OptionVisitor& v) {
  v.field("policy", policy,
          {.help = "the teacher, one of `policies`: it scores each token that was sampled; empty: "
                   "nobody teaches",
           .default_is_older = true});
  DistillLossOptions::visit(v);
  v.field("rewards", rewards,
          {.help = "false: rewards are measured and teach nothing, the teacher alone does"});
}

void validate(const DistillLossOptions& o, std::string_view section) {
  // The sum of S log(S / T) over some tokens is least at S = T / e: the student would move away
  // from a teacher that it matches.
  if (needs_support(o.kind) && o.beta == 1 && !o.tail && !o.renormalize)
    throw UserError::at(join_key(section, "beta"),
                        "is 1 with neither tail nor renormalize; a reverse divergence over a part "
                        "of the vocabulary takes probability away from it. Try tail = true.");
}

bool needs_support(DistillLoss kind) { return kind == DistillLoss::kJsd; }

bool is_sampled(DistillLoss kind) {
  return kind == DistillLoss::kK2 || kind == DistillLoss::kK3 || kind == DistillLoss::kRefKl;
}

TokenLoss distill_token(const DistillLossOptions& o, std::span<const double> student,
                        std::span<const double> teacher, std::span<double> dstudent) {
  const size_t k = student.size();
  TR_CHECK(needs_support(o.kind), "{} has no support", name_of(o.kind));
  TR_CHECK(k > 0 && teacher.size() == k && dstudent.size() == k, "{} and {} tokens", k,
           teacher.size());
  TokenLoss result{.student_mass = sum_exp(student), .teacher_mass = sum_exp(teacher)};
  const bool conditions = o.renormalize && !o.tail;
  const double log_student = conditions ? log_sum(student) : 0;
  const double log_teacher = conditions ? log_sum(teacher) : 0;
  double slopes = 0;
  for (size_t i = 0; i < k; ++i) {
    const Sloped term = clamped_divergence(o, student[i] - log_student, teacher[i] - log_teacher);
    result.loss += term.value;
    dstudent[i] = term.slope;
    slopes += term.slope;
  }
  if (o.tail) result.loss += add_tail(o, result, student, dstudent);
  if (conditions)
    for (size_t i = 0; i < k; ++i) dstudent[i] -= slopes * std::exp(student[i] - log_student);
  if (cut_loss(result.loss, o.loss_max_clamp) == 0) std::ranges::fill(dstudent, 0.0);
  return result;
}

SampledLoss distill_sampled(const DistillLossOptions& options, const SampledLogprobs& logprobs) {
  switch (options.kind) {
    case DistillLoss::kK2:
      return estimator_loss(options, logprobs, KlEstimator::kK2);
    case DistillLoss::kK3:
      return estimator_loss(options, logprobs, KlEstimator::kK3);
    case DistillLoss::kRefKl:
      return ref_kl(logprobs);
    case DistillLoss::kPolicyGradient:
    case DistillLoss::kJsd:
      break;
  }
  TR_CHECK(false, "{} is no loss of the sampled token", name_of(options.kind));
}

void distill_advantages(const DistillLossOptions& options, std::span<const double> behaviour,
                        std::span<const double> teacher, std::span<double> advantages) {
  TR_CHECK(behaviour.size() == teacher.size(), "{} and {} tokens", behaviour.size(),
           teacher.size());
  std::vector<double> rewards(behaviour.size());
  for (size_t i = 0; i < rewards.size(); ++i)
    rewards[i] = -options.coef * (behaviour[i] - teacher[i]);
  add_rewards_to_go(rewards, options.discount, advantages);
}

DistillEstimates distill_estimates(double student, double teacher) {
  const double x = student - teacher;
  return {.k1 = x,
          .k2 = kl_term(KlEstimator::kK2, x).value,
          .k3 = kl_term(KlEstimator::kK3, clamp_log(x).value).value};
}

double overlap_ratio(std::span<const int32_t> first, std::span<const int32_t> second) {
  TR_CHECK(!first.empty() && first.size() == second.size(), "{} and {} tokens", first.size(),
           second.size());
  std::vector<int32_t> sorted(second.begin(), second.end());
  std::ranges::sort(sorted);
  const auto both = std::ranges::count_if(
      first, [&](int32_t id) { return std::ranges::binary_search(sorted, id); });
  return static_cast<double>(both) / static_cast<double>(first.size());
}

}  // namespace tailrace
