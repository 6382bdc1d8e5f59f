#include "trainer/loss/surrogate.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/base/error.h"
#include "kernels/base/check.h"

namespace tailrace {
namespace {

SurrogateTerm ppo_clip(const SurrogateConfig& config, const SurrogateInput& in) {
  double ratio = std::exp(in.log_ratio), advantage = in.advantage;
  double plain = -ratio * advantage;
  double clipped = -std::clamp(ratio, 1 - config.clip_low, 1 + config.clip_high) * advantage;
  SurrogateTerm term;
  // In a step's first update every ratio is exactly 1 (design rule 3), both are equal, and the
  // gradient must flow.
  if (clipped > plain) {  // a tie counts as active
    term.value = clipped;
    term.clipped_low = ratio < 1;
    term.clipped_high = ratio > 1;
  } else {
    term.value = plain;
    term.d_log_ratio = plain;  // d(-r A) / d log r = -r A
  }
  // Dual clip (Ye et al. 2020, 1912.09729): with A < 0 a large ratio makes -r A as large as it
  // likes, and the minimum of PPO does not hold it.
  if (config.clip_c > 0 && advantage < 0 && term.value > -config.clip_c * advantage) {
    term.value = -config.clip_c * advantage;
    term.d_log_ratio = 0;
    term.dual_clipped = true;
  }
  return term;
}

// -weight A l. Detached: the gradient goes through the log-probability alone.
SurrogateTerm weighted_logprob(double weight, const SurrogateInput& in) {
  return {.value = -weight * in.advantage * in.logprob, .d_logprob = -weight * in.advantage};
}

SurrogateTerm cispo(const SurrogateConfig& config, const SurrogateInput& in) {
  double ratio = std::exp(in.log_ratio), bound = 1 + config.clip_high;
  // A token beyond the bound still learns, with a bounded weight.
  SurrogateTerm term = weighted_logprob(std::min(ratio, bound), in);
  term.clipped_high = ratio > bound;
  return term;
}

// A success teaches whoever wrote it. A failure is pushed down only as far as the policy still
// writes it: without the taper that push has no bottom.
SurrogateTerm tapered(double log_weight, const SurrogateInput& in) {
  if (in.positive) return weighted_logprob(1, in);
  SurrogateTerm term = weighted_logprob(std::exp(std::min(log_weight, 0.0)), in);
  term.clipped_high = log_weight > 0;
  return term;
}

SurrogateTerm kimi(const SurrogateConfig& config, const SurrogateInput& in) {
  SurrogateTerm term = weighted_logprob(1, in);
  term.value += config.drift_coef / 2 * in.drift * in.drift;
  term.d_logprob += config.drift_coef * in.drift;
  return term;
}

SurrogateTerm sapo(const SurrogateConfig& config, const SurrogateInput& in) {
  const double ratio = std::exp(in.log_ratio);
  const double tau = in.advantage > 0 ? config.tau_pos : config.tau_neg;
  const double p = 1 / (1 + std::exp(-tau * (ratio - 1)));
  // d/dr of 4 / tau sigmoid(tau (r - 1)) is 4 p (1 - p): 1 at r = 1, less on both sides.
  return {.value = -4 / tau * p * in.advantage,
          .d_log_ratio = -4 * p * (1 - p) * ratio * in.advantage};
}

}  // namespace

bool weighs_behaviour(SurrogateKind kind) { return kind == SurrogateKind::kTopr; }

bool splits_by_reward(SurrogateKind kind) {
  return kind == SurrogateKind::kTopr || kind == SurrogateKind::kIpa;
}

SurrogateTerm surrogate(const SurrogateConfig& config, const SurrogateInput& in) {
  switch (config.kind) {
    case SurrogateKind::kPpoClip:
      return ppo_clip(config, in);
    case SurrogateKind::kCispo:
      return cispo(config, in);
    case SurrogateKind::kTopr:
      return tapered(in.log_importance, in);
    case SurrogateKind::kReinforce:
      return weighted_logprob(1, in);
    case SurrogateKind::kKimi:
      return kimi(config, in);
    case SurrogateKind::kSapo:
      return sapo(config, in);
    case SurrogateKind::kIpa:
      return tapered(in.log_ratio, in);
  }
  TR_CHECK(false, "surrogate kind {}", static_cast<int>(config.kind));
  return {};
}

void SurrogateConfig::visit(OptionVisitor& v) {
  const auto idle_unless = [&](bool reads, std::string_view lacks) {
    return idle_if(!reads, fmt::format("surrogate {} has no {}", name_of(kind), lacks),
                   {"surrogate", "name"});
  };
  const bool clips = kind == SurrogateKind::kPpoClip;
  const bool caps = clips || kind == SurrogateKind::kCispo;
  v.field(
      "surrogate", kind,
      {.help =
           "ppo_clip: clipped ratio; cispo: log-probability weighted by a capped, detached ratio; "
           "topr: log-probability, weighted by at most 1 against what sampled where the reward is "
           "not above 0 (with correction.kind = none); ipa: the same against the weights that the "
           "step starts from; reinforce: log-probability; kimi: and a penalty for the squared "
           "log-ratio; sapo: ratio through a sigmoid"});
  v.field("clip_low", clip_low,
          {.help = "ratio's lower bound is 1 - clip_low (ppo_clip)",
           .min = 0,
           .max = 1,
           .idle = idle_unless(clips, "lower bound")});
  v.field("clip_high", clip_high,
          {.help = "ratio's upper bound is 1 + clip_high (ppo_clip, cispo)",
           .min = 0,
           .max = kMaxCount,
           .idle = idle_unless(caps, "upper bound")});
  v.field("clip_c", clip_c,
          {.help = "dual clip: the loss of a negative advantage is at most clip_c * |A|; 0: off",
           .min = 0,
           .max = kMaxCount,
           .idle = idle_unless(clips, "dual clip")});
  v.field("drift_coef", drift_coef,
          {.help = "twice the weight of the squared log-ratio (kimi)",
           .min = 0,
           .max = 1000,
           .idle = idle_unless(kind == SurrogateKind::kKimi, "such penalty")});
  const Idle not_soft = idle_unless(kind == SurrogateKind::kSapo, "temperature");
  v.field("tau_pos", tau_pos,
          {.help = "temperature of positive advantages (sapo)",
           .min = 1e-3,
           .max = 1000,
           .idle = not_soft});
  v.field("tau_neg", tau_neg,
          {.help = "temperature of negative advantages; a larger one damps them sooner (sapo)",
           .min = 1e-3,
           .max = 1000,
           .idle = not_soft});
}

void validate(const SurrogateConfig& o, std::string_view section) {
  // -c A for A < 0 at c <= 1 would cut the loss below what it is at a ratio of 1, where every
  // update starts.
  if (o.clip_c != 0 && o.clip_c <= 1) {
    throw UserError::at(join_key(section, "clip_c"),
                        "is {}; it must be above 1, or 0 for off. Try clip_c = 3.", o.clip_c);
  }
}

}  // namespace tailrace
