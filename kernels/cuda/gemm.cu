// The product with a bfloat16 weight, on tensor cores (mma.sync m16n8k16).
//
// Order of a sum: in the weight, k is cut into 1, 2 or 4 slices, by the weight's shape alone. In a
// slice an output element is one accumulator, over k in ascending steps of 16; the slices are added
// in their order, then the bias. Rows of W are always the 16 of the instruction and tokens its 8,
// so an element meets the same instructions whatever the number of tokens and whichever of the
// kernels below makes it: these differ in what a block holds, not in bits.
//
// multiply_few: up to 64 tokens a block and 64 / slices rows of W, of which each of four warps has
// 16 in one slice. It is bound by reading W, so that what counts is bytes on their way: 8 KiB of W
// a stage, with all stages but one under way. multiply_many: 128 rows of W and 128 tokens a block,
// a slice after the other. Where tokens are grouped by expert, a tile of them is one group's.
//
// Layout in shared memory: tiles of rows of kTileK elements (128 bytes), where the piece of 16
// bytes `c` of row `r` lies at place c ^ (r % 8): neither copies nor ldmatrix meet in a bank.
#include <algorithm>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/groups.cuh"

namespace tailrace::cuda {
namespace {

constexpr int kTileK = 64;
static_assert(kTileK == kWeightAlignment, "the last tile of a row of W is whole");
constexpr int kRowPieces = kTileK / 8;  // of 16 bytes in a row of a tile

// A row of partial sums is this much longer than its columns: the eight rows and four pairs of
// tokens that a warp writes at once lie in 32 banks.
constexpr int kSumGap = 4;

constexpr int kFewThreads = 128, kFewSlots = 64;  // slots: rows of W, times slices
constexpr int kManyThreads = 256, kManyTile = 128, kManyStages = 3;
// Token tiles that follow each other for one tile of W, which stays in the cache meanwhile.
constexpr int64_t kManyGroup = 16;

struct GemmShape {
  int64_t weight_stride, x_stride, y_stride;
  int64_t tokens, out;
  int in, tiles;    // tiles: of k
  int slice_shift;  // log2 of the number of slices
  bool x_is_float, y_is_float, add;
  RowGroups groups;
  int64_t group_stride;  // of the weight

  __device__ __forceinline__ int slices() const { return 1 << slice_shift; }
  // The first tile of k of a slice; of slice slices(), the end.
  __device__ __forceinline__ int slice_begin(int slice) const {
    return static_cast<int>((int64_t{tiles} * slice) >> slice_shift);
  }
};
struct GemmData {
  const void* x;
  const Bf16* weight;
  const float* bias;
  void* y;
};

// Makes of all tokens those of this block's group, and of `token_tile` a tile of these; false:
// there is nothing to do.
template <int kTokens>
__device__ __forceinline__ bool enter_group(GemmData& data, GemmShape& shape, int64_t& token_tile) {
  if (shape.groups.offsets == nullptr) return true;
  const GroupTile found = find_tile<kTokens>(shape.groups, token_tile);
  if (found.group < 0) return false;
  const auto bytes = [&](int64_t stride, bool is_float) {
    return found.first * stride * static_cast<int64_t>(is_float ? sizeof(float) : sizeof(Bf16));
  };
  data.x = static_cast<const char*>(data.x) + bytes(shape.x_stride, shape.x_is_float);
  data.y = static_cast<char*>(data.y) + bytes(shape.y_stride, shape.y_is_float);
  data.weight += found.group * shape.group_stride;
  shape.tokens = found.rows;
  token_tile = found.tile;
  return true;
}

__device__ __forceinline__ Bf16* piece_at(Bf16* tile, int row, int piece) {
  return tile + row * kTileK + ((piece ^ (row & 7)) << 3);
}

// How many elements of [k, k + 8) are inside x.
__device__ __forceinline__ int elements_at(const GemmShape& shape, int k) {
  return max(0, min(shape.in - k, 8));
}

// The first `count` floats of a row's eight, rounded, and zeros.
__device__ __forceinline__ void round_piece(Bf16* to, const float* from, int count) {
  float v[8] = {};
  if (count == 8) {
    const float4 low = *reinterpret_cast<const float4*>(from);
    const float4 high = *reinterpret_cast<const float4*>(from + 4);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (i < count) v[i] = from[i];
  }
  *reinterpret_cast<uint4*>(to) = {bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]),
                                   bf16_pair(v[4], v[5]), bf16_pair(v[6], v[7])};
}

