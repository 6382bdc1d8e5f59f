// How an attempt ended (design section 5). The first two enter group statistics; the others are
// failures of the infrastructure, decisions of the scheduler, or the word of an environment or a
// verifier that nobody can play the task, and never rewards. The numbers are on disk: new ones are
// added behind.
#pragma once

#include <cstdint>

#include "core/base/enum_names.h"

namespace tailrace {

enum class Outcome : uint8_t {
  kFinished,
  kTruncated,
  kEnvFailed,
  kVerifierFailed,
  kLost,
  kStale,
  kAborted,
  kTaskBroken,
};
constexpr auto enum_names(Outcome) {
  return name_table<Outcome>({{Outcome::kFinished, "finished"},
                              {Outcome::kTruncated, "truncated"},
                              {Outcome::kEnvFailed, "env_failed"},
                              {Outcome::kVerifierFailed, "verifier_failed"},
                              {Outcome::kLost, "lost"},
                              {Outcome::kStale, "stale"},
                              {Outcome::kAborted, "aborted"},
                              {Outcome::kTaskBroken, "task_broken"}});
}

// There are tokens to be scored and trained on.
inline bool has_sample(Outcome outcome) {
  return outcome == Outcome::kFinished || outcome == Outcome::kTruncated;
}

}  // namespace tailrace
