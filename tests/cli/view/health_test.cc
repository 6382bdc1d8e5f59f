#include "cli/view/health.h"

#include <cmath>
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cli/view/health_section.h"
#include "cli/view/report_page.h"
#include "core/base/file.h"

namespace tailrace {
namespace {

using Values = std::map<std::string, double>;

// A healthy step, with some values of its own.
MetricsRow health_row(int64_t step, const Values& changed = {}) {
  Values values = {{"reward/mean", 0.4},
                   {"reward/std", 0.3},
                   {"reward/min", 0},
                   {"reward/max", 1},
                   {"env/success", 0.4},
                   {"env/invalid_actions", 0.3},
                   {"rollout/groups", 16},
                   {"rollout/zero_signal_frac", 0.125},
                   {"rollout/turns/mean", 4},
                   {"rollout/response_tokens/mean", 8},
                   {"rollout/truncated_frac", 0.1},
                   {"rollout/infra_failed_frac", 0},
                   {"rollout/cut_mass", 0},
                   {"policy/updates", 2},
                   {"policy/updates_skipped", 0},
                   {"policy/lr", 1e-3},
                   {"policy/entropy", 0.6},
                   {"policy/kl_old", 0.002},
                   {"policy/clipfrac_low", 0.01},
                   {"policy/clipfrac_high", 0.002},
                   {"policy/grad_norm", 0.8},
                   {"mismatch/kl", 0},
                   {"mismatch/abs_logprob_diff", 0},
                   {"staleness/max", 0},
                   {"staleness/masked_frac", 0}};
  for (const auto& [name, value] : changed) values[name] = value;
  MetricsRow row{.step = step, .version = step - 1, .values = {}};
  for (const auto& [name, value] : values) row.values.emplace_back(name, value);
  return row;
}

constexpr const char* kConfigText =
    "rollout: {max_turns: 14, max_action_tokens: 3, max_context_tokens: 256}\n"
    "optim: {max_grad_norm: 1}\nalgo: {kl: {coef: 0.04}}\n";

// The kinds found in three steps that all have these values, behind a healthy one.
std::vector<std::string> found_in(const Values& changed) {
  std::vector<MetricsRow> rows = {health_row(1)};
  for (int64_t step = 2; step <= 4; ++step) rows.push_back(health_row(step, changed));
  std::vector<std::string> kinds;
  for (const Finding& finding : health_of(rows, kConfigText).findings())
    kinds.emplace_back(name_of(finding.kind));
  return kinds;
}

using Kinds = std::vector<std::string>;

TEST(Health, AHealthyRunHasNoFindings) {
  EXPECT_EQ(found_in({}), Kinds{});
  EXPECT_EQ(health_of(std::vector<MetricsRow>(), "").findings().size(), 0u);
}

TEST(Health, EachRuleHoldsBeyondItsThresholdAndNotBefore) {
  struct Edge {
    const char* kind;
    Values below, beyond;
  };
  const Edge edges[] = {
      {"updates_skipped", {}, {{"policy/updates_skipped", 1}}},
      {"rate_zero", {{"policy/lr", 1e-9}}, {{"policy/lr", 0}}},
      {"rate_too_high", {{"policy/kl_old", 0.09}}, {{"policy/kl_old", 0.11}}},
      // With one update no pass of it sees what it did.
      {"rate_too_high",
       {{"policy/kl_old", 0}, {"policy/kl_step", 0.49}},
       {{"policy/kl_old", 0}, {"policy/kl_step", 0.51}}},
      // Half of 0.4, at an error of 0.3 / 4.
      {"reward_fell",
       {{"reward/mean", 0.21}, {"reward/std", 0.1}},
       {{"reward/mean", 0.1}, {"reward/std", 0.1}}},
      {"reward_fell",
       {{"reward/mean", 0.1}, {"reward/std", 0.3}},
       {{"reward/mean", 0.05}, {"reward/std", 0.2}}},
      {"failures", {{"rollout/infra_failed_frac", 0.19}}, {{"rollout/infra_failed_frac", 0.21}}},
      {"refused", {{"env/agent_refused", 0.4}}, {{"env/agent_refused", 0.6}}},
      {"invalid_actions", {{"env/invalid_actions", 3.5}}, {{"env/invalid_actions", 3.7}}},
      // 4 turns of 3 tokens, unless a policy that is nearly random fills them.
      {"actions_cut",
       {{"env/invalid_actions", 3.5}, {"rollout/response_tokens/mean", 12}},
       {{"env/invalid_actions", 3.7}, {"rollout/response_tokens/mean", 11.9}}},
      {"actions_cut",
       {{"rollout/response_tokens/mean", 12}},
       {{"env/invalid_actions", 4},
        {"rollout/response_tokens/mean", 12},
        {"policy/entropy", kUnknown}}},
      {"invalid_actions",
       {{"env/invalid_actions", 3.7}, {"rollout/response_tokens/mean", 11.9}},
       {{"env/invalid_actions", 3.7}, {"rollout/response_tokens/mean", 11.8}}},
      {"truncated", {{"rollout/truncated_frac", 0.89}}, {{"rollout/truncated_frac", 0.91}}},
      {"mismatch", {{"mismatch/kl", 0.009}}, {{"mismatch/kl", 0.011}}},
      {"mismatch",
       {{"mismatch/kl", 0.5}, {"staleness/max", 1}},
       {{"mismatch/abs_logprob_diff", 0.02}, {"staleness/max", 1}}},
      {"stale", {{"staleness/masked_frac", 0.49}}, {{"staleness/masked_frac", 0.51}}},
      {"critic_diverges", {{"critic/value_loss", 9.9}}, {{"critic/value_loss", 10.1}}},
      {"rejected", {{"mismatch/rejected_frac", 0.49}}, {{"mismatch/rejected_frac", 0.51}}},
      // 0.04 x sqrt(2 x 312.5) = 1
      {"kl_dominates", {{"policy/kl_ref", 310}}, {{"policy/kl_ref", 315}}},
      {"kl_dominates", {{"policy/kl_behaviour", 310}}, {{"policy/kl_behaviour", 315}}},
      // Of two updates the first clips nothing.
      {"clip_too_tight", {{"policy/clipfrac_low", 0.12}}, {{"policy/clipfrac_low", 0.13}}},
      {"gradient_cut", {{"policy/grad_norm", 99}}, {{"policy/grad_norm", 101}}},
      {"entropy_rises", {{"policy/entropy", 0.89}}, {{"policy/entropy", 0.91}}},
      {"entropy_gone",
       {{"policy/entropy", 0.009}, {"env/success", 0.95}},
       {{"policy/entropy", 0.009}, {"env/success", 0.5}}},
      {"collapse",
       {{"policy/entropy", 0.1}, {"reward/std", 0.2}},
       {{"policy/entropy", 0.1}, {"reward/std", 0.1}}},
      {"no_reward", {{"reward/max", 0.1}}, {{"rollout/zero_signal_frac", 1}, {"reward/max", 0}}},
      {"constant_reward",
       {{"reward/min", 0.9}},
       {{"rollout/zero_signal_frac", 1}, {"reward/min", 0.7}, {"reward/max", 0.7}}},
      {"no_signal",
       {{"rollout/zero_signal_frac", 0.76}, {"env/success", 0.6}},
       {{"rollout/zero_signal_frac", 1}}},
      {"few_signals", {{"rollout/zero_signal_frac", 0.74}}, {{"rollout/zero_signal_frac", 0.76}}},
      {"few_signals", {{"rollout/filtered_prompts", 39}}, {{"rollout/filtered_prompts", 41}}},
      {"solved",
       {{"reward/min", 0.9}, {"env/success", 1}},
       {{"reward/min", 1}, {"rollout/zero_signal_frac", 1}, {"env/success", 1}}},
  };
  for (const Edge& edge : edges) {
    const Kinds below = found_in(edge.below);
    EXPECT_EQ(std::ranges::count(below, edge.kind), 0) << edge.kind;
    EXPECT_EQ(found_in(edge.beyond), Kinds{edge.kind});
  }
}

// Nobody need say what a success is: a run whose rewards differed, and that now has the best of
// them everywhere, is done.
TEST(Health, ARewardThatSaturatedIsNoConstantReward) {
  const Values best = {{"reward/mean", 1},
                       {"reward/min", 1},
                       {"reward/std", 0},
                       {"rollout/zero_signal_frac", 1},
                       {"env/success", kUnknown}};
  EXPECT_EQ(found_in(best), Kinds{"solved"});
  Values bounded = best;  // 0 may be the most there is
  bounded["reward/max"] = bounded["reward/min"] = bounded["reward/mean"] = 0;
  std::vector<MetricsRow> rows = {health_row(1, {{"reward/min", -1}, {"reward/max", 0}})};
  for (int64_t step = 2; step <= 4; ++step) rows.push_back(health_row(step, bounded));
  ASSERT_EQ(health_of(rows, "").findings().size(), 1u);
  EXPECT_EQ(
      health_of(rows, "").findings()[0].line(),
      "note: solved since step 2: every sample has the reward 0 (reward/min, reward/max), the "
      "most that any had, so that nothing is left to learn. Stop here, or take harder tasks.");
  // On the way there most groups have nothing to tell, as they are all right.
  const Values nearly = {{"reward/mean", 0.97},
                         {"reward/std", 0.1},
                         {"policy/entropy", 0.005},
                         {"rollout/zero_signal_frac", 0.9},
                         {"env/success", kUnknown}};
  EXPECT_EQ(found_in(nearly), Kinds{});
  // From the first step on, it does not look.
  rows.clear();
  for (int64_t step = 1; step <= 3; ++step) rows.push_back(health_row(step, best));
  EXPECT_EQ(health_of(rows, "").findings()[0].kind, Ailment::kConstantReward);
}

TEST(Health, ARewardThatFellIsToldWithItsStepAndItsCause) {
  std::vector<MetricsRow> rows;
  for (int64_t step = 1; step <= 5; ++step)
    rows.push_back(health_row(step, {{"policy/updates", 1}, {"policy/kl_old", 0}}));
  rows.push_back(
      health_row(6, {{"policy/updates", 1}, {"policy/kl_old", 0}, {"policy/kl_step", 12.5}}));
  const Values wrecked = {{"reward/mean", 0},
                          {"reward/max", 0},
                          {"reward/std", 0},
                          {"env/success", 0},
                          {"rollout/zero_signal_frac", 1},
                          {"rollout/truncated_frac", 1},
                          {"policy/updates", 0},
                          {"policy/kl_old", kUnknown},
                          {"policy/entropy", kUnknown}};
  for (int64_t step = 7; step <= 10; ++step) rows.push_back(health_row(step, wrecked));
  const std::string config = "optim: {lr: 1}";
  std::vector<std::string> lines;
  for (const Finding& finding : health_of(rows, config).present()) lines.push_back(finding.line());
  const std::string cause = "step 6 moved the policy by 12.5 nats a token (policy/kl_step)";
  const std::string cure = ". Start from a checkpoint before step 6, with optim.lr=0.1.";
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0],
            "warning: rate_too_high since step 6: one step moves the policy by 12.5 nats a token "
            "(policy/kl_step), more than 0.5. Try optim.lr=0.1.");
  EXPECT_EQ(lines[1],
            "warning: reward_fell since step 7: the reward has fallen from 0.4 (steps 4 to 6) to 0 "
            "(reward/mean): " +
                cause + cure);
  EXPECT_TRUE(lines[2].starts_with("warning: no_reward since step 7: ")) << lines[2];
  EXPECT_TRUE(lines[3].starts_with("warning: truncated since step 7: ")) << lines[3];
  for (const size_t symptom : {2u, 3u})
    EXPECT_TRUE(lines[symptom].ends_with(", since " + cause + cure)) << lines[symptom];
}

