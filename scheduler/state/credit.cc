#include "scheduler/state/credit.h"

namespace tailrace::scheduler {

int64_t credit(const Config& config, int32_t dataset) {
  const Ratio& ahead = config.mode.ahead;
  const int64_t q = config.datasets[static_cast<size_t>(dataset)].prompts_per_step;
  // Whole integers first, so that the rest of a fraction is cut off once.
  return (ahead.denominator + ahead.numerator) * q / ahead.denominator;
}

int64_t reserved(const Policy& policy, int32_t dataset) {
  int64_t sum = 0;
  for (const Round& round : policy.rounds) {
    const Share& share = round.shares[static_cast<size_t>(dataset)];
    // Not `launch_target`: a surplus that counted would take the places of groups that are kept
    // (law 3.2).
    sum += share.target - share.accepted;
  }
  return sum;
}

int64_t credit_held(const Policy& policy, int32_t dataset) {
  int64_t held =
      std::ssize(policy.datasets[static_cast<size_t>(dataset)].ready) + reserved(policy, dataset);
  // While a rollback is replayed, batches up to the frontier were published once: they hold no
  // credit.
  for (auto batch = policy.batches.upper_bound(policy.frontier); batch != policy.batches.end();
       ++batch) {
    held += batch->second.datasets[static_cast<size_t>(dataset)];
  }
  return held;
}

}  // namespace tailrace::scheduler