// acc += W x^T for 16 kRows rows of a tile of W, kTokens tokens (8, or a multiple of 16) of one of
// x, and one tile of k.
template <int kRows, int kTokens>
__device__ __forceinline__ void multiply_tile(float (&acc)[kRows][kTokens / 8][4], Bf16* w,
                                              Bf16* x) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // An ldmatrix of x brings, for 8 tokens, two steps of k; else one step for 16 tokens.
  constexpr int kSteps = kTokens == 8 ? 2 : 1, kLoads = kTokens == 8 ? 1 : kTokens / 16;
#pragma unroll
  for (int piece = 0; piece < kRowPieces; piece += 2 * kSteps) {
    uint32_t b[kLoads][4];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      if constexpr (kTokens == 8) {
        ldmatrix_x4(b[j], piece_at(x, lane % 8, piece + lane / 8));
      } else {
        ldmatrix_x4(b[j], piece_at(x, 16 * j + lane % 8 + lane / 16 * 8, piece + lane / 8 % 2));
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        uint32_t a[4];
        ldmatrix_x4(a, piece_at(w, 16 * i + lane % 16, piece + 2 * step + lane / 16));
#pragma unroll
        for (int j = 0; j < kTokens / 8; ++j) {
          const int half = kTokens == 8 ? step : j % 2;
          const uint32_t pair[2] = {b[kTokens == 8 ? 0 : j / 2][2 * half],
                                    b[kTokens == 8 ? 0 : j / 2][2 * half + 1]};
          mma_bf16(acc[i][j], a, pair);
        }
      }
    }
  }
}

// Sums of 16 kRows rows and kTokens tokens to sums[token][row].
template <int kRows, int kTokens>
__device__ __forceinline__ void put_sums(float* sums, int pitch,
                                         const float (&acc)[kRows][kTokens / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j)
#pragma unroll
      for (int r = 0; r < 4; ++r)
        sums[(8 * j + lane % 4 * 2 + r % 2) * pitch + 16 * i + lane / 4 + r / 2 * 8] = acc[i][j][r];
}

// From sums[slice][token][row] to y, four rows of W (columns of y) a thread.
__device__ __forceinline__ void store_tile(const GemmData& data, const GemmShape& shape,
                                           const float* sums, int slices, int slice_pitch,
                                           int pitch, int rows, int tokens, int64_t first_row,
                                           int64_t first_token) {
  const int groups = rows / 4;
  const int element = shape.y_is_float ? 4 : 2;
  const bool aligned =
      ((reinterpret_cast<uintptr_t>(data.y) | static_cast<uintptr_t>(shape.y_stride * element)) &
       static_cast<uintptr_t>(4 * element - 1)) == 0;
  for (int i = static_cast<int>(threadIdx.x); i < groups * tokens;
       i += static_cast<int>(blockDim.x)) {
    const int64_t token = first_token + i / groups, row = first_row + i % groups * 4;
    if (token >= shape.tokens || row >= shape.out) continue;
    const int count = static_cast<int>(min(shape.out - row, int64_t{4}));
    const float* from = sums + i / groups * pitch + i % groups * 4;
    float v[4];
    const float4 first = *reinterpret_cast<const float4*>(from);
    v[0] = first.x, v[1] = first.y, v[2] = first.z, v[3] = first.w;
    for (int s = 1; s < slices; ++s) {
      const float4 next = *reinterpret_cast<const float4*>(from + s * slice_pitch);
      v[0] += next.x, v[1] += next.y, v[2] += next.z, v[3] += next.w;
    }
    if (data.bias != nullptr) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (e < count) v[e] += data.bias[row + e];
    }
    const int64_t at = token * shape.y_stride + row;
    if (shape.y_is_float) {
      float* to = static_cast<float*>(data.y) + at;
      if (shape.add) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (e < count) v[e] += to[e];
      }
      if (aligned && count == 4) {
        *reinterpret_cast<float4*>(to) = {v[0], v[1], v[2], v[3]};
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (e < count) to[e] = v[e];
      }
    } else {
      Bf16* to = static_cast<Bf16*>(data.y) + at;
      if (aligned && count == 4) {
        *reinterpret_cast<uint2*>(to) = {bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3])};
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (e < count) to[e] = {static_cast<uint16_t>(bf16_pair(v[e], 0))};
      }
    }
  }
}