// Nothing behind the first of several such steps is sane.
TEST(Health, StepsThatWreckAPolicyAreOneWreckFromTheFirstOn) {
  std::vector<MetricsRow> rows;
  const auto add = [&](double kl_step, double reward) {
    rows.push_back(health_row(static_cast<int64_t>(rows.size()) + 1, {{"policy/updates", 1},
                                                                      {"policy/kl_old", 0},
                                                                      {"policy/kl_step", kl_step},
                                                                      {"reward/mean", reward}}));
  };
  for (int step = 1; step <= 5; ++step) add(0.01, 0.4);
  add(17.7, 0.4);
  add(3.9, -0.7);
  add(14.4, -0.7);
  add(11.7, -0.7);
  std::string all;
  for (const Finding& finding : health_of(rows, "optim: {lr: 1}").present())
    all += finding.line() + "\n";
  EXPECT_NE(all.find("rate_too_high since step 6: one step moves the policy by 17.7 nats"),
            std::string::npos)
      << all;
  EXPECT_NE(all.find("steps 6 to 9 moved the policy by up to 17.7 nats a token (policy/kl_step). "
                     "Start from a checkpoint before step 6"),
            std::string::npos)
      << all;
  // Long after, another one is told by itself.
  for (int step = 0; step < 12; ++step) add(0.01, -0.7);
  add(2, -0.7);
  add(0.01, -0.7);
  all.clear();
  for (const Finding& finding : health_of(rows, "optim: {lr: 1}").present())
    all += finding.line() + "\n";
  EXPECT_NE(all.find("step 22 moved the policy by 2 nats"), std::string::npos) << all;
}

