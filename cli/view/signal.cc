#include "cli/view/signal.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace tailrace {
namespace {

const double* silent_share(const MetricsRow& row) { return row.find("rollout/zero_signal_frac"); }

// Rows of evaluations and of the warm-up are none.
bool is_step(const MetricsRow& row) { return row.find("reward/mean") != nullptr; }

}  // namespace

int64_t steps_without_signal(std::span<const MetricsRow> rows) {
  int64_t count = 0;
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
    if (!is_step(*row)) continue;
    const double* silent = silent_share(*row);
    if (silent == nullptr || *silent < 1) break;
    ++count;
  }
  return count;
}

std::string signal_of_step(const MetricsRow& row) {
  const double* silent = silent_share(row);
  // Rows of an older build do not have it.
  const double* groups = row.find("rollout/groups");
  if (silent == nullptr || groups == nullptr || *silent <= 0.5) return "";
  return fmt::format("no signal in {} of {} groups", std::llround(*silent * *groups),
                     std::llround(*groups));
}

bool is_solved(std::span<const MetricsRow> rows) {
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
    if (!is_step(*row)) continue;
    const double* success = row->find("env/success");
    return success != nullptr && *success >= 1;
  }
  return false;
}

std::string signal_of_run(std::span<const MetricsRow> rows) {
  const int64_t silent = steps_without_signal(rows), steps = std::ranges::count_if(rows, is_step);
  if (silent == 0 || (silent < steps && silent < kSilentSteps)) return "";
  const std::string which = silent < steps ? fmt::format("the last {} of {} steps", silent, steps)
                            : steps == 1   ? "the only step"
                                           : fmt::format("any of the {} steps", steps);
  if (is_solved(rows))
    return fmt::format(
        "No signal in {}: each sample of the last step was a success, so that the policy has "
        "nothing more to learn from this task.",
        which);
  return fmt::format(
      "No signal in {}: in each group all rewards were equal, so that nothing was learned from "
      "them.",
      which);
}

}  // namespace tailrace
