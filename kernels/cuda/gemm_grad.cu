// The products of backward with a bfloat16 operand, on tensor cores (mma.sync m16n8k16): dy W, and
// dy^T x. dy is float32 and rounded on its way to shared memory.
//
// Order of a sum: one accumulator from 0, over k (rows of W, or tokens) in ascending steps of 16;
// finished, it is added to what c holds. Which tile an element is in changes no bit.
//
// A block has kTile x kTile elements of c, a warp kTile / 2 x 32 of them. A step is kGradTileK of
// k: its tile of b comes by asynchronous copies, kGradStages - 1 steps ahead; that of a is read
// into registers a step ahead, rounded, and written to the buffer that is not read meanwhile.
//
// Layout in shared memory: rows of pieces of 16 bytes, whose places in a row are permuted so that
// the eight rows of an ldmatrix lie in different banks.
#include "kernels/cuda/groups.cuh"
#include "kernels/cuda/product.h"

namespace tailrace::cuda {
namespace {

constexpr int kGradTileK = 32, kGradStages = 3;
constexpr int kGradSmallTile = 64, kGradLargeTile = 128;
// Multiprocessors of the device that large tiles are to fill.
constexpr int64_t kGradBlocks = 132;
// Tiles of m that follow each other for one tile of n, which stays in the cache meanwhile.
constexpr int64_t kGradGroup = 16;

// A piece of a tile whose rows have kCols elements.
template <int kCols>
__device__ __forceinline__ Bf16* grad_piece(Bf16* tile, int row, int piece) {
  // Rows of 64 bytes are in the same banks as the second next, longer ones as the next.
  const int turn = kCols == 32 ? row / 2 % 4 : row % 8;
  return tile + row * kCols + 8 * (piece ^ turn);
}

// Elements of [first, first + 8) before `end`; none of a row that is not there.
__device__ __forceinline__ int grad_count(bool row_is_there, int64_t first, int64_t end) {
  return row_is_there ? static_cast<int>(max(int64_t{0}, min(end - first, int64_t{8}))) : 0;
}

__device__ __forceinline__ void fetch_eight(float (&v)[8], const float* from, int count) {
  if (count == 8) {
    const float4 low = *reinterpret_cast<const float4*>(from);
    const float4 high = *reinterpret_cast<const float4*>(from + 4);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = i < count ? from[i] : 0.0f;
  }
}

__device__ __forceinline__ void store_pair(float* to, float low, float high, int64_t left, bool add,
                                           bool aligned) {
  if (aligned && left >= 2) {
    float2 v = {low, high};
    if (add) {
      const float2 old = *reinterpret_cast<const float2*>(to);
      v.x += old.x, v.y += old.y;
    }
    *reinterpret_cast<float2*>(to) = v;
    return;
  }
  if (left > 0) to[0] = add ? to[0] + low : low;
  if (left > 1) to[1] = add ? to[1] + high : high;
}

// Grid: groups of kGradGroup tiles of m; in a group, all tiles of n; for each of these, the tiles
// of m. Times groups of k.
template <ProductKind kKind, int kTile>
__global__ void __launch_bounds__(2 * kTile, 2 * kGradLargeTile / kTile)
    product_grad(Product<Bf16> p, int64_t m_tiles, int64_t n_tiles) {
  constexpr bool kTurned = kKind == ProductKind::kGradWeight;  // a lies [k][m]
  constexpr int kThreads = 2 * kTile, kTileSize = kTile * kGradTileK;
  constexpr int kCols = kTurned ? kTile : kGradTileK;  // of a tile of a
  constexpr int kPieces = kTileSize / 8 / kThreads;    // of a thread, of either tile
  constexpr int kFragments = kTile / 2 / 16;           // of a warp, along m
  auto* const memory = dynamic_shared<Bf16>();
  Bf16* const b_memory = memory + 2 * kTileSize;

  const int64_t block = static_cast<int64_t>(blockIdx.x);
  const int64_t group = block / (kGradGroup * n_tiles), within = block % (kGradGroup * n_tiles);
  const int64_t group_tiles = min(kGradGroup, m_tiles - group * kGradGroup);
  int64_t m_tile = group * kGradGroup + within % group_tiles;
  const int64_t first_n = within / group_tiles * kTile;
  if (!enter_group<kKind, kTile>(p, m_tile)) return;
  const int64_t first_m = m_tile * kTile;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int warp_m = warp % 2 * (kTile / 2), warp_n = warp / 2 * 32;
  const auto steps = static_cast<int>((p.k + kGradTileK - 1) / kGradTileK);

  float fetched[kPieces][8];
  const auto fetch_a = [&](int step) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int at = thread + i * kThreads, row = at / (kCols / 8), piece = at % (kCols / 8);
      const int64_t k = int64_t{step} * kGradTileK + (kTurned ? row : 8 * piece);
      const int64_t m = first_m + (kTurned ? 8 * piece : row);
      const int count = kTurned ? grad_count(k < p.k, m, p.m) : grad_count(m < p.m, k, p.k);
      fetch_eight(fetched[i], p.a + (kTurned ? k * p.a_stride + m : m * p.a_stride + k), count);
    }
  };
  const auto put_a = [&](int step) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int at = thread + i * kThreads;
      const float(&v)[8] = fetched[i];
      *reinterpret_cast<uint4*>(
          grad_piece<kCols>(memory + step % 2 * kTileSize, at / (kCols / 8), at % (kCols / 8))) = {
          bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]), bf16_pair(v[4], v[5]),
          bf16_pair(v[6], v[7])};
    }
  };
  const auto load_b = [&](int step, int stage) {
    if (step < steps) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int at = thread + i * kThreads, row = at / (kTile / 8), piece = at % (kTile / 8);
        const int64_t k = int64_t{step} * kGradTileK + row, n = first_n + 8 * piece;
        const int count = grad_count(k < p.k, n, p.n);
        copy_async16(grad_piece<kTile>(b_memory + stage * kTileSize, row, piece),
                     count > 0 ? p.b + k * p.b_stride + n : p.b, 2 * count);
      }
    }
    commit_copies();  // an empty group, where there is nothing: groups count the steps
  };

  float acc[kFragments][4][4] = {};
