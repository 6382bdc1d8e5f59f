// cuBLASLt as a LibraryProducts. It is loaded, never linked.
#pragma once

#include "kernels/cuda/library_products.h"

namespace tailrace::cuda {

// Null: it is not found, is of another major version than the toolkit of this build, or this build
// knows no cublasLt.h. Lives as long as the process.
LibraryProducts* load_cublaslt();

}  // namespace tailrace::cuda
