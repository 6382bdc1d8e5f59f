// The gradient of bfloat16 attention through tensor cores: a kernel for dk and dv, one for dq.
//
// Rows are (token, head of a kv head's group) pairs of one sequence, flattened, so that row / group
// is the position. A block owns 64 positions, or 64 rows, of a sequence and a kv head, in pairs:
// (key, value), or (query, gradient of its result). 4 warps have 16 of them each; where head_dim >
// 128 two warps have the same 16, compute the same weights, and own half of the columns of the
// result each. The others, rows or positions, pass by in tiles of 32 that begin at multiples of 32.
//
// Order of sums: a score, and its gradient's product, over head_dim in steps of 16 of mma.sync,
// ascending; dk and dv over rows, dq over positions, in steps of 16 of mma.sync, ascending. Weights
// and gradients of scores are rounded to bfloat16 before they are multiplied. All of that is
// decided by the sequence alone.
//
// A block finds its sequence as one of attention_prefill.cu does.
#include "kernels/cuda/attention_backward.cuh"

namespace tailrace::cuda {

namespace {

constexpr int kOwn = 64, kOther = 32, kBackwardStages = 2, kOwnWarps = kOwn / kRows;

// Padded heads: keys and values of positions, or queries and gradients of rows.
template <int kDim, int kCount>
struct Pairs {
  Bf16 first[kCount][kDim + kAttentionPadding], second[kCount][kDim + kAttentionPadding];
};
// The facts of a row: its log-sum-exp as a power of 2, and dout . out.
struct alignas(8) RowFacts {
  float lse, dot;
};
template <int kDim>
struct BackwardMemory {
  Pairs<kDim, kOwn> own;
  Pairs<kDim, kOther> other[kBackwardStages];
  RowFacts facts[kBackwardStages][kOther];
};
// Where a pair lies, in elements of its two sources.
struct PairPlace {
  bool exists;
  int64_t first, second;
};

// The sequence and kv head of a block of threads.
struct BackwardBlock {
  const BackwardCall& call;
  int kv_head, num_tokens, num_rows;
  int64_t first_token;
  const int32_t* table;
  int begin;  // the first position or row that the block owns; none, where there are no more

  // `per_token`: 1 of positions, the group of rows.
  __device__ __forceinline__ BackwardBlock(const BackwardCall& c, int64_t block, int per_token)
      : call(c), kv_head(static_cast<int>(blockIdx.y)) {
    const AttentionCall& forward = call.forward;
    const auto first_block = [&](int s) {
      return int64_t{forward.seq_offsets[s]} * per_token / kOwn + s;
    };
    const int sequence = last_begun(forward.num_sequences, block, first_block);
    first_token = forward.seq_offsets[sequence];
    num_tokens = static_cast<int>(forward.seq_offsets[sequence + 1] - first_token);
    num_rows = num_tokens * forward.group;
    table = forward.tables + int64_t{sequence} * forward.max_blocks;
    // The last block of a sequence may own none.
    begin = static_cast<int>(block - first_block(sequence)) * kOwn;
  }

