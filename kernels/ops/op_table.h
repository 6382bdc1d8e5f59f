// The ops of a backend other than the CPU's, as it hands them to dispatch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"
#include "kernels/ops/all.h"
#include "kernels/ops/end_drawn.h"
#include "kernels/ops/policy_gradient.h"
#include "kernels/ops/row_digests.h"

namespace tailrace {

// All of common.inc and of gpu.inc, and what belongs to them.
struct OpTable {
#define TR_OP(op, Args) void (*op)(const Stream& stream, const Args& args) = nullptr;
#define TR_OP_SCRATCH(op, Args) \
  void (*op)(const Stream& stream, Workspace& workspace, const Args& args) = nullptr;
#include "kernels/ops/common.inc"
#include "kernels/ops/gpu.inc"
#undef TR_OP
#undef TR_OP_SCRATCH

  Weight (*pack_weight)(const Stream& stream, ConstTensor master, Dtype dtype,
                        std::span<std::byte> memory) = nullptr;
  void (*unpack_rows)(const Stream& stream, const Weight& weight, int64_t first,
                      Matrix rows) = nullptr;
  size_t (*weight_bytes)(Dtype dtype, int64_t out, int64_t in) = nullptr;
  void (*prove_products)(const Stream& stream, Dtype dtype, int64_t out, int64_t in) = nullptr;
  void (*digest_rows)(const Stream& stream, const RowDigests& args) = nullptr;
  size_t (*linear_grad_workspace_bytes)(int64_t tokens, int64_t out, int64_t in) = nullptr;
  size_t (*attention_workspace_bytes)(int64_t rows, int num_heads, int num_kv_heads, int head_dim,
                                      int max_context) = nullptr;
  size_t (*linear_logprob_workspace_bytes)(int64_t rows, int64_t vocab, int64_t dim) = nullptr;
  size_t (*sample_workspace_bytes)(int64_t rows, int64_t vocab) = nullptr;
};

// Before the first op on a device of that kind.
void provide_ops(DeviceKind kind, const OpTable& table);

}  // namespace tailrace
