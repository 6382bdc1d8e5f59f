// The ops that a GPU has alone (kernels/ops/gpu.inc), as cuda.h has the common ones.
#pragma once

#include "kernels/ops/end_drawn.h"
#include "kernels/ops/policy_gradient.h"

namespace tailrace::cuda {

#define TR_OP(op, Args) void op(const Stream& stream, const Args& args);
#include "kernels/ops/gpu.inc"
#undef TR_OP

}  // namespace tailrace::cuda
