// What verifiers measured of episodes, besides the reward: for the metrics, until the body goes.
// Kept in memory alone: it is lost with the process, unlike rewards.
//
// Thread: the service's only.
#pragma once

#include <map>

#include "core/base/ids.h"
#include "core/trajectory/trajectory.h"

namespace tailrace::scheduler {

class Verdicts {
 public:
  void keep(const BodyId& id, const MetricList& metrics) {
    if (!metrics.empty()) metrics_[id] = metrics;
  }
  void forget(const BodyId& id) { metrics_.erase(id); }
  void add_to(EpisodeFacts& episode) const {
    const auto more = metrics_.find({episode.lane, episode.lease});
    if (more == metrics_.end()) return;
    episode.metrics.insert(episode.metrics.end(), more->second.begin(), more->second.end());
  }

 private:
  std::map<BodyId, MetricList> metrics_;
};

}  // namespace tailrace::scheduler
