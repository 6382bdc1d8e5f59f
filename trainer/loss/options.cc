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
    {.name = AlgoPreset::kPpo,
     .advantage = AdvantageKind::kGae,
     .returns = {.gamma = 1, .lambda = 0.95, .whiten = true},
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2}},
    {.name = AlgoPreset::kGrpo,
     .advantage = AdvantageKind::kGroupMeanStd,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenMean},
     .kl = {.coef = 0.04}},
    {.name = AlgoPreset::kDrGrpo,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenSumConst}},
    // Its clip range (0.2, 0.28), mean over tokens, missing KL term and filter are the defaults.
    // Groups that the filter drops are replaced: refills_groups().
    {.name = AlgoPreset::kDapo,
     .advantage = AdvantageKind::kGroupMeanStd,
     .length = {.penalty = LengthPenalty::kSoftOverlong}},
    // Whole samples are what it learns from: their log-probabilities are sums. The penalty is
    // TRL's.
    {.name = AlgoPreset::kRloo,
     .advantage = AdvantageKind::kLeaveOneOut,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.kind = SurrogateKind::kReinforce},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenSum},
     .kl = {.coef = 0.05, .estimator = KlEstimator::kK1, .placement = KlPlacement::kReward}},
    // The penalty of both forms is that of OpenRLHF.
    {.name = AlgoPreset::kReinforcePp,
     .advantage = AdvantageKind::kReward,
     .returns = {.whiten = true},
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2},
     .kl = {.coef = 0.01, .estimator = KlEstimator::kK1, .placement = KlPlacement::kReward}},
    {.name = AlgoPreset::kReinforcePpBaseline,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .returns = {.whiten = true},
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2},
     .kl = {.coef = 0.01, .estimator = KlEstimator::kK2}},
    // Without the KL penalty that it has for rewards which are a model's.
    {.name = AlgoPreset::kRemax,
     .advantage = AdvantageKind::kGreedy,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.kind = SurrogateKind::kReinforce},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenSum}},
    {.name = AlgoPreset::kLitePpo,
     .advantage = AdvantageKind::kGroupMeanBatchStd,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2}},
    // Its clip range is hundreds of times narrower than a token's: a ratio that is a geometric mean
    // over a sequence stays that much nearer to 1.
    {.name = AlgoPreset::kGspo,
     .advantage = AdvantageKind::kGroupMeanStd,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .ratio = RatioUnit::kSequence,
     .surrogate = {.clip_low = 3e-4, .clip_high = 4e-4},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenMean}},
    {.name = AlgoPreset::kGspoToken,
     .advantage = AdvantageKind::kGroupMeanStd,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .ratio = RatioUnit::kSequenceToken,
     .surrogate = {.clip_low = 3e-4, .clip_high = 4e-4},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenMean}},
    // The largest weight is 5, as ScaleRL and TRL have it: 1 + clip_high. It has DAPO's filter.
    {.name = AlgoPreset::kCispo,
     .advantage = AdvantageKind::kGroupMeanStd,
     .surrogate = {.kind = SurrogateKind::kCispo, .clip_high = 4}},
    // Its advantages are signed rewards, 1 and -1; those of a group have both signs too. See
    // weighs_behaviour().
    {.name = AlgoPreset::kTopr,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.kind = SurrogateKind::kTopr},
     .correction = {.kind = CorrectionKind::kNone}},
    // Its length penalty comes after a warm-up of its own: algo.length.penalty=kimi.
    {.name = AlgoPreset::kKimi,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.kind = SurrogateKind::kKimi, .drift_coef = 0.1}},
    {.name = AlgoPreset::kSapo,
     .advantage = AdvantageKind::kGroupMeanStd,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.kind = SurrogateKind::kSapo, .tau_pos = 1.0, .tau_neg = 1.05},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenMean}},
    // Without a critic; of our baselines the nearest to its advantages, which are centred and
    // scaled over the batch. Its trust region is around l_old and its weight against l_inf apart
    // from that: this kind of correction at this level. The cap is of its code, which leaves out
    // what is beyond it; here it is cut.
    {.name = AlgoPreset::kDecoupledPpo,
     .advantage = AdvantageKind::kGroupMeanBatchStd,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2},
     .correction = {.kind = CorrectionKind::kTis, .level = CorrectionLevel::kToken, .cap = 5}},
    {.name = AlgoPreset::kIcePop,
     .advantage = AdvantageKind::kGroupMeanStd,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2},
     .correction = {.kind = CorrectionKind::kIcePop, .low = 0.5, .cap = 5}},
    // Its reward is above 0 for success alone, so that the negative half needs a baseline. Discount
    // and bound are not published; these are in the range that its family uses.
    {.name = AlgoPreset::kIpa,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .credit = {.kind = CreditKind::kTurnReturn, .gamma = 0.95},
     .ratio = RatioUnit::kTurn,
     .surrogate = {.kind = SurrogateKind::kIpa},
     .correction = {.kind = CorrectionKind::kMask,
                    .level = CorrectionLevel::kTurnMean,
                    .low = 0,
                    .cap = 1.2}},
    {.name = AlgoPreset::kGigpo,
     .advantage = AdvantageKind::kGroupMeanStd,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .credit = {.kind = CreditKind::kGigpo, .gamma = 0.95, .weight = 1},
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenMean},
     .kl = {.coef = 0.01}},
    {.name = AlgoPreset::kTurningPoint,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .credit = {.kind = CreditKind::kTurningPoint},
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenMean}},
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

