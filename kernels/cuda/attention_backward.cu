// The gradient of attention: dout . out of each row, then keys and values, then queries, which may
// overwrite dout. Here the first, and the float32 kernels of the others; attention_backward_bf16.cu
// has those that go through tensor cores.
//
// Order of sums: over head_dim, a lane its elements in ascending order, then a butterfly over the
// lanes. float32: dk and dv of a position over the tokens that see it, ascending, of a token over
// the heads of the group; dq over positions, ascending. So nothing depends on the batch.
#include "kernels/cuda/attention_backward.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/rows.cuh"

namespace tailrace::cuda {

namespace {

constexpr int kBackwardWarps = 4, kLaneElements = kMaxHeadDim / 32;

__device__ __forceinline__ int64_t warp_item() {
  return int64_t{blockIdx.x} * kBackwardWarps + static_cast<int>(threadIdx.x) / 32;
}

// A warp a (token, head). T: the operands'.
template <class T>
__global__ void __launch_bounds__(32 * kBackwardWarps) backward_dots_kernel(BackwardCall call) {
  const AttentionCall& forward = call.forward;
  const int64_t item = warp_item();
  if (item >= int64_t{forward.num_tokens} * forward.num_heads) return;
  const int64_t token = item / forward.num_heads, head = item % forward.num_heads;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* dout = call.dout + token * call.dout_stride + head * forward.dim;
  const T* out = static_cast<const T*>(call.out) + token * call.out_stride + head * forward.dim;
  float dot = 0;
  for (int d = lane; d < forward.dim; d += 32) {
    float gradient = dout[d];
    if constexpr (sizeof(T) == sizeof(Bf16)) {
      // As the products see it: the gradients of a row's scores then add up to 0.
      const Bf16 operand = to_bf16(gradient);
      call.dout_bf16[item * forward.dim + d] = operand;
      gradient = to_float(operand);
    }
    dot = fmaf(gradient, to_float(out[d]), dot);
  }
  dot = sum_of_warp(dot);
  if (lane == 0) call.dots[item] = dot;
}

// A lane's elements of a head.
struct HeadPart {
  float x[kLaneElements];

  __device__ __forceinline__ void load(const float* head, int dim) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) x[i] = lane + 32 * i < dim ? head[lane + 32 * i] : 0;
  }
  __device__ __forceinline__ void store(float* head, int dim, float factor) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) {
      if (lane + 32 * i < dim) head[lane + 32 * i] = factor * x[i];
    }
  }
  __device__ __forceinline__ void add(float factor, const HeadPart& other) {
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) x[i] = fmaf(factor, other.x[i], x[i]);
  }
};
__device__ __forceinline__ float dot_of_warp(const HeadPart& a, const HeadPart& b) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kLaneElements; ++i) sum = fmaf(a.x[i], b.x[i], sum);
  return sum_of_warp(sum);
}

// The part of one query in one position: its weight, and the gradient of its unscaled score but for
// the factor `scale`.
struct PairGradient {
  float weight, score;
};
__device__ __forceinline__ PairGradient pair_gradient(const BackwardCall& call, int64_t token,
                                                      int head, const HeadPart& q,
                                                      const HeadPart& dout, const HeadPart& key,
                                                      const HeadPart& value) {
  const float lse = call.lse[token * call.lse_stride + head];
  const float dot = call.dots[token * call.forward.num_heads + head];
  const float weight = expf(fmaf(call.scale, dot_of_warp(q, key), -lse));
  return {weight, weight * (dot_of_warp(dout, value) - dot)};
}

// A warp a (token, kv head): the token's position as others see it.
__global__ void __launch_bounds__(32 * kBackwardWarps) backward_float_kv_kernel(BackwardCall call) {
  const AttentionCall& forward = call.forward;
  const int64_t item = warp_item();
  if (item >= int64_t{forward.num_tokens} * forward.num_kv_heads) return;
  const int64_t token = item / forward.num_kv_heads;
  const int kv_head = static_cast<int>(item % forward.num_kv_heads), dim = forward.dim;
  const int sequence = sequence_of(forward.seq_offsets, forward.num_sequences, token);
  const int64_t first_token = forward.seq_offsets[sequence];
  const int position = static_cast<int>(token - first_token);
  const int num_tokens = static_cast<int>(forward.seq_offsets[sequence + 1] - first_token);
  const int64_t cached = cached_at(forward, forward.tables + int64_t{sequence} * forward.max_blocks,
                                   kv_head, position);
  HeadPart key, value, dk = {}, dv = {};
  key.load(static_cast<const float*>(forward.keys) + cached, dim);
  value.load(static_cast<const float*>(forward.values) + cached, dim);
  for (int p = position; p <= call.last_seen_by(position, num_tokens); ++p) {
    for (int g = 0; g < forward.group; ++g) {
      const int head = kv_head * forward.group + g;
      const int64_t row = first_token + p;
      HeadPart q, dout;
      q.load(static_cast<const float*>(forward.q) + row * forward.q_stride + head * dim, dim);
      dout.load(call.dout + row * call.dout_stride + head * dim, dim);
      const PairGradient pair = pair_gradient(call, row, head, q, dout, key, value);
      dv.add(pair.weight, dout);
      dk.add(pair.score, q);
    }
  }
  dk.store(call.dk + token * call.dk_stride + kv_head * dim, dim, call.scale);
  dv.store(call.dv + token * call.dv_stride + kv_head * dim, dim, 1);
}

