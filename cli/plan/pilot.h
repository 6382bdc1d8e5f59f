// The costs of a run's step beside its model: processes, messages, the journal, environments and
// rewards. A pilot finds out: a few steps of the same config, with all of its processes, on a
// policy so small that its arithmetic hardly counts.
//
// Thread: any.
#pragma once

#include <filesystem>

#include "cli/inputs/resolved_run.h"
#include "cli/plan/quiet_steps.h"
#include "core/model/model_config.h"
#include "core/run/run_directory.h"

namespace tailrace {

// `options` with a tiny policy, short answers and no warm-up, in synchronous mode. `model`: of the
// run. A policy in files gets a stand-in below `folder`, with its tokenizer.
RunOptions pilot_options(const RunOptions& options, const ModelConfig& model,
                         const std::filesystem::path& folder);

// Launches it as the run `paths` by `program`, the tailrace binary, and waits for its end, for a
// minute at most; its files beside the run go into `folder`. Returns a step as if nobody
// else used the machine. Throws UserError with its last words when it fails.
QuietStep run_pilot(const ResolvedRun& pilot, const std::filesystem::path& program,
                    const std::filesystem::path& folder, const RunPaths& paths);

}  // namespace tailrace