// What mends the machine, or a number, and is no part of an algorithm: it stays as a person has it.
// So does `correction`, unless the row is about it.
constexpr std::string_view kNotOfTheAlgorithm[] = {"name", "std_eps", "sampling_mask",
                                                   "router_replay"};
constexpr std::string_view kCorrection = "correction";

// Other spellings of presets.
constexpr OptionInfo::Alias kAliases[] = {
    {"gae", "ppo"},          // verl
    {"group_norm", "grpo"},  // OpenRLHF
    {"dr-grpo", "dr_grpo"},
    {"drgrpo", "dr_grpo"},
    {"reinforce", "reinforce_pp"},  // OpenRLHF
    {"reinforce++", "reinforce_pp"},
    {"reinforce_plus_plus", "reinforce_pp"},  // verl
    {"reinforce++-baseline", "reinforce_pp_baseline"},
    {"reinforce_baseline", "reinforce_pp_baseline"},            // OpenRLHF
    {"reinforce_plus_plus_baseline", "reinforce_pp_baseline"},  // verl
    {"lite-ppo", "lite_ppo"},
    {"gspo-token", "gspo_token"},
    {"agentic_reinforce", "ipa"},  // ROLL
};

// Of other frameworks.
constexpr OptionInfo::Stranger kStrangers[] = {
    {"bnpo", "BNPO is a mean over tokens. Try algo.loss_agg=token_mean_global."},
    {"dpo",
     "DPO learns from pairs in a file, which is no RL on samples of the policy; Tailrace "
     "does not do it."},
    {"gmpo", "There is no GMPO. Try gspo, whose ratio is the geometric mean without its clip."},
    {"gpg", "There is no GPG. Try rloo, which also has no clip."},
    {"grpo_passk", "There is no objective for pass@k. Try grpo."},
    {"kto",
     "KTO learns from ratings in a file, which is no RL on samples of the policy; Tailrace "
     "does not do it."},
    {"luspo", "There is no LUSPO. Try gspo."},
    {"opo", "There is no OPO. Try rloo, whose baseline is not weighted by length."},
    {"orpo",
     "ORPO learns from pairs in a file, which is no RL on samples of the policy; Tailrace "
     "does not do it."},
    {"vapo", "There is no VAPO. Try ppo, with algo.loss_agg=token_mean_global as it has it."},
    {"vespo", "There is no VESPO. Try topr, which also weighs against what sampled."},
};

}  // namespace

void KlOptions::visit(OptionVisitor& v) {
  v.field("coef", coef,
          {.help = "weight of the penalty, in the loss or in the reward; 0: off",
           .min = 0,
           .max = 1000});
  v.field("estimator", estimator,
          {.help = "per-token estimate of the divergence, differentiated as a loss; k1 in the "
                   "reward"});
  v.field(
      "target", target,
      {.help = "the other policy: ref (weights at the start of RL) or behaviour (what sampled)"});
  v.field("placement", placement,
          {.help = "loss: a term of the loss; reward: taken from the reward of each token, of the "
                   "weights that a step starts from"});
  v.field("unbiased", unbiased,
          {.help = "times the probability ratio, so that the gradient of k3 is that of the "
                   "divergence also where older weights sampled",
           .idle = idle_if(!in_loss(), "{placement} is reward", {"placement"})});
}

