#include "core/trajectory/outcome.h"

namespace tailrace {

std::string_view name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kFinished:
      return "finished";
    case Outcome::kTruncated:
      return "truncated";
    case Outcome::kEnvFailed:
      return "env_failed";
    case Outcome::kVerifierFailed:
      return "verifier_failed";
    case Outcome::kLost:
      return "lost";
    case Outcome::kStale:
      return "stale";
    case Outcome::kAborted:
      return "aborted";
  }
  // No default case above: so the compiler names an outcome that is missing.
  return "unknown";
}

}  // namespace tailrace
