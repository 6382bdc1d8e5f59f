// Draws a token from each row of logits, one block of threads a row.
//
// The sums over blocks of kBlock values that give lse (log_softmax.cuh) are the coarse half of the
// cumulative distribution too: a draw without truncation reads the row once, and then the one block
// that it falls into. Top-k takes a bound from the largest values of the blocks, so that of a long
// row it reads few blocks again, in each of four rounds for the bits of the k-th largest logit.
#include <algorithm>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/log_softmax.cuh"
#include "kernels/ops/sample.h"

namespace tailrace::cuda {
namespace {

constexpr int kDigits = 256;  // of a round of select()

struct SampleRows {
  const float* logits;
  int64_t stride;
  int vocab;
  const SamplingRow* rows;
  int32_t* drawn;
  float *lse, *logprobs, *kept_lse;
  int32_t *kept_counts, *kept_ids;
};

// Members of a set in one block, or in all blocks before it.
struct Members {
  int above, equal;  // logits above the k-th largest, and equal to it
};

// The k-th largest key, and how many of those that are equal to it are among the k largest.
struct Selected {
  uint32_t key;
  int num_equal;
};

__device__ __forceinline__ int this_lane() { return static_cast<int>(threadIdx.x) % 32; }

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
__device__ __forceinline__ int min_of_warp(int x) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) x = min(x, __shfl_xor_sync(~0u, x, bits));
  return x;
}

// All threads come here. `for_each(f)` calls f(key) for each key that this thread has, the same
// keys each time; there are k keys or more. digits [kDigits] and `selected` are shared.
template <class ForEach>
__device__ __forceinline__ Selected select(int k, uint32_t* digits, Selected* selected,
                                           const ForEach& for_each) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
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
        *selected = {prefix | static_cast<uint32_t>(digit) << shift, k - before};
      }
    }
    __syncthreads();
    prefix = selected->key;
    k = selected->num_equal;
    known |= uint32_t{kDigits - 1} << shift;
  }
  return {prefix, k};
}

// f(id, z) for a block of the row, four neighbours id .. id + 3 of each lane at a time. All lanes
// come along, also where ids are past the row: there z is 0.
template <class F>
__device__ __forceinline__ void for_each_four(const float* logits, int vocab, int block,
                                              const F& f) {
#pragma unroll 1
  for (int j = 0; j < 4; ++j) {
    const int id = block * kBlock + 128 * j + 4 * this_lane();
    const float4 z = load_four(logits + id, vocab - id, /*wide=*/true);
    const float four[4] = {z.x, z.y, z.z, z.w};
    f(id, four);
  }
}

// The shared memory of a row.
struct RowMemory {
  BlockSum* blocks;  // [blocks of the row]
  Members* members;  // [blocks of the row]
  uint32_t* digits;
  Selected* selected;
};

