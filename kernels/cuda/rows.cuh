// Four neighbouring elements of a row at a time, whatever their dtype, and sums over a block.
//
// A thread owns the elements 4 i .. 4 i + 3, and a wide access is one only where the row allows it:
// neither the length of a row nor its place in memory changes who adds what.
#pragma once

#include "kernels/cuda/device.cuh"

namespace tailrace::cuda {

// Kernels that treat each element of a matrix on its own: a block has kRowElements columns of a
// row.
constexpr int kRowThreads = 256;
constexpr int64_t kRowElements = 4 * kRowThreads;

inline dim3 grid_of_rows(int64_t rows, int64_t cols) {
  return dim3(static_cast<unsigned>(rows),
              static_cast<unsigned>((cols + kRowElements - 1) / kRowElements));
}
// The first of the thread's four columns.
__device__ __forceinline__ int64_t own_element() {
  return 4 * (static_cast<int64_t>(blockIdx.y) * kRowThreads + threadIdx.x);
}

struct alignas(8) FourBf16 {
  Bf16 x, y, z, w;
};

// Whether rows of `stride` elements may be read four elements at a time.
template <class T>
inline bool rows_are_wide(const T* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % (4 * sizeof(T)) == 0 && stride % 4 == 0;
}

// Loads four of `left` elements from `p`; 0 where there are fewer than four.
__device__ __forceinline__ float4 load_four(const float* p, int64_t left, bool wide) {
  if (wide && left >= 4) return *reinterpret_cast<const float4*>(p);
  return make_float4(left > 0 ? p[0] : 0.0f, left > 1 ? p[1] : 0.0f, left > 2 ? p[2] : 0.0f,
                     left > 3 ? p[3] : 0.0f);
}
__device__ __forceinline__ float4 load_four(const Bf16* p, int64_t left, bool wide) {
  if (wide && left >= 4) {
    const FourBf16 v = *reinterpret_cast<const FourBf16*>(p);
    return make_float4(to_float(v.x), to_float(v.y), to_float(v.z), to_float(v.w));
  }
  return make_float4(left > 0 ? to_float(p[0]) : 0.0f, left > 1 ? to_float(p[1]) : 0.0f,
                     left > 2 ? to_float(p[2]) : 0.0f, left > 3 ? to_float(p[3]) : 0.0f);
}

__device__ __forceinline__ void store_four(float* p, float4 v, int64_t left, bool wide) {
  if (wide && left >= 4) {
    *reinterpret_cast<float4*>(p) = v;
    return;
  }
  if (left > 0) p[0] = v.x;
  if (left > 1) p[1] = v.y;
  if (left > 2) p[2] = v.z;
  if (left > 3) p[3] = v.w;
}
__device__ __forceinline__ void store_four(Bf16* p, float4 v, int64_t left, bool wide) {
  const FourBf16 r{to_bf16(v.x), to_bf16(v.y), to_bf16(v.z), to_bf16(v.w)};
  if (wide && left >= 4) {
    *reinterpret_cast<FourBf16*>(p) = r;
    return;
  }
  if (left > 0) p[0] = r.x;
  if (left > 1) p[1] = r.y;
  if (left > 2) p[2] = r.z;
  if (left > 3) p[3] = r.w;
}

__device__ __forceinline__ float sum_of_warp(float x) {
  for (int bits = 16; bits > 0; bits /= 2) x += __shfl_xor_sync(~0u, x, bits);
  return x;
}

// The sum of the block's threads, in each of them; `sums` [kWarps] shared. Warps in a tree too.
template <int kWarps>
__device__ __forceinline__ float sum_of_block(float x, float* sums) {
  x = sum_of_warp(x);
  if constexpr (kWarps == 1) return x;
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return sum_of_warp(lane < kWarps ? sums[lane] : 0.0f);
}

}  // namespace tailrace::cuda
