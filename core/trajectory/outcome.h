// How an attempt ended (design section 5). The first two enter group statistics; the others are
// failures of the infrastructure or decisions of the scheduler, and never rewards.
#pragma once

#include <cstdint>
#include <string_view>

namespace tailrace {

enum class Outcome : uint8_t {
  kFinished,
  kTruncated,
  kEnvFailed,
  kVerifierFailed,
  kLost,
  kStale,
  kAborted,
};
std::string_view name(Outcome outcome);

// There are tokens to be scored and trained on.
inline bool has_sample(Outcome outcome) {
  return outcome == Outcome::kFinished || outcome == Outcome::kTruncated;
}

}  // namespace tailrace
