// Log-sum-exp, entropy and log-probabilities of rows of logits.
//
// Order of a sum: a row is cut into blocks of kVocabBlock values. A warp takes a block: lane l has
// the values 4 l + 128 j + {0, 1, 2, 3} of it, j = 0 ... 3, and adds them in ascending order; the
// lanes are joined by exchanges over 16, 8, 4, 2, 1. The blocks are brought to the row's maximum;
// lane l of one warp adds the blocks l, l + 32, ... in ascending order, and the lanes are joined as
// before. So a sum depends on the number of values and on nothing else of the launch. A kept set is
// the same row of values, found through its ids.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"

namespace tailrace::cuda {
namespace {

constexpr int64_t kBlock = kVocabBlock;
static_assert(kBlock == 512, "16 values a lane");

// Logits of one round of linear_logprob(): as many floats, but no fewer rows than kMinRows. Each
// round reads W once, so a round has enough rows to hide that behind its products.
constexpr int64_t kRoundFloats = int64_t{64} << 20, kMinRows = 128;

struct RowsOfLogits {
  const float* logits;
  int64_t stride;
  int vocab;
  float inv_temperature;
  const int64_t* kept_offsets;  // null: no row has a set
  const int32_t* kept_ids;
};
// What is wanted of each row; null: nothing.
struct RowResults {
  float *lse = nullptr, *entropy = nullptr, *kept_lse = nullptr;
  const int32_t* targets = nullptr;  // with logprob
  float* logprob = nullptr;
};

// Of a block. `max` is finite or +-inf, whatever NaN there is among the values; a NaN is in `sum`.
struct BlockSum {
  float max, sum, weighted;  // sums of e^u and of u e^u, u = z' - max
};
struct RowSums {
  float lse, entropy;
};

__device__ __forceinline__ float lowest() { return __uint_as_float(0xFF800000u); }

__device__ __forceinline__ float max_of_warp(float x) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, bits));
  return x;
}
__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) x += __shfl_xor_sync(~0u, x, bits);
  return x;
}

// For u e^u, which is 0 where e^u is, also for u = -inf.
__device__ __forceinline__ float finite_exponent(float u) { return fmaxf(u, -200.0f); }

__device__ __forceinline__ BlockSum sum_block(float (&z)[16]) {
  float max = lowest();
#pragma unroll
  for (int i = 0; i < 16; ++i) max = fmaxf(max, z[i]);  // passes over NaN
  max = max_of_warp(max);
  // Where all is -inf, z' - max would be NaN, though the block only has probability 0.
  const float shift = max == lowest() ? 0.0f : max;
  float sum = 0, weighted = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float u = z[i] - shift, e = expf(u);
    sum += e;
    weighted = fmaf(e, finite_exponent(u), weighted);
  }
  return {max, sum_of_warp(sum), sum_of_warp(weighted)};
}

// All threads come here. `blocks` in shared memory, [ceil(size / kBlock)]. `load4(i, v)` gives
// values [i, i + 4), i a multiple of 4, not scaled, for i + 4 <= size; `load(i)` one. The result is
// that of every thread of the first warp.
template <class Load4, class Load>
__device__ __forceinline__ RowSums sum_row(int size, float inv_temperature, BlockSum* blocks,
                                           const Load4& load4, const Load& load) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int num_blocks = static_cast<int>((size + kBlock - 1) / kBlock);
  __syncthreads();  // who read `blocks` before has done so
  for (int block = thread / 32; block < num_blocks; block += warps) {
    float z[16];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = block * static_cast<int>(kBlock) + 128 * j + 4 * lane;
      float v[4];
      if (at + 4 <= size) {
        load4(at, v);
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) v[e] = at + e < size ? load(at + e) : 0.0f;
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) z[4 * j + e] = at + e < size ? v[e] * inv_temperature : lowest();
    }
    const BlockSum sum = sum_block(z);
    if (lane == 0) blocks[block] = sum;
  }
  __syncthreads();
  if (thread >= 32) return {};
  float max = lowest();
  for (int block = lane; block < num_blocks; block += 32) max = fmaxf(max, blocks[block].max);
  max = max_of_warp(max);
  float sum = 0, weighted = 0;
  for (int block = lane; block < num_blocks; block += 32) {
    const BlockSum b = blocks[block];
    // A block without mass has no maximum to bring to the row's.
    const float shift = b.max == lowest() ? 0.0f : b.max - max, factor = expf(shift);
    sum += factor * b.sum;
    weighted += factor * fmaf(finite_exponent(shift), b.sum, b.weighted);
  }
  sum = sum_of_warp(sum);
  weighted = sum_of_warp(weighted);
  // log p = u - log S with u = z' - max, so the entropy -sum of p log p is log S - W / S.
  const float log_sum = logf(sum);
  return {max + log_sum, log_sum - weighted / sum};
}