  __device__ __forceinline__ int head_of(int row) const {
    return kv_head * call.forward.group + row % call.forward.group;
  }
  __device__ __forceinline__ int64_t token_of(int row) const {
    return first_token + row / call.forward.group;
  }
  __device__ __forceinline__ PairPlace row(int index, int end) const {
    if (index >= end) return {};
    const AttentionCall& forward = call.forward;
    const int64_t token = token_of(index);
    const int head = head_of(index);
    return {true, token * forward.q_stride + int64_t{head} * forward.dim,
            (token * forward.num_heads + head) * forward.dim};
  }
  __device__ __forceinline__ PairPlace position(int index, int first, int end) const {
    if (index < first || index >= end) return {};
    const int64_t at = cached_at(call.forward, table, kv_head, index);
    return {true, at, at};
  }
  __device__ __forceinline__ RowFacts facts(int row, int end) const {
    if (row >= end) return {0, 0};
    const int64_t token = token_of(row);
    const int head = head_of(row);
    return {call.lse[token * call.lse_stride + head] * kLog2E,
            call.dots[token * call.forward.num_heads + head]};
  }
  // Columns of one of 16 owned rows or positions of a warp, from its sums.
  template <int kColumns>
  __device__ __forceinline__ void store(float* to, int first_column, int r, float factor,
                                        const float (&sums)[kColumns / 8][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      const int column = first_column + 8 * n + lane % 4 * 2;
      if (column < call.forward.dim)
        *reinterpret_cast<float2*>(to + column) =
            float2{factor * sums[n][2 * r], factor * sums[n][2 * r + 1]};
    }
  }
};

// A pair that does not exist is zeros, and is not read.
template <int kThreads, int kDim, int kCount, class PlaceOf>
__device__ __forceinline__ void load_pairs(const Bf16* first, const Bf16* second, int dim,
                                           const PlaceOf& place_of, Pairs<kDim, kCount>& to) {
  constexpr int kPieces = kDim / 8, kAtOnce = kThreads / kPieces;
  static_assert(kCount % kAtOnce == 0);
  const int column = static_cast<int>(threadIdx.x) % kPieces * 8;
#pragma unroll
  for (int i = 0; i < kCount / kAtOnce; ++i) {
    const int index = static_cast<int>(threadIdx.x) / kPieces + i * kAtOnce;
    const PairPlace place = place_of(index);
    const bool read = place.exists && column < dim;
    copy_async16(&to.first[index][column], first + (read ? place.first + column : 0),
                 read ? 16 : 0);
    copy_async16(&to.second[index][column], second + (read ? place.second + column : 0),
                 read ? 16 : 0);
  }
}

using OtherSums = float[kOther / 8][4];  // 16 of a warp's own by 32 others, as mma.sync has them
using OtherOperand = uint32_t[kOther / 16][4];

// The products of 16 own heads and 32 others.
template <int kRow>
__device__ __forceinline__ void multiply_heads(const Bf16 (*own)[kRow], const Bf16 (*other)[kRow],
                                               OtherSums& sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (auto& n : sums)
    for (float& s : n) s = 0;
#pragma unroll
  for (int k = 0; k < (kRow - kAttentionPadding) / 16; ++k) {
    uint32_t a[4];
    ldmatrix_x4(a, &own[lane % 16][16 * k + lane / 16 * 8]);
#pragma unroll
    for (int n = 0; n < kOther / 16; ++n) {
      uint32_t b[4];
      ldmatrix_x4(b, &other[16 * n + lane / 16 * 8 + lane % 8][16 * k + lane / 8 % 2 * 8]);
      mma_bf16(sums[2 * n], a, {b[0], b[1]});
      mma_bf16(sums[2 * n + 1], a, {b[2], b[3]});
    }
  }
}

// Adds columns of the 32 others, weighed for each of 16 own.
template <int kRow, int kTiles>
__device__ __forceinline__ void add_weighed(const OtherOperand& weights, const Bf16 (*other)[kRow],
                                            int first_column, float (&sums)[kTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int k = 0; k < kOther / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kTiles / 2; ++n) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, &other[16 * k + lane % 16][first_column + 16 * n + lane / 16 * 8]);
      mma_bf16(sums[2 * n], weights[k], {b[0], b[1]});
      mma_bf16(sums[2 * n + 1], weights[k], {b[2], b[3]});
    }
  }
}

__device__ __forceinline__ void as_operand(const OtherSums& sums, OtherOperand& operand) {
#pragma unroll
  for (int n = 0; n < kOther / 8; ++n) {
    for (int r = 0; r < 2; ++r)
      operand[n / 2][n % 2 * 2 + r] = bf16_pair(sums[n][2 * r], sums[n][2 * r + 1]);
  }
}

// From products to weights and the gradients of unscaled scores, but for the factor `scale`. What
// is not seen has the weight 0.
template <class SeenBy, class FactsOf>
__device__ __forceinline__ void differentiate(float scale, OtherSums& scores, OtherSums& gradients,
                                              const SeenBy& seen, const FactsOf& facts_of) {
#pragma unroll
  for (int n = 0; n < kOther / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const RowFacts facts = facts_of(n, i);
      const float power = fmaf(scores[n][i], scale, -facts.lse);
      scores[n][i] = seen(n, i) ? fast_exp2(power) : 0.0f;
      gradients[n][i] = scores[n][i] * (gradients[n][i] - facts.dot);
    }
  }
}

