#include "trainer/loss/options.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/config_printer.h"
#include "core/base/error.h"

namespace tailrace {
namespace {

// A preset is a row: the values of its paper where they are not the defaults. `correction`,
// `sampling_mask` and `router_replay` mend the machine and not the algorithm, so that they stay as
// they are by default. Algorithms that are about stale samples say what corrects for them.
constexpr AlgoOptions kPresets[] = {
    {.name = AlgoPreset::kDefault},
    // DeepSeekMath, 2402.03300
    {.name = AlgoPreset::kGrpo,
     .advantage = AdvantageKind::kGroupMeanStd,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenMean},
     .kl = {.coef = 0.04}},
    // 2503.14476. Its clip range (0.2, 0.28), mean over tokens, missing KL term and filter are the
    // defaults. Its dynamic sampling is the scheduler's, its length penalty is not built.
    {.name = AlgoPreset::kDapo, .advantage = AdvantageKind::kGroupMeanStd},
    // 2503.20783
    {.name = AlgoPreset::kDrGrpo,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenSumConst}},
    // 2507.18071. Its clip range is hundreds of times narrower than a token's: a ratio that is a
    // geometric mean over a sequence stays that much nearer to 1.
    {.name = AlgoPreset::kGspo,
     .advantage = AdvantageKind::kGroupMeanStd,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .ratio = RatioUnit::kSequence,
     .surrogate = {.clip_low = 3e-4, .clip_high = 4e-4},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenMean}},
    // 2508.08221
    {.name = AlgoPreset::kLitePpo,
     .advantage = AdvantageKind::kGroupMeanBatchStd,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2}},
    // AReaL, 2505.24298. Without a critic; of our baselines the nearest to its advantages, which
    // are centred and scaled over the batch. Its trust region is around l_old and its weight
    // against l_inf apart from that: this kind of correction at this level. The cap is of its code,
    // which leaves out what is beyond it; here it is cut.
    {.name = AlgoPreset::kDecoupledPpo,
     .advantage = AdvantageKind::kGroupMeanBatchStd,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2},
     .correction = {.kind = CorrectionKind::kTis, .level = CorrectionLevel::kToken, .cap = 5}},
    // 2503.14286, tapered by token; by trajectory with ratio = sequence. Its advantages are signed
    // rewards, 1 and -1; those of a group have both signs too. See weighs_behaviour().
    {.name = AlgoPreset::kTopr,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.kind = SurrogateKind::kTopr},
     .correction = {.kind = CorrectionKind::kNone}},
};

constexpr const AlgoOptions& row_of(AlgoPreset preset) {
  return *std::ranges::find(kPresets, preset, &AlgoOptions::name);
}
static_assert(
    [] {
      for (size_t i = 0; i < kEnumNames<AlgoPreset>.size(); ++i)
        if (std::ranges::count(kPresets, static_cast<AlgoPreset>(i), &AlgoOptions::name) != 1)
          return false;
      return true;
    }(),
    "each preset has one row");

// Every preset is about these. `filter_zero_signal`, whose effect is on the denominators, is part
// of the algorithm, `std_eps` and the estimator of a divergence are not.
constexpr std::string_view kCommonKeys[] = {
    "advantage", "filter_zero_signal", "ratio",   "surrogate",   "clip_low", "clip_high", "clip_c",
    "loss_agg",  "loss_const_tokens",  "kl.coef", "entropy_coef"};

// "kl" of kl.coef; empty at the top.
std::string_view section_of(std::string_view key) {
  const size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? "" : key.substr(0, dot);
}

