// A run in the text format of Prometheus (version 0.0.4), for its scrapers and whatever else reads
// it: OpenTelemetry's collector, Grafana's agent, VictoriaMetrics.
//
//   tailrace_reward_mean 0.61           the newest value of reward/mean (docs/metrics.md)
//   tailrace_worker_connected{worker="rollout-0",role="rollout",host="gpu-7"} 1
//
// Thread: any.
#pragma once

#include <map>
#include <string>

#include "cli/status/status_facts.h"

namespace tailrace {

// What `status` knows, and the newest value of each metric. Of a run that nobody drives the workers
// are not connected, and how long the scheduler is quiet is left out; of one that cannot be read
// (LiveFeed: "unknown") all but that. A metric whose name becomes
// that of an earlier one (a/b_c, a/b/c) is left out, with a comment.
std::string prometheus_text(const RunStatus& status, const std::map<std::string, double>& newest);

}  // namespace tailrace
