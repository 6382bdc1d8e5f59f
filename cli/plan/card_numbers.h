// The speed of a card that is not here, from its data sheet and the sizes of a policy: the keys of
// the hardware file that it does not give.
//
// Thread: any.
#pragma once

#include <string>
#include <vector>

#include "cli/config/options.h"
#include "core/config/yaml_config.h"
#include "core/model/model_config.h"

namespace tailrace {

// The policy whose sizes are taken where those of the run are not known here: dense, of 8 B
// parameters in bfloat16.
ModelConfig usual_policy();

// Fills in `options.simulate`. `keys`: those that the hardware file gives. `config`: of the policy,
// or usual_policy(). `is_known`: the former. Nothing is changed of hardware that is no card. Throws
// UserError where the KV cache that the run asks for holds no whole context.
void fill_from_cards(RunOptions& options, const ConfigKeys& keys, const ModelConfig& config,
                     bool is_known);

}  // namespace tailrace