// Grid: tiles of tokens, the faster, times tiles of kFewSlots / slices rows of W.
template <int kTokens, int kStages>
__global__ void __launch_bounds__(kFewThreads)
    multiply_few(GemmData data, GemmShape shape, int token_tiles) {
  auto* const memory = dynamic_shared<Bf16>();
  constexpr int kWarps = kFewThreads / 32,
                kStep = kFewThreads / kRowPieces;  // slots that copy at once
  const int slices = shape.slices(), rows = kFewSlots >> shape.slice_shift;
  const int stage_size = (kFewSlots + slices * kTokens) * kTileK;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) / token_tiles * rows;
  int64_t token_tile = static_cast<int64_t>(blockIdx.x) % token_tiles;
  if (!enter_group<kTokens>(data, shape, token_tile)) return;
  const int64_t first_token = token_tile * kTokens;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const int slice = (warp << shape.slice_shift) / kWarps;
  // Steps of the last slice, which is the longest. Behind a shorter one lies the next: a tile of
  // that is copied and not used.
  const int steps = (shape.tiles + slices - 1) >> shape.slice_shift;

  // Stage: [slice][row][kTileK] of W, then [slice][token][kTileK] of x. A thread copies one piece
  // of some slots. Rows beyond the last are its copies: what becomes of them is not stored.
  const int piece = thread % kRowPieces, slot = thread / kRowPieces;
  const Bf16* w_from[kFewSlots / kStep];
#pragma unroll
  for (int i = 0; i < kFewSlots / kStep; ++i) {
    const int at = slot + i * kStep, s = (at << shape.slice_shift) / kFewSlots;
    const int64_t row = min(first_row + (at & (rows - 1)), shape.out - 1);
    w_from[i] = data.weight + row * shape.weight_stride + shape.slice_begin(s) * kTileK + 8 * piece;
  }
  // Tokens of x: own_token, own_token + kAtOnce ... of every slice, or of every second one.
  constexpr int kAtOnce = kTokens < kStep ? kTokens : kStep;
  const int own_token = slot % kAtOnce, own_slice = slot / kAtOnce;
  const auto num_tokens = static_cast<int>(min(shape.tokens - first_token, int64_t{kTokens}));
  const int64_t x_first = (first_token + own_token) * shape.x_stride + 8 * piece;
  const auto load_x = [&](Bf16* x, int step) {
    for (int s = own_slice; s < slices; s += kStep / kAtOnce) {
      const int tile = shape.slice_begin(s) + step;
      const int count = elements_at(shape, tile * kTileK + 8 * piece);
      const int64_t from = x_first + tile * kTileK;
      Bf16* const to = piece_at(x, s * kTokens + own_token, piece);
#pragma unroll
      for (int i = 0; i < kTokens / kAtOnce; ++i) {
        // Tokens beyond the last are zeros and cost no reading.
        const int inside = own_token + i * kAtOnce < num_tokens ? count : 0;
        const int64_t at = inside > 0 ? from + i * kAtOnce * shape.x_stride : 0;
        if (shape.x_is_float) {
          round_piece(to + i * kAtOnce * kTileK, static_cast<const float*>(data.x) + at, inside);
        } else {
          copy_async16(to + i * kAtOnce * kTileK, static_cast<const Bf16*>(data.x) + at,
                       2 * inside);
        }
      }
    }
  };
  const auto load = [&](int step, int at_stage) {
    if (step < steps) {
      Bf16* const stage = memory + at_stage * stage_size;
#pragma unroll
      for (int i = 0; i < kFewSlots / kStep; ++i)
        copy_async16(piece_at(stage, slot + i * kStep, piece), w_from[i] + step * kTileK);
      load_x(stage + kFewSlots * kTileK, step);
    }
    commit_copies();  // an empty group, where there is nothing: groups count the steps
  };

  float acc[1][kTokens / 8][4] = {};
#pragma unroll 1
  for (int step = 0; step < kStages - 1; ++step) load(step, step);
  const int own_steps = shape.slice_begin(slice + 1) - shape.slice_begin(slice);
  for (int step = 0, at = 0; step < steps; ++step) {
    await_copies<kStages - 2>();
    __syncthreads();  // the stage is here, and nobody reads the one that is filled next
    load(step + kStages - 1, at == 0 ? kStages - 1 : at - 1);
    Bf16* const stage = memory + at * stage_size;
    if (step < own_steps)
      multiply_tile<1, kTokens>(acc, stage + 16 * warp * kTileK,
                                stage + (kFewSlots + slice * kTokens) * kTileK);
    at = at + 1 == kStages ? 0 : at + 1;
  }
  await_copies<0>();
  __syncthreads();
  auto* const sums = reinterpret_cast<float*>(memory);
  const int pitch = rows + kSumGap, slice_pitch = kTokens * pitch;
  put_sums<1, kTokens>(sums + slice * slice_pitch + (16 * warp & (rows - 1)), pitch, acc);
  __syncthreads();
  store_tile(data, shape, sums, slices, slice_pitch, pitch, rows, kTokens, first_row, first_token);
}

