#include "cli/prepare/cluster_plan.h"

#include <fmt/format.h>

#include "cli/config/counted.h"
#include "cli/config/listen.h"
#include "core/base/join_texts.h"
#include "core/base/machine.h"
#include "core/base/time.h"

namespace tailrace {
namespace {

// Over a link that carries nothing else.
double seconds_over(int64_t mbit, int64_t bytes) {
  return static_cast<double>(bytes) * 8 / (static_cast<double>(mbit) * 1e6);
}

std::string time_text(double seconds) {
  if (seconds < 0.001) return "less than 1 ms";
  if (seconds < 1) return fmt::format("{:.0f} ms", seconds * 1000);
  return seconds < 100 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.0f} s", seconds);
}

}  // namespace

std::vector<std::string> describe_cluster(const RunOptions& o, const ClusterSection& cluster,
                                          int64_t version_bytes) {
  std::vector<std::string> pools, joins;
  int64_t workers = 0;
  const std::string join = fmt::format("join with tailrace worker --join {}", address_to_join(o));
  for (const PoolSection& pool : o.rollout_processes.pools) {
    if (pool.cluster != cluster.name) continue;
    pools.push_back(pool.name);
    workers += pool.workers;
    joins.push_back(fmt::format("{} --pool {} --cluster {} ...", join, pool.name, cluster.name));
  }
  if (o.reward.workers == 0)
    joins.push_back(fmt::format("{} --role reward --cluster {} ...", join, cluster.name));
  if (joins.empty()) joins.push_back(fmt::format("{} --cluster {} ...", join, cluster.name));
  std::string text =
      pools.empty() ? "no pool of rollout workers"
                    : fmt::format("{} ({} {})", counted(workers, "rollout worker"),
                                  pools.size() == 1 ? "pool" : "pools", join_texts(pools, ", "));
  if (cluster.link_mbit > 0) {
    const double seconds = seconds_over(cluster.link_mbit, version_bytes);
    text += fmt::format(
        ", link {} Mbit/s: the first version of {} takes {} at best, later ones come as deltas",
        cluster.link_mbit, format_bytes(version_bytes), time_text(seconds));
  }
  joins.insert(joins.begin(), fmt::format("{}: {}", cluster.name, text));
  return joins;
}

}  // namespace tailrace
