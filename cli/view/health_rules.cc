#include "cli/view/health_rules.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "cli/view/config_value.h"
#include "core/base/group_signal.h"

namespace tailrace {
namespace {

// The thresholds. "Healthy" below are the shipped configs, run from their start to their end.

// Below one group in four most of the sampling is lost; healthy runs begin above three in four.
constexpr double kFewSignalShare = 0.25;
// A task that is half solved loses groups because they are all right.
constexpr double kHalfSolved = 0.5;
// k3 of one step. Healthy steps stay below 0.01; at 0.1 ratios of 1.5 are common, far outside of
// any clip range.
constexpr double kDriftTooFar = 0.1;
// The same of a whole step, behind its last update. Where few groups have a signal it is measured
// on a hundred tokens, of which some move far: healthy steps reach 0.1 there, and one that wrecks a
// policy is beyond 1. At 0.5 the usual token is e times as likely as before, or a third.
constexpr double kStepTooFar = 0.5;
// Tokens of the later updates. Healthy: below 0.05; only half of what leaves the range is clipped,
// so that 0.25 is every second.
constexpr double kClippedShare = 0.25;
// GSPO clips two orders of magnitude more than GRPO, and learns (2507.18071).
constexpr double kClippedShareOfSequences = 0.95;
// Nats a token: of two words at that entropy the other is taken once in 700.
constexpr double kEntropyGone = 0.01;
// An entropy that grows by half, and by more than the noise of a small one, is pushed.
constexpr double kEntropyGrowth = 1.5, kEntropyGrowthNats = 0.3;
// The early sign of agents that repeat themselves: entropy and the spread of rewards fall together,
// as they do in a policy that learns. There the rewards rise.
constexpr double kCollapsedShare = 0.2, kCollapsedStd = 0.5;
// A policy of this success may well be sure of itself.
constexpr double kNearlySolved = 0.9;
// Share of the samples: the rest is too little to learn how to end.
constexpr double kTruncatedShare = 0.9;
// Share of the actions.
constexpr double kInvalidShare = 0.9;
// Recipes sample at 0.6 to 1.2; at 2 a token of probability 1e-4 is as likely as one of 1e-2 was.
constexpr double kHotTemperature = 1.5;
// Share of the tokens that the actions could have: none ends by itself. A policy that is nearly
// random, nats a token, is unreadable for that, and a larger limit mends nothing; it ends some by
// chance, which tells where a step without an update has no entropy (measured: 0.97 of the tokens).
constexpr double kCutShare = 0.99, kRandomNats = 1.5;
// Share of the attempts: healthy runs have none but where a worker was lost.
constexpr double kFailedShare = 0.2;
// Calls of an agent that the gateway refuses, an episode: an agent that meets a limit has one.
constexpr double kRefusedCalls = 0.5;
// Nats. Numerics classes differ by less than 1e-3, and no engine that samples from the same
// distribution by more than 1e-2.
constexpr double kMismatchNats = 1e-2;
// Share of sampled tokens, or of those young enough: more are thrown away than trained on.
constexpr double kStaleShare = 0.5;
// Multiple of the largest reward, squared: an error that no return explains.
constexpr double kCriticDiverges = 10;
// A penalty pulls a token with about coef x |log-ratio|, the reward with the advantage, about 1.
// k3 is half of the squared log-ratio.
constexpr double kPenaltyPull = 1;
// Healthy norms are at most three times the limit; a hundredth of a gradient says only its
// direction.
constexpr double kGradientCut = 100;
// Share of the rewards' rise above their bottom: less is left than was lost. Also several standard
// errors, which are large where a step has few groups.
constexpr double kFallenShare = 0.5, kFallenErrors = 3;

double number_of(const MetricsRow& row, std::string_view name) {
  const double* value = row.find(name);
  return value == nullptr ? kUnknown : *value;
}

double setting_of(const ConfigNode& config, std::string_view key) {
  const std::string text = config_value(config, key);
  double value = kUnknown;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  return read.ec == std::errc() && read.ptr == text.data() + text.size() ? value : kUnknown;
}

bool is_silent(const HealthStep& step) { return step.zero_signal >= 1; }
bool is_solved(const HealthStep& step) { return step.success >= 1; }
bool is_constant(const HealthStep& step) {
  return are_equal_rewards(step.reward_min, step.reward_max);
}
// All samples have what the best of a run that had others had: that is the end of a task, and not
// a reward that does not look.
bool is_saturated(const HealthView& v) {
  return is_constant(v.now) &&
         (is_solved(v.now) ||
          (v.history.varied() && are_equal_rewards(v.now.reward_max, v.history.top())));
}
// Successes of this share, or, where nobody says what a success is, rewards as far up.
bool has_reached(const HealthView& v, double share) {
  const double bottom = v.history.bottom(), top = v.history.top();
  return std::isnan(v.now.success)
             ? top > bottom && v.now.reward_mean >= bottom + share * (top - bottom)
             : v.now.success >= share;
}

// Samples that are cut and succeed all the same need no larger limits.
bool is_truncated(const HealthView& v) {
  return v.now.truncated >= kTruncatedShare && !(v.now.success >= kNearlySolved) &&
         !is_saturated(v);
}
// The text on a step whose samples all have one reward: it may be that of samples that never come
// to an answer.
std::string cut_text(const HealthView& v) {
  return is_truncated(v) ? fmt::format(
                               "; {:.0f} % of the samples end by a limit "
                               "(rollout/truncated_frac)",
                               v.now.truncated * 100)
                         : "";
}
std::string cut_advice(const HealthView& v) {
  return is_truncated(v) ? ". Where the answer comes later than the limit, raise that" : "";
}

// Standard error of the mean reward: samples of a prompt are much alike, so that groups count.
double reward_error(const HealthStep& step) { return step.reward_std / std::sqrt(step.groups); }
bool has_fallen(const HealthView& v) {
  const HealthHistory::Best& best = v.history.best();
  const double lost = best.reward - v.now.reward_mean;
  return lost > kFallenShare * (best.reward - v.history.bottom()) &&
         lost > kFallenErrors * std::hypot(best.error, reward_error(v.now)) &&
         !are_equal_rewards(v.now.reward_mean, best.reward);
}
std::string fallen_text(const HealthView& v) {
  const HealthHistory::Best& best = v.history.best();
  const std::string when = best.from == best.to ? fmt::format("step {}", best.to)
                                                : fmt::format("steps {} to {}", best.from, best.to);
  std::string text = fmt::format("the reward has fallen from {:.3g} ({}) to {:.3g} (reward/mean)",
                                 best.reward, when, v.now.reward_mean);
  if (const auto& wreck = v.history.wreck(); wreck && wreck->to >= best.from)
    text += ": " + wreck_text(*wreck);
  return text;
}
// How far a policy moves in a step grows with the square of the rate. A tenth or less, and as
// little as a thousandth, since beyond that the policy says nothing of the way.
double rate_cut(const HealthView& v) {
  constexpr double kLeast = 1e-3, kMost = 0.1;
  const auto& wreck = v.history.wreck();
  if (!wreck) return kMost;
  return std::clamp(std::sqrt(wreck->worst.limit / wreck->worst.nats), kLeast, kMost);
}
// As configured: that of the step is small in a warm-up. fmax leaves out what is unknown.
std::string rate_advice(const HealthView& v) {
  const double lr = std::fmax(v.settings.lr, v.now.lr), cut = rate_cut(v);
  return lr > 0 ? fmt::format("optim.lr={:.1g}", lr * cut) : fmt::format("{:.1g} of optim.lr", cut);
}
bool is_judged_by_reward(const HealthView& v) { return v.settings.judged == kJudgedByReward; }
bool is_zero(const HealthStep& step) { return are_equal_rewards(0, std::abs(step.reward_max)); }
double penalty_pull(const HealthView& v) {
  return v.settings.kl_coef * std::sqrt(2 * std::max(0.0, v.now.kl_penalty));
}

bool is_unreadable(const HealthView& v) { return v.now.invalid >= kInvalidShare * v.now.turns; }
bool is_hot(const HealthView& v) { return v.settings.temperature >= kHotTemperature; }
bool has_cut_actions(const HealthView& v) {
  return !(v.now.entropy >= kRandomNats) &&
         v.now.length >= kCutShare * v.now.turns * v.settings.action_tokens;
}
std::string unreadable_text(const HealthView& v) {
  return fmt::format("{:.3g} of {:.3g} actions of an episode cannot be read (env/invalid_actions)",
                     v.now.invalid, v.now.turns);
}

double largest_reward(const HealthStep& step) {
  return std::max({std::abs(step.reward_max), std::abs(step.reward_min), 1e-3});
}
// With `rejected: leave` they are no trained tokens, else tokens of weight 0.
double rejected_share(const HealthView& v) {
  return std::fmax(v.now.rejected, v.settings.rejects ? v.now.correction_masked : kUnknown);
}
// More than the kind of ratio clips by design, and not because the policy moves far.
bool is_clipped(const HealthView& v) {
  const double share = v.settings.clips_sequences ? kClippedShareOfSequences : kClippedShare;
  return v.settings.clips && v.now.clip_when_moved() > share && v.now.kl_old <= kDriftTooFar;
}

// Braces that cost a line each: a table of three functions a row is read best without names.
#define TR_HOLDS(expression) [](const HealthView& v) { return expression; }
#define TR_SAYS(...) \
  [](const HealthView& v) -> std::string { return (void)v, fmt::format(__VA_ARGS__); }

constexpr HealthRule kRules[] = {
    {Ailment::kUpdatesSkipped, Severity::kWrong, HealthNumber::kOther, 1,
     TR_HOLDS(v.now.skipped > 0),
     TR_SAYS("{:.0f} of {:.0f} updates were skipped, because their gradients were not finite "
             "(policy/updates_skipped)",
             v.now.skipped, v.now.updates),
     TR_SAYS("Try a smaller optim.lr, and look for rewards that are huge (reward/max)")},
    {Ailment::kRateZero, Severity::kWrong, HealthNumber::kKl, 2,
     TR_HOLDS(v.now.updates_applied() > 0 && v.now.lr == 0),
     TR_SAYS("updates change nothing: the learning rate is 0 (policy/lr)"),
     TR_SAYS("Set optim.lr; where it was, make optim.min_lr_ratio larger than 0")},
    // Also while no update follows: the policy is what that step left.
    {Ailment::kRateTooHigh, Severity::kWrong, HealthNumber::kKl, 1,
     TR_HOLDS(v.history.last_move().is_too_far()),
     TR_SAYS("one step moves the policy by {:.3g} nats a token ({}), more than {}",
             v.history.wreck()->worst.nats, v.history.wreck()->worst.metric,
             v.history.wreck()->worst.limit),
     TR_SAYS("Try {}", rate_advice(v))},
    {Ailment::kFailures, Severity::kWrong, HealthNumber::kOther, 2,
     TR_HOLDS(v.now.infra_failed > kFailedShare),
     TR_SAYS("{:.0f} % of the attempts failed for no fault of the policy "
             "(rollout/infra_failed_frac)",
             v.now.infra_failed * 100),
     TR_SAYS(
         "Read why in the logs of the run; try 'tailrace env check' or 'tailrace reward check'")},
    {Ailment::kRefused, Severity::kWatch, HealthNumber::kOther, 2,
     TR_HOLDS(v.now.refused >= kRefusedCalls),
     TR_SAYS("the gateway refuses {:.2g} calls of an episode (env/agent_refused)", v.now.refused),
     TR_SAYS("The logs of the rollout workers say why; see docs/agents.md")},
    // Why actions cannot be read, or do not end, where that is known; else that they cannot.
    {Ailment::kTooHot, Severity::kWrong, HealthNumber::kOther, 1,
     TR_HOLDS(is_hot(v) && (is_unreadable(v) || is_truncated(v))),
     TR_SAYS("samples are drawn at temperature {:g} (rollout.sampling.temperature), and {}",
             v.settings.temperature,
             is_unreadable(v) ? unreadable_text(v)
                              : fmt::format("{:.0f} % of them end by a limit and not by themselves "
                                            "(rollout/truncated_frac)",
                                            v.now.truncated * 100)),
     TR_SAYS("Try rollout.sampling.temperature=1")},
    {Ailment::kRewardFell, Severity::kWrong, HealthNumber::kOther, 2, TR_HOLDS(has_fallen(v)),
     TR_SAYS("{}", fallen_text(v)),
     [](const HealthView& v) -> std::string {
       const auto& wreck = v.history.wreck();
       return wreck && wreck->to >= v.history.best().from
                  ? wreck_advice(v)
                  : fmt::format("Compare its samples with earlier ones (report.html), and try {}",
                                rate_advice(v));
     }},
    {Ailment::kActionsCut, Severity::kWrong, HealthNumber::kOther, 1,
     TR_HOLDS(is_unreadable(v) && has_cut_actions(v) && !is_hot(v)),
     TR_SAYS("actions are cut at their limit (rollout.max_action_tokens {:.0f}), and {}",
             v.settings.action_tokens, unreadable_text(v)),
     TR_SAYS("Raise rollout.max_action_tokens; where they then do not end, try a warm-up (sft)")},
    {Ailment::kInvalidActions, Severity::kWrong, HealthNumber::kOther, 1,
     TR_HOLDS(is_unreadable(v) && !has_cut_actions(v) && !is_hot(v)),
     TR_SAYS("{}", unreadable_text(v)),
     TR_SAYS(
         "Try a warm-up on demonstrations (sft), or say in the prompt how an action is written")},
    {Ailment::kMismatch, Severity::kWrong, HealthNumber::kKl, 2,
     // Tokens that older versions sampled differ for another reason.
     TR_HOLDS((v.now.staleness == 0 && v.now.mismatch_kl > kMismatchNats) ||
              v.now.logprob_diff > kMismatchNats),
     TR_SAYS("engine and trainer disagree by {:.3g} nats a token about the same weights "
             "(mismatch/kl, mismatch/abs_logprob_diff), more than {}",
             std::max(v.now.staleness == 0 ? v.now.mismatch_kl : 0, v.now.logprob_diff),
             kMismatchNats),
     [](const HealthView& v) -> std::string {
       return v.now.cut_mass > 0 ? "Set algo.sampling_mask=keep, or sample without top_k, top_p "
                                   "and min_p"
                                 : "Let all workers compute in the class of the trainer "
                                   "(model.compute)";
     }},
    {Ailment::kStale, Severity::kWrong, HealthNumber::kOther, 2,
     TR_HOLDS(v.now.stale_masked > kStaleShare),
     TR_SAYS("{:.0f} % of the sampled tokens are too old to be trained on (staleness/masked_frac)",
             v.now.stale_masked * 100),
     TR_SAYS("Raise scheduler.max_staleness, or lower scheduler.ahead")},
    {Ailment::kRejected, Severity::kWrong, HealthNumber::kOther, 2,
     TR_HOLDS(rejected_share(v) > kStaleShare),
     TR_SAYS("{:.0f} % of the tokens are rejected by algo.correction (mismatch/rejected_frac, "
             "masked_frac)",
             rejected_share(v) * 100),
     TR_SAYS("Widen algo.correction.low and algo.correction.cap, or lower scheduler.ahead")},
    {Ailment::kCriticDiverges, Severity::kWrong, HealthNumber::kOther, 2,
     TR_HOLDS(v.now.value_loss > kCriticDiverges * largest_reward(v.now) * largest_reward(v.now)),
     TR_SAYS("the critic is off by far more than any reward (critic/value_loss {:.3g})",
             v.now.value_loss),
     TR_SAYS("Lower critic.lr: 1e-3 is its default")},
    {Ailment::kKlDominates, Severity::kWrong, HealthNumber::kKl, 2,
     TR_HOLDS(penalty_pull(v) > kPenaltyPull),
     TR_SAYS("the KL penalty pulls {:.2g} times as strongly as the reward (algo.kl.coef {:g} at "
             "{:.2g} nats)",
             penalty_pull(v), v.settings.kl_coef, v.now.kl_penalty),
     TR_SAYS("Try algo.kl.coef={:.1g}", v.settings.kl_coef / penalty_pull(v) / 10)},
    {Ailment::kClipTooTight, Severity::kWrong, HealthNumber::kClip, 2, TR_HOLDS(is_clipped(v)),
     TR_SAYS(
         "{:.0f} % of the tokens behind a step's first update are clipped (policy/clipfrac_low, "
         "_high), although the policy hardly moves",
         v.now.clip_when_moved() * 100),
     TR_SAYS("Raise algo.clip_low and algo.clip_high: 0.2 for ratios of tokens, 3e-4 for those of "
             "sequences")},
    {Ailment::kGradientCut, Severity::kWrong, HealthNumber::kOther, 2,
     TR_HOLDS(v.settings.max_grad_norm > 0 &&
              v.now.grad_norm > kGradientCut * v.settings.max_grad_norm),
     TR_SAYS("gradients are cut to {:.2g} % of themselves (policy/grad_norm {:.3g}, limit {:g})",
             100 * v.settings.max_grad_norm / v.now.grad_norm, v.now.grad_norm,
             v.settings.max_grad_norm),
     [](const HealthView& v) -> std::string {
       return v.settings.max_grad_norm < 1 ? "Try optim.max_grad_norm=1"
                                           : "Make rewards or coefficients smaller, or optim.lr";
     }},
    {Ailment::kEntropyRises, Severity::kWrong, HealthNumber::kEntropy, 1,
     TR_HOLDS(v.now.entropy > kEntropyGrowth * v.first.entropy &&
              v.now.entropy > v.first.entropy + kEntropyGrowthNats),
     TR_SAYS("entropy has risen from {:.3g} to {:.3g} nats (policy/entropy): the policy becomes "
             "random",
             v.first.entropy, v.now.entropy),
     TR_SAYS("Lower algo.entropy_coef, or optim.lr")},
    {Ailment::kEntropyGone, Severity::kWrong, HealthNumber::kEntropy, 1,
     TR_HOLDS(v.now.entropy < kEntropyGone && !has_reached(v, kNearlySolved)),
     TR_SAYS("entropy is gone ({:.2g} nats, policy/entropy): all samples of a prompt are about the "
             "same",
             v.now.entropy),
     TR_SAYS(
         "Raise rollout.sampling.temperature or algo.clip_high, or start from earlier weights")},
    {Ailment::kCollapse, Severity::kWatch, HealthNumber::kEntropy, 2,
     TR_HOLDS(v.now.entropy < kCollapsedShare * v.first.entropy &&
              v.now.reward_std < kCollapsedStd * v.first.reward_std &&
              !(v.now.reward_mean > v.first.reward_mean) && !has_reached(v, kNearlySolved)),
     TR_SAYS("entropy ({:.2g} nats, {:.2g} at first) and the spread of the rewards ({:.2g}, {:.2g} "
             "at first) fall together: samples begin to repeat each other",
             v.now.entropy, v.first.entropy, v.now.reward_std, v.first.reward_std),
     TR_SAYS("Try a larger algo.clip_high, a small algo.entropy_coef, or a smaller optim.lr")},
    {Ailment::kNoReward, Severity::kWrong, HealthNumber::kSignal, 3,
     TR_HOLDS(is_constant(v.now) && is_zero(v.now) && !is_saturated(v)),
     TR_SAYS("every sample has the reward 0 (reward/max), so that nothing is learned{}",
             cut_text(v)),
     TR_SAYS("Try easier tasks, a warm-up (sft), or rewards with steps between none and full{}",
             cut_advice(v))},
    {Ailment::kConstantReward, Severity::kWrong, HealthNumber::kSignal, 3,
     TR_HOLDS(is_constant(v.now) && !is_zero(v.now) && !is_saturated(v)),
     TR_SAYS("every sample has the reward {:.3g} (reward/min, reward/max), whatever it says{}",
             v.now.reward_max, cut_text(v)),
     TR_SAYS(
         "Score some answers by hand ('tailrace reward check'): the reward must tell them apart{}",
         cut_advice(v))},
    {Ailment::kNoSignal, Severity::kWrong, HealthNumber::kSignal, 3,
     TR_HOLDS(is_silent(v.now) && !is_constant(v.now) && !is_solved(v.now)),
     TR_SAYS(
         "no signal: in each group all {} are equal (rollout/zero_signal_frac), so that nothing "
         "is learned",
         v.settings.judged),
     [](const HealthView& v) -> std::string {
       return is_judged_by_reward(v)
                  ? "Raise rollout.group_size or rollout.sampling.temperature"
                  : "Where the rewards differ, try algo.filter_metric=reward; else raise "
                    "rollout.group_size or rollout.sampling.temperature";
     }},
    {Ailment::kTruncated, Severity::kWrong, HealthNumber::kTruncation, 2, TR_HOLDS(is_truncated(v)),
     TR_SAYS("{:.0f} % of the samples end by a limit and not by themselves "
             "(rollout/truncated_frac)",
             v.now.truncated * 100),
     [](const HealthView& v) -> std::string {
       // An episode of one turn gains nothing by more turns.
       return v.settings.max_turns > 1 && v.now.turns >= kTruncatedShare * v.settings.max_turns
                  ? "Raise rollout.max_turns, or rollout.max_action_tokens if actions are cut"
                  : "Raise rollout.max_action_tokens or rollout.max_context_tokens";
     }},
    {Ailment::kFewSignals, Severity::kWatch, HealthNumber::kSignal, 3,
     TR_HOLDS(v.now.signal() < kFewSignalShare && !is_silent(v.now) &&
              !has_reached(v, kHalfSolved)),
     TR_SAYS("only {:.0f} % of the groups have a signal (rollout/zero_signal_frac)",
             v.now.signal() * 100),
     TR_SAYS("Raise rollout.group_size, or choose tasks that are solved now and then")},
    {Ailment::kSolved, Severity::kGood, HealthNumber::kSignal, 3, TR_HOLDS(is_saturated(v)),
     TR_SAYS("{}, so that nothing is left to learn",
             is_solved(v.now)
                 ? "every sample is a success (env/success)"
                 : fmt::format("every sample has the reward {:.3g} (reward/min, reward/max), the "
                               "most that any had",
                               v.now.reward_max)),
     TR_SAYS("Stop here, or take harder tasks")},
};
#undef TR_HOLDS
#undef TR_SAYS

// Health::judge() finds the course of a rule by its kind.
consteval bool is_in_order() {
  for (size_t i = 0; i < std::size(kRules); ++i)
    if (static_cast<size_t>(kRules[i].kind) != i) return false;
  return std::size(kRules) == kEnumNames<Ailment>.size();
}
static_assert(is_in_order());

}  // namespace

HealthSettings health_settings(const std::string& config) {
  const ConfigNode root = read_config_text(config);
  HealthSettings settings;
  settings.lr = setting_of(root, "optim.lr");
  settings.max_grad_norm = setting_of(root, "optim.max_grad_norm");
  settings.kl_coef = setting_of(root, "algo.kl.coef");
  const std::string surrogate = config_value(root, "algo.surrogate");
  settings.clips = surrogate.empty() || surrogate == "ppo_clip";
  const std::string correction = config_value(root, "algo.correction.kind");
  settings.rejects = correction == "icepop" || correction == "mis" || correction == "mask";
  const std::string ratio = config_value(root, "algo.ratio");
  settings.clips_sequences = !ratio.empty() && ratio != "token";
  settings.judged = judged_values(root);
  // A limit of 0 is left to the environment. fmin leaves out what is unknown.
  const auto limit = [&root](std::string_view key) {
    const double value = setting_of(root, key);
    return value > 0 ? value : kUnknown;
  };
  settings.max_turns = limit("rollout.max_turns");
  settings.action_tokens = limit("rollout.max_action_tokens");
  settings.temperature = setting_of(root, "rollout.sampling.temperature");
  settings.episode_tokens =
      std::fmin(limit("rollout.max_context_tokens"), settings.max_turns * settings.action_tokens);
  return settings;
}

bool HealthStep::is_step(const MetricsRow& row) { return row.find("reward/mean") != nullptr; }

HealthStep::HealthStep(const MetricsRow& row) : number(row.step) {
  const auto take = [&row](std::string_view name) { return number_of(row, name); };
  // A metric that the row lacks is NaN. No comparison with it is true, so that a rule about it does
  // not hold.
  groups = take("rollout/groups");
  zero_signal = take("rollout/zero_signal_frac");
  filtered = take("rollout/filtered_prompts");
  reward_min = take("reward/min");
  reward_max = take("reward/max");
  reward_std = take("reward/std");
  success = take("env/success");
  updates = take("policy/updates");
  skipped = take("policy/updates_skipped");
  lr = take("policy/lr");
  entropy = take("policy/entropy");
  kl_old = take("policy/kl_old");
  kl_step = take("policy/kl_step");
  kl_penalty = take("policy/kl_ref");
  if (std::isnan(kl_penalty)) kl_penalty = take("policy/kl_behaviour");
  clip = take("policy/clipfrac_low") + take("policy/clipfrac_high");
  grad_norm = take("policy/grad_norm");
  length = take("rollout/response_tokens/mean");
  turns = take("rollout/turns/mean");
  truncated = take("rollout/truncated_frac");
  invalid = take("env/invalid_actions");
  infra_failed = take("rollout/infra_failed_frac");
  refused = take("env/agent_refused");
  mismatch_kl = take("mismatch/kl");
  logprob_diff = take("mismatch/abs_logprob_diff");
  cut_mass = take("rollout/cut_mass");
  staleness = take("staleness/max");
  stale_masked = take("staleness/masked_frac");
  rejected = take("mismatch/rejected_frac");
  correction_masked = take("mismatch/masked_frac");
  reward_mean = take("reward/mean");
  value_loss = take("critic/value_loss");
}

double HealthStep::signal() const {
  const double replaced = std::isnan(filtered) ? 0 : filtered;
  return (1 - zero_signal) * groups / (groups + replaced);
}

// fmax leaves out what is unknown. The passes of several updates may have seen more than is left.
double HealthStep::moved() const { return std::fmax(kl_step, kl_old); }

void HealthHistory::begin(const HealthStep& now) {
  if (now.updates_applied() > 0 || now.moved() > 0) {
    last_move_ = {now.number, now.kl_step, kStepTooFar, "policy/kl_step"};
    if (!last_move_.is_too_far())
      last_move_ = {now.number, now.kl_old, kDriftTooFar, "policy/kl_old"};
    if (last_move_.is_too_far()) {
      if (!wreck_ || now.number - wreck_->to > kSoon) wreck_ = {now.number, now.number, last_move_};
      wreck_->to = now.number;
      const auto beyond = [](const Move& move) { return move.nats / move.limit; };
      if (beyond(last_move_) > beyond(wreck_->worst)) wreck_->worst = last_move_;
    }
  }
  bottom_ = std::fmin(bottom_, now.reward_min);
  top_ = std::fmax(top_, now.reward_max);
}

void HealthHistory::end(std::span<const HealthStep> steps) {
  constexpr size_t kSteps = 3;
  const HealthStep& last = steps.back();
  varied_ = varied_ || (last.reward_max > last.reward_min && !is_constant(last));
  const auto window = steps.last(std::min(kSteps, steps.size()));
  double sum = 0, squares = 0;
  for (const HealthStep& step : window) {
    sum += step.reward_mean;
    squares += reward_error(step) * reward_error(step);
  }
  const auto size = static_cast<double>(window.size());
  // The latest of equal ones. Of unknown rewards there is no best.
  const double mean = sum / size;
  // A mean that is higher, too, differs by no more than that.
  const bool is_best = std::isnan(best_.reward) || are_equal_rewards(mean, best_.reward);
  if (!is_best || std::isnan(sum)) return;
  best_ = {window.front().number, window.back().number, mean, std::sqrt(squares) / size};
}

// The first update of a step has ratios of 1.
double HealthStep::clip_when_moved() const {
  return updates > 1 ? clip * updates / (updates - 1) : kUnknown;
}

std::span<const HealthRule> health_rules() { return kRules; }

bool is_symptom(Ailment kind) {
  switch (kind) {
    // These may follow from a step that wrecked the policy, or come with a task that is solved. The
    // others are causes, or stand for themselves.
    case Ailment::kActionsCut:
    case Ailment::kInvalidActions:
    case Ailment::kKlDominates:
    case Ailment::kGradientCut:
    case Ailment::kTruncated:
    case Ailment::kEntropyRises:
    case Ailment::kEntropyGone:
    case Ailment::kCollapse:
    case Ailment::kNoReward:
    case Ailment::kConstantReward:
    case Ailment::kNoSignal:
    case Ailment::kFewSignals:
      return true;
    default:
      return false;
  }
}

std::string wreck_text(const HealthHistory::Wreck& wreck) {
  const std::string steps =
      wreck.from == wreck.to
          ? fmt::format("step {} moved the policy by", wreck.from)
          : fmt::format("steps {} to {} moved the policy by up to", wreck.from, wreck.to);
  return fmt::format("{} {:.3g} nats a token ({})", steps, wreck.worst.nats, wreck.worst.metric);
}

std::string wreck_advice(const HealthView& view) {
  const int64_t step = view.history.wreck().value().from;
  if (step <= 1) return fmt::format("Start anew with {}", rate_advice(view));
  return fmt::format("Start from a checkpoint before step {}, with {}", step, rate_advice(view));
}

}  // namespace tailrace
