// What a process holds in memory, item by item. The sizes come from functions beside the code that
// allocates, which allocates by the same ones.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tailrace {

struct MemoryItem {
  std::string name;
  int64_t bytes = 0;
  // False: an upper bound of what depends on what is sampled, or an estimate.
  bool certain = true;
};

// The largest number where it would be more: sizes are bounded one by one, their sums are not.
int64_t total_bytes(std::span<const MemoryItem> items);
int64_t certain_bytes(std::span<const MemoryItem> items);

}  // namespace tailrace
