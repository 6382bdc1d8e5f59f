// Attention of rows that are sequences of their own, each an item: a block of threads takes the
// heads of a kv head's group, 16 at a time, its 4 warps sharing the rows. Where items alone are too
// few to fill a GPU, or contexts are long, a block takes one chunk of positions, and a second
// kernel joins the chunks of a head in their order; chunks that a row does not see have no block
// that stays, and no state.
//
// Items that share a chunk's blocks (attention_runs.cuh) are taken through it together: keys and
// values are read once for up to 64 rows (item, head), and each warp has 16 rows of its own. Up to
// 16 rows are shared by the warps, as those of one item are.
//
// Order of sums: attention.cuh.
#include <algorithm>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_runs.cuh"

namespace tailrace::cuda {

namespace {

constexpr int kDecodeSplit = 4, kDecodeThreads = 32 * kDecodeSplit;

// Three tiles in shared memory, two of them on their way, where two blocks still fit an SM.
constexpr int decode_stages(int dim) { return dim <= 128 ? 3 : 2; }

// The split of rows of several items: a wider state does not fit the registers of one warp.
constexpr int together_split(int dim) { return dim <= 128 ? 1 : 2; }
constexpr int together_tiles(int dim) { return kDecodeSplit / together_split(dim); }

// [items, heads, chunks] of (max, sum) and of `out`; one chunk: none.
struct ChunkStates {
  float2* heads = nullptr;
  float* out = nullptr;
  int num_chunks = 0;

  __device__ int64_t at(const AttentionCall& call, int64_t item, int head, int chunk) const {
    return (item * call.num_heads + head) * num_chunks + chunk;
  }
};

// A warp's rows, of the pairs (item, head of the group) that begin with `item`.
template <int kDim, int kSplit>
struct ItemRows {
  WarpRows<kDim, kSplit> rows;
  int item, first_head, group, row, num_rows;

  // All of them see first..last. The block begins with pair first_row of num_rows.
  __device__ __forceinline__ ItemRows(const AttentionCall& call, int first_item, int kv_head,
                                      int first_row, int count, int first, int last)
      : item(first_item),
        first_head(kv_head * call.group),
        group(call.group),
        row(first_row + static_cast<int>(threadIdx.x) / 32 / kSplit * kRows +
            static_cast<int>(threadIdx.x) % 32 / 4),
        num_rows(count) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    rows.part = warp % kSplit;
    rows.any_first = rows.all_first = rows.first[0] = rows.first[1] = first;
    rows.all_last = rows.last[0] = rows.last[1] = last;
    // A warp that is alone with rows beyond the last passes by all tiles.
    rows.any_last = first_row + warp / kSplit * kRows < num_rows ? last : -1;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      load_query<kDim>(call, valid(r) ? row_of_item(call, item_of(r)) : 0, head_of(r), valid(r), r,
                       rows.q);
    }
  }
  // The facts of the rows lane / 4 and lane / 4 + 8.
  __device__ __forceinline__ bool valid(int r) const { return row + 8 * r < num_rows; }
  __device__ __forceinline__ int item_of(int r) const { return item + (row + 8 * r) / group; }
  __device__ __forceinline__ int head_of(int r) const { return first_head + (row + 8 * r) % group; }
};

// A block takes an item through all that it sees.
template <int kDim>
__global__ void __launch_bounds__(kDecodeThreads) attention_item_kernel(AttentionCall call) {
  const int row_tile = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  const int item = static_cast<int>(blockIdx.z), token = row_of_item(call, item);
  if (token < 0) return;
  const int position = call.positions[token], first = call.first_seen(position);
  const ItemRows<kDim, kDecodeSplit> own(call, item, kv_head, row_tile * kRows, call.group, first,
                                         position);
  RowState<kDim / kDecodeSplit> state, total;
  state.clear();
  total.clear();
  attend<kDim, kDecodeSplit, 1, decode_stages(kDim)>(call, table_of_item(call, item), kv_head,
                                                     first, position, own.rows, state, [&] {
                                                       join_chunk(total, state);
                                                       state.clear();
                                                     });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (own.valid(r))
      store_row<kDim, kDecodeSplit>(call, token, own.head_of(r), r, own.rows.part, total);
  }
}

