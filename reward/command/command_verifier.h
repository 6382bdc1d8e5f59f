// A program of somebody's own, in any language, as a Verifier. Its evidence is an episode retold
// (retold.h), which the program reads as a JSON line with an "id" besides; it answers with a line
// {"id": ..., "reward": ..., "metrics": {...}}, or {"id": ..., "error": ...}: see docs/rewards.md.
#pragma once

#include <memory>

#include "reward/command/pool.h"
#include "reward/verifier.h"

namespace tailrace {

// No process starts before the first score, and each only with the files that the command has now.
std::unique_ptr<Verifier> make_command_verifier(sandbox::CommandStart command,
                                                CommandPoolOptions options);

}  // namespace tailrace