#pragma unroll 1
  for (int step = 0; step < kGradStages - 1; ++step) load_b(step, step);
  fetch_a(0);
  put_a(0);
  for (int step = 0, stage = 0; step < steps; ++step) {
    await_copies<kGradStages - 2>();
    __syncthreads();  // the step is here, and nobody reads what is filled next
    load_b(step + kGradStages - 1, stage == 0 ? kGradStages - 1 : stage - 1);
    if (step + 1 < steps) fetch_a(step + 1);
    Bf16* const a_tile = memory + step % 2 * kTileSize;
    Bf16* const b_tile = b_memory + stage * kTileSize;
#pragma unroll
    for (int k = 0; k < kGradTileK; k += 16) {
      uint32_t b[2][4];
#pragma unroll
      for (int j = 0; j < 2; ++j)
        ldmatrix_x4_trans(b[j],
                          grad_piece<kTile>(b_tile, k + lane % 16, warp_n / 8 + 2 * j + lane / 16));
#pragma unroll
      for (int i = 0; i < kFragments; ++i) {
        const int m = warp_m + 16 * i;
        uint32_t a[4];
        if constexpr (kTurned) {
          ldmatrix_x4_trans(
              a, grad_piece<kCols>(a_tile, k + lane % 8 + lane / 16 * 8, m / 8 + lane / 8 % 2));
        } else {
          ldmatrix_x4(a, grad_piece<kCols>(a_tile, m + lane % 16, k / 8 + lane / 16));
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t pair[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
          mma_bf16(acc[i][j], a, pair);
        }
      }
    }
    if (step + 1 < steps) put_a(step + 1);
    stage = stage + 1 == kGradStages ? 0 : stage + 1;
  }

  const bool aligned =
      ((reinterpret_cast<uintptr_t>(p.c) | static_cast<uintptr_t>(p.c_stride) * sizeof(float)) &
       (sizeof(float2) - 1)) == 0;
#pragma unroll
  for (int i = 0; i < kFragments; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t m = first_m + warp_m + 16 * i + lane / 4 + 8 * half;
      if (m >= p.m) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int64_t n = first_n + warp_n + 8 * j + lane % 4 * 2;
        store_pair(p.c + m * p.c_stride + n, acc[i][j][2 * half], acc[i][j][2 * half + 1], p.n - n,
                   p.add, aligned);
      }
    }
  }
}

struct GradGrid {
  int64_t m_tiles, n_tiles, groups;
};
GradGrid grad_grid(ProductKind kind, const Product<Bf16>& p, int64_t tile) {
  const bool of_k = kind == ProductKind::kGradWeight;
  return {.m_tiles = (of_k ? RowGroups{} : p.groups).most_tiles(p.m, tile),
          .n_tiles = (p.n + tile - 1) / tile,
          .groups = of_k && p.groups.offsets != nullptr ? p.groups.count : 1};
}

template <int kTile>
void launch_grad(const Stream& stream, ProductKind kind, const Product<Bf16>& product) {
  const GradGrid grid = grad_grid(kind, product, kTile);
  auto* const kernel = kind == ProductKind::kGradWeight
                           ? product_grad<ProductKind::kGradWeight, kTile>
                           : product_grad<ProductKind::kGradInput, kTile>;
  constexpr size_t kBytes = sizeof(Bf16) * (2 + kGradStages) * kTile * kGradTileK;
  launch(
      kernel,
      dim3(static_cast<unsigned>(grid.m_tiles * grid.n_tiles), static_cast<unsigned>(grid.groups)),
      dim3(2 * kTile), kBytes, stream, product, grid.m_tiles, grid.n_tiles);
}

}  // namespace

void multiply_grad(const Stream& stream, ProductKind kind, const Product<Bf16>& product,
                   GradTiles tiles) {
  if (product.m == 0 || product.n == 0) return;
  const GradGrid grid = grad_grid(kind, product, kGradLargeTile);
  const bool large = tiles == GradTiles::kByShape
                         ? grid.m_tiles * grid.n_tiles * grid.groups >= kGradBlocks
                         : tiles == GradTiles::kLarge;
  if (large) return launch_grad<kGradLargeTile>(stream, kind, product);
  launch_grad<kGradSmallTile>(stream, kind, product);
}

}  // namespace tailrace::cuda
