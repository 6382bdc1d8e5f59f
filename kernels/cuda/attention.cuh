// The parts that all kernels of bfloat16 attention share, so that decode and prefill are one
// arithmetic (design rule 3).
//
// Rows are (token, head of a kv head's group) pairs of one sequence, flattened; kRows of them go
// through a tensor core together. Positions are absolute, in tiles of kTile that begin at multiples
// of kTile, and chunks of kChunk that begin at multiples of kChunk. For a row:
//
//   score     over head_dim in steps of 16 of mma.sync, ascending
//   chunk     a state (maximum, sum, out) that starts empty and goes through its tiles in order;
//             in a tile the exponentials are rounded to bfloat16, and their sum and the sum of
//             values that they weigh are carried on by mma.sync in steps of 16 positions
//   row       the states of its chunks, joined from the first to the last by join()
//
// What a row does not see has the weight 0, and adding 0 changes no bit: so it does not matter
// which other rows, and thus which tiles, it shares a warp with. Nor does it matter how many warps
// share 16 rows (kSplit): a score and an element of `out` are each computed by one of them.
//
// Keys and values are [blocks, kv_heads, block_tokens, head_dim].
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/memory.h"
#include "kernels/cuda/device.cuh"
#include "kernels/ops/attention.h"

namespace tailrace::cuda {

// --- Sizes.

constexpr int kRows = 16, kTile = 64, kChunk = 256;
constexpr int kAttentionPadding = 8;  // elements a row in shared memory: eight rows, all banks
constexpr float kLog2E = 1.44269504088896341f, kLn2 = 0.693147180559945309f;

// A call as kernels take it, all pointers of the device.
struct AttentionCall {
  const void* q = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  const void *keys = nullptr, *values = nullptr;
  const int32_t *positions = nullptr, *seq_offsets = nullptr, *tables = nullptr;
  int64_t q_stride = 0, out_stride = 0, lse_stride = 0;
  int max_blocks = 0, page_shift = 0;  // block_tokens == 1 << page_shift
  int num_tokens = 0, num_sequences = 0;
  int num_heads = 0, num_kv_heads = 0, group = 0, dim = 0, window = 0;
  float scale = 1;  // log2(e) is in it
  bool float_q = false, float_out = false;
  // A batch of which decode takes the sequences with one row and prefill the others; else one of
  // them takes all.
  bool divided = false;

  __device__ int first_seen(int position) const {
    return window > 0 && position >= window ? position - window + 1 : 0;
  }
};

// The call of checked arguments, without results.
AttentionCall attention_call(const Stream& stream, const ConstTensor& q,
                             const AttentionHeads& heads, const AttentionBatch& batch,
                             const KvLayer& kv);

// For attention.cu. Decode: of rows that are sequences of their own, or treated as such.
// `num_items` of them: rows, or, of a divided batch, sequences, of which those with more rows are
// passed by. With num_chunks > 1 a block takes one chunk of an item and leaves its state in
// `states`, else all.
void attention_decode(const Stream& stream, float* states, int num_chunks, int num_items,
                      const AttentionCall& call);
void attention_prefill(const Stream& stream, const AttentionCall& call);

// The scratch of backward; its size is a part of attention_workspace_bytes().
struct BackwardScratch {
  std::span<float> dots;
  std::span<Bf16> dout_bf16;
};
// `dim` is 0 where there is no copy of dout.
inline BackwardScratch backward_scratch(Workspace& workspace, int64_t rows, int num_heads,
                                        int dim) {
  return {.dots = workspace.take<float>(rows * num_heads),
          .dout_bf16 = workspace.take<Bf16>(rows * num_heads * dim)};
}

// --- Of a row: maximum (of scaled scores, as powers of 2), sum of powers, weighted sum of values.

// The state of the rows lane / 4 and lane / 4 + 8. Element 2r + c of out[n] is row r's column 8n +
// 2 (lane % 4) + c of the warp's columns, and sum[2r] row r's sum.
template <int kColumns>
struct RowState {
  float max[2], sum[4], out[kColumns / 8][4];

