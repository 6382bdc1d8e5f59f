// Log-sum-exp, entropy and log-probabilities of rows of logits, and their gradient; the sums are in
// log_softmax.cuh. Rows go through the head in rounds: logits are made, and in backward made again,
// for some rows at a time.
#include <algorithm>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/log_softmax.cuh"

namespace tailrace::cuda {
namespace {

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
// The results wanted of each row; null: not wanted.
struct RowResults {
  float *lse = nullptr, *entropy = nullptr, *kept_lse = nullptr;
  const int32_t* targets = nullptr;  // with logprob
  float* logprob = nullptr;
};

// Grid: rows.
__global__ void __launch_bounds__(1024) softmax_rows(RowsOfLogits rows, RowResults results) {
  auto* const blocks = dynamic_shared<BlockSum>();
  const int64_t row = static_cast<int64_t>(blockIdx.x);
  const float* const logits = rows.logits + row * rows.stride;
  RowSums all = {};
  if (results.lse != nullptr) {
    all = sum_logits(logits, rows.vocab, rows.inv_temperature, blocks);
  }
  bool has_set = false;
  float kept_lse = 0;
  if (rows.kept_offsets != nullptr) {
    const int64_t begin = rows.kept_offsets[row];
    const int size = static_cast<int>(rows.kept_offsets[row + 1] - begin);
    has_set = size > 0;
    if (has_set) {
      const int32_t* const ids = rows.kept_ids + begin;
      kept_lse = sum_members(logits, ids, size, rows.inv_temperature, blocks).lse;
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

// The inputs of the gradient of rows of logits.
struct RowGradients {
  const int32_t* targets;
  const float *lse, *entropy, *dlogprob, *dentropy;  // entropy and dentropy: null, or both there
};

// Whether an id is among `size` ascending ones.
__device__ __forceinline__ bool contains(const int32_t* ids, int size, int32_t id) {
  int first = 0;
  for (int end = size; first < end;) {
    const int middle = (first + end) / 2;
    if (ids[middle] < id) {
      first = middle + 1;
    } else {
      end = middle;
    }
  }
  return first < size && ids[first] == id;
}

// Logits to dlogits. Grid: rows.
__global__ void __launch_bounds__(1024)
    gradient_rows(RowsOfLogits rows, float* logits, RowGradients gradients) {
  auto* const blocks = dynamic_shared<BlockSum>();
  __shared__ float lse_of_set;
  const int64_t row = static_cast<int64_t>(blockIdx.x);
  float* const z = logits + row * rows.stride;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const float dlogprob = gradients.dlogprob[row] * rows.inv_temperature;
  const float dentropy =
      gradients.dentropy == nullptr ? 0.0f : gradients.dentropy[row] * rows.inv_temperature;
  if (dlogprob == 0 && dentropy == 0) {  // whatever the logits are
    for (int i = thread; i < rows.vocab; i += threads) z[i] = 0;
    return;
  }
  const int32_t* ids = nullptr;
  int size = 0;
  if (rows.kept_offsets != nullptr) {
    const int64_t begin = rows.kept_offsets[row];
    ids = rows.kept_ids + begin;
    size = static_cast<int>(rows.kept_offsets[row + 1] - begin);
  }
  if (size > 0) {
    const float own = sum_members(z, ids, size, rows.inv_temperature, blocks).lse;
    if (thread == 0) lse_of_set = own;
    __syncthreads();
  }
  const float lse = gradients.lse[row];
  const float set_lse = size > 0 ? lse_of_set : lse;
  const float entropy = dentropy == 0 ? 0.0f : gradients.entropy[row];
  const int32_t target = gradients.targets[row];
  for (int i = thread; i < rows.vocab; i += threads) {
    const float scaled = z[i] * rows.inv_temperature;
    float gradient = 0;
    if (dentropy != 0) {
      const float log_p = scaled - lse;
      gradient = -dentropy * expf(log_p) * (finite_exponent(log_p) + entropy);
    }
    if (size == 0 || contains(ids, size, i)) gradient -= dlogprob * expf(scaled - set_lse);
    if (i == target) gradient += dlogprob;
    z[i] = gradient;
  }
}

void launch_rows(const Stream& stream, const RowsOfLogits& rows, const RowResults& results,
                 int64_t count) {
  if (count == 0) return;
  launch(softmax_rows, dim3(static_cast<unsigned>(count)), threads_of_row(rows.vocab, count),
         static_cast<size_t>(num_vocab_blocks(rows.vocab)) * sizeof(BlockSum), stream, rows,
         results);
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
  TR_CHECK(out.logits.rows == 0, "logits are kept on the CPU alone");
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

void linear_logprob_backward(const Stream& stream, Workspace& workspace,
                             const LinearLogprobBackward& args) {
  const auto& [head, gradient] = args;
  const int64_t rows = head.hidden.rows, vocab = head.weight.out;
  TR_CHECK(std::ssize(head.targets) == rows && std::ssize(gradient.lse) == rows &&
               std::ssize(gradient.dlogprob) == rows && gradient.dhidden.rows == rows,
           "{} rows, targets [{}], lse [{}], dlogprob [{}], dhidden [{}, {}]", rows,
           head.targets.size(), gradient.lse.size(), gradient.dlogprob.size(),
           gradient.dhidden.rows, gradient.dhidden.cols);
  const bool has_entropy = !gradient.dentropy.empty();
  TR_CHECK(!has_entropy ||
               (std::ssize(gradient.dentropy) == rows && std::ssize(gradient.entropy) == rows),
           "dentropy [{}], entropy [{}]", gradient.dentropy.size(), gradient.entropy.size());
  TR_CHECK(gradient.logits.rows == 0, "logits are kept on the CPU alone");
  TR_CHECK(head.kept.empty() || head.kept.rows() == rows, "{} rows, {} sets", rows,
           head.kept.rows());
  if (rows == 0) return;
  Workspace::Scope scope(workspace);
  const MatrixView<float> logits = take_logits(workspace, rows, vocab);
  for (int64_t first = 0; first < rows; first += logits.rows) {
    const int64_t count = std::min(logits.rows, rows - first);
    const ConstTensor hidden = head.hidden.slice_rows(first, first + count);
    Tensor z(reinterpret_cast<std::byte*>(logits.data), count, vocab, Dtype::kF32, stream.device);
    z.stride = logits.stride;
    cuda::linear(stream, {.x = hidden, .weight = head.weight, .y = z});
    launch(gradient_rows, dim3(static_cast<unsigned>(count)),
           threads_of_row(static_cast<int>(vocab), count),
           static_cast<size_t>(num_vocab_blocks(static_cast<int>(vocab))) * sizeof(BlockSum),
           stream,
           rows_of(z.on<float>(stream.device), head.inv_temperature,
                   head.kept.slice(first, first + count)),
           logits.data,
           RowGradients{.targets = head.targets.data() + first,
                        .lse = gradient.lse.data() + first,
                        .entropy = has_entropy ? gradient.entropy.data() + first : nullptr,
                        .dlogprob = gradient.dlogprob.data() + first,
                        .dentropy = has_entropy ? gradient.dentropy.data() + first : nullptr});
    cuda::linear_grad_input(
        stream, workspace,
        {.dy = z, .weight = head.weight, .dx = gradient.dhidden.slice_rows(first, first + count)});
    if (gradient.dweight.rows > 0)
      cuda::linear_grad_weight(stream, workspace,
                               {.dy = z, .x = hidden, .dweight = gradient.dweight});
  }
}

size_t linear_logprob_workspace_bytes(int64_t rows, int64_t vocab, int64_t dim) {
  Workspace workspace = Workspace::measuring();
  const int64_t count = take_logits(workspace, rows, vocab).rows;
  workspace.take<std::byte>(
      static_cast<int64_t>(cuda::linear_grad_workspace_bytes(count, vocab, dim)));
  return workspace.peak();
}

}  // namespace tailrace::cuda
