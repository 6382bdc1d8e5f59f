// The rules by which a step is judged: one row for each kind of finding.
//
// A number that a step does not have is NaN: every comparison with it is false, so that a rule
// never holds by what is unknown.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cli/view/config_value.h"
#include "core/base/enum_names.h"
#include "core/run/metrics.h"

namespace tailrace {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// Causes stand before what comes of them. A policy that has nothing to learn from never learns to
// end, so that truncation stands behind the findings about the rewards.
enum class Ailment : uint8_t {
  kUpdatesSkipped,
  kRateZero,
  kRateTooHigh,
  kFailures,
  kRefused,
  kTooHot,
  kRewardFell,
  kActionsCut,
  kInvalidActions,
  kMismatch,
  kStale,
  kRejected,
  kCriticDiverges,
  kKlDominates,
  kClipTooTight,
  kGradientCut,
  kEntropyRises,
  kEntropyGone,
  kCollapse,
  kNoReward,
  kConstantReward,
  kNoSignal,
  kTruncated,
  kFewSignals,
  kSolved,
};
constexpr auto enum_names(Ailment) {
  return name_table<Ailment>({{Ailment::kUpdatesSkipped, "updates_skipped"},
                              {Ailment::kRateZero, "rate_zero"},
                              {Ailment::kRateTooHigh, "rate_too_high"},
                              {Ailment::kFailures, "failures"},
                              {Ailment::kRefused, "refused"},
                              {Ailment::kTooHot, "too_hot"},
                              {Ailment::kRewardFell, "reward_fell"},
                              {Ailment::kActionsCut, "actions_cut"},
                              {Ailment::kInvalidActions, "invalid_actions"},
                              {Ailment::kMismatch, "mismatch"},
                              {Ailment::kStale, "stale"},
                              {Ailment::kRejected, "rejected"},
                              {Ailment::kCriticDiverges, "critic_diverges"},
                              {Ailment::kKlDominates, "kl_dominates"},
                              {Ailment::kClipTooTight, "clip_too_tight"},
                              {Ailment::kGradientCut, "gradient_cut"},
                              {Ailment::kEntropyRises, "entropy_rises"},
                              {Ailment::kEntropyGone, "entropy_gone"},
                              {Ailment::kCollapse, "collapse"},
                              {Ailment::kNoReward, "no_reward"},
                              {Ailment::kConstantReward, "constant_reward"},
                              {Ailment::kNoSignal, "no_signal"},
                              {Ailment::kTruncated, "truncated"},
                              {Ailment::kFewSignals, "few_signals"},
                              {Ailment::kSolved, "solved"}});
}

enum class Severity : uint8_t {
  kGood,   // no fault: the task is solved
  kWatch,  // may get better by itself
  kWrong,  // the run does not learn, or not what it should
};
constexpr auto enum_names(Severity) {
  return name_table<Severity>(
      {{Severity::kGood, "ok"}, {Severity::kWatch, "watch"}, {Severity::kWrong, "wrong"}});
}

// The numbers at the top of a report, and the findings that are about none of them.
enum class HealthNumber : uint8_t { kSignal, kEntropy, kClip, kKl, kLength, kTruncation, kOther };

// The config's settings that the rules need.
struct HealthSettings {
  double lr = kUnknown;              // optim.lr, which a schedule only lowers
  double max_grad_norm = kUnknown;   // optim.max_grad_norm
  double kl_coef = kUnknown;         // algo.kl.coef
  double episode_tokens = kUnknown;  // the most that one episode can sample
  double max_turns = kUnknown;       // rollout.max_turns
  double action_tokens = kUnknown;   // rollout.max_action_tokens
  double temperature = kUnknown;     // rollout.sampling.temperature
  // A clipped token has no gradient (algo.surrogate: ppo_clip). Elsewhere it has a bounded weight,
  // by design of most failures.
  bool clips = true;
  bool rejects = false;  // algo.correction.kind: weights may be 0
  // The ratio is one of many tokens (algo.ratio), whose range is narrow by design.
  bool clips_sequences = false;
  std::string judged = kJudgedByReward;  // judged_values()
};
// `config`: the text of config.yaml.
HealthSettings health_settings(const std::string& config);

// The numbers of one step; names as in docs/metrics.md.
struct HealthStep {
  explicit HealthStep(const MetricsRow& row);
  static bool is_step(const MetricsRow& row);