  __device__ __forceinline__ void clear() {
    for (float& m : max) m = -INFINITY;
    for (float& s : sum) s = 0;
#pragma unroll
    for (auto& n : out)
      for (float& o : n) o = 0;
  }
};

// The state so far by `kept`, what is joined to it by `added`.
struct JoinWeights {
  float max, kept, added;
};
__device__ __forceinline__ JoinWeights join_weights(float max, float other) {
  const float both = fmaxf(max, other);
  return {both, fast_exp2(max - both), fast_exp2(other - both)};
}
__device__ __forceinline__ float join(const JoinWeights& w, float sum, float other) {
  return fmaf(sum, w.kept, other * w.added);
}

// A chunk of which a row sees nothing leaves its state as it is.
template <int kColumns>
__device__ __forceinline__ void join_chunk(RowState<kColumns>& total,
                                           const RowState<kColumns>& chunk) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (chunk.max[r] == -INFINITY) continue;
    const JoinWeights w = join_weights(total.max[r], chunk.max[r]);
    total.max[r] = w.max;
    total.sum[2 * r] = join(w, total.sum[2 * r], chunk.sum[2 * r]);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      for (int c = 2 * r; c < 2 * r + 2; ++c)
        total.out[n][c] = join(w, total.out[n][c], chunk.out[n][c]);
    }
  }
}

// + 0: an element that vanished has no sign that a masked tile could have changed.
__device__ __forceinline__ float finished(float out, float inv_sum) { return out * inv_sum + 0.0f; }
__device__ __forceinline__ float finished_lse(float max, float sum) {
  return fmaf(max, kLn2, logf(sum));
}

// --- The rows of a warp.

// kSplit warps have the same rows: `part` of kTile / kSplit positions of a tile is scored by one,
// and kDim / kSplit columns of `out` are its own.
template <int kDim, int kSplit>
struct WarpRows {
  static constexpr int kColumns = kDim / kSplit, kPositions = kTile / kSplit;
  static_assert(kColumns % 16 == 0 && kPositions % 16 == 0);

  int part = 0;
  // The positions that the rows lane / 4 and lane / 4 + 8 see; nothing where first > last.
  int first[2], last[2];
  // The first and the last position that any of the rows sees, and those that all of them see.
  int any_first, any_last, all_first, all_last;
  uint32_t q[kDim / 16][4];
};

// Row r of two, from the columns of its head, or zeros.
template <int kDim>
__device__ __forceinline__ void load_query(const AttentionCall& call, int64_t token, int head,
                                           bool valid, int r, uint32_t (&q)[kDim / 16][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t begin = token * call.q_stride + int64_t{head} * call.dim;
#pragma unroll
  for (int k = 0; k < kDim / 8; ++k) {
    const int col = 8 * k + lane % 4 * 2;
    uint32_t pair = 0;
    if (valid && col < call.dim) {
      if (call.float_q) {
        const auto x =
            *reinterpret_cast<const float2*>(static_cast<const float*>(call.q) + begin + col);
        pair = bf16_pair(x.x, x.y);
      } else {
        pair = *reinterpret_cast<const uint32_t*>(static_cast<const Bf16*>(call.q) + begin + col);
      }
    }
    q[k / 2][k % 2 * 2 + r] = pair;
  }
}

// `out` at columns `col` and col + 1 of a head.
__device__ __forceinline__ void store_pair(const AttentionCall& call, int64_t token, int head,
                                           int col, float x, float y) {
  const int64_t at = token * call.out_stride + int64_t{head} * call.dim + col;
  if (call.float_out) {
    *reinterpret_cast<float2*>(static_cast<float*>(call.out) + at) = float2{x, y};
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<Bf16*>(call.out) + at) = bf16_pair(x, y);
  }
}

template <int kDim, int kSplit>
__device__ __forceinline__ void store_row(const AttentionCall& call, int64_t token, int head, int r,
                                          int part, const RowState<kDim / kSplit>& state) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float inv = 1 / state.sum[2 * r];
#pragma unroll
  for (int n = 0; n < kDim / kSplit / 8; ++n) {
    const int col = part * (kDim / kSplit) + 8 * n + lane % 4 * 2;
    if (col < call.dim)
      store_pair(call, token, head, col, finished(state.out[n][2 * r], inv),
                 finished(state.out[n][2 * r + 1], inv));
  }
  if (call.lse != nullptr && part == 0 && lane % 4 == 0)
    call.lse[token * call.lse_stride + head] = finished_lse(state.max[r], state.sum[2 * r]);
}