template <int kDim, int kSplit>
__global__ void __launch_bounds__(32 * kOwnWarps * kSplit) backward_kv_kernel(BackwardCall call) {
  constexpr int kThreads = 32 * kOwnWarps * kSplit, kColumns = kDim / kSplit;
  const AttentionCall& forward = call.forward;
  // The first first: most rows see them.
  const BackwardBlock block(call, blockIdx.x, 1);
  if (block.begin >= block.num_tokens) return;
  const int last_owned = min(block.begin + kOwn, block.num_tokens) - 1;
  const int row_begin = block.begin * forward.group;
  const int row_end = (call.last_seen_by(last_owned, block.num_tokens) + 1) * forward.group;

  auto& memory = *dynamic_shared<BackwardMemory<kDim>>();
  const auto *keys = static_cast<const Bf16*>(forward.keys),
             *values = static_cast<const Bf16*>(forward.values);
  const auto load = [&](int tile, int stage) {
    if (tile < row_end) {
      load_pairs<kThreads>(
          static_cast<const Bf16*>(forward.q), call.dout_bf16, forward.dim,
          [&](int i) { return block.row(tile + i, row_end); }, memory.other[stage]);
      const int own = static_cast<int>(threadIdx.x);
      if (own < kOther) memory.facts[stage][own] = block.facts(tile + own, row_end);
    }
    commit_copies();
  };
  load_pairs<kThreads>(
      keys, values, forward.dim,
      [&](int i) { return block.position(block.begin + i, 0, block.num_tokens); }, memory.own);
  load(row_begin, 0);

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int own = warp / kSplit * kRows, first_column = warp % kSplit * kColumns;
  const int position = block.begin + own, last_position = position + kRows - 1;
  float dk[kColumns / 8][4] = {}, dv[kColumns / 8][4] = {};
  int stage = 0;
  for (int tile = row_begin; tile < row_end; tile += kOther, stage = 1 - stage) {
    await_copies<0>();
    __syncthreads();  // this tile is here, and the one before is read
    load(tile + kOther, 1 - stage);
    const int first_token = tile / forward.group, last_token = (tile + kOther - 1) / forward.group;
    if (position > last_token || last_position < forward.first_seen(first_token)) continue;
    const bool all_seen = last_position <= first_token &&
                          position >= forward.first_seen(last_token) && tile + kOther <= row_end;
    const Pairs<kDim, kOther>& rows = memory.other[stage];
    OtherSums weights, gradients;
    multiply_heads(&memory.own.first[own], rows.first, weights);
    multiply_heads(&memory.own.second[own], rows.second, gradients);
    const auto row_of = [&](int n, int i) { return 8 * n + lane % 4 * 2 + i % 2; };
    differentiate(
        forward.scale, weights, gradients,
        [&](int n, int i) {
          if (all_seen) return true;
          const int row = tile + row_of(n, i), token = row / forward.group;
          const int p = position + lane / 4 + i / 2 * 8;
          return row < row_end && p <= token && p >= forward.first_seen(token);
        },
        [&](int n, int i) { return memory.facts[stage][row_of(n, i)]; });
    OtherOperand operand;
    as_operand(weights, operand);
    add_weighed(operand, rows.second, first_column, dv);
    as_operand(gradients, operand);
    add_weighed(operand, rows.first, first_column, dk);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int p = position + lane / 4 + 8 * r;
    if (p >= block.num_tokens) continue;
    const int64_t token = block.first_token + p, head = int64_t{block.kv_head} * forward.dim;
    block.store<kColumns>(call.dk + token * call.dk_stride + head, first_column, r, call.scale, dk);
    block.store<kColumns>(call.dv + token * call.dv_stride + head, first_column, r, 1, dv);
  }
}

