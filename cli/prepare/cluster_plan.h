// A plan's part about clusters elsewhere: who is awaited from them, and what their links have to
// carry.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/config/options.h"

namespace tailrace {

// Lines about one cluster: the first what is awaited from it and what its link has to carry, the
// others how its workers join. `version_bytes`: of a whole version of the weights.
std::vector<std::string> describe_cluster(const RunOptions& options, const ClusterSection& cluster,
                                          int64_t version_bytes);

}  // namespace tailrace
