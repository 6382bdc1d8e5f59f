// Numbers for names that nobody else has or can guess: sessions, incarnations, folders. Drawn by
// the system, and never for what a run computes.
//
// Thread: any.
#pragma once

#include <cstdint>

namespace tailrace {

// Never 0.
uint64_t unique_number();

}  // namespace tailrace
