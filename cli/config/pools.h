// The rollout workers of a run by pools (law 1.5), whichever way its config says so: the list
// `rollout.pools`, or `rollout.workers`, which are one pool without a name.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/config/datasets.h"
#include "cli/config/options.h"

namespace tailrace {

// In the order of the config; at least one. `max_sequences` is what each has: its own or
// rollout.max_sequences. For resolve(), and for rules; all others have ResolvedRun::pools.
std::vector<PoolSection> pools_of(const RunOptions& options);

// The pool of the launched worker of this index: they are numbered pool by pool. `launched`:
// ResolvedRun::launched_pools.
PoolSection pool_of_worker(std::span<const PoolSection> launched, int64_t index);

// The one of `pools` that has this name. Throws UserError when the run has none, or has several and
// the name is empty.
PoolSection pool_to_join(std::span<const PoolSection> pools, std::string_view name);

// Throws UserError unless it may name a pool or a cluster. `flag`: how a person gave it.
void check_site_name(std::string_view flag, std::string_view name);

// Names that are names, and in each pool that a dataset names somebody; in each cluster that a pool
// names somebody who can join. Throws UserError.
void validate_pools(const RunOptions& options, std::span<const RunDataset> datasets);

// The names of the datasets that this pool may sample for training.
std::vector<std::string> datasets_in(std::span<const RunDataset> datasets, std::string_view pool);
// Held-out prompts go to this pool alone (eval.pool).
bool evaluates_all(const RunOptions& options, std::string_view pool);

}  // namespace tailrace
