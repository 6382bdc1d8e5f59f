#include "cli/view/signal.h"

#include <cmath>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "core/base/join_texts.h"

namespace tailrace {
namespace {

const double* silent_share(const MetricsRow& row) { return row.find("rollout/zero_signal_frac"); }

std::string many(double count, std::string_view what) {
  return fmt::format("{:.0f} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

std::string signal_of_step(const MetricsRow& row) {
  const double* silent = silent_share(row);
  // Rows of an older build do not have it.
  const double* groups = row.find("rollout/groups");
  if (silent == nullptr || groups == nullptr || *silent <= 0.5) return "";
  return fmt::format("no signal in {} of {} groups", std::llround(*silent * *groups),
                     std::llround(*groups));
}

std::string exclusions_of_step(const MetricsRow& row) {
  std::vector<std::string> parts;
  if (const double* failed = row.find("rollout/failed_prompts"); failed && *failed > 0)
    parts.push_back(many(*failed, "prompt") + " failed");
  if (const double* failed = row.find("rollout/failed_samples"); failed && *failed > 0)
    parts.push_back(many(*failed, "sample") + " failed for good");
  if (const double* share = row.find("rollout/infra_failed_frac"); share && *share >= 0.005)
    parts.push_back(fmt::format("{:.0f} % of attempts failed", *share * 100));
  return join_texts(parts, ", ");
}

std::string exclusions_of_run(std::span<const MetricsRow> rows) {
  double failed = 0, samples = 0, broken = 0, unscored = 0;
  for (const MetricsRow& row : rows) {
    if (const double* more = row.find("rollout/failed_prompts")) failed += *more;
    if (const double* more = row.find("rollout/failed_samples")) samples += *more;
    // Counted over the whole run by the scheduler, unlike the sums above.
    if (const double* all = row.find("rollout/broken_tasks")) broken = *all;
    if (const double* held_out = row.find("eval/failed")) unscored = *held_out;
  }
  std::vector<std::string> parts;
  if (failed > 0) parts.push_back(many(failed, "prompt") + " failed for good");
  if (samples > 0) parts.push_back(many(samples, "sample") + " of trained groups failed for good");
  if (broken > 0) parts.push_back(many(broken, "broken task"));
  if (unscored > 0)
    parts.push_back(many(unscored, "held-out episode") +
                    " of the last evaluation without a reward");
  if (parts.empty()) return "";
  return fmt::format("excluded: {}; the logs of the run say why", join_texts(parts, ", "));
}

}  // namespace tailrace
