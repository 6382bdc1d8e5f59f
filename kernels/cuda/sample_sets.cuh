// The set that truncation leaves of a row of logits, by the block of threads that draws from it.
//
// Every step ends in a cut: the tokens whose logit is above a bound, and of those that are equal to
// it the smaller ids. Top-k takes its first bound from the largest values of the blocks, so that of
// a long row it reads few blocks again, in each of four rounds for the bits of the k-th largest
// logit. Top-p looks for its bound bit by bit and adds what lies above it each time; blocks whose
// largest logit lies below are not read. Min-p's bound is found without a look at the row.
//
// Masses are whole numbers, so their sums have no order.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/log_softmax.cuh"
#include "kernels/ops/sample.h"

namespace tailrace::cuda {

constexpr int kDigits = 256;  // of a round of select()
constexpr int kMostWarps = 32;

// A token's mass is its probability over that of the likeliest, in units of 2^-40 and rounded down.
// A row is at most 2^23 long (its blocks lie in shared memory), so a sum fits into 63 bits.
constexpr float kMassUnits = 0x1p40f;

// Members of a set in one block, or in all blocks before it.
struct Members {
  int above, equal;  // logits above the cut's, and equal to it
};

// A set: the logits whose key is above `key`, and the first `num_equal` that are equal to it.
struct Cut {
  uint32_t key;
  int num_equal;
};
constexpr int kAllEqual = std::numeric_limits<int>::max();

// The row that is cut: logits as they are, and the factor that scales them.
struct RowToCut {
  const float* logits;
  int vocab;
  float inv_temperature;
};

// The shared memory of a row.
struct RowMemory {
  BlockSum* blocks;  // [blocks of the row]
  Members* members;  // [blocks of the row]
  uint32_t* digits;  // [kDigits]
  uint64_t* masses;  // [kMostWarps]
  Cut* selected;
  int* size;
};

// Ascends with z, which is no NaN. -0 and 0 are equal, as they are in comparisons.
__device__ __forceinline__ uint32_t key_of(float z) {
  const uint32_t bits = __float_as_uint(z + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of(uint32_t key) {
  return __uint_as_float((key >> 31) != 0 ? key ^ 0x80000000u : ~key);
}

template <class T>
__device__ __forceinline__ T sum_to_lane(T x) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const T before = __shfl_up_sync(~0u, x, lanes);
    if (this_lane() >= lanes) x += before;
  }
  return x;
}

// All threads come here. `for_each(f)` calls f(key) for each key that this thread has, the same
// keys each time; there are k keys or more. Gives the k-th largest key, and how many of those that
// are equal to it are among the k largest.
template <class ForEach>
__device__ __forceinline__ Cut select(int k, const RowMemory& memory, const ForEach& for_each) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  uint32_t* const digits = memory.digits;
  uint32_t prefix = 0, known = 0;  // the digits that are found, and where they are
#pragma unroll 1
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = thread; i < kDigits; i += threads) digits[i] = 0;
    __syncthreads();
    for_each([&](uint32_t key) {
      // Counts are whole numbers, so the order of these changes nothing.
      if ((key & known) == prefix) atomicAdd(&digits[(key >> shift) % kDigits], 1u);
    });
    __syncthreads();
    if (thread < 32) {
      // From the largest digit down: lane l has eight of them from kDigits - 1 - 8 l on.
      const int top = kDigits - 1 - 8 * thread;
      int own = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) own += static_cast<int>(digits[top - i]);
      const int through = sum_to_lane(own);
      int before = through - own;
      if (before < k && k <= through) {
        int digit = top;
        for (; before + static_cast<int>(digits[digit]) < k; --digit)
          before += static_cast<int>(digits[digit]);
        *memory.selected = {prefix | static_cast<uint32_t>(digit) << shift, k - before};
      }
    }
    __syncthreads();
    prefix = memory.selected->key;
    k = memory.selected->num_equal;
    known |= uint32_t{kDigits - 1} << shift;
  }
  return {prefix, k};
}

// f(id, z) for a block of the row, four neighbours id .. id + 3 of each lane at a time. All lanes
// come along, also where ids are past the row: there z is 0.
template <class F>
__device__ __forceinline__ void for_each_four(const RowToCut& row, int block, const F& f) {
#pragma unroll 1
  for (int j = 0; j < 4; ++j) {
    const int id = block * kBlock + 128 * j + 4 * this_lane();
    const float4 z = load_four(row.logits + id, row.vocab - id, /*wide=*/true);
    const float four[4] = {z.x, z.y, z.z, z.w};
    f(id, four);
  }
}

