// Draws a token from each row of logits, one block of threads a row.
//
// The sums over blocks of kBlock values that give lse (log_softmax.cuh) are the coarse half of the
// cumulative distribution too: a draw without truncation reads the row once, and then the one block
// that it falls into. Of a set (sample_sets.cuh) the same sums are made over its members,
// ascending.
#include <algorithm>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/log_softmax.cuh"
#include "kernels/cuda/sample_sets.cuh"
#include "kernels/ops/sample.h"

namespace tailrace::cuda {
namespace {

struct SampleRows {
  const float* logits;
  int64_t stride;
  int vocab;
  const SamplingRow* rows;
  int32_t* drawn;
  float *lse, *logprobs, *kept_lse;
  int32_t *kept_counts, *kept_ids;
};

__device__ __forceinline__ int min_of_warp(int x) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) x = min(x, __shfl_xor_sync(~0u, x, bits));
  return x;
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
  __shared__ uint64_t masses[kMostWarps];
  __shared__ Cut selected;
  __shared__ int set_size;
  __shared__ float lse_of_row;
  const int vocab = all.vocab;
  const RowMemory memory = {
      .blocks = dynamic_shared<BlockSum>(),
      .members = reinterpret_cast<Members*>(dynamic_shared<BlockSum>() + num_vocab_blocks(vocab)),
      .digits = digits,
      .masses = masses,
      .selected = &selected,
      .size = &set_size};
  const int64_t row = static_cast<int64_t>(blockIdx.x);
  const float* const logits = all.logits + row * all.stride;
  const SamplingRow how = all.rows[row];
  const float inv_temperature = how.inv_temperature;
  const float own_lse = sum_logits(logits, vocab, inv_temperature, memory.blocks).lse;
  if (threadIdx.x == 0) lse_of_row = own_lse;
  __syncthreads();
  const float lse = lse_of_row;
  const bool finite = fabsf(lse) < -lowest();
  if (!finite) {
    if (threadIdx.x != 0) return;
    all.lse[row] = lse;
    all.drawn[row] = -1;
    all.kept_counts[row] = 0;
    return;
  }
  const bool has_set = truncates(how, vocab);
  int size = vocab;
  int32_t* const ids = all.kept_ids + row * vocab;
  float kept_lse = 0;
  if (has_set) {
    size = keep_set({logits, vocab, inv_temperature}, how, memory, ids);
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
