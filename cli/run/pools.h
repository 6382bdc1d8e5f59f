// The rollout workers of a run by pools (law 1.5), whichever way its config says so: the list
// `rollout.pools`, or `rollout.workers`, which are one pool without a name.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/run/options.h"

namespace tailrace {

// In the order of the config; at least one. `max_sequences` is what each has: its own or
// rollout.max_sequences.
std::vector<PoolSection> pools_of(const RunOptions& options);

// Pools whose workers a launch starts: they are in no cluster. There may be none.
std::vector<PoolSection> launched_pools(const RunOptions& options);

// The rollout workers of all launched pools together.
int64_t num_rollout_workers(const RunOptions& options);

// The pool of the launched worker of this index: they are numbered pool by pool.
PoolSection pool_of_worker(const RunOptions& options, int64_t index);

// The pool of this name. Throws UserError when the run has none, or has several and the name is
// empty.
PoolSection pool_to_join(const RunOptions& options, std::string_view name);

// Throws UserError unless it may name a pool or a cluster. `flag`: how a person gave it.
void check_site_name(std::string_view flag, std::string_view name);

// Names that are names, and in each pool that a dataset names somebody; in each cluster that a pool
// names somebody who can join. Throws UserError.
void validate_pools(const RunOptions& options);

// The names of the datasets that this pool may sample for training.
std::vector<std::string> datasets_in(const RunOptions& options, std::string_view pool);
// Held-out prompts go to this pool alone (eval.pool).
bool evaluates_all(const RunOptions& options, std::string_view pool);

}  // namespace tailrace