void CorrectionOptions::visit(OptionVisitor& v) {
  const auto idle = [&](bool is_idle, std::string_view lacks) {
    return idle_if(is_idle,
                   kind == CorrectionKind::kNone
                       ? "{kind} is none"
                       : fmt::format("{{kind}} is {}, which has no {}", name_of(kind), lacks),
                   {"kind"});
  };
  const bool none = kind == CorrectionKind::kNone;
  v.field("kind", kind,
          {.help = "with w = exp(l_old - l_inf), which is 1 for tokens that the current weights "
                   "sampled from the whole distribution, in the trainer's numerics class. tis: "
                   "multiply the loss by min(w, cap); icepop: by w, or 0 outside of [low, cap]; "
                   "mis: the same, and 0 for a sequence in which any w is below veto; mask: by 1, "
                   "or 0 outside of [low, cap]"});
  v.field("level", level,
          {.help = "whose w: of a token, the product over a sequence, or the geometric mean over a "
                   "sequence or a turn",
           .idle = idle(none, "level")});
  v.field("low", low,
          {.help = "least weight (icepop, mis, mask)",
           .min = 0,
           .max = kMaxCount,
           .idle = idle(!rejects(kind), "least weight")});
  v.field("cap", cap,
          {.help = "largest weight", .min = 1e-6, .max = kMaxCount, .idle = idle(none, "cap")});
  v.field("veto", veto,
          {.help = "a token below it takes its whole sequence out of the loss (mis)",
           .min = 0,
           .max = 1,
           .idle = idle(kind != CorrectionKind::kMis, "veto")});
  v.field(
      "rejected", rejected,
      {.help = "count: tokens of weight 0 stay in the denominators; leave: they are not in them",
       .idle = idle(!rejects(kind), "weight 0")});
  v.field("sequence_mask", sequence_mask,
          {.help = "failures that the policy no longer writes leave the loss: tokens of a negative "
                   "advantage in a sequence with mean(l_inf - l) above this; 0: off",
           .min = 0,
           .max = 20});
}

void CreditOptions::visit(OptionVisitor& v) {
  const auto idle = [&](bool reads, std::string_view lacks) {
    return idle_if(!reads, fmt::format("{{kind}} is {}, which has no {}", name_of(kind), lacks),
                   {"kind"});
  };
  v.field("kind", kind,
          {.help = "what of a trajectory's advantage its turns get. trajectory: all the same; "
                   "turn_return: the return from the turn on; gigpo: and how it did among all "
                   "members that met its state; turning_point: what it changed of the expected "
                   "outcome"});
  v.field(
      "gamma", gamma,
      {.help = "discount a turn (turn_return, gigpo)",
       .min = 0,
       .max = 1,
       .idle = idle(kind == CreditKind::kTurnReturn || kind == CreditKind::kGigpo, "discount")});
  v.field("weight", weight,
          {.help = "of the comparison of states (gigpo)",
           .min = 0,
           .max = 1000,
           .idle = idle(kind == CreditKind::kGigpo, "second part")});
}

void LengthOptions::visit(OptionVisitor& v) {
  const bool soft = penalty == LengthPenalty::kSoftOverlong;
  const auto idle = [&](bool reads) {
    return idle_if(!reads, fmt::format("{{penalty}} is {}", name_of(penalty)), {"penalty"});
  };
  v.field("penalty", penalty,
          {.help = "added to the reward for advantages alone. soft_overlong: from 0 at limit - "
                   "buffer to -factor at the limit; kimi: by length within the group, for failures "
                   "never above 0"});
  v.field("factor", factor,
          {.help = "what the penalty of the longest takes (soft_overlong), or twice that (kimi)",
           .min = 0,
           .max = 1000,
           .idle = idle(penalty != LengthPenalty::kNone)});
  v.field("limit", limit,
          {.help = "sampled tokens of an episode; 0: the most that it can sample (soft_overlong)",
           .min = 0,
           .max = kMaxCount,
           .idle = idle(soft)});
  v.field("buffer", buffer,
          {.help = "tokens in front of the limit; 0: a fifth of it, as DAPO has it (soft_overlong)",
           .min = 0,
           .max = kMaxCount,
           .idle = idle(soft)});
}

