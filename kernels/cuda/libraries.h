// Libraries of CUDA that are loaded when the process runs: they are hundreds of megabytes, and a
// binary that links them does not start where they lack.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/backend.h"

namespace tailrace::cuda {

// cublasLt and nccl: looked for in $TAILRACE_CUDA_LIBRARIES (folders, with colons), where the
// loader looks, in the toolkit ($CUDA_HOME, /usr/local/cuda) and in the `nvidia` folders of the
// Pythons on this machine. Each is loaded by this, and stays so.
std::vector<LibraryFacts> load_libraries();

// One of them, for dlsym(); null: it is not found, or could not be loaded.
void* load_library(const std::string& name);

}  // namespace tailrace::cuda
