// The plan of a run without a step of it: `tailrace plan --quick`, and `tailrace launch`, which
// begins with it.
//
// Thread: one.
#pragma once

#include <cstdio>
#include <filesystem>
#include <string>

#include "cli/inputs/load.h"
#include "cli/prepare/placed_run.h"
#include "cli/prepare/plan.h"
#include "core/run/run_directory.h"

namespace tailrace {

struct QuickPlan {
  RunPaths paths;
  bool is_new = true;  // no run has begun there
  PlacedRun placed;
  Plan plan;
  std::string text;
};

// Where a run lives: `given`, else run.dir, else a new folder below runs/.
std::filesystem::path directory_of(const RunOptions& options, const std::string& given);

// `built_in`: without the libraries of the config. Shows its notes on `notes`, and throws UserError
// for all that can be found wrong without the directory.
QuickPlan quick_plan(const LoadedRun& loaded, const std::filesystem::path& directory,
                     const Registries& built_in, std::FILE* notes = stdout);

void show_quick_plan(const QuickPlan& quick);

}  // namespace tailrace
