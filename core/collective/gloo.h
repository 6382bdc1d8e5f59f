// Ranks on CPUs, over TCP, by Gloo.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "core/collective/collective.h"

namespace tailrace {

struct GlooOptions {
  // Where the ranks find each other: a folder that all of them see, of this group alone. It is
  // made, and is of no use once the ranks have met.
  std::filesystem::path folder;
  int rank = 0, size = 1;
  std::string address = "127.0.0.1";  // of this machine, that the others reach
  // Within each call, for one that stands still. A process that died is noticed within seconds,
  // and those that connect have as long.
  std::chrono::milliseconds timeout{300'000};
};

// The bytes that a sum of so many values takes beside them.
int64_t sum_bytes(int size, int64_t values);

// Says that this rank is here; another one that has not said so, or nullopt. Who has other things
// to hear meanwhile waits so, and who may be busy comes last: then join_ranks() is a matter of a
// moment. Throws RankLost where the folder cannot be written.
void arrive(const GlooOptions& options);
std::optional<int> missing_rank(const GlooOptions& options);

// Connects with all ranks. Throws RankLost when one does not come within `timeout` or 15 s,
// whichever is less: one that has said that it is here may have died since. Whoever destroys what
// it gets waits up to 10 s for ranks that are still within a call.
std::unique_ptr<Collective> join_ranks(const GlooOptions& options);

}  // namespace tailrace
