// Removal of versions from a folder: those that nobody needs, and payloads to which deltas
// lead.
//
// Thread: any; one that tidies a policy.
#pragma once

#include <cstdint>
#include <filesystem>
#include <stop_token>

#include "core/base/ids.h"
#include "core/base/result.h"

namespace tailrace {

struct Retention {
  int64_t below = 0;             // versions below are needed by nobody
  int64_t fetched_from = 0;      // payloads below are fetched by nobody: deltas are enough
  int64_t evaluated = -1;        // but for this one; -1: none
  int64_t anchor_interval = 10;  // every so many versions one keeps its payload while it is needed
};
// Removes versions of before `newest` that nobody needs, and payloads to which deltas lead; of each
// such delta it is proved first that it does. Versions above `newest`, of before a rollback, are
// left alone: they are replaced as they come. What cannot be done (a full disk) is a Failure; what
// is needed is there all the same.
Result<void> tidy_versions(const std::filesystem::path& folder, PolicyId policy, int64_t newest,
                           const Retention& retention, const std::stop_token& stop = {});

}  // namespace tailrace
