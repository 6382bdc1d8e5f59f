// Sums of exponentials over a row of logits, by one block of threads: what sample() and the ops of
// log_softmax.h share, so that their numbers are the same bits.
//
// Order of a sum: a row is cut into blocks of kVocabBlock values. A warp takes a block: lane l has
// the values 4 l + 128 j + {0, 1, 2, 3} of it, j = 0 ... 3, and adds them in ascending order; the
// lanes are joined by exchanges over 16, 8, 4, 2, 1. The blocks are brought to the row's maximum;
// lane l of one warp adds the blocks l, l + 32, ... in ascending order, and the lanes are joined as
// before. So a sum depends on the number of values and on nothing else of the launch. A kept set is
// the same row of values, found through its ids.
#pragma once

#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/ops/log_softmax.h"

namespace tailrace::cuda {

constexpr int kBlock = static_cast<int>(kVocabBlock);
static_assert(kBlock == 512, "16 values a lane");

constexpr int num_vocab_blocks(int size) { return (size + kBlock - 1) / kBlock; }

// Rows that do not fill the multiprocessors get more warps each, which changes no bits.
inline dim3 threads_of_row(int vocab, int64_t rows) {
  return dim3(static_cast<unsigned>(32 * std::min(num_vocab_blocks(vocab), rows < 132 ? 32 : 16)));
}

// Sums of a block. `max` is finite or +-inf, whatever NaN is among the values; a NaN is in `sum`.
struct BlockSum {
  float max, sum, weighted;  // sums of e^u and of u e^u, u = z' - max
};
struct RowSums {
  float lse, entropy;
};

__device__ __forceinline__ float lowest() { return __uint_as_float(0xFF800000u); }

__device__ __forceinline__ float max_of_warp(float x) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, bits));
  return x;
}

// For u e^u, which is 0 where e^u is, also for u = -inf.
__device__ __forceinline__ float finite_exponent(float u) { return fmaxf(u, -200.0f); }

__device__ __forceinline__ BlockSum sum_block(float (&z)[16]) {
  float max = lowest();
#pragma unroll
  for (int i = 0; i < 16; ++i) max = fmaxf(max, z[i]);  // passes over NaN
  max = max_of_warp(max);
  // Where all is -inf, z' - max would be NaN, though the block only has probability 0.
  const float shift = max == lowest() ? 0.0f : max;
  float sum = 0, weighted = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float u = z[i] - shift, e = expf(u);
    sum += e;
    weighted = fmaf(e, finite_exponent(u), weighted);
  }
  return {max, sum_of_warp(sum), sum_of_warp(weighted)};
}

// All threads come here. `blocks` in shared memory, [ceil(size / kBlock)]. `load4(i, v)` gives
// values [i, i + 4), i a multiple of 4, not scaled, for i + 4 <= size; `load(i)` one. The result is
// that of every thread of the first warp.
template <class Load4, class Load>
__device__ __forceinline__ RowSums sum_row(int size, float inv_temperature, BlockSum* blocks,
                                           const Load4& load4, const Load& load) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int num_blocks = num_vocab_blocks(size);
  __syncthreads();  // who read `blocks` before has done so
  for (int block = thread / 32; block < num_blocks; block += warps) {
    float z[16];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = block * kBlock + 128 * j + 4 * lane;
      float v[4];
      if (at + 4 <= size) {
        load4(at, v);
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) v[e] = at + e < size ? load(at + e) : 0.0f;
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) z[4 * j + e] = at + e < size ? v[e] * inv_temperature : lowest();
    }
    const BlockSum sum = sum_block(z);
    if (lane == 0) blocks[block] = sum;
  }
  __syncthreads();
  if (thread >= 32) return {};
  float max = lowest();
  for (int block = lane; block < num_blocks; block += 32) max = fmaxf(max, blocks[block].max);
  max = max_of_warp(max);
  float sum = 0, weighted = 0;
  for (int block = lane; block < num_blocks; block += 32) {
    const BlockSum b = blocks[block];
    // A block without mass has no maximum to bring to the row's.
    const float shift = b.max == lowest() ? 0.0f : b.max - max, factor = expf(shift);
    sum += factor * b.sum;
    weighted += factor * fmaf(finite_exponent(shift), b.sum, b.weighted);
  }
  sum = sum_of_warp(sum);
  weighted = sum_of_warp(weighted);
  // log p = u - log S with u = z' - max, so the entropy -sum of p log p is log S - W / S.
  const float log_sum = logf(sum);
  return {max + log_sum, log_sum - weighted / sum};
}

// Rows of logits begin at multiples of 16 bytes.
__device__ __forceinline__ RowSums sum_logits(const float* logits, int vocab, float inv_temperature,
                                              BlockSum* blocks) {
  return sum_row(
      vocab, inv_temperature, blocks,
      [logits](int i, float(&v)[4]) {
        const float4 z = *reinterpret_cast<const float4*>(logits + i);
        v[0] = z.x, v[1] = z.y, v[2] = z.z, v[3] = z.w;
      },
      [logits](int i) { return logits[i]; });
}

// The sums over the members of a set alone.
__device__ __forceinline__ RowSums sum_members(const float* logits, const int32_t* ids, int size,
                                               float inv_temperature, BlockSum* blocks) {
  const auto load = [logits, ids](int i) { return logits[ids[i]]; };
  return sum_row(
      size, inv_temperature, blocks,
      [&load](int i, float(&v)[4]) {
#pragma unroll
        for (int e = 0; e < 4; ++e) v[e] = load(i + e);
      },
      load);
}

}  // namespace tailrace::cuda