// Grid: rows.
__global__ void __launch_bounds__(1024) softmax_rows(RowsOfLogits rows, RowResults results) {
  auto* const blocks = dynamic_shared<BlockSum>();
  const int64_t row = static_cast<int64_t>(blockIdx.x);
  const float* const logits = rows.logits + row * rows.stride;
  RowSums all = {};
  if (results.lse != nullptr) {
    all = sum_row(
        rows.vocab, rows.inv_temperature, blocks,
        [logits](int i, float(&v)[4]) {
          const float4 z = *reinterpret_cast<const float4*>(logits + i);
          v[0] = z.x, v[1] = z.y, v[2] = z.z, v[3] = z.w;
        },
        [logits](int i) { return logits[i]; });
  }
  bool has_set = false;
  float kept_lse = 0;
  if (rows.kept_offsets != nullptr) {
    const int64_t begin = rows.kept_offsets[row];
    const int size = static_cast<int>(rows.kept_offsets[row + 1] - begin);
    has_set = size > 0;
    if (has_set) {
      const int32_t* const ids = rows.kept_ids + begin;
      const auto load = [logits, ids](int i) { return logits[ids[i]]; };
      kept_lse = sum_row(
                     size, rows.inv_temperature, blocks,
                     [&load](int i, float(&v)[4]) {
#pragma unroll
                       for (int e = 0; e < 4; ++e) v[e] = load(i + e);
                     },
                     load)
                     .lse;
    }
  }
  if (threadIdx.x != 0) return;
  if (results.lse != nullptr) results.lse[row] = all.lse;
  if (results.entropy != nullptr) results.entropy[row] = all.entropy;
  if (results.kept_lse != nullptr && has_set) results.kept_lse[row] = kept_lse;
  if (results.logprob != nullptr) {
    const int32_t target = results.targets[row];
    // The host cannot look at a target: one outside the vocabulary shows as NaN.
    float logprob = target >= 0 && target < rows.vocab
                        ? logits[target] * rows.inv_temperature - all.lse
                        : __uint_as_float(0x7FC00000u);
    if (has_set) {
      const float mass = kept_lse - all.lse;  // as log_mass()
      logprob -= 0.0f < mass ? 0.0f : mass;
    }
    results.logprob[row] = logprob;
  }
}

void launch_rows(const Stream& stream, const RowsOfLogits& rows, const RowResults& results,
                 int64_t count) {
  if (count == 0) return;
  // Rows that do not fill the multiprocessors get more warps each, which changes no bits.
  const int64_t blocks = (rows.vocab + kBlock - 1) / kBlock;
  const int64_t warps = std::min<int64_t>(blocks, count < 132 ? 32 : 16);
  launch(softmax_rows, dim3(static_cast<unsigned>(count)), dim3(static_cast<unsigned>(32 * warps)),
         static_cast<size_t>(blocks) * sizeof(BlockSum), stream, rows, results);
}

RowsOfLogits rows_of(const MatrixView<const float>& logits, float inv_temperature,
                     const KeptSets& kept) {
  TR_CHECK(logits.cols > 0 && logits.cols < int64_t{1} << 30, "a vocabulary of {}", logits.cols);
  return {.logits = logits.data,
          .stride = logits.stride,
          .vocab = static_cast<int>(logits.cols),
          .inv_temperature = inv_temperature,
          .kept_offsets = kept.empty() ? nullptr : kept.offsets.data(),
          .kept_ids = kept.ids.data()};
}

