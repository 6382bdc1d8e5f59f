// Attention of rows that are sequences of their own, each an item: a block of threads takes the
// heads of a kv head's group, 16 at a time, its 4 warps sharing the rows. Where items alone are too
// few to fill a GPU, a block takes one chunk of positions, and a second kernel joins the chunks of
// a head in their order; chunks that a row does not see have no block that stays, and no state.
//
// Order of sums: attention.cuh.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/sequences.cuh"

namespace tailrace::cuda {

namespace {

constexpr int kDecodeSplit = 4, kDecodeThreads = 32 * kDecodeSplit;

// Three tiles in shared memory, two of them on their way, where two blocks still fit an SM.
constexpr int decode_stages(int dim) { return dim <= 128 ? 3 : 2; }

// [items, heads, chunks] of (max, sum) and of `out`; one chunk: none.
struct ChunkStates {
  float2* heads = nullptr;
  float* out = nullptr;
  int num_chunks = 0;

  __device__ int64_t at(const AttentionCall& call, int64_t item, int head, int chunk) const {
    return (item * call.num_heads + head) * num_chunks + chunk;
  }
};

// -1: not decode's.
__device__ __forceinline__ int row_of_item(const AttentionCall& call, int item) {
  if (!call.divided) return item;
  const int row = call.seq_offsets[item];
  return call.seq_offsets[item + 1] - row == 1 ? row : -1;
}

// Usually sequence s is row s; a batch may have empty ones, and longer ones in return.
__device__ __forceinline__ int sequence_of_item(const AttentionCall& call, int item) {
  if (call.divided) return item;
  if (call.seq_offsets[item] == item && call.seq_offsets[item + 1] == item + 1) return item;
  return sequence_of(call.seq_offsets, call.num_sequences, item);
}

template <int kDim>
__global__ void __launch_bounds__(kDecodeThreads)
    attention_chunk_kernel(AttentionCall call, ChunkStates states) {
  const int chunk = static_cast<int>(blockIdx.x) % states.num_chunks;
  const int row_tile = static_cast<int>(blockIdx.x) / states.num_chunks;
  const int kv_head = static_cast<int>(blockIdx.y), item = static_cast<int>(blockIdx.z);
  const int token = row_of_item(call, item);
  if (token < 0) return;
  const int position = call.positions[token];
  int first = call.first_seen(position), last = position;

  WarpRows<kDim, kDecodeSplit> rows;
  rows.part = static_cast<int>(threadIdx.x) / 32;
  rows.any_first = rows.all_first = rows.first[0] = rows.first[1] = first;
  rows.any_last = rows.all_last = rows.last[0] = rows.last[1] = last;
  if (states.num_chunks > 1) {
    first = max(first, chunk * kChunk);
    last = min(last, chunk * kChunk + kChunk - 1);
    if (first > last) return;
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int head[2];
  bool valid[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = row_tile * kRows + lane / 4 + 8 * r;
    valid[r] = row < call.group;
    head[r] = kv_head * call.group + row;
    load_query<kDim>(call, token, head[r], valid[r], r, rows.q);
  }

  RowState<kDim / kDecodeSplit> state, total;
  state.clear();
  total.clear();
  attend<kDim, kDecodeSplit, 1, decode_stages(kDim)>(
      call, call.tables + int64_t{sequence_of_item(call, item)} * call.max_blocks, kv_head, first,
      last, rows, state, [&] {
        join_chunk(total, state);
        state.clear();
      });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!valid[r]) continue;
    if (states.num_chunks == 1) {
      store_row<kDim, kDecodeSplit>(call, token, head[r], r, rows.part, total);
      continue;
    }
    // A chunk that was joined to nothing is the chunk.
    const int64_t at = states.at(call, item, head[r], chunk);
    if (rows.part == 0 && lane % 4 == 0) states.heads[at] = {total.max[r], total.sum[2 * r]};
#pragma unroll
    for (int n = 0; n < kDim / kDecodeSplit / 8; ++n) {
      const int col = rows.part * (kDim / kDecodeSplit) + 8 * n + lane % 4 * 2;
      if (col < call.dim)
        *reinterpret_cast<float2*>(states.out + at * call.dim + col) =
            float2{total.out[n][2 * r], total.out[n][2 * r + 1]};
    }
  }
}

// A thread two columns.
__global__ void __launch_bounds__(128)
    attention_join_kernel(AttentionCall call, ChunkStates states) {
  const int item = static_cast<int>(blockIdx.y), head = static_cast<int>(blockIdx.x);
  const int col = static_cast<int>(threadIdx.x) * 2, token = row_of_item(call, item);
  if (col >= call.dim || token < 0) return;
  const int position = call.positions[token];
  const int first = call.first_seen(position) / kChunk, last = position / kChunk;
  float max = -INFINITY, sum = 0;
  float2 out = {0, 0};
#pragma unroll 4
  for (int chunk = first; chunk <= last; ++chunk) {
    const int64_t at = states.at(call, item, head, chunk);
    const float2 other = states.heads[at];
    const float2 o = *reinterpret_cast<const float2*>(states.out + at * call.dim + col);
    if (other.x == -INFINITY) continue;
    const JoinWeights w = join_weights(max, other.x);
    max = w.max;
    sum = join(w, sum, other.y);
    out = {join(w, out.x, o.x), join(w, out.y, o.y)};
  }
  const float inv = 1 / sum;
  store_pair(call, token, head, col, finished(out.x, inv), finished(out.y, inv));
  if (call.lse != nullptr && col == 0)
    call.lse[token * call.lse_stride + head] = finished_lse(max, sum);
}

template <int kDim>
void run_decode(const Stream& stream, const AttentionCall& call, const ChunkStates& states,
                int num_items) {
  const int row_tiles = (call.group + kRows - 1) / kRows;
  launch(attention_chunk_kernel<kDim>,
         dim3(static_cast<unsigned>(states.num_chunks * row_tiles),
              static_cast<unsigned>(call.num_kv_heads), static_cast<unsigned>(num_items)),
         dim3(kDecodeThreads), sizeof(AttentionMemory<kDim, kDecodeSplit, 1, decode_stages(kDim)>),
         stream, call, states);
}

}  // namespace

void attention_decode(const Stream& stream, float* memory, int num_chunks, int num_items,
                      const AttentionCall& call) {
  ChunkStates states{.num_chunks = num_chunks};
  if (num_chunks > 1) {
    states.heads = reinterpret_cast<float2*>(memory);
    states.out = memory + 2 * int64_t{num_items} * call.num_heads * num_chunks;
  }
  if (call.dim <= 64) {
    run_decode<64>(stream, call, states, num_items);
  } else if (call.dim <= 128) {
    run_decode<128>(stream, call, states, num_items);
  } else {
    run_decode<256>(stream, call, states, num_items);
  }
  if (num_chunks > 1)
    launch(attention_join_kernel,
           dim3(static_cast<unsigned>(call.num_heads), static_cast<unsigned>(num_items)),
           dim3(static_cast<unsigned>((call.dim / 2 + 31) / 32 * 32)), 0, stream, call, states);
}

}  // namespace tailrace::cuda