template <int kTokens, int kStages>
size_t few_bytes(int slices) {
  const size_t stages =
      sizeof(Bf16) * kStages * kTileK * static_cast<size_t>(kFewSlots + slices * kTokens);
  const size_t sums = sizeof(float) * kTokens * static_cast<size_t>(kFewSlots + slices * kSumGap);
  return std::max(stages, sums);
}

// A block's warps: two of 64 rows of W times four of 32 tokens.
//
// Grid: groups of kManyGroup tiles of tokens; in a group, all tiles of W; for each of these, the
// tiles of tokens.
__global__ void __launch_bounds__(kManyThreads, 2)
    multiply_many(GemmData data, GemmShape shape, int64_t token_tiles, int64_t row_tiles) {
  auto* const memory = dynamic_shared<Bf16>();
  constexpr int kStage = 2 * kManyTile * kTileK;
  const int64_t block = static_cast<int64_t>(blockIdx.x);
  const int64_t group = block / (kManyGroup * row_tiles), within = block % (kManyGroup * row_tiles);
  const int64_t group_tiles = min(kManyGroup, token_tiles - group * kManyGroup);
  const int64_t first_row = within / group_tiles * kManyTile;
  int64_t token_tile = group * kManyGroup + within % group_tiles;
  if (!enter_group<kManyTile>(data, shape, token_tile)) return;
  const int64_t first_token = token_tile * kManyTile;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const int warp_row = warp / 4 * 64, warp_token = warp % 4 * 32;

  // A thread copies one piece of some rows of either. Rows beyond the last are its copies: what
  // becomes of them is not stored. Offsets are from the block's first row: 32 bits are enough.
  constexpr int kStep = kManyThreads / kRowPieces;
  const int piece = thread % kRowPieces, slot = thread / kRowPieces;
  const Bf16* const w_first = data.weight + first_row * shape.weight_stride;
  const int64_t x_first = first_token * shape.x_stride;
  int w_offset[kManyTile / kStep], x_offset[kManyTile / kStep];
#pragma unroll
  for (int i = 0; i < kManyTile / kStep; ++i) {
    const int at = slot + i * kStep;
    const auto row = static_cast<int>(min(int64_t{at}, shape.out - 1 - first_row));
    const auto token = static_cast<int>(min(int64_t{at}, shape.tokens - 1 - first_token));
    w_offset[i] = row * static_cast<int>(shape.weight_stride) + 8 * piece;
    x_offset[i] = token * static_cast<int>(shape.x_stride) + 8 * piece;
  }
  const auto load = [&](int tile, int stage) {
    if (tile < shape.tiles) {
      Bf16* const w = memory + stage * kStage;
      Bf16* const x = w + kManyTile * kTileK;
      const int k = tile * kTileK;
#pragma unroll
      for (int i = 0; i < kManyTile / kStep; ++i)
        copy_async16(piece_at(w, slot + i * kStep, piece), w_first + k + w_offset[i]);
      const int count = elements_at(shape, k + 8 * piece);
      if (!shape.x_is_float) {
        const Bf16* const from = static_cast<const Bf16*>(data.x) + x_first + k;
#pragma unroll
        for (int i = 0; i < kManyTile / kStep; ++i)
          copy_async16(piece_at(x, slot + i * kStep, piece), from + x_offset[i], 2 * count);
      } else {
        const float* const from = static_cast<const float*>(data.x) + x_first + k;
#pragma unroll
        for (int i = 0; i < kManyTile / kStep; ++i)
          round_piece(piece_at(x, slot + i * kStep, piece), from + x_offset[i], count);
      }
    }
    commit_copies();
  };

  float acc[4][4][4] = {};
  float total[4][4][4];  // of the slices that are finished; idle meanwhile, in local memory
#pragma unroll 1
  for (int tile = 0; tile < kManyStages - 1; ++tile) load(tile, tile);
  int tile = 0, at = 0;
  for (int slice = 0; slice < shape.slices(); ++slice) {
    const int end = shape.slice_begin(slice + 1);
    for (; tile < end; ++tile) {
      await_copies<kManyStages - 2>();
      __syncthreads();
      load(tile + kManyStages - 1, at == 0 ? kManyStages - 1 : at - 1);
      Bf16* const w = memory + at * kStage;
      multiply_tile<4, 32>(acc, w + warp_row * kTileK, w + (kManyTile + warp_token) * kTileK);
      at = at + 1 == kManyStages ? 0 : at + 1;
    }
    if (shape.slice_shift == 0) break;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const float sum = slice == 0 ? acc[i][j][r] : total[i][j][r] + acc[i][j][r];
          total[i][j][r] = sum;
          acc[i][j][r] = slice + 1 == shape.slices() ? sum : 0;
        }
  }
  await_copies<0>();
  __syncthreads();
  auto* const sums = reinterpret_cast<float*>(memory);
  constexpr int kPitch = kManyTile + kSumGap;
  put_sums<4, 32>(sums + warp_token * kPitch + warp_row, kPitch, acc);
  __syncthreads();
  store_tile(data, shape, sums, 1, 0, kPitch, kManyTile, kManyTile, first_row, first_token);
}

