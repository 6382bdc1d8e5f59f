// Kernels that bring the rows of a token's experts together, and take them apart in backward.
//
//   weighted_sum     an element's terms one after the other, a fused multiply-add each: the bits
//                    of the CPU
//   weight_backward  a warp has a choice: a lane's elements 4 l .. 4 l + 3, 4 l + 128 .. in
//                    ascending order, a fused multiply-add each, then a tree over the warp
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/ops/experts.h"

namespace tailrace::cuda {
namespace {

constexpr int kSumThreads = 256;
constexpr int64_t kSumElements = 4 * kSumThreads;
constexpr int kChoiceThreads = 4 * kWarp;

__global__ void __launch_bounds__(kSumThreads)
    weighted_sum_kernel(MatrixView<const float> x, const int32_t* rows,
                        MatrixView<const float> weights, MatrixView<float> y, int k, bool wide) {
  const int64_t i = 4 * (static_cast<int64_t>(blockIdx.y) * kSumThreads + threadIdx.x);
  const int64_t token = blockIdx.x, left = y.cols - i;
  if (left <= 0) return;
  float4 sum = make_float4(0, 0, 0, 0);
  for (int j = 0; j < k; ++j) {
    const float weight = weights.rows > 0 ? weights.row(token)[j] : 1.0f;
    const float4 part = load_four(x.row(rows[token * k + j]) + i, left, wide);
    sum = make_float4(fmaf(weight, part.x, sum.x), fmaf(weight, part.y, sum.y),
                      fmaf(weight, part.z, sum.z), fmaf(weight, part.w, sum.w));
  }
  store_four(y.row(token) + i, sum, left, wide);
}

template <class T>
__global__ void __launch_bounds__(kChoiceThreads)
    weight_backward_kernel(MatrixView<T> h, MatrixView<float> dh, const int32_t* rows,
                           MatrixView<const float> weights, MatrixView<float> dweights, bool wide) {
  const int lane = this_lane();
  const int64_t choice = static_cast<int64_t>(blockIdx.x) * (kChoiceThreads / kWarp) +
                         static_cast<int>(threadIdx.x) / kWarp;
  if (choice >= h.rows) return;
  const int64_t token = choice / weights.cols, j = choice % weights.cols, row = rows[choice];
  const float weight = weights.row(token)[j];
  float sum = 0;
  for (int64_t i = 4 * lane; i < h.cols; i += 4 * kWarp) {
    const int64_t left = h.cols - i;
    const float4 x = load_four(h.row(row) + i, left, wide);
    const float4 dx = load_four(dh.row(row) + i, left, wide);
    sum = fmaf(dx.x, x.x, sum);
    sum = fmaf(dx.y, x.y, sum);
    sum = fmaf(dx.z, x.z, sum);
    sum = fmaf(dx.w, x.w, sum);
    store_four(h.row(row) + i, make_float4(x.x * weight, x.y * weight, x.z * weight, x.w * weight),
               left, wide);
    store_four(dh.row(row) + i,
               make_float4(dx.x * weight, dx.y * weight, dx.z * weight, dx.w * weight), left, wide);
  }
  sum = sum_of_warp(sum);
  if (lane == 0) dweights.row(token)[j] = sum;
}

template <class T>
void weigh_rows(const Stream& stream, const WeightBackward& args) {
  const auto h = args.h.on<T>(stream.device);
  const auto dh = args.dh.on<float>(stream.device);
  const bool wide = rows_are_wide(h.data, h.stride) && rows_are_wide(dh.data, dh.stride);
  constexpr int64_t kChoices = kChoiceThreads / kWarp;
  launch(weight_backward_kernel<T>, dim3(static_cast<unsigned>((h.rows + kChoices - 1) / kChoices)),
         dim3(kChoiceThreads), 0, stream, h, dh, args.rows.data(),
         args.weights.on<float>(stream.device), args.dweights.on<float>(stream.device), wide);
}

}  // namespace

void weighted_sum(const Stream& stream, const WeightedSum& args) {
  const int64_t tokens = args.y.rows, dim = args.y.cols;
  const int64_t k = tokens == 0 ? 0 : args.x.rows / tokens;
  TR_CHECK(args.x.rows == tokens * k && args.x.cols == dim &&
               std::ssize(args.rows) == args.x.rows &&
               (args.weights.rows == 0 || (args.weights.rows == tokens && args.weights.cols == k)),
           "x [{}, {}], {} rows, weights [{}, {}], y [{}, {}]", args.x.rows, args.x.cols,
           args.rows.size(), args.weights.rows, args.weights.cols, tokens, dim);
  if (tokens == 0 || dim == 0) return;
  const auto x = args.x.on<float>(stream.device);
  const auto y = args.y.on<float>(stream.device);
  MatrixView<const float> weights;
  if (args.weights.rows > 0) weights = args.weights.on<float>(stream.device);
  const bool wide = rows_are_wide(x.data, x.stride) && rows_are_wide(y.data, y.stride);
  const dim3 grid(static_cast<unsigned>(tokens),
                  static_cast<unsigned>((dim + kSumElements - 1) / kSumElements));
  launch(weighted_sum_kernel, grid, dim3(kSumThreads), 0, stream, x, args.rows.data(), weights, y,
         static_cast<int>(k), wide);
}

void weight_backward(const Stream& stream, const WeightBackward& args) {
  const int64_t tokens = args.weights.rows, k = args.weights.cols, dim = args.h.cols;
  TR_CHECK(args.h.rows == tokens * k && args.dh.rows == args.h.rows && args.dh.cols == dim &&
               std::ssize(args.rows) == args.h.rows && args.dweights.rows == tokens &&
               args.dweights.cols == k,
           "h [{}, {}], dh [{}, {}], {} rows, {} tokens", args.h.rows, dim, args.dh.rows,
           args.dh.cols, args.rows.size(), tokens);
  if (args.h.rows == 0) return;
  if (args.h.dtype == Dtype::kF32) {
    weigh_rows<float>(stream, args);
  } else {
    weigh_rows<Bf16>(stream, args);
  }
}

}  // namespace tailrace::cuda
