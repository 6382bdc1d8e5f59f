// Which sequence of a batch a row is of, and where the cache has a position of it.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"

namespace tailrace::cuda {

// The last of `count` whose begin(i), ascending, is at most `item`: those before it with the same
// begin are empty.
template <class Begin>
__device__ __forceinline__ int last_begun(int count, int64_t item, const Begin& begin) {
  int first = 0;
  for (int end = count; end - first > 1;) {
    const int middle = (first + end) / 2;
    if (begin(middle) <= item) {
      first = middle;
    } else {
      end = middle;
    }
  }
  return first;
}
__device__ __forceinline__ int sequence_of(const int32_t* offsets, int count, int64_t row) {
  return last_begun(count, row, [offsets](int s) { return offsets[s]; });
}

// In elements, of a cache [blocks, kv_heads, block_tokens, head_dim]. `table`: the sequence's
// blocks.
template <class Call>
__device__ __forceinline__ int64_t cached_at(const Call& call, const int32_t* table, int kv_head,
                                             int position) {
  const int64_t block = table[position >> call.page_shift];
  return (((block * call.num_kv_heads + kv_head) << call.page_shift) +
          (position & ((1 << call.page_shift) - 1))) *
         call.dim;
}

}  // namespace tailrace::cuda
