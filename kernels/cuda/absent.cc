// A build without CUDA.
#include "kernels/cuda/provide.h"

namespace tailrace {

void provide_cuda() {}

}  // namespace tailrace
