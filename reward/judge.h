// Scores evidence with a verifier by name: what reward workers, `eval` and demonstrations share.
//
// Thread: any.
#pragma once

#include <string>

#include "core/base/result.h"
#include "reward/registry.h"
#include "reward/verifier.h"

namespace tailrace {

// A Failure when no score came out of it: no such verifier, evidence that it cannot read, an
// exception, a reward that is not finite. It names the verifier. Never throws, and takes as long as
// the verifier, which is told its budget.
Result<Score> judge(const VerifierRegistry& verifiers, const std::string& verifier,
                    const std::string& evidence, Time budget);

}  // namespace tailrace
