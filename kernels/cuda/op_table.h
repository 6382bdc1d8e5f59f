// The backend's ops as dispatch takes them.
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/product_table.h"
#include "kernels/cuda/row_digests.h"
#include "kernels/ops/op_table.h"

namespace tailrace::cuda {

inline OpTable op_table() {
  return {
#define TR_OP(op, Args) .op = cuda::op,
#define TR_OP_SCRATCH(op, Args) .op = cuda::op,
#include "kernels/ops/common.inc"
#include "kernels/ops/gpu.inc"
#undef TR_OP
#undef TR_OP_SCRATCH
      .pack_weight = pack_weight,
      .unpack_rows = unpack_rows,
      .weight_bytes = weight_bytes,
      .prove_products = prove_products,
      .digest_rows = digest_rows,
      .linear_grad_workspace_bytes = linear_grad_workspace_bytes,
      .attention_workspace_bytes = attention_workspace_bytes,
      .linear_logprob_workspace_bytes = linear_logprob_workspace_bytes,
      .sample_workspace_bytes = sample_workspace_bytes,
  };
}

}  // namespace tailrace::cuda