float* data_or_null(std::span<float> values) { return values.empty() ? nullptr : values.data(); }

// The logits of one round. What linear_logprob() takes, and what it says that it needs.
MatrixView<float> take_logits(Workspace& workspace, int64_t rows, int64_t vocab) {
  const int64_t stride = (vocab + 3) / 4 * 4;  // rows at 16 bytes
  const int64_t most = std::max(kRoundFloats / stride / kMinRows, int64_t{1}) * kMinRows;
  const int64_t count = std::min(rows, most);
  return {workspace.take<float>(count * stride).data(), count, vocab, stride};
}

}  // namespace

void log_sum_exp(const Stream& stream, const LogSumExp& args) {
  const auto& [logits, inv_temperature, lse, entropy] = args;
  TR_CHECK(std::ssize(lse) == logits.rows, "{} rows, lse [{}]", logits.rows, lse.size());
  TR_CHECK(entropy.empty() || entropy.size() == lse.size(), "entropy [{}]", entropy.size());
  if (logits.rows == 0) return;
  launch_rows(stream, rows_of(logits.on<float>(stream.device), inv_temperature, {}),
              {.lse = lse.data(), .entropy = data_or_null(entropy)}, logits.rows);
}

void kept_log_sum_exp(const Stream& stream, const KeptLogSumExp& args) {
  const auto& [logits, kept, inv_temperature, kept_lse] = args;
  TR_CHECK(kept.rows() == logits.rows && std::ssize(kept_lse) == logits.rows,
           "{} rows, {} sets, lse [{}]", logits.rows, kept.rows(), kept_lse.size());
  if (logits.rows == 0) return;
  launch_rows(stream, rows_of(logits.on<float>(stream.device), inv_temperature, kept),
              {.kept_lse = kept_lse.data()}, logits.rows);
}

void linear_logprob(const Stream& stream, Workspace& workspace, const LinearLogprob& args) {
  const auto& [head, out] = args;
  const int64_t rows = head.hidden.rows, vocab = head.weight.out;
  TR_CHECK(std::ssize(head.targets) == rows && std::ssize(out.logprob) == rows &&
               std::ssize(out.lse) == rows,
           "{} rows, targets [{}], logprob [{}], lse [{}]", rows, head.targets.size(),
           out.logprob.size(), out.lse.size());
  TR_CHECK(out.entropy.empty() || std::ssize(out.entropy) == rows, "entropy [{}]",
           out.entropy.size());
  TR_CHECK(head.kept.empty() || head.kept.rows() == rows, "{} rows, {} sets", rows,
           head.kept.rows());
  if (rows == 0) return;
  Workspace::Scope scope(workspace);
  const MatrixView<float> logits = take_logits(workspace, rows, vocab);
  for (int64_t first = 0; first < rows; first += logits.rows) {
    const int64_t count = std::min(logits.rows, rows - first);
    Tensor z(reinterpret_cast<std::byte*>(logits.data), count, vocab, Dtype::kF32, stream.device);
    z.stride = logits.stride;
    cuda::linear(
        stream, {.x = head.hidden.slice_rows(first, first + count), .weight = head.weight, .y = z});
    launch_rows(stream,
                rows_of(z.on<float>(stream.device), head.inv_temperature,
                        head.kept.slice(first, first + count)),
                {.lse = out.lse.data() + first,
                 .entropy = out.entropy.empty() ? nullptr : out.entropy.data() + first,
                 .targets = head.targets.data() + first,
                 .logprob = out.logprob.data() + first},
                count);
  }
}

size_t linear_logprob_workspace_bytes(int64_t rows, int64_t vocab, int64_t /*dim*/) {
  Workspace workspace = Workspace::measuring();
  take_logits(workspace, rows, vocab);
  return workspace.peak();
}

}  // namespace tailrace::cuda