// Rows of runs that were made, without names that no rule reads (tests/data/health).
Health health_of_recorded(const std::string& name, const std::string& config) {
  const auto rows = read_metrics(fmt::format("{}/tests/data/health/{}", TAILRACE_SOURCE_DIR, name));
  EXPECT_TRUE(rows) << rows.failure().message;
  return health_of(rows.value(), config);
}

// launch configs/quickstart.yaml optim.lr=1. Its first step moves the policy by 9.6 nats a token,
// of which the passes of its two updates saw 3.2; then no action can be read and no sample ends.
TEST(Health, ARunThatItsRateWreckedIsToldSo) {
  const Health health = health_of_recorded("wrecked.jsonl", "optim: {lr: 1}");
  std::vector<std::string> lines;
  for (const Finding& finding : health.present()) lines.push_back(finding.line());
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0],
            "warning: rate_too_high since step 1: one step moves the policy by 9.61 nats a token "
            "(policy/kl_step), more than 0.5. Try optim.lr=0.1.");
  EXPECT_TRUE(
      lines[1].starts_with("warning: reward_fell since step 2: the reward has fallen from "
                           "0.397 (step 1) to -0.7 (reward/mean): step 1 moved the policy"))
      << lines[1];
  for (size_t i = 1; i < lines.size(); ++i)
    EXPECT_TRUE(lines[i].ends_with(". Start anew with optim.lr=0.1.")) << lines[i];
  EXPECT_EQ(health.verdict()->kind, Ailment::kRateTooHigh) << "what a launch ends with";
}