  int64_t number = 0;
  double groups, zero_signal, filtered;
  double reward_mean, reward_min, reward_max, reward_std, success;
  double updates, skipped, lr, entropy, kl_old, kl_step, kl_penalty, clip, grad_norm;
  double length, turns, truncated, invalid, infra_failed, refused;
  double mismatch_kl, logprob_diff, cut_mass, staleness, stale_masked, rejected, correction_masked;
  double value_loss;

  double updates_applied() const { return updates - skipped; }
  // How far the step moved the policy, nats a token. Rows of older builds know only what the passes
  // of its updates saw, which is behind by the last of them.
  double moved() const;
  double signal() const;           // share of the groups, replaced ones as well, with a signal
  double clip_when_moved() const;  // clipped share of the tokens of all updates but the first
};

// Steps, from a step that wrecked the policy to a symptom that comes of it.
inline constexpr int64_t kSoon = 10;

// The history of the steps up to one.
class HealthHistory {
 public:
  // The next step is judged: what it says of the policy counts for its own rules.
  void begin(const HealthStep& now);
  // It has been: its rewards are those that later ones are compared with. `steps`: up to it.
  void end(std::span<const HealthStep> steps);

  // A step that moved the policy.
  struct Move {
    int64_t step = 0;
    double nats = kUnknown, limit = kUnknown;
    std::string_view metric = {};
    bool is_too_far() const { return nats > limit; }
  };
  // The move of the last step with an update: as long as none follows, the policy is what it left.
  const Move& last_move() const { return last_move_; }
  // Steps that were too far, each soon after the one before it: the policy is sane before the first
  // of them alone. The last such steps, with the one that moved the policy furthest beyond its
  // limit.
  struct Wreck {
    int64_t from = 0, to = 0;
    Move worst;
  };
  // Nothing: no step was too far.
  const std::optional<Wreck>& wreck() const { return wreck_; }

  // The highest mean reward of three steps in a row, or of all where there were fewer, before this
  // one: with its standard error, by the number of groups.
  struct Best {
    int64_t from = 0, to = 0;
    double reward = kUnknown, error = kUnknown;
  };
  const Best& best() const { return best_; }
  // The extremes of all rewards, and whether those of some step differed.
  double bottom() const { return bottom_; }
  double top() const { return top_; }
  bool varied() const { return varied_; }

 private:
  Move last_move_;
  std::optional<Wreck> wreck_;
  Best best_;
  double bottom_ = kUnknown, top_ = kUnknown;
  bool varied_ = false;
};

struct HealthView {
  const HealthStep& now;
  const HealthStep& first;  // the first step with an update; `now` before there was one
  const HealthSettings& settings;
  const HealthHistory& history;
};

struct HealthRule {
  Ailment kind;
  Severity severity;
  HealthNumber about;
  int steps;  // in a row, that the rule must hold
  bool (*holds)(const HealthView& view);
  std::string (*sentence)(const HealthView& view);
  std::string (*advice)(const HealthView& view);
};

// One for each Ailment, in their order.
std::span<const HealthRule> health_rules();

// Whether it comes of a policy that was wrecked: where it begins with a reward that falls, that is
// told first; where it begins soon after a step that moved the policy too far, that is the cause.
bool is_symptom(Ailment kind);
// "step 3 moved the policy by 12 nats a token (policy/kl_step)", or "steps 3 to 5 moved ...".
std::string wreck_text(const HealthHistory::Wreck& wreck);
std::string wreck_advice(const HealthView& view);

}  // namespace tailrace