// --- Tiles.

template <int kDim>
struct TileMemory {
  static constexpr int kRow = kDim + kAttentionPadding;
  Bf16 keys[kTile][kRow], values[kTile][kRow];
};
// The values that the warps of 16 rows exchange; they are a block's barrier apart.
template <int kSplit>
struct RowExchange {
  float max[kSplit][kRows];
  Bf16 weights[kRows][kTile + kAttentionPadding];
};
template <>
struct RowExchange<1> {};

template <int kDim, int kSplit, int kRowTiles, int kStages>
struct AttentionMemory {
  TileMemory<kDim> stages[kStages];
  RowExchange<kSplit> exchange[kRowTiles];
};

// Positions outside first..last are zeros and are not read: their page may be missing, and what was
// never written may be NaN, which a weight of 0 does not silence.
template <int kDim, int kThreads>
__device__ __forceinline__ void load_tile(const AttentionCall& call, const int32_t* table,
                                          int kv_head, int tile, int first, int last,
                                          TileMemory<kDim>& to) {
  const auto *keys = static_cast<const Bf16*>(call.keys),
             *values = static_cast<const Bf16*>(call.values);
  constexpr int kPieces = kDim / 8;
  const int col = static_cast<int>(threadIdx.x) % kPieces * 8;
  const int mask = (1 << call.page_shift) - 1;
#pragma unroll
  for (int i = 0; i < kTile * kPieces / kThreads; ++i) {
    const int row = static_cast<int>(threadIdx.x) / kPieces + i * (kThreads / kPieces);
    const int position = tile + row;
    const bool read = position >= first && position <= last && col < call.dim;
    int64_t from = 0;
    if (read) {
      // 32 bits count the positions of a layer's cache: they would be 2^31 heads of it.
      const int block = table[position >> call.page_shift];
      const int slot =
          ((block * call.num_kv_heads + kv_head) << call.page_shift) + (position & mask);
      from = int64_t{slot} * call.dim + col;
    }
    copy_async16(&to.keys[row][col], keys + from, read ? 16 : 0);
    copy_async16(&to.values[row][col], values + from, read ? 16 : 0);
  }
}

// Takes a chunk's state through a tile. With kSplit > 1 all threads of the block come here.
template <int kDim, int kSplit>
__device__ __forceinline__ void attend_tile(float scale, int tile,
                                            const WarpRows<kDim, kSplit>& rows,
                                            const TileMemory<kDim>& memory,
                                            RowExchange<kSplit>& exchange,
                                            RowState<kDim / kSplit>& state) {
  constexpr int kPositions = kTile / kSplit, kColumns = kDim / kSplit;
  const int lane = static_cast<int>(threadIdx.x) % 32;

  float score[kPositions / 8][4];
#pragma unroll
  for (auto& n : score)
    for (float& s : n) s = 0;
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kPositions / 16; ++n) {
      uint32_t b[4];
      ldmatrix_x4(b, &memory.keys[rows.part * kPositions + 16 * n + lane / 16 * 8 + lane % 8]
                                 [16 * k + lane / 8 % 2 * 8]);
      mma_bf16(score[2 * n], rows.q[k], {b[0], b[1]});
      mma_bf16(score[2 * n + 1], rows.q[k], {b[2], b[3]});
    }
  }

  const int begin = tile + rows.part * kPositions + lane % 4 * 2;
  if (tile < rows.all_first || tile + kTile - 1 > rows.all_last) {  // some see only a part
#pragma unroll
    for (int n = 0; n < kPositions / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int position = begin + 8 * n + i % 2;
        if (position < rows.first[i / 2] || position > rows.last[i / 2]) score[n][i] = -INFINITY;
      }
    }
  }

  float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int n = 0; n < kPositions / 8; ++n)
      most[r] = fmaxf(most[r], fmaxf(score[n][2 * r], score[n][2 * r + 1]));
    most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
    most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
  }
  if constexpr (kSplit > 1) {
    if (lane % 4 == 0) {
      for (int r = 0; r < 2; ++r) exchange.max[rows.part][lane / 4 + 8 * r] = most[r];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      for (int p = 0; p < kSplit; ++p) most[r] = fmaxf(most[r], exchange.max[p][lane / 4 + 8 * r]);
    }
  }

  uint32_t weights[kPositions / 16][4];  // as operands
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float now = fmaxf(state.max[r], most[r] * scale);
    const float base = now == -INFINITY ? 0.0f : now;  // nothing seen yet: every weight is 0
    const float kept = fast_exp2(state.max[r] - base);
    state.max[r] = now;
