// The start of an update, AdamW on a flat range, and the sum of squares that clips it.
//
// Order of the sum of squares, in double: of n elements the first min(kSquaresBlocks, n /
// kSquaresPiece, rounded up) blocks have the pieces in turn; a thread adds its elements of a
// block's pieces in ascending order; then a tree over the block, and a second launch adds the sums
// of the blocks in the same way.
#include <algorithm>
#include <limits>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/rows.cuh"

namespace tailrace::cuda {
namespace {

constexpr int kFlatThreads = 256, kFlatWarps = kFlatThreads / 32;
// Elements of a block, of a thread four at a time: what a block computes once is nothing beside it.
constexpr int64_t kAdamwPiece = 16 * kFlatThreads, kSquaresPiece = 16 * kFlatThreads;

__global__ void begin_update_kernel(UpdateState* state, const float* rates, int64_t num_rates,
                                    int64_t first_rate, double max_grad_norm) {
  const double norm = sqrt(state->sum_of_squares);
  const bool skips = !(norm <= std::numeric_limits<double>::max());  // NaN too
  state->grad_norm = norm;
  state->skips = skips;
  if (skips) {
    state->lr = state->grad_scale = 0;
    ++state->skipped;
    return;
  }
  const int64_t updates = state->updates + 1, rate = updates - first_rate;
  state->updates = updates;
  // No kernel can fail a check: an update before the first rate makes weights that nobody
  // overlooks.
  state->lr = rate < 0 ? NAN : rates[min(rate, num_rates - 1)];
  const double clipped = max_grad_norm / (norm + 1e-6);
  state->grad_scale = max_grad_norm > 0 && clipped < 1 ? static_cast<float>(clipped) : 1.0f;
}

struct AdamwStep {
  AdamWConstants constants;
  float rest1 = 0, rest2 = 0;  // 1 - beta
  float *parameters = nullptr, *m = nullptr, *v = nullptr;
  const float* gradients = nullptr;
  int64_t size = 0;
  bool wide = false;
};

// The factors of one update. No default values: it lies in shared memory.
struct AdamwFactors {
  float grad_scale, unbias1, unbias2, decay, minus_lr;
};

// The operations of kernels/cpu/adamw.cc, in their order.
__device__ __forceinline__ void step_element(const AdamwStep& a, const AdamwFactors& f,
                                             float gradient, float& p, float& m, float& v) {
  const float g = gradient * f.grad_scale;
  m = fmaf(a.constants.beta1, m, a.rest1 * g);
  v = fmaf(a.constants.beta2, v, a.rest2 * g * g);
  // Decay acts on the weight before the step.
  p = fmaf(f.decay, p, p);
  const float root = sqrtf(v * f.unbias2) + a.constants.eps;
  p = fmaf(f.minus_lr, m * f.unbias1 / root, p);
}

__global__ void __launch_bounds__(kFlatThreads)
    adamw_kernel(const UpdateState* state, AdamwStep a) {
  __shared__ AdamwFactors factors;
  if (state->skips) return;
  if (threadIdx.x == 0) {
    const auto t = static_cast<double>(state->updates);
    factors.grad_scale = state->grad_scale;
    // 1 - beta^t in double: with beta2 = 0.999 a float power would cost the first updates three of
    // its seven digits.
    factors.unbias1 = static_cast<float>(1.0 / (1.0 - pow(double{a.constants.beta1}, t)));
    factors.unbias2 = static_cast<float>(1.0 / (1.0 - pow(double{a.constants.beta2}, t)));
    factors.decay = static_cast<float>(-double{state->lr} * double{a.constants.weight_decay});
    factors.minus_lr = -state->lr;
  }
  __syncthreads();
  const AdamwFactors f = factors;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kAdamwPiece;
  const int64_t end = min(begin + kAdamwPiece, a.size);
  for (int64_t i = begin + 4 * static_cast<int64_t>(threadIdx.x); i < end; i += 4 * kFlatThreads) {
    const int64_t left = a.size - i;
    const float4 g = load_four(a.gradients + i, left, a.wide);
    float4 p = load_four(a.parameters + i, left, a.wide);
    float4 m = load_four(a.m + i, left, a.wide), v = load_four(a.v + i, left, a.wide);
    step_element(a, f, g.x, p.x, m.x, v.x);
    step_element(a, f, g.y, p.y, m.y, v.y);
    step_element(a, f, g.z, p.z, m.z, v.z);
    step_element(a, f, g.w, p.w, m.w, v.w);
    store_four(a.parameters + i, p, left, a.wide);
    store_four(a.m + i, m, left, a.wide);
    store_four(a.v + i, v, left, a.wide);
  }
}

// The sum over the block's threads, in thread 0 alone; `sums` [kFlatWarps] shared.
__device__ __forceinline__ double tree_of_block(double x, double* sums) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int bits = 16; bits > 0; bits /= 2) x += __shfl_xor_sync(~0u, x, bits);
  if (thread % 32 == 0) sums[thread / 32] = x;
  __syncthreads();
  if (thread >= 32) return 0;
  x = thread < kFlatWarps ? sums[thread] : 0.0;
  for (int bits = kFlatWarps / 2; bits > 0; bits /= 2) x += __shfl_xor_sync(~0u, x, bits);
  return x;
}

