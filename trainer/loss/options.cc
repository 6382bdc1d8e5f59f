#include "trainer/loss/options.h"

#include <fmt/format.h>

#include "core/base/error.h"

namespace tailrace {

void AlgoOptions::visit(OptionVisitor& v) {
  const bool has_ratio =
      surrogate.kind != SurrogateKind::kReinforce && surrogate.kind != SurrogateKind::kKimi;
  const bool critic = needs_critic(advantage);
  v.preset("name", *this, name,
           {.help = "preset with its paper's values; they replace what a lower layer says (an "
                    "extended file, or any file for a preset of the command line), and keys of its "
                    "own layer or of a higher one override them",
            .strangers = preset_strangers(),
            .aliases = preset_aliases()});
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
      {.help = "drop: groups whose rewards are all equal (within 1e-6 of the larger of 1 and their "
               "size) leave the batch and the denominators; not with advantages whose baseline is "
               "no group (gae, reward), which learn from them",
       .idle = idle_if(
           !compares_members(advantage),
           fmt::format("{{advantage}} is {}, which compares no members", name_of(advantage)),
           {"advantage", "name"})});
  v.field(
      "filter_metric", filter_metric,
      {.help = "what says whether a group has a signal, for the filter and for "
               "scheduler.replace_zero_signal: reward; or a part of reward.parts, before its "
               "weight; or a metric of the environment or of the reward, as metrics.jsonl has it "
               "below env/. A sample without the metric says nothing of its group, and a group in "
               "which none has it is judged by the reward",
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
           .idle = idle_if(!critic && !kl.in_reward(),
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
           .idle = idle_if(!has_ratio,
                           fmt::format("surrogate {} has no ratio", name_of(surrogate.kind)),
                           {"surrogate", "name"})});
  surrogate.visit(v);
  aggregation.visit(v);
  v.section("kl", kl, "penalty for leaving another policy",
            idle_if(kl.coef == 0, "{kl.coef} is 0", {"kl.coef", "name"}));
  v.field("entropy_coef", entropy_coef,
          {.help = "bonus for the entropy of each trained token's distribution",
           .min = 0,
           .max = 1000});
  v.section("imitation", imitation, "successes as demonstrations, beside the policy's loss (IPA)",
            idle_if(credit.kind != CreditKind::kTurnReturn,
                    fmt::format("{{credit.kind}} is {}, and no turn has a return of its own",
                                name_of(credit.kind)),
                    {"credit.kind", "name"}));
  v.section("distill", distill, "on-policy distillation: a teacher scores what was sampled",
            idle_if(!distill.has_teacher(), "{distill.policy} is empty", {"distill.policy"}));
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

PolicyLossConfig policy_loss_config(const AlgoOptions& options) {
  return {.ratio = options.ratio,
          .surrogate = options.surrogate,
          .correction = options.correction,
          .aggregation = options.aggregation,
          .kl = options.kl,
          .entropy_coef = options.entropy_coef,
          .imitation = options.imitation,
          .distill = options.distill};
}

namespace {

void validate_credit(const AlgoOptions& o, std::string_view section) {
  const bool critic = needs_critic(o.advantage);
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

// Before a step is sampled: no sample has a metric without a name.
void validate_filter_metric(const AlgoOptions& o, std::string_view section) {
  std::string_view name = o.filter_metric;
  if (constexpr std::string_view kSection = "env/"; name.starts_with(kSection))
    name.remove_prefix(kSection.size());
  if (name.find_first_not_of(" \t\r\n") != std::string_view::npos) return;
  throw UserError::at(join_key(section, "filter_metric"),
                      "is '{}', which names no metric. Name a part of reward.parts or a metric, or "
                      "leave the key out (reward).",
                      o.filter_metric);
}

}  // namespace

void validate(const AlgoOptions& o, std::string_view section) {
  validate_filter_metric(o, section);
  validate(o.kl, join_key(section, "kl"));
  validate(o.distill, join_key(section, "distill"));
  validate(o.length, join_key(section, "length"));
  validate_credit(o, section);
  validate(o.correction, join_key(section, "correction"));
  validate(o.surrogate, section);
  if (weighs_behaviour(o.surrogate.kind) && o.correction.kind != CorrectionKind::kNone) {
    throw UserError::at(join_key(join_key(section, "correction"), "kind"),
                        "is {} but surrogate {} weighs against what sampled itself. "
                        "Try {} = none.",
                        name_of(o.correction.kind), name_of(o.surrogate.kind),
                        join_key(join_key(section, "correction"), "kind"));
  }
  validate(o.aggregation, section);
  // A ratio of many tokens has one value for all of them; weighting it by length is not its
  // objective. IPA's weighs log-probabilities, of which its paper takes the sum.
  if (o.ratio != RatioUnit::kToken && o.surrogate.kind != SurrogateKind::kIpa &&
      o.aggregation.kind == AggregationKind::kTokenMean) {
    throw UserError::at(join_key(section, "ratio"),
                        "is {} with loss_agg {}, which weights each ratio by its length. "
                        "Try {} = seq_mean_token_mean.",
                        name_of(o.ratio), name_of(o.aggregation.kind),
                        join_key(section, "loss_agg"));
  }
}

}  // namespace tailrace
