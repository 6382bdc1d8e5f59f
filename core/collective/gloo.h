// Ranks on CPUs, over TCP, by Gloo.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "core/collective/collective.h"

namespace tailrace {

struct GlooOptions {
  // Where the ranks find each other: a folder that all of them see, of this group alone. It is
  // made, and is of no use once the ranks have met.
  std::filesystem::path folder;
  int rank = 0, size = 1;
  std::string address = "127.0.0.1";  // of this machine, that the others reach
  // For the others to come, and within each call. A process that died is noticed at once; this is
  // for one that stands still.
  std::chrono::milliseconds timeout{300'000};
};

// What a sum takes beside its values.
int64_t sum_bytes(int size);

// Says that this rank is here; whether all have said so. Who has other things to hear meanwhile
// waits so: then join_ranks() is a matter of a moment. Throws RankLost where the folder cannot be
// written.
void arrive(const GlooOptions& options);
bool all_arrived(const GlooOptions& options);

// Waits for all ranks. Throws RankLost when one does not come in time.
std::unique_ptr<Collective> join_ranks(const GlooOptions& options);

}  // namespace tailrace
