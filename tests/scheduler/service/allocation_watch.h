// Counts allocations of one size: the mark of something that a thread must not do.
//
// It replaces operator new of the whole program.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tailrace {

// From now on counts what this thread allocates of exactly `bytes` (0: nothing). Returns how many
// there were of the size before.
int64_t allocations_of(size_t bytes);

}  // namespace tailrace
