// A whole run of the binary that a bench was built beside.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "bench/report/report.h"
#include "core/run/metrics.h"

namespace tailrace {

// Overrides of a run: "section.key=value" each.
using Keys = std::vector<std::string>;

// Both, where a key is given once: of two values the one in `more` stays.
Keys joined(Keys keys, const Keys& more);
// The keys of a person, by name, for the heading of a report.
void add_settings(Settings& settings, const Keys& overrides);

// Where the binary and the folder of the benches are.
std::filesystem::path build_folder();

// `launch CONFIG --run-dir DIRECTORY key=value ...` until it ends; its output goes to
// DIRECTORY.log. `name` says in messages which run it was. Throws UserError for a mistake of the
// config or a directory that is there already, WrongResult when the run itself failed.
void launch_run(const std::string& name, const std::string& config,
                const std::filesystem::path& directory, const Keys& overrides);
// The same, where a run of this config may be there already: it goes on to its end. UserError where
// it has another config.
void continue_run(const std::string& name, const std::string& config,
                  const std::filesystem::path& directory, const Keys& overrides);

// Why `launch` would refuse this config: the message for a person. Empty: it would run.
std::string refusal(const std::string& config, const Keys& overrides);

// The last line that the binary prints with these words, which goes to `log`. Throws WrongResult
// where it fails.
std::string last_line_of(const std::vector<std::string>& words, const std::filesystem::path& log);

// Creates `folder` and writes the config there, as `name`. Returns its path. Throws UserError.
std::string write_config(const std::filesystem::path& folder, const std::string& name,
                         const std::string& text);

// Launches a run for its supervised warm-up alone. Returns the folder of the weights, which are
// saved before the one step that the run makes.
std::filesystem::path warm_up(const std::string& name, const std::string& config,
                              const std::filesystem::path& directory, const Keys& overrides);
// `keys` less those of the warm-up, for a run of the same config that starts from `weights`.
Keys from_weights(Keys keys, const std::filesystem::path& weights);

// Its rows of metrics; throws UserError.
std::vector<MetricsRow> metrics_of(const std::filesystem::path& directory);

// 0 where the row does not have it.
double value_of(const MetricsRow& row, std::string_view name);

}  // namespace tailrace
