// Products of float32, on ordinary units: to check by.
//
// Order of a sum: one accumulator from 0, one fused multiply-add a term, k ascending; then the
// bias; then, where it is added, what c holds. In forward these are the bits of the CPU's product.
#include "kernels/cuda/groups.cuh"
#include "kernels/cuda/product.h"

namespace tailrace::cuda {
namespace {

constexpr int kF32Tile = 64, kF32TileK = 16, kF32Threads = 256;
// Rows of a tile in shared memory, k first: a thread's four tokens (rows of W) are one load.
constexpr int kF32Pitch = kF32Tile + 4;

// [kF32Tile rows, kF32TileK] of an operand to to[k][row], zeros outside it. kTurned: it lies
// [k][row].
template <bool kTurned>
__device__ __forceinline__ void load_f32_tile(float (&to)[kF32TileK][kF32Pitch], const float* from,
                                              int64_t stride, int64_t row, int64_t rows, int64_t k,
                                              int64_t in) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < kF32Tile * kF32TileK / kF32Threads; ++i) {
    constexpr int kFast = kTurned ? kF32Tile : kF32TileK;  // neighbours in memory
    const int fast = thread % kFast, slow = thread / kFast + i * (kF32Threads / kFast);
    const int r = kTurned ? fast : slow, c = kTurned ? slow : fast;
    const bool inside = row + r < rows && k + c < in;
    const int64_t at = kTurned ? (k + c) * stride + row + r : (row + r) * stride + k + c;
    to[c][r] = inside ? from[at] : 0.0f;
  }
}

// Grid: tiles of m, the faster, times tiles of n; times groups of k. A thread has 4 x 4 elements.
template <ProductKind kKind>
__global__ void __launch_bounds__(kF32Threads) product_f32(Product<float> p, int64_t m_tiles) {
  alignas(16) __shared__ float x[kF32TileK][kF32Pitch];
  alignas(16) __shared__ float w[kF32TileK][kF32Pitch];
  const int64_t block = static_cast<int64_t>(blockIdx.x);
  int64_t m_tile = block % m_tiles;
  if (!enter_group<kKind, kF32Tile>(p, m_tile)) return;
  const int64_t first_m = m_tile * kF32Tile, first_n = block / m_tiles * kF32Tile;
  const int own_n = static_cast<int>(threadIdx.x) % 16 * 4;
  const int own_m = static_cast<int>(threadIdx.x) / 16 * 4;
  float acc[4][4] = {};
  for (int64_t k = 0; k < p.k; k += kF32TileK) {
    __syncthreads();
    load_f32_tile<kKind == ProductKind::kGradWeight>(x, p.a, p.a_stride, first_m, p.m, k, p.k);
    load_f32_tile<kKind != ProductKind::kForward>(w, p.b, p.b_stride, first_n, p.n, k, p.k);
    __syncthreads();
    // Not one step beyond the last: adding 0 changes the bits of a sum that is -0.
    const int steps = static_cast<int>(min(p.k - k, int64_t{kF32TileK}));
#pragma unroll 4
    for (int i = 0; i < steps; ++i) {
      const float4 xs = *reinterpret_cast<const float4*>(&x[i][own_m]);
      const float4 ws = *reinterpret_cast<const float4*>(&w[i][own_n]);
      const float a[4] = {xs.x, xs.y, xs.z, xs.w}, b[4] = {ws.x, ws.y, ws.z, ws.w};
#pragma unroll
      for (int t = 0; t < 4; ++t)
#pragma unroll
        for (int o = 0; o < 4; ++o) acc[t][o] = fmaf(a[t], b[o], acc[t][o]);
    }
  }
#pragma unroll
  for (int t = 0; t < 4; ++t) {
#pragma unroll
    for (int o = 0; o < 4; ++o) {
      const int64_t m = first_m + own_m + t, n = first_n + own_n + o;
      if (m >= p.m || n >= p.n) continue;
      float* const to = p.c + m * p.c_stride + n;
      const float sum = p.bias == nullptr ? acc[t][o] : acc[t][o] + p.bias[n];
      *to = p.add ? *to + sum : sum;
    }
  }
}

}  // namespace

void multiply_f32(const Stream& stream, ProductKind kind, const Product<float>& product) {
  const bool of_k = kind == ProductKind::kGradWeight;
  const int64_t m_tiles = (of_k ? RowGroups{} : product.groups).most_tiles(product.m, kF32Tile);
  const int64_t n_tiles = (product.n + kF32Tile - 1) / kF32Tile;
  if (m_tiles * n_tiles == 0) return;
  const int groups = of_k && product.groups.offsets != nullptr ? product.groups.count : 1;
  auto* const kernel = of_k                              ? product_f32<ProductKind::kGradWeight>
                       : kind == ProductKind::kGradInput ? product_f32<ProductKind::kGradInput>
                                                         : product_f32<ProductKind::kForward>;
  launch(kernel, dim3(static_cast<unsigned>(m_tiles * n_tiles), static_cast<unsigned>(groups)),
         dim3(kF32Threads), 0, stream, product, m_tiles);
}

}  // namespace tailrace::cuda
