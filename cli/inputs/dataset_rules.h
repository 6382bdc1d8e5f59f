// The rules of `datasets` and `env`: what a run plays, and who can score it. Mistakes of a person
// are a UserError with the key, not yet with its place (rules.h).
//
// Thread: any.
#pragma once

#include <span>

#include "cli/config/datasets.h"
#include "cli/config/options.h"
#include "cli/inputs/registries.h"
#include "core/config/yaml_config.h"
#include "sandbox/environment.h"

namespace tailrace {

// Names that are names, and a place in each step for each.
void validate_datasets(const RunOptions& o, std::span<const RunDataset> datasets,
                       const ConfigKeys& keys);

// One dataset with its environment, which is returned.
sandbox::EnvironmentInfo validate_dataset(const RunOptions& o, const RunDataset& dataset,
                                          const Registries& registries);

}  // namespace tailrace
