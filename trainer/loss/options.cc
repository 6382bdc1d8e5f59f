#include "trainer/loss/options.h"

#include "core/base/error.h"
#include "kernels/base/check.h"

namespace tailrace {

void KlOptions::visit(OptionVisitor& v) {
  v.field("coef", coef,
          {.help = "weight of the penalty in the loss; 0: off",
           .min = 0,
           .aliases = {"kl_loss_coef", "beta", "init_kl_coef"}});
  v.field("estimator", estimator,
          {.help = "per-token estimate of the divergence, differentiated as a loss",
           .allowed = {"k1", "k2", "k3"}});
  v.field("target", target,
          {.help = "the other policy: ref (weights at the start of RL) or behaviour (what sampled)",
           .allowed = {"ref", "behaviour"}});
}

void CorrectionOptions::visit(OptionVisitor& v) {
  v.field("kind", kind,
          {.help = "tis: multiply the loss by min(exp(l_old - l_inf), cap); 1 for tokens that the "
                   "current weights sampled",
           .allowed = {"none", "tis"}});
  v.field("level", level,
          {.help = "one weight a token, or the product over a sequence",
           .allowed = {"token", "sequence"}});
  v.field("cap", cap,
          {.help = "largest weight", .min = 1e-6, .aliases = {"tis_clip", "rollout_is_threshold"}});
}

void AlgoOptions::visit(OptionVisitor& v) {
  v.field("name", name,
          {.help = "preset with its paper's values; the other keys override it",
           .allowed = preset_names()});
  // A reader has just set the name: its values come first, the keys after it override them. A
  // printer leaves the name alone, and nothing happens.
  if (name != applied_preset_) {
    *this = preset(name);
  }
  v.field(
      "advantage", advantage,
      {.help = "reward minus group mean, as is or divided by the deviation of the group or of the "
               "batch's rewards; or minus the mean of the other members",
       .allowed = {"group_mean", "group_mean_std", "group_mean_batch_std", "leave_one_out"}});
  v.field("std_eps", std_eps, {.help = "added to the standard deviation", .min = 0});
  v.field("filter_zero_signal", filter_zero_signal,
          {.help = "drop: groups whose rewards are all equal leave the batch and the denominators",
           .allowed = {"none", "drop"}});
  v.field("ratio", ratio,
          {.help = "what shares one probability ratio (the geometric mean of its tokens' ratios)",
           .allowed = {"token", "turn", "sequence"}});
  v.field(
      "surrogate", surrogate,
      {.help =
           "ppo_clip: clipped ratio; cispo: log-probability weighted by a capped, detached ratio",
       .allowed = {"ppo_clip", "cispo"}});
  v.field("clip_low", clip_low,
          {.help = "ratio's lower bound is 1 - clip_low (ppo_clip)",
           .min = 0,
           .max = 1,
           .aliases = {"eps_clip", "clip_ratio_low", "epsilon"}});
  v.field("clip_high", clip_high,
          {.help = "ratio's upper bound is 1 + clip_high",
           .min = 0,
           .aliases = {"eps_clip_high", "clip_ratio_high", "epsilon_high"}});
  v.field("clip_c", clip_c,
          {.help = "dual clip: the loss of a negative advantage is at most clip_c * |A|; 0: off",
           .min = 0,
           .aliases = {"clip_ratio_c", "dual_clip"}});
  v.field(
      "loss_agg", loss_agg,
      {.help = "how token losses become one number; all counts are those of the whole minibatch",
       .allowed = {"token_mean_global", "seq_mean_token_mean", "seq_mean_token_sum_const"},
       .aliases = {"loss_agg_mode", "loss_reduction"}});
  v.field(
      "loss_const_tokens", loss_const_tokens,
      {.help = "the constant of seq_mean_token_sum_const, usually the response limit", .min = 0});
  v.section("kl", kl, "penalty for leaving another policy");
  v.field("entropy_coef", entropy_coef,
          {.help = "bonus for the entropy of each trained token's distribution",
           .min = 0,
           .aliases = {"entropy_coeff"}});
  v.section("correction", correction, "what is done about tokens that other weights sampled");
}

namespace {

struct Preset {
  std::string_view name;
  void (*apply)(AlgoOptions&);
};

// `correction` stays as it is by default in all of them: it mends the machine, not the algorithm.
constexpr Preset kPresets[] = {
    {"default", [](AlgoOptions&) {}},
    // DeepSeekMath, 2402.03300
    {"grpo",
     [](AlgoOptions& o) {
       o.advantage = "group_mean_std";
       o.filter_zero_signal = "none";
       o.clip_low = o.clip_high = 0.2;
       o.loss_agg = "seq_mean_token_mean";
       o.kl.coef = 0.04;
     }},
    // 2503.14476
    {"dapo", [](AlgoOptions& o) { o.advantage = "group_mean_std"; }},
    // 2503.20783; loss_const_tokens must be given
    {"dr_grpo",
     [](AlgoOptions& o) {
       o.filter_zero_signal = "none";
       o.clip_low = o.clip_high = 0.2;
       o.loss_agg = "seq_mean_token_sum_const";
     }},
    // 2507.18071
    {"gspo",
     [](AlgoOptions& o) {
       o.advantage = "group_mean_std";
       o.filter_zero_signal = "none";
       o.ratio = "sequence";
       o.clip_low = 3e-4;
       o.clip_high = 4e-4;
       o.loss_agg = "seq_mean_token_mean";
     }},
    // 2508.08221
    {"lite_ppo",
     [](AlgoOptions& o) {
       o.advantage = "group_mean_batch_std";
       o.filter_zero_signal = "none";
       o.clip_low = o.clip_high = 0.2;
     }},
};

}  // namespace

AlgoOptions AlgoOptions::preset(std::string_view name) {
  for (const Preset& p : kPresets) {
    if (p.name != name) continue;
    AlgoOptions options;
    p.apply(options);
    options.name = options.applied_preset_ = name;
    return options;
  }
  TR_CHECK(false, "no preset '{}'", name);
  return {};
}

std::vector<std::string_view> AlgoOptions::preset_names() {
  std::vector<std::string_view> names;
  for (const Preset& p : kPresets) names.push_back(p.name);
  return names;
}

void validate(const AlgoOptions& o, std::string_view where) {
  if (o.clip_c != 0 && o.clip_c <= 1) {
    throw UserError("{}.clip_c is {}; it must be above 1, or 0 for off. Try clip_c = 3.", where,
                    o.clip_c);
  }
  if (o.clip_c != 0 && o.surrogate != "ppo_clip") {
    throw UserError("{}.clip_c is {} but surrogate {} does not clip that way. Remove clip_c.",
                    where, o.clip_c, o.surrogate);
  }
  bool needs_const = o.loss_agg == "seq_mean_token_sum_const";
  if (needs_const && o.loss_const_tokens < 1) {
    throw UserError(
        "{}.loss_const_tokens is {}; loss_agg {} divides by it. Try the response limit.", where,
        o.loss_const_tokens, o.loss_agg);
  }
  if (!needs_const && o.loss_const_tokens != 0) {
    throw UserError("{}.loss_const_tokens is {} but loss_agg {} does not read it. Remove it.",
                    where, o.loss_const_tokens, o.loss_agg);
  }
  // A ratio of many tokens has one value for all of them; weighting it by length is not its
  // objective.
  if (o.ratio != "token" && o.loss_agg == "token_mean_global") {
    throw UserError(
        "{}.ratio is {} with loss_agg {}, which weights each ratio by its length. "
        "Try loss_agg = seq_mean_token_mean.",
        where, o.ratio, o.loss_agg);
  }
}

}  // namespace tailrace