// A warp a (token, head), which alone reads what it overwrites.
__global__ void __launch_bounds__(32 * kBackwardWarps) backward_float_q_kernel(BackwardCall call) {
  const AttentionCall& forward = call.forward;
  const int64_t item = warp_item();
  if (item >= int64_t{forward.num_tokens} * forward.num_heads) return;
  const int64_t token = item / forward.num_heads;
  const int head = static_cast<int>(item % forward.num_heads), kv_head = head / forward.group;
  const int dim = forward.dim;
  const int sequence = sequence_of(forward.seq_offsets, forward.num_sequences, token);
  const int position = static_cast<int>(token - forward.seq_offsets[sequence]);
  const int32_t* table = forward.tables + int64_t{sequence} * forward.max_blocks;
  HeadPart q, dout, dq = {};
  q.load(static_cast<const float*>(forward.q) + token * forward.q_stride + head * dim, dim);
  dout.load(call.dout + token * call.dout_stride + head * dim, dim);
  for (int p = forward.first_seen(position); p <= position; ++p) {
    const int64_t cached = cached_at(forward, table, kv_head, p);
    HeadPart key, value;
    key.load(static_cast<const float*>(forward.keys) + cached, dim);
    value.load(static_cast<const float*>(forward.values) + cached, dim);
    dq.add(pair_gradient(call, token, head, q, dout, key, value).score, key);
  }
  dq.store(call.dq + token * call.dq_stride + head * dim, dim, call.scale);
}

void launch_warps(const Stream& stream, void (*kernel)(BackwardCall), int64_t items,
                  const BackwardCall& call) {
  launch(kernel, dim3(static_cast<unsigned>((items + kBackwardWarps - 1) / kBackwardWarps)),
         dim3(32 * kBackwardWarps), 0, stream, call);
}

void check_backward(const Stream& stream, const AttentionBackward& args) {
  const int64_t rows = args.batch.num_tokens(), cols = args.q.cols;
  const int64_t kv_cols = int64_t{args.kv.num_kv_heads} * args.kv.head_dim;
  TR_CHECK(args.q.dtype == args.kv.dtype && args.out.dtype == args.kv.dtype,
           "dtypes of q, out and the cache");
  TR_CHECK(args.out.device == stream.device, "out of a device");
  TR_CHECK(args.out.rows == rows && args.out.cols == cols && args.dout.rows == rows &&
               args.dout.cols == cols && args.dq.rows == rows && args.dq.cols == cols,
           "out [{}, {}], dout [{}, {}], dq [{}, {}], q [{}, {}]", args.out.rows, args.out.cols,
           args.dout.rows, args.dout.cols, args.dq.rows, args.dq.cols, rows, cols);
  TR_CHECK(args.dk.rows == rows && args.dk.cols == kv_cols && args.dv.rows == rows &&
               args.dv.cols == kv_cols,
           "dk [{}, {}], dv [{}, {}], {} rows of {}", args.dk.rows, args.dk.cols, args.dv.rows,
           args.dv.cols, rows, kv_cols);
  TR_CHECK(args.lse.rows == rows && args.lse.cols == args.heads.num_heads, "lse [{}, {}]",
           args.lse.rows, args.lse.cols);
}

}  // namespace

void attention_backward(const Stream& stream, Workspace& workspace, const AttentionBackward& args) {
  BackwardCall call;
  call.forward = attention_call(stream, args.q, args.heads, args.batch, args.kv);
  check_backward(stream, args);
  const AttentionCall& forward = call.forward;
  if (forward.num_tokens == 0) return;
  const auto lse = args.lse.on<float>(stream.device), dout = args.dout.on<float>(stream.device);
  const auto dq = args.dq.on<float>(stream.device), dk = args.dk.on<float>(stream.device),
             dv = args.dv.on<float>(stream.device);
  call.out = args.out.data;
  call.out_stride = args.out.stride;
  call.lse = lse.data;
  call.lse_stride = lse.stride;
  call.dout = dout.data;
  call.dout_stride = dout.stride;
  call.dq = dq.data;
  call.dq_stride = dq.stride;
  call.dk = dk.data;
  call.dk_stride = dk.stride;
  call.dv = dv.data;
  call.dv_stride = dv.stride;
  call.scale = args.heads.scale;

  Workspace::Scope scope(workspace);
  const bool is_float = args.kv.dtype == Dtype::kF32;
  const auto scratch = backward_scratch(workspace, forward.num_tokens, forward.num_heads,
                                        is_float ? 0 : forward.dim);
  call.dots = scratch.dots.data();
  call.dout_bf16 = scratch.dout_bf16.data();
  const int64_t items = int64_t{forward.num_tokens} * forward.num_heads;
  if (!is_float) {
    launch_warps(stream, backward_dots_kernel<Bf16>, items, call);
    return attention_backward_bf16(stream, call);
  }
  launch_warps(stream, backward_dots_kernel<float>, items, call);
  launch_warps(stream, backward_float_kv_kernel, int64_t{forward.num_tokens} * forward.num_kv_heads,
               call);
  launch_warps(stream, backward_float_q_kernel, items, call);
}

}  // namespace tailrace::cuda
