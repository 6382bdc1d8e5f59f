// Which rows of decode share a chunk of positions: samples of one prompt have the same blocks
// there.
//
// Items are rows of decode (attention.cuh). Items that follow each other in the batch, see all of a
// chunk and have the same block ids in it are a run. It is cut into pieces of at most `most` items,
// from its first on, and the first item of a piece leads it: its block of threads takes all of them
// through the chunk, and the others have nothing to do. Each block finds that out by itself, from
// the tables. A row's arithmetic is the same in any company, so this changes no bit.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/sequences.cuh"

namespace tailrace::cuda {

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

__device__ __forceinline__ const int32_t* table_of_item(const AttentionCall& call, int item) {
  return call.tables + int64_t{sequence_of_item(call, item)} * call.max_blocks;
}

// Only then are all ids of the chunk's blocks valid.
__device__ __forceinline__ bool sees_chunk(const AttentionCall& call, int item, int chunk) {
  const int token = row_of_item(call, item);
  if (token < 0) return false;
  const int position = call.positions[token], begin = chunk * kChunk;
  return call.first_seen(position) <= begin && begin + kChunk - 1 <= position;
}

// Whether `other`, which may lie outside of the batch, has the chunk's blocks of `table`.
__device__ __forceinline__ bool shares_chunk(const AttentionCall& call, const int32_t* table,
                                             int chunk, int other, int num_items) {
  if (other < 0 || other >= num_items || !sees_chunk(call, other, chunk)) return false;
  const int32_t* others = table_of_item(call, other);
  const int begin = chunk * kChunk >> call.page_shift;
  const int end = begin + (kChunk >> call.page_shift);
  if (others[begin] != table[begin]) return false;  // strangers are told apart by one load
  bool same = true;
#pragma unroll 8
  for (int b = begin + 1; b < end; ++b) same = same & (others[b] == table[b]);
  return same;
}

// How many items share the chunk with `item` without a gap, before it (step -1) or behind it (step
// 1), but at most `most`. A lane an item; the whole warp comes here.
__device__ __forceinline__ int num_neighbours(const AttentionCall& call, const int32_t* table,
                                              int chunk, int item, int num_items, int step,
                                              int most) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int count = 0; count < most; count += 32) {
    const int other = item + step * (count + lane + 1);
    const unsigned differ = ~__ballot_sync(~0u, shares_chunk(call, table, chunk, other, num_items));
    if (differ != 0) return min(count + __ffs(static_cast<int>(differ)) - 1, most);
  }
  return most;
}

// The number of items in the piece that `item` leads; 0: another item leads it. Every warp of the
// block finds the same.
__device__ __forceinline__ int num_led(const AttentionCall& call, int chunk, int item,
                                       int num_items, int most) {
  if (most <= 1 || !sees_chunk(call, item, chunk)) return 1;
  const int32_t* table = table_of_item(call, item);
  const int before = num_neighbours(call, table, chunk, item, num_items, -1, num_items);
  if (before % most != 0) return 0;
  return 1 + num_neighbours(call, table, chunk, item, num_items, 1, most - 1);
}

}  // namespace tailrace::cuda
