// Attention of sequences with any number of rows: a block of threads takes 64 rows (token, head of
// the group) of a sequence and kv head through all chunks that they see, 4 warps (8 where head_dim
// > 128, in pairs) with 16 rows each. Keys and values come in tiles of 64 positions, one ahead.
//
// Order of sums: attention.cuh.
//
// A block finds its sequence itself: sequence s has the blocks from offsets[s] * group / 64 + s on,
// which are enough for its rows, and as many in all whatever the batch looks like. So the launch
// needs no more than the numbers of tokens and sequences.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/sequences.cuh"

namespace tailrace::cuda {

namespace {

constexpr int kPrefillRowTiles = 4, kPrefillRows = kPrefillRowTiles * kRows, kPrefillStages = 2;

__device__ __forceinline__ int64_t first_prefill_block(const AttentionCall& call, int sequence) {
  return int64_t{call.seq_offsets[sequence]} * call.group / kPrefillRows + sequence;
}

template <int kDim, int kSplit>
__global__ void __launch_bounds__(32 * kSplit * kPrefillRowTiles)
    attention_prefill_kernel(AttentionCall call) {
  // The last first: they see most, and the short ones fill the end.
  const int64_t block = static_cast<int64_t>(gridDim.x) - 1 - blockIdx.x;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int sequence = last_begun(call.num_sequences, block,
                                  [&call](int s) { return first_prefill_block(call, s); });
  const int first_token = call.seq_offsets[sequence];
  const int num_tokens = call.seq_offsets[sequence + 1] - first_token;
  if (call.divided && num_tokens == 1) return;
  const int num_rows = num_tokens * call.group;
  const int64_t offset = (block - first_prefill_block(call, sequence)) * kPrefillRows;
  if (offset >= num_rows) return;
  const int block_row = static_cast<int>(offset);
  const int first_position = call.positions[first_token];
  const auto position_of = [&](int row) {
    return first_position + min(row, num_rows - 1) / call.group;
  };

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_row = block_row + warp / kSplit * kRows;
  WarpRows<kDim, kSplit> rows;
  rows.part = warp % kSplit;
  rows.any_first = call.first_seen(position_of(warp_row));
  rows.any_last = warp_row < num_rows ? position_of(warp_row + kRows - 1) : -1;
  rows.all_first = call.first_seen(position_of(warp_row + kRows - 1));
  rows.all_last = position_of(warp_row);
  int token[2], head[2];
  bool valid[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = warp_row + lane / 4 + 8 * r;
    valid[r] = row < num_rows;
    token[r] = first_token + row / call.group;
    head[r] = kv_head * call.group + row % call.group;
    rows.last[r] = position_of(row);
    rows.first[r] = call.first_seen(rows.last[r]);
    load_query<kDim>(call, token[r], head[r], valid[r], r, rows.q);
  }

  RowState<kDim / kSplit> chunk, total;
  chunk.clear();
  total.clear();
  attend<kDim, kSplit, kPrefillRowTiles, kPrefillStages>(
      call, call.tables + int64_t{sequence} * call.max_blocks, kv_head,
      call.first_seen(position_of(block_row)), position_of(block_row + kPrefillRows - 1), rows,
      chunk, [&] {
        join_chunk(total, chunk);
        chunk.clear();
      });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (valid[r]) store_row<kDim, kSplit>(call, token[r], head[r], r, rows.part, total);
  }
}

template <int kDim, int kSplit>
void run_prefill(const Stream& stream, const AttentionCall& call) {
  const int64_t blocks = int64_t{call.num_tokens} * call.group / kPrefillRows + call.num_sequences;
  launch(attention_prefill_kernel<kDim, kSplit>,
         dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(call.num_kv_heads)),
         dim3(32 * kSplit * kPrefillRowTiles),
         sizeof(AttentionMemory<kDim, kSplit, kPrefillRowTiles, kPrefillStages>), stream, call);
}

}  // namespace

void attention_prefill(const Stream& stream, const AttentionCall& call) {
  if (call.dim <= 64) return run_prefill<64, 1>(stream, call);
  if (call.dim <= 128) return run_prefill<128, 1>(stream, call);
  run_prefill<256, 2>(stream, call);
}

}  // namespace tailrace::cuda
