// From a config file to a run: its options, valid, and what follows from them (resolve()).
//
// Thread: any.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "cli/config/hardware_file.h"
#include "cli/config/options.h"
#include "cli/inputs/registries.h"
#include "cli/inputs/resolved_run.h"
#include "core/config/yaml_config.h"
#include "core/run/run_directory.h"

namespace tailrace {

struct LoadedRun {
  ResolvedRun run;
  ConfigKeys keys;        // where each was given, for messages
  Registries registries;  // those that were handed in, and what the config's libraries add
};

// Reads, binds and validates. `overrides` are "a.b=c". `run_dir`: of a run that may have begun, in
// the place of run.dir; empty: that counts. Throws UserError.
LoadedRun load_run_options(const std::filesystem::path& path,
                           std::span<const std::string> overrides, const Registries& registries,
                           const std::filesystem::path& run_dir = {});

// The same for a simulation on this hardware (validate_simulated). Programs and libraries that are
// not here are done without.
LoadedRun load_simulated_run(const std::filesystem::path& path,
                             std::span<const std::string> overrides, const HardwareFile& hardware,
                             const Registries& registries);

// Loads a begun run: config.yaml as its launch has written it. Throws UserError for one that
// was edited since, or that lacks a key which a run keeps; what may change comes as an override. A
// launch asks its libraries anew (kApart); all others believe what it has written.
LoadedRun load_stored_run(const RunPaths& paths, std::span<const std::string> overrides,
                          const Registries& registries, LibraryUse use = LibraryUse::kOfRun);

// A run needs no more of lora.adapter than its shape once it has a checkpoint: points `options` to
// the run's copy where the folder is gone.
void find_kept_adapter(const RunPaths& paths, RunOptions& options);
// Where the reward model of reward.stage is, or will be: in the run. Before with_libraries().
void find_trained_model(const RunPaths& paths, RunOptions& options);

// The text of config.yaml: `config` behind a line that proves it.
std::string prove_config(const std::string& title, const std::string& config);

}  // namespace tailrace
