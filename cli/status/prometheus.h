// A run in the text format of Prometheus (version 0.0.4), for its scrapers and whatever else reads
// it: OpenTelemetry's collector, Grafana's agent, VictoriaMetrics.
//
//   tailrace_reward_mean 0.61           the newest value of reward/mean (docs/metrics.md)
//   tailrace_worker_connected{worker="rollout-0",role="rollout",host="gpu-7"} 1
//
// Thread: any.
#pragma once

#include <span>
#include <string>

#include "cli/status/status_facts.h"
#include "core/run/metrics.h"

namespace tailrace {

// The newest value of each metric of `rows`, and what `status` knows. A metric whose name becomes
// that of an earlier one (a/b_c, a/b/c) is left out, with a comment.
std::string prometheus_text(const RunStatus& status, std::span<const MetricsRow> rows);

}  // namespace tailrace
