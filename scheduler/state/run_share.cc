#include "scheduler/state/run_share.h"

#include <algorithm>

namespace tailrace::scheduler {

int64_t num_running(const Policy& policy, int32_t dataset) {
  int64_t running = std::ssize(policy.datasets[static_cast<size_t>(dataset)].carried);
  for (const Round& round : policy.rounds)
    running += round.shares[static_cast<size_t>(dataset)].running;
  return running;
}

std::vector<int64_t> prompts_used(const Config& config, const Policy& policy) {
  std::vector<int64_t> used;
  for (int32_t i = 0; i < std::ssize(policy.datasets); ++i) {
    const Dataset& dataset = policy.datasets[static_cast<size_t>(i)];
    const int64_t launched =
        dataset.epoch * config.datasets[static_cast<size_t>(i)].prompts_per_epoch + dataset.next;
    // Groups in a batch are in none of these, and so count as used (law 3.10).
    const auto waiting = dataset.queued.size() + dataset.long_queue.size() + dataset.parked.size() +
                         dataset.ready.size();
    used.push_back(launched - static_cast<int64_t>(waiting) - num_running(policy, i));
  }
  return used;
}

namespace {

// The share by the data alone; 0 where some of it has no end. A run goes on until its last dataset
// has ended, and each keeps its part of a step.
double share_of_data(const Config& config, const std::vector<int64_t>& used) {
  double total = 0, left = 0;  // steps
  for (size_t i = 0; i < config.datasets.size(); ++i) {
    const DatasetConfig& dataset = config.datasets[i];
    if (dataset.prompts_per_step == 0) continue;
    if (dataset.prompts_per_epoch == 0 || dataset.epochs == 0) return 0;
    const auto prompts =
        static_cast<double>(dataset.prompts_per_epoch) * static_cast<double>(dataset.epochs);
    const auto a_step = static_cast<double>(dataset.prompts_per_step);
    const double gone = i < used.size() ? static_cast<double>(used[i]) : 0;
    total = std::max(total, prompts / a_step);
    left = std::max(left, (prompts - gone) / a_step);
  }
  return total > 0 ? 1 - left / total : 0;
}

}  // namespace

double share_done(const Config& config, int64_t step, const std::vector<int64_t>& used) {
  const double by_steps =
      config.steps > 0 ? static_cast<double>(step) / static_cast<double>(config.steps) : 0;
  return std::clamp(std::max(by_steps, share_of_data(config, used)), 0.0, 1.0);
}

}  // namespace tailrace::scheduler