#pragma unroll
    for (int n = 0; n < kPositions / 8; ++n) {
      weights[n / 2][n % 2 * 2 + r] = bf16_pair(fast_exp2(fmaf(score[n][2 * r], scale, -base)),
                                                fast_exp2(fmaf(score[n][2 * r + 1], scale, -base)));
    }
    for (int c = 2 * r; c < 2 * r + 2; ++c) {
      state.sum[c] *= kept;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) state.out[n][c] *= kept;
    }
  }
  if constexpr (kSplit > 1) {
#pragma unroll
    for (int n = 0; n < kPositions / 8; ++n) {
      for (int r = 0; r < 2; ++r) {
        Bf16* to =
            &exchange.weights[lane / 4 + 8 * r][rows.part * kPositions + 8 * n + lane % 4 * 2];
        *reinterpret_cast<uint32_t*>(to) = weights[n / 2][n % 2 * 2 + r];
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int k = 0; k < kTile / 16; ++k) {
    uint32_t a[4];
    if constexpr (kSplit > 1) {
      ldmatrix_x4(a, &exchange.weights[lane % 16][16 * k + lane / 16 * 8]);
    } else {
      for (int i = 0; i < 4; ++i) a[i] = weights[k][i];
    }
    constexpr uint32_t kOnes = 0x3F803F80;
    mma_bf16(state.sum, a, {kOnes, kOnes});
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n) {
      uint32_t b[4];
      ldmatrix_x4_trans(
          b, &memory.values[16 * k + lane % 16][rows.part * kColumns + 16 * n + lane / 16 * 8]);
      mma_bf16(state.out[2 * n], a, {b[0], b[1]});
      mma_bf16(state.out[2 * n + 1], a, {b[2], b[3]});
    }
  }
}

// Takes the rows of a block through the tiles of positions first..last, at least one; after the
// last tile of each chunk chunk_done(), which may clear the state. kStages - 1 tiles are on their
// way to shared memory.
template <int kDim, int kSplit, int kRowTiles, int kStages, class ChunkDone>
__device__ __forceinline__ void attend(const AttentionCall& call, const int32_t* table, int kv_head,
                                       int first, int last, const WarpRows<kDim, kSplit>& rows,
                                       RowState<kDim / kSplit>& state,
                                       const ChunkDone& chunk_done) {
  constexpr int kThreads = 32 * kSplit * kRowTiles, kAhead = (kStages - 1) * kTile;
  auto& memory = *dynamic_shared<AttentionMemory<kDim, kSplit, kRowTiles, kStages>>();
  const int row_tile = static_cast<int>(threadIdx.x) / 32 / kSplit;
  const int begin = first / kTile * kTile;
  const auto load = [&](int tile, int stage) {
    if (tile <= last)
      load_tile<kDim, kThreads>(call, table, kv_head, tile, first, last, memory.stages[stage]);
    commit_copies();  // a group a tile, so that they can be counted
  };
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) load(begin + s * kTile, s);
  int stage = 0;
  for (int tile = begin; tile <= last; tile += kTile) {
    await_copies<kStages - 2>();
    __syncthreads();  // this tile is here, and the one before is read
    load(tile + kAhead, stage == 0 ? kStages - 1 : stage - 1);
    // A warp that is alone with its rows may pass by a tile that none of them sees.
    if (kSplit > 1 || (tile <= rows.any_last && tile + kTile > rows.any_first))
      attend_tile<kDim, kSplit>(call.scale, tile, rows, memory.stages[stage],
                                memory.exchange[row_tile], state);
    if ((tile + kTile) % kChunk == 0 || tile + kTile > last) chunk_done();
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
}

}  // namespace tailrace::cuda
