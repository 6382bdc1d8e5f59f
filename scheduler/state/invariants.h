// Invariants between the parts of a State (law 15), checked after every event of the tests.
#pragma once

#include <optional>
#include <string>

#include "scheduler/state/state.h"

namespace tailrace::scheduler {

// The first violation, in words, or nothing:
//  - a prompt is in exactly one of {dataset, queued, running, ready, handed over, done};
//  - the credit law, per policy and dataset;
//  - leases, waiting lists, worker loads and member phases tell the same story;
//  - versions: published <= frontier, a lineage without holes, batches without holes, nothing
//    sampled from weights older than its launch;
//  - nobody holds or needs weights that were let go;
//  - what is derived (index, tables, counts) is what would be made anew.
std::optional<std::string> find_violation(const State& state);

}  // namespace tailrace::scheduler
