// Files that a run needs before its first process starts: the resolved config, the tokenizer, and
// demonstrations. Done once; a run that is launched again finds it there.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cli/config/options.h"
#include "cli/inputs/fitted_prompts.h"
#include "cli/inputs/registries.h"
#include "cli/inputs/resolved_run.h"
#include "cli/inputs/stage_rows.h"
#include "cli/prepare/placed_run.h"
#include "cli/prepare/plan.h"
#include "core/run/run_directory.h"
#include "sandbox/registry.h"

namespace tailrace {

// The scheduler's config. Reads the datasets for their length. Throws UserError with its key:
// an unreadable row; a run that could not end or go on.
scheduler::Config scheduler_config(const ResolvedRun& run);
// The law on this machine, where an evaluation may have to end before a step begins.
scheduler::Config on_this_machine(scheduler::Config law, const PlacedRun& placed);

// Reads the datasets that a run names, and its tokenizer, before anything is written. Throws
// UserError with its key: as scheduler_config() does; with file:line, for an unreadable row, one
// that its verifier cannot score, or prompts that do not fit the context; for more eval.prompts
// than held-out rows, and for a tokenizer that is missing or has more tokens than the model.
// Returns what a person should know.
std::vector<std::string> check_inputs(const PlacedRun& placed, const Registries& registries);

// A run's files hold answers, and what its verifiers run must not find them: throws UserError
// about run.dir.
void check_run_is_hidden(const std::filesystem::path& directory, const ResolvedRun& run,
                         const Registries& registries);

// Reads the weights that a new run starts from. Throws UserError about model.path, as
// load_parameters() does.
void check_policy(const PlacedRun& placed);

// The plan of a run, when all that it reads is as it should be: make_plan(), check_inputs(),
// try_rewards(), and of a new run check_policy(). Throws UserError as they do. `paths`: of a run
// that goes on, which keeps its chat template.
Plan checked_plan(const RunPaths& paths, const PlacedRun& placed, const Registries& registries,
                  bool is_new);

// Writes what is missing, each file atomically: config.yaml first, so that a launch that is killed
// in here can be launched again. `say` gets a line for what takes time. Throws UserError: a
// tokenizer that cannot be read, a demonstrator that fails, a full disk. `rows`: those that the
// plan has read (StagePlan::files), and `prompts` those that it has fitted (Plan::prompts); what is
// not there is read again.
void prepare_run(const RunPaths& paths, const PlacedRun& placed, const Registries& registries,
                 const std::function<void(const std::string&)>& say,
                 std::vector<StageFiles> rows = {}, std::vector<FittedPrompts> prompts = {});

// `options` as config.yaml keeps them: without the directory, so that the file starts the same run
// anywhere.
std::string resolved_config(const RunOptions& options);

// For a directory that holds a run: throws UserError about the first key that differs, when
// its options are not the run's own, nor such as a run that goes on may have (OptionInfo::resume).
void check_same_run(const RunPaths& paths, const ResolvedRun& run, const Registries& registries);

}  // namespace tailrace
