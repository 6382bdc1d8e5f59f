// Counts the calls of operator new, to show that code allocates nothing.
#pragma once

#include <cstdint>

namespace tailrace {

// Since the program began, from all threads.
int64_t num_allocations();

}  // namespace tailrace