// Leaves the states of rows first_row.. of `num_rows` at a chunk, of which they see first..last.
template <int kDim, int kSplit>
__device__ __forceinline__ void attend_chunk(const AttentionCall& call, const ChunkStates& states,
                                             int chunk, int item, int kv_head, int first_row,
                                             int num_rows, int first, int last) {
  constexpr int kColumns = kDim / kSplit;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const ItemRows<kDim, kSplit> own(call, item, kv_head, first_row, num_rows, first, last);
  RowState<kColumns> state;
  state.clear();
  attend<kDim, kSplit, kDecodeSplit / kSplit, decode_stages(kDim)>(
      call, table_of_item(call, item), kv_head, first, last, own.rows, state, [] {});
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!own.valid(r)) continue;
    const int64_t at = states.at(call, own.item_of(r), own.head_of(r), chunk);
    if (own.rows.part == 0 && lane % 4 == 0) states.heads[at] = {state.max[r], state.sum[2 * r]};
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      const int col = own.rows.part * kColumns + 8 * n + lane % 4 * 2;
      if (col < call.dim)
        *reinterpret_cast<float2*>(states.out + at * call.dim + col) =
            float2{state.out[n][2 * r], state.out[n][2 * r + 1]};
    }
  }
}

// A block takes a chunk of an item, or of those that share it.
template <int kDim>
__global__ void __launch_bounds__(kDecodeThreads)
    attention_chunk_kernel(AttentionCall call, ChunkStates states) {
  const int chunk = static_cast<int>(blockIdx.x) % states.num_chunks;
  const int row_tile = static_cast<int>(blockIdx.x) / states.num_chunks;
  const int kv_head = static_cast<int>(blockIdx.y), item = static_cast<int>(blockIdx.z);
  const int token = row_of_item(call, item);
  if (token < 0) return;
  const int position = call.positions[token];
  const int first = max(call.first_seen(position), chunk * kChunk);
  const int last = min(position, chunk * kChunk + kChunk - 1);
  if (first > last) return;

  constexpr int kMostRows = kRows * together_tiles(kDim);
  const int num_items =
      num_led(call, chunk, item, static_cast<int>(gridDim.z), kMostRows / call.group);
  const int num_rows = num_items * call.group;
  if (num_items <= 1 || num_rows <= kRows) {
    if (row_tile * kRows < num_rows)
      attend_chunk<kDim, kDecodeSplit>(call, states, chunk, item, kv_head, row_tile * kRows,
                                       num_rows, first, last);
  } else if (row_tile == 0) {
    attend_chunk<kDim, together_split(kDim)>(call, states, chunk, item, kv_head, 0, num_rows, first,
                                             last);
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
  constexpr int kStages = decode_stages(kDim), kSplit = together_split(kDim);
  constexpr size_t kAlone = sizeof(AttentionMemory<kDim, kDecodeSplit, 1, kStages>);
  constexpr size_t kTogether =
      sizeof(AttentionMemory<kDim, kSplit, kDecodeSplit / kSplit, kStages>);
  const int row_tiles = (call.group + kRows - 1) / kRows;
  const dim3 grid(static_cast<unsigned>(states.num_chunks * row_tiles),
                  static_cast<unsigned>(call.num_kv_heads), static_cast<unsigned>(num_items));
  if (states.num_chunks == 1)
    return launch(attention_item_kernel<kDim>, grid, dim3(kDecodeThreads), kAlone, stream, call);
  launch(attention_chunk_kernel<kDim>, grid, dim3(kDecodeThreads), std::max(kAlone, kTogether),
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