// In double the squares of floats are exact, and no float is too large: an overflow is a gradient
// that was not finite.
__device__ __forceinline__ double added_square(double sum, float x) {
  return sum + double{x} * double{x};
}

__global__ void __launch_bounds__(kFlatThreads)
    squares_kernel(const float* x, int64_t size, bool wide, double* partial) {
  __shared__ double sums[kFlatWarps];
  double sum = 0;
  for (int64_t begin = blockIdx.x * kSquaresPiece; begin < size;
       begin += gridDim.x * kSquaresPiece) {
    const int64_t end = min(begin + kSquaresPiece, size);
#pragma unroll
    for (int64_t at = 0; at < kSquaresPiece; at += 4 * kFlatThreads) {
      const int64_t i = begin + at + 4 * static_cast<int64_t>(threadIdx.x);
      const float4 v = load_four(x + i, end - i, wide);
      sum = added_square(sum, v.x);
      sum = added_square(sum, v.y);
      sum = added_square(sum, v.z);
      sum = added_square(sum, v.w);
    }
  }
  sum = tree_of_block(sum, sums);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kFlatThreads)
    join_squares_kernel(const double* partial, int count, double* total) {
  __shared__ double sums[kFlatWarps];
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kFlatThreads) sum += partial[i];
  sum = tree_of_block(sum, sums);
  if (threadIdx.x == 0) *total = sum;
}

}  // namespace

void begin_update(const Stream& stream, const BeginUpdate& args) {
  TR_CHECK(args.state.size() == 1 && !args.rates.empty(), "state [{}], rates [{}]",
           args.state.size(), args.rates.size());
  launch(begin_update_kernel, dim3(1), dim3(1), 0, stream, args.state.data(), args.rates.data(),
         static_cast<int64_t>(args.rates.size()), args.first_rate, args.max_grad_norm);
}

void adamw(const Stream& stream, const AdamW& args) {
  const auto& [state, constants, parameters, gradients, m, v] = args;
  TR_CHECK(gradients.size() == parameters.size() && m.size() == parameters.size() &&
               v.size() == parameters.size(),
           "{} parameters, {} gradients, {} m, {} v", parameters.size(), gradients.size(), m.size(),
           v.size());
  TR_CHECK(state.size() == 1, "state [{}]", state.size());
  if (parameters.empty()) return;
  AdamwStep a;
  a.constants = constants;
  a.rest1 = static_cast<float>(1.0 - double{constants.beta1});
  a.rest2 = static_cast<float>(1.0 - double{constants.beta2});
  a.parameters = parameters.data();
  a.gradients = gradients.data();
  a.m = m.data();
  a.v = v.data();
  a.size = static_cast<int64_t>(parameters.size());
  a.wide = rows_are_wide(a.parameters, 4) && rows_are_wide(a.gradients, 4) &&
           rows_are_wide(a.m, 4) && rows_are_wide(a.v, 4);
  launch(adamw_kernel, dim3(static_cast<unsigned>((a.size - 1) / kAdamwPiece + 1)),
         dim3(kFlatThreads), 0, stream, state.data(), a);
}

void sum_of_squares(const Stream& stream, const SumOfSquares& args) {
  const auto& [x, sum, scratch] = args;
  TR_CHECK(sum.size() == 1 && scratch.size() >= kSquaresBlocks, "sum [{}], scratch [{}]",
           sum.size(), scratch.size());
  const auto size = static_cast<int64_t>(x.size());
  const int64_t pieces = (size + kSquaresPiece - 1) / kSquaresPiece;
  const int blocks = static_cast<int>(std::min<int64_t>(kSquaresBlocks, pieces));
  if (blocks > 0)
    launch(squares_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kFlatThreads), 0, stream,
           x.data(), size, rows_are_wide(x.data(), 4), scratch.data());
  launch(join_squares_kernel, dim3(1), dim3(kFlatThreads), 0, stream, scratch.data(), blocks,
         sum.data());
}

}  // namespace tailrace::cuda