template <int kDim, int kSplit>
__global__ void __launch_bounds__(32 * kOwnWarps * kSplit) backward_q_kernel(BackwardCall call) {
  constexpr int kThreads = 32 * kOwnWarps * kSplit, kColumns = kDim / kSplit;
  const AttentionCall& forward = call.forward;
  // The last first: they see most.
  const BackwardBlock block(call, int64_t{gridDim.x} - 1 - blockIdx.x, forward.group);
  if (block.begin >= block.num_rows) return;
  const int first = forward.first_seen(block.begin / forward.group);
  const int end = (min(block.begin + kOwn, block.num_rows) - 1) / forward.group + 1;

  auto& memory = *dynamic_shared<BackwardMemory<kDim>>();
  const auto *keys = static_cast<const Bf16*>(forward.keys),
             *values = static_cast<const Bf16*>(forward.values);
  const auto load = [&](int tile, int stage) {
    if (tile < end)
      load_pairs<kThreads>(
          keys, values, forward.dim, [&](int i) { return block.position(tile + i, first, end); },
          memory.other[stage]);
    commit_copies();
  };
  load_pairs<kThreads>(
      static_cast<const Bf16*>(forward.q), call.dout_bf16, forward.dim,
      [&](int i) { return block.row(block.begin + i, block.num_rows); }, memory.own);
  const int tile_begin = first / kOther * kOther;
  load(tile_begin, 0);

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int own = warp / kSplit * kRows, first_column = warp % kSplit * kColumns;
  const int row = block.begin + own;
  const int first_token = row / forward.group, last_token = (row + kRows - 1) / forward.group;
  RowFacts facts[2];
  int last_seen[2], first_seen[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int of_lane = row + lane / 4 + 8 * r;
    facts[r] = block.facts(of_lane, block.num_rows);
    last_seen[r] = of_lane / forward.group;
    first_seen[r] = forward.first_seen(last_seen[r]);
  }
  float dq[kColumns / 8][4] = {};
  int stage = 0;
  for (int tile = tile_begin; tile < end; tile += kOther, stage = 1 - stage) {
    await_copies<0>();
    __syncthreads();  // this tile is here, and the one before is read
    load(tile + kOther, 1 - stage);
    if (tile > last_token || tile + kOther <= forward.first_seen(first_token)) continue;
    const bool all_seen =
        tile + kOther - 1 <= first_token && tile >= forward.first_seen(last_token);
    const Pairs<kDim, kOther>& positions = memory.other[stage];
    OtherSums weights, gradients;
    multiply_heads(&memory.own.first[own], positions.first, weights);
    multiply_heads(&memory.own.second[own], positions.second, gradients);
    differentiate(
        forward.scale, weights, gradients,
        [&](int n, int i) {
          const int p = tile + 8 * n + lane % 4 * 2 + i % 2;
          return all_seen || (p <= last_seen[i / 2] && p >= first_seen[i / 2]);
        },
        [&](int, int i) { return facts[i / 2]; });
    OtherOperand operand;
    as_operand(gradients, operand);
    add_weighed(operand, positions.first, first_column, dq);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int of_lane = row + lane / 4 + 8 * r;
    if (of_lane >= block.num_rows) continue;
    float* to = call.dq + block.token_of(of_lane) * call.dq_stride +
                int64_t{block.head_of(of_lane)} * forward.dim;
    block.store<kColumns>(to, first_column, r, call.scale, dq);
  }
}

template <int kDim, int kSplit>
void run_backward(const Stream& stream, const BackwardCall& call) {
  const AttentionCall& forward = call.forward;
  const auto grid = [&](int per_token) {
    const int64_t blocks = int64_t{forward.num_tokens} * per_token / kOwn + forward.num_sequences;
    return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(forward.num_kv_heads));
  };
  const dim3 threads(32 * kOwnWarps * kSplit);
  launch(backward_kv_kernel<kDim, kSplit>, grid(1), threads, sizeof(BackwardMemory<kDim>), stream,
         call);
  launch(backward_q_kernel<kDim, kSplit>, grid(forward.group), threads,
         sizeof(BackwardMemory<kDim>), stream, call);
}

}  // namespace

void attention_backward_bf16(const Stream& stream, const BackwardCall& call) {
  if (call.forward.dim <= 64) return run_backward<64, 1>(stream, call);
  if (call.forward.dim <= 128) return run_backward<128, 1>(stream, call);
  run_backward<256, 2>(stream, call);
}

}  // namespace tailrace::cuda