// f(block) for the blocks that have a scaled logit of `bound` or more, a warp a block.
template <class F>
__device__ __forceinline__ void for_each_block(const RowToCut& row, const BlockSum* blocks,
                                               float bound, const F& f) {
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  for (int block = warp; block < num_vocab_blocks(row.vocab); block += warps)
    if (blocks[block].max >= bound) f(block);
}

// All threads come here: the k largest, k < vocab.
__device__ __forceinline__ Cut cut_to_number(const RowToCut& row, int k, const RowMemory& memory) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int num_blocks = num_vocab_blocks(row.vocab);
  // k blocks that have a value of this or more make it k values. Scaled, as `blocks` has them:
  // scaling may join neighbours, but it does not change their order.
  float bound = lowest();
  if (k <= num_blocks) {
    const Cut of_blocks = select(k, memory, [&](const auto& count_key) {
      for (int block = thread; block < num_blocks; block += threads)
        count_key(key_of(memory.blocks[block].max));
    });
    bound = value_of(of_blocks.key);
  }
  return select(k, memory, [&](const auto& count_key) {
    for_each_block(row, memory.blocks, bound, [&](int block) {
      for_each_four(row, block, [&](int id, const float(&z)[4]) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (id + e < row.vocab && z[e] * row.inv_temperature >= bound) count_key(key_of(z[e]));
      });
    });
  });
}

// `largest` is the row's largest scaled logit.
__device__ __forceinline__ float weight_of(const RowToCut& row, float z, float largest) {
  return expf(z * row.inv_temperature - largest);
}
__device__ __forceinline__ uint64_t mass_of(const RowToCut& row, float z, float largest) {
  return static_cast<uint64_t>(weight_of(row, z, largest) * kMassUnits);
}

// All threads come here, and all have the result: the mass of the logits whose key is `least`, no
// NaN's, or more.
__device__ __forceinline__ uint64_t mass_from(const RowToCut& row, uint32_t least, float largest,
                                              const RowMemory& memory) {
  uint64_t own = 0;
  for_each_block(row, memory.blocks, value_of(least) * row.inv_temperature, [&](int block) {
    for_each_four(row, block, [&](int id, const float(&z)[4]) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (id + e < row.vocab && key_of(z[e]) >= least) own += mass_of(row, z[e], largest);
    });
  });
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) own += __shfl_xor_sync(~0u, own, bits);
  if (this_lane() == 0) memory.masses[threadIdx.x / 32] = own;
  __syncthreads();
  uint64_t sum = 0;
  for (int warp = 0; warp < static_cast<int>(blockDim.x) / 32; ++warp) sum += memory.masses[warp];
  __syncthreads();  // the next sum is written there
  return sum;
}

// All threads come here: of what `cut` left the smallest set of the likeliest tokens that has
// `share` of its mass, one token at least.
__device__ __forceinline__ Cut cut_to_mass(const RowToCut& row, Cut cut, double share,
                                           float largest, const RowMemory& memory) {
  const uint64_t whole =
      mass_from(row, cut.key + 1, largest, memory) +
      static_cast<uint64_t>(cut.num_equal) * mass_of(row, value_of(cut.key), largest);
  auto wanted = static_cast<uint64_t>(ceil(share * static_cast<double>(whole)));
  wanted = max(min(wanted, whole), uint64_t{1});
  // The key at which the mass reaches what is wanted: it does from `key` on and not from `end` on,
  // where it is `above`.
  uint32_t key = cut.key, end = key_of(-lowest());
  uint64_t above = 0;
#pragma unroll 1
  while (end - key > 1) {
    const uint32_t middle = key + (end - key) / 2;
    const uint64_t mass = mass_from(row, middle, largest, memory);
    if (mass >= wanted) {
      key = middle;
    } else {
      end = middle;
      above = mass;
    }
  }
  // Its tokens have one mass, which is not 0: with all of them the wanted mass is reached.
  const uint64_t each = mass_of(row, value_of(key), largest);
  return {key, static_cast<int>((wanted - above + each - 1) / each)};
}

