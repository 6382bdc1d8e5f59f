#include "bench/run/learning.h"

#include <cmath>

#include <fmt/format.h>

#include "bench/report/program.h"
#include "bench/run/launched_run.h"

namespace tailrace {
namespace {

// Bounds beyond which a figure is a reason. They are coarse on purpose: what learns well in this
// bench stays within a third of each.
constexpr double kMostSteps = 0.5, kMostGroups = 0.8, kMostSamples = 0.8;
constexpr double kManySkipped = 0.1, kManyClipped = 0.3;
constexpr double kSmallKl = 1e-5, kLargeKl = 0.3;
constexpr double kEntropyLeft = 0.1;  // of what it was

}  // namespace

Learning read_learning(std::span<const MetricsRow> rows) {
  Learning learned;
  for (const MetricsRow& row : rows) {
    if (const double* success = row.find("eval/success")) {
      const auto step = static_cast<double>(row.step);
      learned.success.emplace_back(step, *success);
      learned.reward.emplace_back(step, value_of(row, "eval/reward"));
      learned.episodes = value_of(row, "eval/episodes");
    }
    if (row.find("policy/updates") == nullptr) continue;  // of the warm-up
    ++learned.steps;
    learned.updates += value_of(row, "policy/updates");
    learned.skipped += value_of(row, "policy/updates_skipped");
    learned.zero_signal += value_of(row, "rollout/zero_signal_frac");
    learned.truncated += value_of(row, "rollout/truncated_frac");
    const double* entropy = row.find("policy/entropy");
    if (entropy == nullptr) {
      ++learned.steps_without_update;
      continue;
    }
    if (learned.steps - learned.steps_without_update == 1) learned.first_entropy = *entropy;
    learned.last_entropy = *entropy;
    learned.kl_old += value_of(row, "policy/kl_old");
    for (const char* bound : {"low", "high", "dual"})
      learned.clipped += value_of(row, fmt::format("policy/clipfrac_{}", bound));
  }
  require(!learned.success.empty(), "no evaluation reports a success");
  const auto mean = [](double& sum, int64_t n) { sum /= static_cast<double>(n > 0 ? n : 1); };
  mean(learned.zero_signal, learned.steps);
  mean(learned.truncated, learned.steps);
  mean(learned.clipped, learned.steps - learned.steps_without_update);
  mean(learned.kl_old, learned.steps - learned.steps_without_update);
  return learned;
}

double binomial_error(const Learning& learning) {
  // With one success and one failure more (Agresti and Caffo): a few episodes that all fail are no
  // proof that all others would.
  const double n = learning.episodes;
  const auto variance = [n](double share) {
    const double moved = (share * n + 1) / (n + 2);
    return moved * (1 - moved) / (n + 2);
  };
  return std::sqrt(variance(learning.start()) + variance(learning.final()));
}

std::string why_not(const Learning& l) {
  const auto steps = static_cast<double>(l.steps);
  if (static_cast<double>(l.steps_without_update) > kMostSteps * steps)
    return fmt::format("{} of {} steps made no update: no group had a signal",
                       l.steps_without_update, l.steps);
  if (l.skipped > kManySkipped * l.updates)
    return fmt::format("{} of {} updates were skipped: their gradient was not finite", l.skipped,
                       l.updates);
  if (l.zero_signal > kMostGroups)
    return fmt::format("{:.0f} % of the groups had no signal", 100 * l.zero_signal);
  if (l.truncated > kMostSamples)
    return fmt::format("a limit cut {:.0f} % of the samples", 100 * l.truncated);
  if (l.last_entropy < kEntropyLeft * l.first_entropy)
    return fmt::format("the entropy is gone: {:.2g} nats a token, from {:.2g}", l.last_entropy,
                       l.first_entropy);
  if (l.kl_old > kLargeKl)
    return fmt::format(
        "the updates are too large: {:.2g} nats a token from the weights that the "
        "step started from",
        l.kl_old);
  if (l.clipped > kManyClipped)
    return fmt::format("{:.0f} % of the tokens are clipped", 100 * l.clipped);
  if (l.kl_old < kSmallKl)
    return fmt::format(
        "the updates are too small: {:.2g} nats a token from the weights that the "
        "step started from",
        l.kl_old);
  return fmt::format(
      "no single figure says why: {:.0f} % of the groups without signal, entropy {:.2g} to {:.2g} "
      "nats, {:.1f} % of the tokens clipped, kl_old {:.2g} nats",
      100 * l.zero_signal, l.first_entropy, l.last_entropy, 100 * l.clipped, l.kl_old);
}

}  // namespace tailrace