// The base.yaml of a text task with a reward that counts a letter, up to 1, and says no success.
TEST(Health, ARunThatSaturatedIsDone) {
  const std::vector<Finding> found =
      health_of_recorded("saturated.jsonl", "rollout: {max_turns: 1, max_action_tokens: 24}")
          .present();
  for (const Finding& finding : found) {
    EXPECT_NE(finding.kind, Ailment::kConstantReward);
    EXPECT_NE(finding.kind, Ailment::kFewSignals);
  }
  ASSERT_EQ(std::ranges::count(found, Ailment::kSolved, &Finding::kind), 1);
  EXPECT_EQ(std::ranges::find(found, Ailment::kSolved, &Finding::kind)->since, 37);
}

// A symptom that was told a step or two before the fall could be seen comes of the same.
TEST(Health, AFallIsToldBeforeTheSymptomsThatBeganWithIt) {
  std::vector<MetricsRow> rows = {health_row(1), health_row(2),
                                  health_row(3, {{"rollout/truncated_frac", 1}})};
  const Values fallen = {
      {"rollout/truncated_frac", 1}, {"reward/mean", 0.01}, {"reward/std", 0.05}};
  for (int64_t step = 4; step <= 6; ++step) rows.push_back(health_row(step, fallen));
  const std::vector<Finding> found = health_of(rows, "").findings();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].kind, Ailment::kRewardFell);
  EXPECT_EQ(found[0].since, 4);
  EXPECT_EQ(found[1].kind, Ailment::kTruncated);
  EXPECT_EQ(found[1].since, 3);
  EXPECT_EQ(found[1].advice, "Raise rollout.max_action_tokens or rollout.max_context_tokens")
      << "nothing wrecked it";
}

// With few groups a mean says little.
TEST(Health, ARewardThatIsNoisyHasNotFallen) {
  std::vector<MetricsRow> rows;
  for (int64_t step = 1; step <= 40; ++step)
    rows.push_back(health_row(step, {{"rollout/groups", 4},
                                     {"reward/std", 0.45},
                                     {"reward/mean", step % 5 < 2 ? 0.05 : 0.35}}));
  EXPECT_TRUE(health_of(rows, "").findings().empty());
}

// The symptoms are those of a policy that has not learned to speak; the cause is in the config.
TEST(Health, ATemperatureFarFromOneIsToldBeforeWhatComesOfIt) {
  const auto found_at = [](double temperature, const Values& changed) {
    Health health(health_settings(fmt::format(
        "rollout: {{max_turns: 14, max_action_tokens: 3, sampling: {{temperature: {}}}}}",
        temperature)));
    for (int64_t step = 1; step <= 2; ++step) health.add(health_row(step, changed));
    std::string lines;
    for (const Finding& finding : health.findings()) lines += finding.line() + "\n";
    return lines;
  };
  const Values unreadable = {{"env/invalid_actions", 4}, {"rollout/response_tokens/mean", 12}};
  EXPECT_EQ(found_at(5, unreadable),
            "warning: too_hot since step 1: samples are drawn at temperature 5 "
            "(rollout.sampling.temperature), and 4 of 4 actions of an episode cannot be read "
            "(env/invalid_actions). Try rollout.sampling.temperature=1.\n");
  EXPECT_TRUE(found_at(1, unreadable).starts_with("warning: actions_cut since step 1: "))
      << "cause";
  const Values endless = {{"rollout/truncated_frac", 1}};
  EXPECT_TRUE(found_at(5, endless).starts_with("warning: too_hot since step 1: "));
  EXPECT_NE(found_at(5, endless).find("\nwarning: truncated since step 1: "), std::string::npos);
  EXPECT_TRUE(found_at(1.4, endless).starts_with("warning: truncated since step 1: "));
  EXPECT_EQ(found_at(5, {}), "") << "it may be meant";
}