// Other spellings of presets.
constexpr OptionInfo::Alias kAliases[] = {
    {"dr-grpo", "dr_grpo"}, {"drgrpo", "dr_grpo"}, {"lite-ppo", "lite_ppo"}};

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
  // What the surrogate, and how losses add up, leave without effect.
  const auto idle_unless = [&](bool reads, std::string_view lacks) {
    return idle_if(!reads, fmt::format("surrogate {} has no {}", name_of(surrogate.kind), lacks),
                   {"surrogate", "name"});
  };
  const bool clips = surrogate.kind == SurrogateKind::kPpoClip;
  const bool caps = clips || surrogate.kind == SurrogateKind::kCispo;
  v.preset("name", *this, name,
           {.help = "preset with its paper's values; they replace what a lower layer says (an "
                    "extended file, or any file for a preset of the command line), and keys of its "
                    "own layer or of a higher one override them",
            .strangers = kStrangers,
            .aliases = kAliases});
  v.field(
      "advantage", advantage,
      {.help = "reward minus group mean, as is or divided by the deviation of the group or of the "
               "batch's rewards; or minus the mean of the other members"});
  v.field("std_eps", std_eps,
          {.help = "added to the standard deviation",
           .min = 0,
           .max = 1000,
           .idle = idle_if(
               !divides_by_std(advantage),
               fmt::format("{{advantage}} is {}, which divides by nothing", name_of(advantage)),
               {"advantage", "name"})});
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
          {.help = "ratio's lower bound is 1 - clip_low (ppo_clip)",
           .min = 0,
           .max = 1,
           .idle = idle_unless(clips, "lower bound")});
  v.field("clip_high", surrogate.clip_high,
          {.help = "ratio's upper bound is 1 + clip_high (ppo_clip, cispo)",
           .min = 0,
           .max = kMaxCount,
           .idle = idle_unless(caps, "upper bound")});
  v.field("clip_c", surrogate.clip_c,
          {.help = "dual clip: the loss of a negative advantage is at most clip_c * |A|; 0: off",
           .min = 0,
           .max = kMaxCount,
           .idle = idle_unless(clips, "dual clip")});
  v.field(
      "loss_agg", aggregation.kind,
      {.help = "how token losses become one number; all counts are those of the whole minibatch"});
  v.field("loss_const_tokens", aggregation.const_tokens,
          {.help = "the constant of seq_mean_token_sum_const; 0: the most tokens that an episode "
                   "can sample (rollout.max_turns x rollout.max_action_tokens, or what fits the "
                   "context where that is less)",
           .min = 0,
           .max = kMaxCount,
           .idle = idle_if(aggregation.kind != AggregationKind::kSeqMeanTokenSumConst,
                           fmt::format("{{loss_agg}} is {}, which divides by no constant",
                                       name_of(aggregation.kind)),
                           {"loss_agg", "name"})});
  v.section("kl", kl, "penalty for leaving another policy",
            idle_if(kl.coef == 0, "{kl.coef} is 0", {"kl.coef", "name"}));
  v.field("entropy_coef", entropy_coef,
          {.help = "bonus for the entropy of each trained token's distribution",
           .min = 0,
           .max = 1000});
  v.section("correction", correction, "what is done about tokens that another distribution sampled",
            idle_if(correction.kind == CorrectionKind::kNone, "{correction.kind} is none",
                    {"correction.kind", "name"}));
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

const AlgoOptions& AlgoOptions::preset(AlgoPreset preset) { return row_of(preset); }

std::vector<std::string> AlgoOptions::preset_keys(AlgoPreset preset) {
  const std::vector<SectionDoc> rows = describe_options(row_of(preset));
  const std::vector<SectionDoc> defaults = describe_options(AlgoOptions{});
  std::vector<std::string> keys(std::begin(kCommonKeys), std::end(kCommonKeys));
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto &values = rows[i].options, &standard = defaults[i].options;
    const bool is_common =
        std::ranges::find(kCommonKeys, rows[i].key, section_of) != std::end(kCommonKeys);
    const bool differs =
        !std::ranges::equal(values, standard, {}, &OptionDoc::value, &OptionDoc::value);
    for (size_t j = 0; j < values.size(); ++j) {
      const std::string& key = values[j].key;
      const bool is_set = is_common ? values[j].value != standard[j].value : differs;
      if (is_set && key != "name" && std::ranges::find(keys, key) == keys.end())
        keys.push_back(key);
    }
  }
  return keys;
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
  if (o.surrogate.clip_c != 0 && o.surrogate.clip_c <= 1) {
    throw UserError::at(join_key(section, "clip_c"),
                        "is {}; it must be above 1, or 0 for off. Try clip_c = 3.",
                        o.surrogate.clip_c);
  }
  if (weighs_behaviour(o.surrogate.kind) && o.correction.kind != CorrectionKind::kNone) {
    throw UserError::at(join_key(join_key(section, "correction"), "kind"),
                        "is {} but surrogate {} weighs against what sampled itself. "
                        "Try correction.kind = none.",
                        name_of(o.correction.kind), name_of(o.surrogate.kind));
  }
  const auto [kind, const_tokens] = o.aggregation;
  if (kind == AggregationKind::kSeqMeanTokenSumConst && const_tokens < 1) {
    throw UserError::at(join_key(section, "loss_const_tokens"),
                        "is {}; loss_agg {} divides by it. Try the response limit.", const_tokens,
                        name_of(kind));
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
