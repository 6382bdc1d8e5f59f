#include "trainer/loss/surrogate.h"

#include <fmt/format.h>

#include "core/base/error.h"

namespace tailrace {
SurrogateRule surrogate_rule(const SurrogateConfig& config) {
  return {.kind = config.kind,
          .clip_low = config.clip_low,
          .clip_high = config.clip_high,
          .clip_c = config.clip_c,
          .drift_coef = config.drift_coef,
          .tau_pos = config.tau_pos,
          .tau_neg = config.tau_neg};
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
                        "is {}; it must be above 1, or 0 for off. Try {} = 3.", o.clip_c,
                        join_key(section, "clip_c"));
  }
}

}  // namespace tailrace