// The rate of a step is small in a warm-up of the schedule.
TEST(Health, ATooHighRateIsAdvisedByTheOneOfTheConfig) {
  for (const auto& [config, advice] :
       {std::pair{"optim: {lr: 0.2}", "Try optim.lr=0.02"}, {"", "Try optim.lr=1e-05"}}) {
    Health health(health_settings(config));
    health.add(health_row(1, {{"policy/kl_old", 2}, {"policy/lr", 1e-4}}));
    ASSERT_EQ(health.findings().size(), 1u);
    EXPECT_EQ(health.findings()[0].advice, advice);
  }
}

// A step's KL grows with the square of the rate.
TEST(Health, AFarStepIsAdvisedASmallerRateThanANearOne) {
  for (const auto& [nats, advice] : {std::pair{0.6, "Try optim.lr=0.1"},
                                     {50.0, "Try optim.lr=0.1"},
                                     {5e3, "Try optim.lr=0.01"},
                                     {1e8, "Try optim.lr=0.001"}}) {
    Health health(health_settings("optim: {lr: 1}"));
    health.add(health_row(1, {{"policy/kl_old", 0}, {"policy/kl_step", nats}}));
    ASSERT_EQ(health.findings().size(), 1u);
    EXPECT_EQ(health.findings()[0].advice, advice);
  }
}

// A wrecked policy has a large penalty and large gradients, which are no causes.
TEST(Health, AWreckIsTheCauseOfAPenaltyThatPulls) {
  std::vector<MetricsRow> rows;
  for (int64_t step = 1; step <= 3; ++step)
    rows.push_back(health_row(step, {{"policy/kl_old", 0},
                                     {"policy/kl_step", 8},
                                     {"policy/kl_ref", 1e4},
                                     {"policy/grad_norm", 1e3}}));
  for (const Finding& finding : health_of(rows, kConfigText).findings()) {
    const std::string line = finding.line();
    EXPECT_NE(line.find("moved the policy by up to 8 nats") == line.npos,
              finding.kind != Ailment::kRateTooHigh)
        << line;
    EXPECT_NE(finding.advice.find("optim.lr="), std::string::npos) << line;
  }
}

TEST(Health, ALimitIsNotAdvisedThatIsThere) {
  for (const auto& [limit, advised] : {std::pair{0.1, true}, {1.0, false}}) {
    std::vector<MetricsRow> rows;
    for (int64_t step = 1; step <= 3; ++step)
      rows.push_back(health_row(step, {{"policy/grad_norm", 1e3}}));
    const Health health =
        health_of(rows, fmt::format("optim: {{lr: 1e-3, max_grad_norm: {}}}", limit));
    ASSERT_FALSE(health.findings().empty());
    EXPECT_EQ(health.findings()[0].advice.find("max_grad_norm=1") != std::string::npos, advised);
  }
}

TEST(Health, NothingIsFoundOfWhatAStepDoesNotSay) {
  Health health;
  for (int64_t step = 1; step <= 5; ++step)
    EXPECT_TRUE(health.add({.step = step, .values = {{"reward/mean", 0.5}}}).empty());
  EXPECT_EQ(health.line(),
            "signal unknown, entropy unknown, clipped unknown, KL unknown, length unknown, "
            "truncated unknown");
}

TEST(Health, ALimitThatIsLeftToTheEnvironmentIsUnknown) {
  const std::string config =
      "rollout: {max_turns: 0, max_action_tokens: 3, max_context_tokens: 64}";
  EXPECT_EQ(health_settings(config).episode_tokens, 64);
  EXPECT_TRUE(std::isnan(health_settings(config).max_turns));
  EXPECT_TRUE(std::isnan(health_settings("rollout: {max_turns: 0}").episode_tokens));
  EXPECT_TRUE(std::isnan(health_settings("[what").kl_coef));
}

// TOPR cuts the weight of most failures to 1, which is not a token without a gradient.
TEST(Health, AWeightThatIsBoundedIsNoClippedToken) {
  EXPECT_TRUE(health_settings("algo: {surrogate: ppo_clip}").clips);
  EXPECT_TRUE(health_settings("algo: {name: grpo}").clips);
  Health health(health_settings("algo: {surrogate: topr}"));
  for (int64_t step = 1; step <= 4; ++step)
    EXPECT_TRUE(health.add(health_row(step, {{"policy/clipfrac_high", 0.5}})).empty());
}

