// The verifiers that come with the binary: countdown, math, number, program, text_rules.
#pragma once

#include "reward/registry.h"

namespace tailrace {

// A new one is a file in this folder, its line in CMakeLists.txt, and its line in built_in.cc.
VerifierRegistry built_in_verifiers();

}  // namespace tailrace
