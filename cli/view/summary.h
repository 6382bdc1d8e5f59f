// The one line with which a run ends.
//
// Thread: any.
#pragma once

#include <chrono>
#include <span>
#include <string>

#include "core/run/metrics.h"
#include "core/run/run_directory.h"

namespace tailrace {

// "quickstart: success 0.39 -> 0.99 (held-out, 512 episodes), 61 s, run: runs/quickstart-...", from
// the first and the last evaluation; without evaluations, "reward 0.21 -> 0.78 (training)" from the
// first and last steps. Below it stands what was excluded, and the gravest finding about the health
// of the run, by the text of its config.
std::string run_summary(std::span<const MetricsRow> rows, const std::string& name,
                        std::chrono::seconds elapsed, const std::string& directory,
                        const std::string& config = "");

// The summary of the run in this directory.
std::string run_summary(const RunPaths& paths, const std::string& name,
                        std::chrono::seconds elapsed);

}  // namespace tailrace