// GSPO's range is that narrow.
TEST(Health, SequencesMayBeClippedMostOfTheTime) {
  for (const auto& [share, findings] : {std::pair{0.35, 0u}, {0.49, 1u}}) {
    Health health(health_settings("algo: {ratio: sequence}"));
    for (int64_t step = 1; step <= 4; ++step)
      health.add(health_row(step, {{"policy/clipfrac_high", share}}));
    EXPECT_EQ(health.findings().size(), findings) << share;
  }
}

TEST(Health, AFindingHasItsFirstAndItsLastStep) {
  Health health(health_settings(kConfigText));
  const Values cut = {{"rollout/truncated_frac", 1}};
  EXPECT_TRUE(health.add(health_row(1)).empty());
  EXPECT_TRUE(health.add(health_row(2, cut)).empty()) << "once is bad luck";
  health.add({.step = 2, .values = {{"eval/reward", 1}}});  // is no step
  const std::vector<Finding> found = health.add(health_row(3, cut));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].line(),
            "warning: truncated since step 2: 100 % of the samples end by a limit and not by "
            "themselves (rollout/truncated_frac). Raise rollout.max_action_tokens or "
            "rollout.max_context_tokens.");
  EXPECT_TRUE(health.add(health_row(4, cut)).empty()) << "it was said";
  EXPECT_EQ(health.present().size(), 1u);
  health.add(health_row(5));
  EXPECT_TRUE(health.present().empty());
  ASSERT_EQ(health.findings().size(), 1u);
  EXPECT_EQ(health.findings()[0].since, 2);
  EXPECT_EQ(health.findings()[0].until, 4);
  EXPECT_NE(health_section(health).find("in steps 2 to 4"), std::string::npos);
}

TEST(Health, StepsThatAreDoneAgainReplaceTheOldOnes) {
  Health health;
  health.add(health_row(1));
  health.add(health_row(2, {{"policy/kl_old", 2}}));
  EXPECT_EQ(health.findings().size(), 1u);
  health.add(health_row(2));
  EXPECT_TRUE(health.findings().empty());
}

TEST(Health, TheCauseStandsBeforeWhatCameOfIt) {
  std::vector<MetricsRow> rows = {health_row(1, {{"policy/kl_old", 2}})};
  const Values broken = {{"env/invalid_actions", 4},
                         {"rollout/truncated_frac", 1},
                         {"rollout/zero_signal_frac", 1},
                         {"reward/max", 0},
                         {"env/success", 0}};
  for (int64_t step = 2; step <= 4; ++step) rows.push_back(health_row(step, broken));
  Kinds kinds;
  for (const Finding& finding : health_of(rows, kConfigText).findings())
    kinds.emplace_back(name_of(finding.kind));
  EXPECT_EQ(kinds, (Kinds{"rate_too_high", "invalid_actions", "no_reward", "truncated"}));
}

// A reward that never differs teaches nobody to end: samples that run into a limit come of it.
TEST(Health, AConstantRewardIsTheCauseOfSamplesThatNeverEnd) {
  for (const auto& [reward, kind] : {std::pair{0.0, "no_reward"}, {0.7, "constant_reward"}}) {
    std::vector<MetricsRow> rows;
    for (int64_t step = 1; step <= 4; ++step)
      rows.push_back(health_row(step, {{"reward/mean", reward},
                                       {"reward/min", reward},
                                       {"reward/max", reward},
                                       {"reward/std", 0},
                                       {"env/success", 0},
                                       {"rollout/zero_signal_frac", 1},
                                       {"rollout/truncated_frac", 0.95}}));
    const Health health = health_of(rows, kConfigText);
    ASSERT_EQ(health.present().size(), 2u);
    EXPECT_EQ(name_of(health.present()[0].kind), kind);
    EXPECT_EQ(health.present()[1].kind, Ailment::kTruncated);
    const std::string line = health.verdict().value().line();
    EXPECT_TRUE(line.starts_with(fmt::format("warning: {} since step 1: ", kind))) << line;
    // Nobody but a person knows whether an answer would have come behind the limit.
    EXPECT_NE(line.find("; 95 % of the samples end by a limit (rollout/truncated_frac). "),
              std::string::npos)
        << line;
  }
  // Also where the rewards tell the prompts apart, and not the samples.
  EXPECT_EQ(found_in({{"rollout/zero_signal_frac", 1}, {"rollout/truncated_frac", 1}}),
            (Kinds{"no_signal", "truncated"}));
}