void AlgoOptions::visit(OptionVisitor& v) {
  // What the surrogate, and how losses add up, leave without effect.
  const auto idle_unless = [&](bool reads, std::string_view lacks) {
    return idle_if(!reads, fmt::format("surrogate {} has no {}", name_of(surrogate.kind), lacks),
                   {"surrogate", "name"});
  };
  const SurrogateKind kind = surrogate.kind;
  const bool has_ratio = kind != SurrogateKind::kReinforce && kind != SurrogateKind::kKimi;
  const bool critic = advantage == AdvantageKind::kGae;
  const bool penalised = kl.coef != 0 && !kl.in_loss();
  const bool clips = kind == SurrogateKind::kPpoClip;
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
               "batch's rewards; or minus the mean of the other members, or the reward of the "
               "group's greedy member; the reward itself; or gae, token by token against a value "
               "head (critic)"});
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
      {.help = "drop: groups whose rewards are all equal leave the batch and the denominators; not "
               "with advantages whose baseline is no group (gae, reward), which learn from them",
       .idle = idle_if(
           !compares_members(advantage),
           fmt::format("{{advantage}} is {}, which compares no members", name_of(advantage)),
           {"advantage", "name"})});
  v.field("whiten_advantages", returns.whiten,
          {.help = "advantages minus their mean, over their deviation, of all trained tokens of a "
                   "step"});
  v.field("gamma", returns.gamma,
          {.help = "discount a token, of gae and of a KL penalty in the reward",
           .min = 0,
           .max = 1,
           .idle = idle_if(!critic && !penalised,
                           fmt::format("{{advantage}} is {}, and no reward is one of tokens",
                                       name_of(advantage)),
                           {"advantage", "kl.placement", "kl.estimator", "kl.coef", "name"})});
  v.field("lambda", returns.lambda,
          {.help = "of gae: 1 trusts rewards alone, 0 the values",
           .min = 0,
           .max = 1,
           .idle = idle_if(!critic, fmt::format("{{advantage}} is {}", name_of(advantage)),
                           {"advantage", "name"})});
  v.section("credit", credit, "how turns share in what their trajectory has");
  v.section("length", length, "what length does to the reward");
  v.field("truncated", truncated,
          {.help = "samples that a limit has cut. keep: they end there with the reward that they "
                   "have; mask: they leave the loss and stay in the baseline; bootstrap: with gae, "
                   "as if they had gone on"});
  v.field("ratio", ratio,
          {.help = "what shares one probability ratio (the geometric mean of its tokens' ratios; "
                   "topr: the product). sequence_token: that of the sequence, with a gradient of "
                   "each token's own",
           .idle = idle_unless(has_ratio, "ratio")});
  v.field(
      "surrogate", surrogate.kind,
      {.help =
           "ppo_clip: clipped ratio; cispo: log-probability weighted by a capped, detached ratio; "
           "topr: log-probability, weighted by at most 1 against what sampled where the reward is "
           "not above 0 (with correction.kind = none); ipa: the same against the weights that the "
           "step starts from; reinforce: log-probability; kimi: and a penalty for the squared "
           "log-ratio; sapo: ratio through a sigmoid"});
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
  v.field("drift_coef", surrogate.drift_coef,
          {.help = "twice the weight of the squared log-ratio (kimi)",
           .min = 0,
           .max = 1000,
           .idle = idle_unless(kind == SurrogateKind::kKimi, "such penalty")});
  const Idle not_soft = idle_unless(kind == SurrogateKind::kSapo, "temperature");
  v.field("tau_pos", surrogate.tau_pos,
          {.help = "temperature of positive advantages (sapo)",
           .min = 1e-3,
           .max = 1000,
           .idle = not_soft});
  v.field("tau_neg", surrogate.tau_neg,
          {.help = "temperature of negative advantages; a larger one damps them sooner (sapo)",
           .min = 1e-3,
           .max = 1000,
           .idle = not_soft});
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

const AlgoOptions& AlgoOptions::preset(AlgoPreset preset) { return row_of(preset); }

std::vector<std::string> AlgoOptions::preset_keys(AlgoPreset preset) {
  const std::vector<SectionDoc> rows = describe_options(row_of(preset));
  const std::vector<SectionDoc> defaults = describe_options(AlgoOptions{});
  std::vector<std::string> keys;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto &values = rows[i].options, &standard = defaults[i].options;
    if (rows[i].key == kCorrection &&
        std::ranges::equal(values, standard, {}, &OptionDoc::value, &OptionDoc::value))
      continue;
    for (const OptionDoc& option : values) {
      const bool is_part =
          std::ranges::find(kNotOfTheAlgorithm, option.key) == std::end(kNotOfTheAlgorithm);
      // A key that the row leaves without effect is no part of it either.
      if (is_part && !option.idle) keys.push_back(option.key);
    }
  }
  return keys;
}

