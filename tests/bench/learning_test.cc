#include "bench/run/learning.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "bench/report/program.h"

namespace tailrace {
namespace {

MetricsRow row(int64_t step, MetricList values) {
  return {.step = step, .version = step - 1, .values = std::move(values)};
}

MetricsRow evaluation(int64_t step, double success) {
  return row(step, {{"eval/success", success}, {"eval/reward", success}, {"eval/episodes", 100.0}});
}

// A step as healthy runs make it, with some figures of its own.
MetricsRow step_with(int64_t step, const MetricList& own) {
  MetricList values = {{"policy/updates", 2.0},           {"policy/updates_skipped", 0.0},
                       {"rollout/zero_signal_frac", 0.3}, {"rollout/truncated_frac", 0.1},
                       {"policy/entropy", 0.5},           {"policy/clipfrac_low", 0.01},
                       {"policy/clipfrac_high", 0.02},    {"policy/kl_old", 1e-3}};
  for (const auto& [name, value] : own)
    for (auto& [known, kept] : values)
      if (known == name) kept = value;
  return row(step, values);
}

std::string why(const MetricList& first, const MetricList& last) {
  return why_not(read_learning(std::vector<MetricsRow>{evaluation(0, 0.4), step_with(1, first),
                                                       step_with(2, last), evaluation(2, 0.4)}));
}

TEST(Learning, ReadsEvaluationsAndMeansOfTheSteps) {
  const Learning learned = read_learning(std::vector<MetricsRow>{
      row(1, {{"sft/loss", 1.0}}), evaluation(0, 0.2),
      step_with(1, {{"policy/entropy", 0.8}, {"policy/kl_old", 1e-3}}),
      step_with(2, {{"policy/entropy", 0.6}, {"policy/kl_old", 3e-3}}), evaluation(2, 0.8)});
  EXPECT_EQ(learned.steps, 2);
  EXPECT_EQ(learned.start(), 0.2);
  EXPECT_EQ(learned.final(), 0.8);
  EXPECT_EQ(learned.updates, 4);
  EXPECT_DOUBLE_EQ(learned.clipped, 0.03);
  EXPECT_DOUBLE_EQ(learned.kl_old, 2e-3);
  EXPECT_EQ(learned.first_entropy, 0.8);
  EXPECT_EQ(learned.last_entropy, 0.6);
  // 20 and 80 successes of 100, counted as 21 and 81 of 102.
  EXPECT_DOUBLE_EQ(binomial_error(learned), std::sqrt(2 * (21.0 / 102) * (81.0 / 102) / 102));
  EXPECT_THROW(read_learning(std::vector<MetricsRow>{step_with(1, {})}), WrongResult);
}

TEST(Learning, NamesTheReasonThatTheMetricsShow) {
  // Without an update a step has no figure of one.
  const MetricsRow silent = row(1, {{"policy/updates", 0.0}, {"rollout/zero_signal_frac", 1.0}});
  EXPECT_EQ(why_not(read_learning(
                std::vector<MetricsRow>{evaluation(0, 0.4), silent, silent, evaluation(2, 0.4)})),
            "2 of 2 steps made no update: no group had a signal");
  const MetricList skipped = {{"policy/updates_skipped", 2.0}};
  EXPECT_EQ(why(skipped, skipped), "4 of 4 updates were skipped: their gradient was not finite");
  const MetricList no_signal = {{"rollout/zero_signal_frac", 0.95}};
  EXPECT_EQ(why(no_signal, no_signal), "95 % of the groups had no signal");
  const MetricList cut = {{"rollout/truncated_frac", 0.9}};
  EXPECT_EQ(why(cut, cut), "a limit cut 90 % of the samples");
  EXPECT_EQ(why({}, {{"policy/entropy", 0.01}}),
            "the entropy is gone: 0.01 nats a token, from 0.5");
  const MetricList large = {{"policy/kl_old", 0.5}}, small = {{"policy/kl_old", 1e-8}};
  EXPECT_EQ(why(large, large),
            "the updates are too large: 0.5 nats a token from the weights that the step started "
            "from");
  EXPECT_EQ(why(small, small),
            "the updates are too small: 1e-08 nats a token from the weights that the step started "
            "from");
  const MetricList clipped = {{"policy/clipfrac_low", 0.4}};
  EXPECT_EQ(why(clipped, clipped), "42 % of the tokens are clipped");
  EXPECT_EQ(why({}, {}),
            "no single figure says why: 30 % of the groups without signal, entropy 0.5 to 0.5 "
            "nats, 3.0 % of the tokens clipped, kl_old 0.001 nats");
}

}  // namespace
}  // namespace tailrace
