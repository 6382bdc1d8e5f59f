// The environments that come with the binary.
#pragma once

#include "sandbox/registry.h"

namespace tailrace::sandbox {

// A new one is a file in this folder, its line in CMakeLists.txt, and its line in built_in.cc.
EnvironmentRegistry built_in_environments();

}  // namespace tailrace::sandbox