bool refills_groups(AlgoPreset preset) { return preset == AlgoPreset::kDapo; }

PolicyLossConfig policy_loss_config(const AlgoOptions& options) {
  ReturnOptions returns = options.returns;
  returns.kind = return_kind(options.advantage, options.credit.kind);
  return {.returns = returns,
          .ratio = options.ratio,
          .surrogate = options.surrogate,
          .correction = options.correction,
          .aggregation = options.aggregation,
          .kl = options.kl,
          .entropy_coef = options.entropy_coef};
}

namespace {

void validate_kl(const KlOptions& kl, std::string_view section) {
  if (kl.coef == 0) return;
  const std::string estimator = join_key(section, "estimator");
  if (kl.in_loss() && kl.estimator == KlEstimator::kK1)
    throw UserError::at(estimator,
                        "is k1 in the loss, where its expected gradient is 0. Try {0}=k2 (the "
                        "same divergence), or {1}=reward.",
                        estimator, join_key(section, "placement"));
  if (kl.unbiased && kl.estimator != KlEstimator::kK3)
    throw UserError::at(join_key(section, "unbiased"),
                        "is true, which mends the gradient of k3, but {} is {}. Try k3.", estimator,
                        name_of(kl.estimator));
  if (!kl.in_loss() && kl.estimator != KlEstimator::kK1)
    throw UserError::at(estimator,
                        "is {}, but {} is reward, where only k1 has the gradient of the "
                        "divergence. Try k1.",
                        name_of(kl.estimator), join_key(section, "placement"));
}

void validate_length(const LengthOptions& o, std::string_view section) {
  if (o.penalty != LengthPenalty::kSoftOverlong) return;
  if (o.limit < 1)
    throw UserError::at(join_key(section, "limit"),
                        "is {}; the penalty is full there. Try the response limit.", o.limit);
  if (o.buffer < 1 || o.buffer > o.limit)
    throw UserError::at(join_key(section, "buffer"),
                        "is {}; it is part of the {} tokens of {}. Try {}.", o.buffer, o.limit,
                        join_key(section, "limit"), std::max<int64_t>(1, o.limit / 5));
}

void validate_credit(const AlgoOptions& o, std::string_view section) {
  const bool critic = o.advantage == AdvantageKind::kGae;
  if (critic && o.credit.kind != CreditKind::kTrajectory)
    throw UserError::at(join_key(section, "credit.kind"),
                        "is {}, but advantage gae gives each token its own. Try trajectory.",
                        name_of(o.credit.kind));
  if (o.credit.kind == CreditKind::kTurningPoint && o.advantage != AdvantageKind::kGroupMean)
    throw UserError::at(join_key(section, "advantage"),
                        "is {}, but credit.kind turning_point has a normalisation of its own. Try "
                        "group_mean.",
                        name_of(o.advantage));
  if (!critic && o.truncated == TruncatedSamples::kBootstrap)
    throw UserError::at(join_key(section, "truncated"),
                        "is bootstrap, which needs values, but advantage is {}. Try mask.",
                        name_of(o.advantage));
}

void validate_correction(const CorrectionOptions& o, std::string_view section) {
  if (rejects(o.kind) && o.low > o.cap)
    throw UserError::at(join_key(section, "low"),
                        "is {}, above {} = {}: every token would be rejected. Try 0.5.", o.low,
                        join_key(section, "cap"), o.cap);
}

}  // namespace

void validate(const AlgoOptions& o, std::string_view section) {
  validate_kl(o.kl, join_key(section, "kl"));
  validate_length(o.length, join_key(section, "length"));
  validate_credit(o, section);
  validate_correction(o.correction, join_key(section, "correction"));
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
  // objective. IPA's weighs log-probabilities, of which its paper takes the sum.
  if (o.ratio != RatioUnit::kToken && o.surrogate.kind != SurrogateKind::kIpa &&
      kind == AggregationKind::kTokenMean) {
    throw UserError::at(join_key(section, "ratio"),
                        "is {} with loss_agg {}, which weights each ratio by its length. "
                        "Try loss_agg = seq_mean_token_mean.",
                        name_of(o.ratio), name_of(kind));
  }
}

}  // namespace tailrace
