// The memory that a process holds, item by item, and whether the machine has it.
//
// Linux promises memory that it does not have, and kills whoever touches it. So a process compares
// what it needs with what is free before it takes any. The sizes come from functions beside the
// code that allocates, which allocates by the same ones.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/machine.h"

namespace tailrace {

struct MemoryItem {
  std::string name;
  int64_t bytes = 0;
  // False: an upper bound of what depends on what is sampled, or an estimate. No process refuses to
  // begin for it.
  bool certain = true;
  bool of_turn = false;  // of the turns of a role that shares its device (run.colocate)
};

// The memory of a process that may compute on a device beside the CPU.
struct PlacedMemory {
  std::vector<MemoryItem> host = {}, device = {};  // without such a device the second is empty
};

// The largest number where it would be more: sizes are bounded one by one, their sums are not.
int64_t total_bytes(std::span<const MemoryItem> items);
int64_t certain_bytes(std::span<const MemoryItem> items);

// The memory need of one process, for a message.
struct MemoryNeed {
  std::string_view process;  // "the trainer"
  std::string_view cure;     // "lower train.microbatch_tokens"
  int64_t bytes = 0;
};

// Throws UserError when less is free. A machine that does not say passes.
void require_memory(const MemoryNeed& need, const MemoryFacts& machine);

// Throws what a process says that was not given its memory all the same.
[[noreturn]] void refuse_without_memory(const MemoryNeed& need, const MemoryFacts& machine);

}  // namespace tailrace
