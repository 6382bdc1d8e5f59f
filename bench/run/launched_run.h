// A whole run of the binary that a bench was built beside.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/metrics.h"

namespace tailrace {

// Where the binary and the folder of the benches are.
std::filesystem::path build_folder();

// `launch CONFIG --run-dir DIRECTORY key=value ...` until it ends; its output goes to
// DIRECTORY.log. `name` says in messages which run it was. Throws UserError for a mistake of the
// config or a directory that is there already, WrongResult when the run itself failed.
void launch_run(const std::string& name, const std::string& config,
                const std::filesystem::path& directory, const std::vector<std::string>& overrides);

// Its rows of metrics; throws UserError.
std::vector<MetricsRow> metrics_of(const std::filesystem::path& directory);

}  // namespace tailrace
