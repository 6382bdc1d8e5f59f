#include "scheduler/state/run_share.h"

#include <algorithm>

namespace tailrace::scheduler {

int64_t num_running(const Policy& policy, int32_t domain) {
  int64_t running = std::ssize(policy.domains[static_cast<size_t>(domain)].carried);
  for (const Round& round : policy.rounds)
    running += round.shares[static_cast<size_t>(domain)].running;
  return running;
}

std::vector<int64_t> prompts_used(const Config& config, const Policy& policy) {
  std::vector<int64_t> used;
  for (int32_t i = 0; i < std::ssize(policy.domains); ++i) {
    const Domain& domain = policy.domains[static_cast<size_t>(i)];
    const int64_t launched =
        domain.epoch * config.domains[static_cast<size_t>(i)].prompts_per_epoch + domain.next;
    const auto waiting = domain.queued.size() + domain.long_queue.size() + domain.parked.size() +
                         domain.ready.size();
    used.push_back(launched - static_cast<int64_t>(waiting) - num_running(policy, i));
  }
  return used;
}

namespace {

// The share by the data alone; 0 where some of it has no end. A run goes on until its last dataset
// has ended, and each keeps its part of a step.
double share_of_data(const Config& config, const std::vector<int64_t>& used) {
  double total = 0, left = 0;  // steps
  for (size_t i = 0; i < config.domains.size(); ++i) {
    const DomainConfig& domain = config.domains[i];
    if (domain.prompts_per_step == 0) continue;
    if (domain.prompts_per_epoch == 0 || domain.epochs == 0) return 0;
    const auto prompts =
        static_cast<double>(domain.prompts_per_epoch) * static_cast<double>(domain.epochs);
    const auto a_step = static_cast<double>(domain.prompts_per_step);
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