// All threads come here: ids gets the k largest, ascending, k < vocab. `blocks` are those of the
// row. Who reads ids passes a barrier first.
__device__ __forceinline__ void keep_largest(const float* logits, int vocab, int k,
                                             float inv_temperature, const RowMemory& memory,
                                             int32_t* ids) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int warp = thread / 32, warps = threads / 32, lane = this_lane();
  const int num_blocks = num_vocab_blocks(vocab);
  const BlockSum* const blocks = memory.blocks;
  // k blocks that have a value of this or more make it k values. Scaled, as `blocks` has them:
  // scaling may join neighbours, but it does not change their order.
  float bound = lowest();
  if (k <= num_blocks) {
    const Selected of_blocks =
        select(k, memory.digits, memory.selected, [&](const auto& count_key) {
          for (int block = thread; block < num_blocks; block += threads)
            count_key(key_of(blocks[block].max));
        });
    bound = value_of(of_blocks.key);
  }
  const auto for_each_block = [&](const auto& f) {
    for (int block = warp; block < num_blocks; block += warps)
      if (blocks[block].max >= bound) f(block);
  };
  const Selected last = select(k, memory.digits, memory.selected, [&](const auto& count_key) {
    for_each_block([&](int block) {
      for_each_four(logits, vocab, block, [&](int id, const float(&z)[4]) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (id + e < vocab && z[e] * inv_temperature >= bound) count_key(key_of(z[e]));
      });
    });
  });

  const auto is_above = [&](int id, float z) { return id < vocab && key_of(z) > last.key; };
  const auto is_equal = [&](int id, float z) { return id < vocab && key_of(z) == last.key; };
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
  for_each_block([&](int block) {
    Members own = {};
    for_each_four(logits, vocab, block, [&](int id, const float(&z)[4]) {
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
  }
  __syncthreads();
  for_each_block([&](int block) {
    Members before = members[block];
    for_each_four(logits, vocab, block, [&](int id, const float(&z)[4]) {
      const Members own = count_four(id, z);
      const int above = sum_to_lane(own.above), equal = sum_to_lane(own.equal);
      Members at = {before.above + above - own.above, before.equal + equal - own.equal};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool over = is_above(id + e, z[e]), same = is_equal(id + e, z[e]);
        // Of equal ones the smaller ids.
        if (over || (same && at.equal < last.num_equal))
          ids[at.above + min(at.equal, last.num_equal)] = id + e;
        at.above += over;
        at.equal += same;
      }
      before.above += __shfl_sync(~0u, above, 31);
      before.equal += __shfl_sync(~0u, equal, 31);
    });
  });
}

// One warp comes here. Of `size` places with masses mass(i) >= 0, of which one at least is above
// 0: the place where the cumulative sum passes `uniform` of the whole, never one without mass.
// `uniform` becomes how far into the place that is. In parts of places, parts of these and so on,
// so that each lane adds few numbers, ascending.
template <class Mass>
__device__ __forceinline__ int find_place(int size, double& uniform, const Mass& mass) {
  const int lane = this_lane();
  int begin = 0;
  while (true) {
    const int part = (size + 31) / 32;
    const int end = min((lane + 1) * part, size);
    double own = 0;
    for (int i = lane * part; i < end; ++i) own += static_cast<double>(mass(begin + i));
    const double through = sum_to_lane(own);
    double before = __shfl_up_sync(~0u, through, 1);
    if (lane == 0) before = 0;
    const double target = uniform * __shfl_sync(~0u, through, 31);
    const unsigned some = __ballot_sync(~0u, own > 0),
                   passed = __ballot_sync(~0u, own > 0 && through > target);
    // By rounding none may pass it: the last one that has mass.
    const int chosen =
        passed != 0 ? __ffs(static_cast<int>(passed)) - 1 : 31 - __clz(static_cast<int>(some | 1u));
    // Rounding may put it out of the place, too.
    const double inside = own > 0 ? (target - before) / own : 0.0;
    uniform = __shfl_sync(~0u, min(max(inside, 0.0), 1 - 0x1p-53), chosen);
    begin += chosen * part;
    if (part == 1) return begin;
    size = min(part, size - chosen * part);
  }
}

// One warp comes here: the place of the draw among `size` values, of which `blocks` are the sums.
template <class Load>
__device__ __forceinline__ int draw(int size, float inv_temperature, double uniform,
                                    const BlockSum* blocks, const Load& load) {
  const int num_blocks = num_vocab_blocks(size);
  float max = lowest();
  for (int block = this_lane(); block < num_blocks; block += 32)
    max = fmaxf(max, blocks[block].max);
  max = max_of_warp(max);
  const int block = find_place(num_blocks, uniform, [&](int i) {
    // A block without mass has no maximum to bring to the row's.
    return blocks[i].max == lowest() ? 0.0f : expf(blocks[i].max - max) * blocks[i].sum;
  });
  const int begin = block * kBlock;
  const float shift = blocks[block].max;
  return begin + find_place(min(kBlock, size - begin), uniform,
                            [&](int i) { return expf(load(begin + i) * inv_temperature - shift); });
}

// One warp comes here: the smallest id of the largest logit. `blocks` are those of the row at
// temperature 1, where scaled logits are the logits.
__device__ __forceinline__ int find_largest(const float* logits, int vocab, float inv_temperature,
                                            const BlockSum* blocks) {
  const int num_blocks = num_vocab_blocks(vocab), lane = this_lane();
  float max = lowest();
  for (int block = lane; block < num_blocks; block += 32) max = fmaxf(max, blocks[block].max);
  max = max_of_warp(max);
  int first = num_blocks;
  for (int block = lane; block < num_blocks; block += 32)
    if (blocks[block].max == max) first = min(first, block);
  const int begin = min_of_warp(first) * kBlock, end = min(begin + kBlock, vocab);
  int id = vocab;
  for (int i = begin + lane; i < end; i += 32)
    if (logits[i] * inv_temperature == max) id = min(id, i);
  return min_of_warp(id);
}

// Grid: rows.
__global__ void __launch_bounds__(1024) sample_rows(SampleRows all) {
  __shared__ uint32_t digits[kDigits];
  __shared__ Selected selected;
  __shared__ float lse_of_row;
  const int vocab = all.vocab;
  const RowMemory memory = {
      .blocks = dynamic_shared<BlockSum>(),
      .members = reinterpret_cast<Members*>(dynamic_shared<BlockSum>() + num_vocab_blocks(vocab)),
      .digits = digits,
      .selected = &selected};
  const int64_t row = static_cast<int64_t>(blockIdx.x);
  const float* const logits = all.logits + row * all.stride;
  const SamplingRow how = all.rows[row];
  const float inv_temperature = how.inv_temperature;
  const float own_lse = sum_logits(logits, vocab, inv_temperature, memory.blocks).lse;
  if (threadIdx.x == 0) lse_of_row = own_lse;
  __syncthreads();
  const float lse = lse_of_row;
  const bool finite = fabsf(lse) < -lowest();
  if (!finite || !can_sample(Device{DeviceKind::kCuda}, how)) {
    if (threadIdx.x != 0) return;
    all.lse[row] = lse;
    all.drawn[row] = -1;
    all.kept_counts[row] = 0;
    return;
  }
  const bool has_set = truncates(how, vocab);
  const int size = has_set ? how.top_k : vocab;
  int32_t* const ids = all.kept_ids + row * vocab;
  float kept_lse = 0;
  if (has_set) {
    keep_largest(logits, vocab, size, inv_temperature, memory, ids);
    kept_lse = sum_members(logits, ids, size, inv_temperature, memory.blocks).lse;
  }
  if (threadIdx.x >= 32) return;
  const int place = how.greedy ? find_largest(logits, vocab, inv_temperature, memory.blocks)
                               : draw(size, inv_temperature, how.uniform, memory.blocks,
                                      [&](int i) { return logits[has_set ? ids[i] : i]; });
  if (threadIdx.x != 0) return;
  const int token = has_set ? ids[place] : place;
  all.lse[row] = lse;
  all.drawn[row] = token;
  // The expression of linear_logprob().
  all.logprobs[row] = logits[token] * inv_temperature - lse;
  all.kept_counts[row] = has_set ? size : 0;
  if (has_set) all.kept_lse[row] = kept_lse;
}

}  // namespace

void sample(const Stream& stream, Workspace&, const SampleTokens& args) {
  check_sample(args);
  if (args.logits.rows == 0) return;
  const MatrixView<const float> logits = args.logits.on<float>(stream.device);
  const int vocab = static_cast<int>(logits.cols);
  const auto shared =
      static_cast<size_t>(num_vocab_blocks(vocab)) * (sizeof(BlockSum) + sizeof(Members));
  launch(sample_rows, dim3(static_cast<unsigned>(logits.rows)), threads_of_row(vocab, logits.rows),
         shared, stream,
         SampleRows{.logits = logits.data,
                    .stride = logits.stride,
                    .vocab = vocab,
                    .rows = args.rows.data(),
                    .drawn = args.drawn.data(),
                    .lse = args.lse.data(),
                    .logprobs = args.logprobs.data(),
                    .kept_lse = args.kept_lse.data(),
                    .kept_counts = args.kept_counts.data(),
                    .kept_ids = args.kept_ids.data()});
}

size_t sample_workspace_bytes(int64_t /*rows*/, int64_t /*vocab*/) { return 0; }

}  // namespace tailrace::cuda
