#include "core/base/memory_need.h"

#include <limits>

namespace tailrace {
namespace {

int64_t sum(std::span<const MemoryItem> items, bool certain_only) {
  int64_t total = 0;
  for (const MemoryItem& item : items) {
    if (certain_only && !item.certain) continue;
    if (__builtin_add_overflow(total, item.bytes, &total))
      return std::numeric_limits<int64_t>::max();
  }
  return total;
}

}  // namespace

int64_t total_bytes(std::span<const MemoryItem> items) {
  return sum(items, /*certain_only=*/false);
}
int64_t certain_bytes(std::span<const MemoryItem> items) {
  return sum(items, /*certain_only=*/true);
}

}  // namespace tailrace