constexpr size_t kManyBytes = std::max(sizeof(Bf16) * kManyStages * 2 * kManyTile * kTileK,
                                       sizeof(float) * kManyTile * (kManyTile + kSumGap));

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Slices of k, for what decoding has of a weight: blocks of kFewSlots / slices rows. About 132
// multiprocessors are to have one each, and a slice at least two tiles.
int slice_shift_of(int64_t out, int64_t tiles) {
  int shift = 2;
  while (shift > 0 && ceil_div(out, kFewSlots >> (shift - 1)) >= 132) --shift;
  while (shift > 0 && tiles < int64_t{2} << shift) --shift;
  return shift;
}

template <int kTokens, int kStages>
void launch_few(const Stream& stream, const GemmData& data, const GemmShape& shape) {
  const int64_t token_tiles = shape.groups.most_tiles(shape.tokens, kTokens);
  const int64_t blocks = token_tiles * ceil_div(shape.out, kFewSlots >> shape.slice_shift);
  launch(multiply_few<kTokens, kStages>, dim3(static_cast<unsigned>(blocks)), dim3(kFewThreads),
         few_bytes<kTokens, kStages>(1 << shape.slice_shift), stream, data, shape,
         static_cast<int>(token_tiles));
}

}  // namespace

void multiply_bf16(const Stream& stream, const Bf16Product& product, GemmTiles choice) {
  if (product.tokens == 0 || product.out == 0) return;
  const int64_t tiles = ceil_div(product.in, kTileK);
  TR_CHECK(product.weight_stride >= tiles * kTileK, "a row of W of {} elements for {}",
           product.weight_stride, product.in);
  const GemmShape shape = {.weight_stride = product.weight_stride,
                           .x_stride = product.x_stride,
                           .y_stride = product.y_stride,
                           .tokens = product.tokens,
                           .out = product.out,
                           .in = static_cast<int>(product.in),
                           .tiles = static_cast<int>(tiles),
                           .slice_shift = slice_shift_of(product.out, tiles),
                           .x_is_float = product.x_is_float,
                           .y_is_float = product.y_is_float,
                           .add = product.add,
                           .groups = product.groups,
                           .group_stride = product.group_stride};
  const GemmData data = {product.x, product.weight, product.bias, product.y};
  // Large tiles once they give half the multiprocessors a block.
  const bool grouped = product.groups.offsets != nullptr;
  const int64_t token_tiles = product.groups.most_tiles(product.tokens, kManyTile);
  const int64_t row_tiles = ceil_div(product.out, kManyTile);
  // The tokens of one group, as far as the host knows.
  const int64_t tokens =
      grouped ? ceil_div(product.tokens, std::max(product.groups.count, 1)) : product.tokens;
  const bool many = choice == GemmTiles::kByShape ? tokens > 64 && token_tiles * row_tiles >= 66
                                                  : choice == GemmTiles::kManyTokens;
  if (!many) {
    if (tokens <= 8) return launch_few<8, 6>(stream, data, shape);
    if (tokens <= 16) return launch_few<16, 6>(stream, data, shape);
    if (tokens <= 32) return launch_few<32, 5>(stream, data, shape);
    return launch_few<64, 4>(stream, data, shape);
  }
  launch(multiply_many, dim3(static_cast<unsigned>(token_tiles * row_tiles)), dim3(kManyThreads),
         kManyBytes, stream, data, shape, token_tiles, row_tiles);
}

}  // namespace tailrace::cuda
