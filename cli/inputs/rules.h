// Rules that must hold between the sections of a run, beyond each option list's own.
#pragma once

#include "cli/config/options.h"
#include "cli/inputs/registries.h"
#include "core/config/yaml_config.h"

namespace tailrace {

// Where nobody gives weights.keep_sampled, it is true for versions of at most so many bytes: with
// the checkpoints of the defaults these are at most 9 GiB.
inline constexpr int64_t kMostSampledVersionBytes = int64_t{64} << 20;

// Refuses combinations that cannot work, and keys that were given another value than the default
// but that nothing would read. Where an override, or a file that extends another, switched off what
// such a key belongs to, the key goes back to its default, with a note in `keys`. Fills in defaults
// that depend on other sections. `registries` know which settings an environment takes and who can
// score its episodes. What needs the length of the data is for scheduler_config() to refuse. Throws
// UserError, with its place.
void validate(RunOptions& options, ConfigKeys& keys, const Registries& registries);

// The same for a simulation, with the pools of its hardware file. It needs neither a policy nor an
// environment: a config without one, or with one that `registries` do not know, keeps the rules of
// what is there and gets the derived values of it.
void validate_simulated(RunOptions& options, ConfigKeys& keys, const Registries& registries);

}  // namespace tailrace
