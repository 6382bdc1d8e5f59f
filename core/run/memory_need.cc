#include "core/run/memory_need.h"

#include <limits>

#include <fmt/format.h>

#include "core/base/error.h"

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

void require_memory(const MemoryNeed& need, const MemoryFacts& machine) {
  // 0: the system does not say.
  if (machine.available_bytes <= 0 || need.bytes <= machine.available_bytes) return;
  const std::string limit =
      machine.cgroup_limit_bytes > 0
          ? fmt::format(" of the {} of its cgroup", format_bytes(machine.cgroup_limit_bytes))
          : "";
  throw UserError("{} needs {} of memory and {} are free{}: {} (--dry-run shows what each takes).",
                  need.process, format_bytes(need.bytes), format_bytes(machine.available_bytes),
                  limit, need.cure);
}

void refuse_without_memory(const MemoryNeed& need, const MemoryFacts& machine) {
  throw UserError(
      "{} needs {} of memory and did not get them, though {} are free: is there a limit (ulimit "
      "-v)? Raise it, or {} (--dry-run shows what each takes).",
      need.process, format_bytes(need.bytes), format_bytes(machine.available_bytes), need.cure);
}

}  // namespace tailrace
