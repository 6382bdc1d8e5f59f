// What a run learned by its own metrics, and what stood in its way.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/run/metrics.h"

namespace tailrace {

struct Learning {
  // Held-out success and reward, by step: the first is that of the start.
  std::vector<std::pair<double, double>> success, reward;
  double episodes = 0;  // of an evaluation
  int64_t steps = 0;

  // Sums over the steps.
  double updates = 0, skipped = 0;
  int64_t steps_without_update = 0;
  // Means over the steps: shares of groups and of samples.
  double zero_signal = 0, truncated = 0;
  // Means over the steps that made an update: shares of tokens; nats a token.
  double clipped = 0, kl_old = 0;
  // Nats a token: of the first step that made an update, and of the last.
  double first_entropy = 0, last_entropy = 0;

  double start() const { return success.front().second; }
  double final() const { return success.back().second; }
};

// Of the rows of a run; of at least one evaluation. Throws WrongResult.
Learning read_learning(std::span<const MetricsRow> rows);

// Standard error of final() less start(), as of two independent evaluations. Both are of the same
// held-out episodes, so the true one is smaller.
double binomial_error(const Learning& learning);

// One sentence: what the metrics name as the reason that a run has not learned, the plainest
// first. Where they name none it gives the figures.
std::string why_not(const Learning& learning);

}  // namespace tailrace