// The tokens left by `cut` that have `share` of the likeliest one's probability. The likeliest
// stay, whatever the share.
__device__ __forceinline__ Cut cut_to_share(const RowToCut& row, Cut cut, double share,
                                            float largest) {
  // The least key whose weight is large enough: that of `end` is, that of `key` is not.
  uint32_t key = key_of(lowest()), end = key_of(-lowest());
#pragma unroll 1
  while (end - key > 1) {
    const uint32_t middle = key + (end - key) / 2;
    const bool is_enough =
        static_cast<double>(weight_of(row, value_of(middle), largest)) >= min(share, 1.0);
    (is_enough ? end : key) = middle;
  }
  return end > cut.key ? Cut{end, kAllEqual} : cut;
}

// All threads come here: writes the ids of `cut`, ascending, and gives their number. Who reads ids
// passes a barrier first.
__device__ __forceinline__ int write_members(const RowToCut& row, Cut cut, const RowMemory& memory,
                                             int32_t* ids) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int warp = thread / 32, lane = this_lane();
  const int num_blocks = num_vocab_blocks(row.vocab);
  const float bound = value_of(cut.key) * row.inv_temperature;
  const auto is_above = [&](int id, float z) { return id < row.vocab && key_of(z) > cut.key; };
  const auto is_equal = [&](int id, float z) { return id < row.vocab && key_of(z) == cut.key; };
  const auto count_four = [&](int id, const float(&z)[4]) {
    Members count = {};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      count.above += is_above(id + e, z[e]);
      count.equal += is_equal(id + e, z[e]);
    }
    return count;
  };

  // Where each block's members go: those before them are counted first.
  Members* const members = memory.members;
  for (int block = thread; block < num_blocks; block += threads) members[block] = {};
  __syncthreads();
  for_each_block(row, memory.blocks, bound, [&](int block) {
    Members own = {};
    for_each_four(row, block, [&](int id, const float(&z)[4]) {
      const Members count = count_four(id, z);
      own.above += count.above;
      own.equal += count.equal;
    });
    const int above = sum_to_lane(own.above), equal = sum_to_lane(own.equal);
    if (lane == 31) members[block] = {above, equal};
  });
  __syncthreads();
  if (warp == 0) {
    const int part = (num_blocks + 31) / 32;
    const int begin = min(lane * part, num_blocks), end = min(begin + part, num_blocks);
    Members own = {};
    for (int block = begin; block < end; ++block) {
      own.above += members[block].above;
      own.equal += members[block].equal;
    }
    Members before = {sum_to_lane(own.above) - own.above, sum_to_lane(own.equal) - own.equal};
    for (int block = begin; block < end; ++block) {
      const Members here = members[block];
      members[block] = before;
      before.above += here.above;
      before.equal += here.equal;
    }
    if (lane == 31) *memory.size = before.above + min(before.equal, cut.num_equal);
  }
  __syncthreads();
  for_each_block(row, memory.blocks, bound, [&](int block) {
    Members before = members[block];
    for_each_four(row, block, [&](int id, const float(&z)[4]) {
      const Members own = count_four(id, z);
      const int above = sum_to_lane(own.above), equal = sum_to_lane(own.equal);
      Members at = {before.above + above - own.above, before.equal + equal - own.equal};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool over = is_above(id + e, z[e]), same = is_equal(id + e, z[e]);
        // Among equal logits those with the smaller ids are taken.
        if (over || (same && at.equal < cut.num_equal))
          ids[at.above + min(at.equal, cut.num_equal)] = id + e;
        at.above += over;
        at.equal += same;
      }
      before.above += __shfl_sync(~0u, above, 31);
      before.equal += __shfl_sync(~0u, equal, 31);
    });
  });
  return *memory.size;
}

// All threads come here: ids gets the set of a row that is truncated, ascending, and its size is
// the result. `memory.blocks` are those of the row, whose lse is finite. Who reads ids passes a
// barrier first.
__device__ __forceinline__ int keep_set(const RowToCut& row, const SamplingRow& how,
                                        const RowMemory& memory, int32_t* ids) {
  Cut cut = {key_of(lowest()), kAllEqual};
  if (how.top_k > 0 && how.top_k < row.vocab) cut = cut_to_number(row, how.top_k, memory);
  if (how.top_p < 1 || how.min_p > 0) {
    float largest = lowest();
    for (int block = this_lane(); block < num_vocab_blocks(row.vocab); block += 32)
      largest = fmaxf(largest, memory.blocks[block].max);
    largest = max_of_warp(largest);
    if (how.top_p < 1) cut = cut_to_mass(row, cut, how.top_p, largest, memory);
    if (how.min_p > 0) cut = cut_to_share(row, cut, how.min_p, largest);
  }
  return write_members(row, cut, memory, ids);
}

}  // namespace tailrace::cuda