// A reward that is paid for actions that nobody can read is the cause. One that punishes them, or
// that told samples apart before, is not.
TEST(Health, ARewardThatIsPaidForUnreadableActionsIsTheCause) {
  const auto constant = [](double reward, double tokens) {
    return Values{{"reward/mean", reward},
                  {"reward/min", reward},
                  {"reward/max", reward},
                  {"reward/std", 0},
                  {"env/success", 0},
                  {"rollout/zero_signal_frac", 1},
                  {"rollout/truncated_frac", 0.95},
                  {"env/invalid_actions", 4},
                  {"rollout/response_tokens/mean", tokens}};
  };
  const auto first_of = [](std::vector<MetricsRow> rows) {
    const Health health = health_of(rows, kConfigText);
    EXPECT_EQ(health.present()[0].kind, health.verdict().value().kind);
    return std::string(name_of(health.verdict().value().kind));
  };
  for (const auto& [reward, tokens, kind] : {std::tuple{0.7, 8.0, "constant_reward"},
                                             {0.7, 42.0, "constant_reward"},
                                             {0.0, 8.0, "invalid_actions"},
                                             {-1.0, 8.0, "invalid_actions"},
                                             {-1.0, 42.0, "actions_cut"}}) {
    std::vector<MetricsRow> rows;
    for (int64_t step = 1; step <= 2; ++step)
      rows.push_back(health_row(step, constant(reward, tokens)));
    const std::string early = first_of(rows);
    EXPECT_EQ(early, tokens > 8 ? "actions_cut" : "invalid_actions") << "two steps may be chance";
    rows.push_back(health_row(3, constant(reward, tokens)));
    EXPECT_EQ(first_of(rows), kind) << reward << " " << tokens;
  }
  std::vector<MetricsRow> rows = {health_row(1, {{"env/invalid_actions", 4}})};
  for (int64_t step = 2; step <= 4; ++step) rows.push_back(health_row(step, constant(0.7, 8)));
  EXPECT_EQ(first_of(rows), "invalid_actions");
}

TEST(Health, SamplesThatAreCutAndSucceedNeedNoCure) {
  const Values solved = {{"reward/mean", 1},
                         {"reward/min", 1},
                         {"reward/std", 0},
                         {"env/success", 1},
                         {"rollout/zero_signal_frac", 1},
                         {"rollout/truncated_frac", 1}};
  EXPECT_EQ(found_in(solved), Kinds{"solved"});
  Values unsaid = solved;
  unsaid["env/success"] = kUnknown;
  EXPECT_EQ(found_in(unsaid), Kinds{"solved"});
  EXPECT_EQ(found_in({{"env/success", 0.89}, {"rollout/truncated_frac", 1}}), Kinds{"truncated"});
  EXPECT_EQ(found_in({{"env/success", 0.91}, {"rollout/truncated_frac", 1}}), Kinds{});
  // On the way there they were cut for another reason; at the end nothing is left to mend.
  std::vector<MetricsRow> rows;
  for (int64_t step = 1; step <= 4; ++step)
    rows.push_back(health_row(step, {{"rollout/truncated_frac", 1}}));
  EXPECT_EQ(health_of(rows, kConfigText).verdict().value().kind, Ailment::kTruncated);
  for (int64_t step = 5; step <= 7; ++step) rows.push_back(health_row(step, solved));
  EXPECT_EQ(health_of(rows, kConfigText).findings()[0].kind, Ailment::kTruncated);
  EXPECT_EQ(health_of(rows, kConfigText).verdict().value().kind, Ailment::kSolved);
  // A fault that is no symptom is told all the same.
  for (int64_t step = 8; step <= 10; ++step) {
    Values failing = solved;
    failing["rollout/infra_failed_frac"] = 0.5;
    rows.push_back(health_row(step, failing));
  }
  EXPECT_EQ(health_of(rows, kConfigText).verdict().value().kind, Ailment::kFailures);
}

TEST(Health, ASymptomThatIsGoneIsNotTheLastWord) {
  std::vector<MetricsRow> rows;
  for (int64_t step = 1; step <= 3; ++step)
    rows.push_back(health_row(step, {{"rollout/truncated_frac", 1}}));
  rows.push_back(health_row(4));
  EXPECT_EQ(health_of(rows, kConfigText).findings().size(), 1u);
  EXPECT_FALSE(health_of(rows, kConfigText).verdict());
  rows.push_back(health_row(5, {{"policy/kl_old", 2}}));
  rows.push_back(health_row(6));
  EXPECT_EQ(health_of(rows, kConfigText).verdict().value().kind, Ailment::kRateTooHigh);
}

