#include "scheduler/simulator/summary.h"

#include <algorithm>
#include <vector>

namespace tailrace::simulator {
namespace {

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle - 1] + values[middle]) / 2;
}

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

}  // namespace

RunSummary summary_of(std::span<const StepRecord> steps) {
  RunSummary summary;
  if (steps.empty()) return summary;
  std::vector<double> seconds, rollout, train;
  int64_t old_tokens = 0;
  for (const StepRecord& step : steps) {
    seconds.push_back(step.ended - step.begun);
    rollout.push_back(step.handed - step.begun);
    train.push_back(step.ended - step.handed);
    summary.samples += step.samples;
    summary.tokens += step.tokens;
    old_tokens += step.old_tokens;
    summary.longest = std::max(summary.longest, step.longest);
    // By samples: a mean over steps would count those of a short step for more.
    summary.staleness_mean += step.staleness_mean * static_cast<double>(step.samples);
    summary.staleness_max = std::max(summary.staleness_max, step.staleness_max);
  }
  const auto count = static_cast<double>(steps.size()),
             samples = static_cast<double>(summary.samples),
             tokens = static_cast<double>(summary.tokens);
  summary.steps = std::ssize(steps);
  summary.seconds = steps.back().ended - steps.front().begun;
  summary.step_mean = summary.seconds / count;
  summary.step_median = median(std::move(seconds));
  summary.rollout_median = median(std::move(rollout));
  summary.train_median = median(std::move(train));
  summary.samples_per_step = samples / count;
  summary.tokens_per_step = tokens / count;
  summary.tokens_per_s = ratio(tokens, summary.seconds);
  summary.tokens_per_sample = ratio(tokens, samples);
  summary.staleness_mean = ratio(summary.staleness_mean, samples);
  summary.old_tokens = ratio(static_cast<double>(old_tokens), tokens);
  return summary;
}

}  // namespace tailrace::simulator
