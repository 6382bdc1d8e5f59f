// From a config file to options that are whole and valid.
//
// Thread: any.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "cli/run/options.h"
#include "cli/run/registries.h"
#include "core/base/yaml_config.h"

namespace tailrace {

struct LoadedRun {
  RunOptions options;
  ConfigKeys keys;  // where each was given, for messages
};

// Reads, binds and validates. `overrides` are "a.b=c". Throws UserError.
LoadedRun load_run_options(const std::filesystem::path& path,
                           std::span<const std::string> overrides, const Registries& registries);

}  // namespace tailrace
