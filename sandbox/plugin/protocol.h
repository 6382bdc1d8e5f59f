// The words of host.h and hosted_library.h.
#pragma once

#include <cstdint>

namespace tailrace::sandbox {

// To the host, and its answers in the same order. With kOpen goes the socket of the session;
// `value` of the answer is 0, or an errno below 0. kGone kills the session; `value` is how it has
// ended, as waitpid() says it.
enum class HostRequest : int32_t { kOpen = 1, kGone = 2 };
struct HostMessage {
  uint64_t session = 0;
  HostRequest request = HostRequest::kOpen;
  int32_t value = 0;
};

// To a session. The first is kEnvironment or kReward, with a name and settings.
enum class SessionRequest : uint8_t {
  kEnvironment = 1,  // answered with its EnvironmentInfo
  kReward,
  kReset,  // seed, row; answered with a StepResult
  kStep,   // action
  kCut,
  kClose,
  kSampleAction,  // seed of random numbers; answered with a text
  kDemonstrate,
  kScore,     // evidence, budget in ns; answered with a reward and metrics
  kCheckRow,  // row
};

// Answers begin with a byte: 1, or 0 and a Failure.

inline constexpr uint64_t kMostRequest = uint64_t{256} << 20, kMostAnswer = uint64_t{16} << 20;

}  // namespace tailrace::sandbox
