#include "trainer/loss/options.h"

#include "core/base/error.h"

namespace tailrace {
namespace {

// Of other frameworks. A name that becomes a preset leaves this table.
constexpr OptionInfo::Stranger kStrangers[] = {
    {"cispo", "There is no preset cispo yet. Try algo.surrogate=cispo, its loss."},
    {"dpo",
     "DPO learns from pairs in a file, which is no RL on samples of the policy; Tailrace "
     "does not do it."},
    {"kto",
     "KTO learns from ratings in a file, which is no RL on samples of the policy; Tailrace "
     "does not do it."},
    {"orpo",
     "ORPO learns from pairs in a file, which is no RL on samples of the policy; Tailrace "
     "does not do it."},
    {"ppo",
     "PPO needs a critic, which is not there yet. Try decoupled_ppo, its clipped loss with "
     "advantages of groups."},
    {"vapo", "VAPO needs a critic, which is not there yet. Try dapo."},
    {"rloo", "There is no preset rloo yet. Try algo.advantage=leave_one_out, its baseline."},
    {"reinforce", "There is no preset reinforce yet. Try default."},
    {"reinforce++",
     "There is no preset reinforce++ yet. Try lite_ppo, which also divides by the "
     "deviation of the batch."},
    {"reinforce_plus_plus",
     "There is no preset reinforce++ yet. Try lite_ppo, which also divides "
     "by the deviation of the batch."},
    {"remax", "There is no preset remax yet. Try default."},
};

}  // namespace

void KlOptions::visit(OptionVisitor& v) {
  v.field("coef", coef,
          {.help = "weight of the penalty in the loss; 0: off", .min = 0, .max = 1000});
  v.field("estimator", estimator,
          {.help = "per-token estimate of the divergence, differentiated as a loss"});
  v.field(
      "target", target,
      {.help = "the other policy: ref (weights at the start of RL) or behaviour (what sampled)"});
}

void AlgoOptions::visit(OptionVisitor& v) {
  v.preset("name", *this, name,
           {.help = "preset with its paper's values; they replace what a lower layer says (an "
                    "extended file, or any file for a preset of the command line), and keys of its "
                    "own layer or of a higher one override them",
            .strangers = kStrangers});
  v.field(
      "advantage", advantage,
      {.help = "reward minus group mean, as is or divided by the deviation of the group or of the "
               "batch's rewards; or minus the mean of the other members"});
  v.field("std_eps", std_eps, {.help = "added to the standard deviation", .min = 0, .max = 1000});
  v.field(
      "filter_zero_signal", filter_zero_signal,
      {.help = "drop: groups whose rewards are all equal leave the batch and the denominators"});
  v.field("ratio", ratio,
          {.help = "what shares one probability ratio (the geometric mean of its tokens' ratios; "
                   "topr: the product)"});
  v.field(
      "surrogate", surrogate.kind,
      {.help =
           "ppo_clip: clipped ratio; cispo: log-probability weighted by a capped, detached ratio; "
           "topr: log-probability, weighted by at most 1 against what sampled where the reward is "
           "not above 0 (with correction.kind = none)"});
  v.field("clip_low", surrogate.clip_low,
          {.help = "ratio's lower bound is 1 - clip_low (ppo_clip)", .min = 0, .max = 1});
  v.field("clip_high", surrogate.clip_high,
          {.help = "ratio's upper bound is 1 + clip_high (ppo_clip, cispo)",
           .min = 0,
           .max = kMaxCount});
  v.field("clip_c", surrogate.clip_c,
          {.help = "dual clip: the loss of a negative advantage is at most clip_c * |A|; 0: off",
           .min = 0,
           .max = kMaxCount});
  v.field(
      "loss_agg", aggregation.kind,
      {.help = "how token losses become one number; all counts are those of the whole minibatch"});
  v.field("loss_const_tokens", aggregation.const_tokens,
          {.help = "the constant of seq_mean_token_sum_const; 0: the most tokens that an episode "
                   "can sample (rollout.max_turns x rollout.max_action_tokens, or what fits the "
                   "context where that is less)",
           .min = 0,
           .max = kMaxCount});
  v.section("kl", kl, "penalty for leaving another policy");
  v.field("entropy_coef", entropy_coef,
          {.help = "bonus for the entropy of each trained token's distribution",
           .min = 0,
           .max = 1000});
  v.section("correction", correction,
            "what is done about tokens that another distribution sampled");
  v.field("sampling_mask", sampling_mask,
          {.help = "none: truncated sampling (rollout.sampling.top_k, top_p, min_p) counts as a "
                   "mismatch: algo.correction weighs a token by the share that was kept, and what "
                   "was cut is never tried; keep: the kept sets travel with the tokens, and "
                   "training is restricted to them"});
  v.field("router_replay", router_replay,
          {.help = "of a model with experts, off: each pass of the trainer chooses them anew; "
                   "replay: the experts that sampled a token travel with it, and training takes "
                   "them"});
}

// What each of them says about itself: `filter_zero_signal`, whose effect is on the denominators,
// is part of the algorithm, `std_eps` and the estimator of a divergence are not.
std::span<const std::string_view> AlgoOptions::preset_keys(AlgoPreset preset) {
  static constexpr std::string_view kKeys[] = {
      "advantage",        "filter_zero_signal", "ratio",
      "surrogate",        "clip_low",           "clip_high",
      "clip_c",           "loss_agg",           "loss_const_tokens",
      "kl.coef",          "entropy_coef",       "correction.kind",
      "correction.level", "correction.cap"};
  constexpr size_t kOfCorrection = 3;  // the last ones
  const bool corrects = preset == AlgoPreset::kDecoupledPpo || preset == AlgoPreset::kTopr;
  const std::span<const std::string_view> keys = kKeys;
  return corrects ? keys : keys.first(keys.size() - kOfCorrection);
}

// `correction`, `sampling_mask` and `router_replay` mend the machine and not the algorithm, so that
// they stay as they are by default. The two algorithms that are about stale samples say what
// corrects for them.
AlgoOptions AlgoOptions::preset(AlgoPreset preset) {
  AlgoOptions o;
  o.name = preset;
  switch (preset) {
    case AlgoPreset::kDefault:
      break;
    case AlgoPreset::kGrpo:
      o.advantage = AdvantageKind::kGroupMeanStd;
      o.filter_zero_signal = ZeroSignalFilter::kNone;
      o.surrogate.clip_low = o.surrogate.clip_high = 0.2;
      o.aggregation.kind = AggregationKind::kSeqMeanTokenMean;
      o.kl.coef = 0.04;
      break;
    case AlgoPreset::kDapo:
      // Its clip range (0.2, 0.28), mean over tokens, missing KL term and filter are the defaults
      // of this struct. Its dynamic sampling is the scheduler's, its length penalty is not built.
      o.advantage = AdvantageKind::kGroupMeanStd;
      break;
    case AlgoPreset::kDrGrpo:
      o.filter_zero_signal = ZeroSignalFilter::kNone;
      o.surrogate.clip_low = o.surrogate.clip_high = 0.2;
      o.aggregation.kind = AggregationKind::kSeqMeanTokenSumConst;
      break;
    case AlgoPreset::kGspo:
      o.advantage = AdvantageKind::kGroupMeanStd;
      o.filter_zero_signal = ZeroSignalFilter::kNone;
      o.ratio = RatioUnit::kSequence;
      // Hundreds of times narrower than a token's: a ratio that is a geometric mean over a sequence
      // stays that much nearer to 1.
      o.surrogate.clip_low = 3e-4;
      o.surrogate.clip_high = 4e-4;
      o.aggregation.kind = AggregationKind::kSeqMeanTokenMean;
      break;
    case AlgoPreset::kLitePpo:
      o.advantage = AdvantageKind::kGroupMeanBatchStd;
      o.filter_zero_signal = ZeroSignalFilter::kNone;
      o.surrogate.clip_low = o.surrogate.clip_high = 0.2;
      break;
    case AlgoPreset::kDecoupledPpo:
      // Without a critic; of our baselines the nearest to its advantages, which are centred and
      // scaled over the batch.
      o.advantage = AdvantageKind::kGroupMeanBatchStd;
      o.filter_zero_signal = ZeroSignalFilter::kNone;
      o.surrogate.clip_low = o.surrogate.clip_high = 0.2;
      // Its trust region is around l_old and its weight against l_inf apart from that: this kind at
      // this level. The cap is of its code, which leaves out what is beyond it; here it is cut.
      o.correction = {.kind = CorrectionKind::kTis, .level = CorrectionLevel::kToken, .cap = 5};
      break;
    case AlgoPreset::kTopr:
      // Its advantages are signed rewards, 1 and -1; those of a group have both signs too.
      o.filter_zero_signal = ZeroSignalFilter::kNone;
      o.surrogate.kind = SurrogateKind::kTopr;
      o.correction.kind = CorrectionKind::kNone;  // see weighs_behaviour()
      break;
  }
  return o;
}

PolicyLossConfig policy_loss_config(const AlgoOptions& options) {
  return {.ratio = options.ratio,
          .surrogate = options.surrogate,
          .correction = options.correction,
          .aggregation = options.aggregation,
          .kl = options.kl,
          .entropy_coef = options.entropy_coef};
}

void validate(const AlgoOptions& o, std::string_view section) {
  // -c A for A < 0 at c <= 1 would cut the loss below what it is at a ratio of 1, where every
  // update starts.
  const std::string clip_c = join_key(section, "clip_c");
  if (o.surrogate.clip_c != 0 && o.surrogate.clip_c <= 1) {
    throw UserError::at(clip_c, "is {}; it must be above 1, or 0 for off. Try clip_c = 3.",
                        o.surrogate.clip_c);
  }
  if (o.surrogate.clip_c != 0 && o.surrogate.kind != SurrogateKind::kPpoClip) {
    throw UserError::at(clip_c, "is {} but surrogate {} does not clip that way. Remove clip_c.",
                        o.surrogate.clip_c, name_of(o.surrogate.kind));
  }
  if (weighs_behaviour(o.surrogate.kind) && o.correction.kind != CorrectionKind::kNone) {
    throw UserError::at(join_key(join_key(section, "correction"), "kind"),
                        "is {} but surrogate {} weighs against what sampled itself. "
                        "Try correction.kind = none.",
                        name_of(o.correction.kind), name_of(o.surrogate.kind));
  }
  const auto [kind, const_tokens] = o.aggregation;
  const bool needs_const = kind == AggregationKind::kSeqMeanTokenSumConst;
  const std::string loss_const_tokens = join_key(section, "loss_const_tokens");
  if (needs_const && const_tokens < 1) {
    throw UserError::at(loss_const_tokens,
                        "is {}; loss_agg {} divides by it. Try the response limit.", const_tokens,
                        name_of(kind));
  }
  // A key that nothing reads is a mistake: its author expects it to do something.
  if (!needs_const && const_tokens != 0) {
    throw UserError::at(loss_const_tokens, "is {} but loss_agg {} does not read it. Remove it.",
                        const_tokens, name_of(kind));
  }
  // A ratio of many tokens has one value for all of them; weighting it by length is not its
  // objective.
  if (o.ratio != RatioUnit::kToken && kind == AggregationKind::kTokenMean) {
    throw UserError::at(join_key(section, "ratio"),
                        "is {} with loss_agg {}, which weights each ratio by its length. "
                        "Try loss_agg = seq_mean_token_mean.",
                        name_of(o.ratio), name_of(kind));
  }
}

}  // namespace tailrace