// Sums of float32 parts differ by more than their last bits as doubles.
TEST(Health, RewardsAreConstantByTheToleranceOfTheGroups) {
  const auto constant = [](double difference) {
    return Values{
        {"reward/min", 0.7 - difference}, {"reward/max", 0.7}, {"rollout/zero_signal_frac", 1}};
  };
  EXPECT_EQ(found_in(constant(0.9e-6)), Kinds{"constant_reward"});
  EXPECT_EQ(found_in(constant(1.1e-6)), Kinds{"no_signal"});
}

TEST(Health, NoSignalSaysWhatIsEqual) {
  const auto fault = [](const std::string& config) {
    std::vector<MetricsRow> rows;
    for (int64_t step = 1; step <= 3; ++step)
      rows.push_back(health_row(step, {{"rollout/zero_signal_frac", 1}}));
    const Health health = health_of(rows, config);
    return health.findings().empty() ? "" : health.findings()[0].line();
  };
  EXPECT_NE(fault("").find(" all rewards are equal "), std::string::npos) << fault("");
  const std::string judged = fault("algo: {filter_metric: correct}");
  EXPECT_NE(judged.find(" all values of correct are equal "), std::string::npos) << judged;
  EXPECT_NE(judged.find("Where the rewards differ, try algo.filter_metric=reward"), judged.npos);
  EXPECT_EQ(fault("").find("filter_metric"), std::string::npos) << fault("");
}

TEST(Health, TheLineHasSixNumbersWithAWordAndAnArrow) {
  const std::vector<MetricsRow> rows = {
      health_row(1), health_row(2, {{"policy/entropy", 0.4}, {"rollout/truncated_frac", 1}}),
      health_row(3, {{"policy/entropy", 0.3},
                     {"rollout/truncated_frac", 1},
                     {"policy/kl_ref", 0.5},
                     {"rollout/response_tokens/mean", 21}})};
  EXPECT_EQ(health_of(rows, kConfigText).line(),
            "signal 14 of 16 groups ok →, entropy 0.3 ok ↓, clipped 0.012 ok →, KL 0.002 "
            "(penalised 0.5) ok →, length 21.0 of 42 tokens ok ↑, truncated 100 % wrong ↑");
}

TEST(Health, WhatIsUnknownIsNeverOk) {
  Health health;
  health.add(health_row(
      1, {{"policy/entropy", kUnknown}, {"policy/kl_old", kUnknown}, {"policy/updates", 1}}));
  EXPECT_EQ(health.line(),
            "signal 14 of 16 groups ok →, entropy unknown, clipped unknown, KL unknown, length 8.0 "
            "ok →, truncated 10 % ok →");
  for (const HealthFigure& figure : health.figures())
    EXPECT_EQ(figure.value.empty(), figure.word == "unknown") << figure.name;
  const std::string section = health_section(health);
  EXPECT_NE(section.find("<dt>KL</dt><dd> <span class=\"unknown\">unknown</span>"),
            std::string::npos)
      << section;
  EXPECT_EQ(section.find("unknown <span class=\"good\">"), std::string::npos) << section;
}

TEST(Health, TheDocumentHasARowForEachFinding) {
  const std::string page = read_file(TAILRACE_SOURCE_DIR "/docs/metrics.md").value();
  const size_t begin = page.find("## Is my run healthy?"), end = page.find("\n## ", begin);
  ASSERT_NE(begin, std::string::npos);
  Kinds on_page;
  for (size_t at = page.find("\n| `", begin); at < end; at = page.find("\n| `", at + 1))
    on_page.push_back(page.substr(at + 4, page.find('`', at + 4) - at - 4));
  EXPECT_EQ(on_page, Kinds(kEnumNames<Ailment>.begin(), kEnumNames<Ailment>.end()));
}

TEST(Health, StandsAtTheTopOfTheReport) {
  ReportData data;
  data.config = kConfigText;
  for (int64_t step = 1; step <= 3; ++step)
    data.rows.push_back(health_row(step, {{"mismatch/kl", 0.1}}));
  const std::string page = make_report_page(data);
  const size_t at = page.find("<h2>Health</h2>");
  ASSERT_NE(at, std::string::npos);
  EXPECT_GT(at, page.find("<h1>"));
  EXPECT_LT(at, page.find("class=\"facts\""));
  EXPECT_NE(page.find("<span class=\"bad\">mismatch</span> since step 1: "), std::string::npos);
  EXPECT_EQ(health_section(Health()), "");
}

}  // namespace
}  // namespace tailrace
