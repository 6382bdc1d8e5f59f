// Root-mean-square norms, with the addition to the residual stream before them: a block of threads
// for each row (or head of a row). Sum of squares: a thread's elements in ascending order, one
// fused multiply-add each, then a tree over the block; how many threads there are is decided by dim
// alone.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/rows.cuh"

namespace tailrace::cuda {
namespace {

struct NormRow {
  const float* residual = nullptr;  // null: none
  float* sum = nullptr;
  int64_t residual_stride = 0, sum_stride = 0;
  const float* weight = nullptr;
  float* inv_rms = nullptr;  // null: not wanted
  float eps = 0;
  int dim = 0, heads = 0;
  bool wide = false;
};

template <int kThreads, class In, class Out>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(MatrixView<const In> x, MatrixView<Out> y, NormRow a) {
  __shared__ float sums[kThreads / 32];
  const int64_t part = blockIdx.x, row = part / a.heads, col = part % a.heads * a.dim;
  const In* in = x.row(row) + col;
  float* sum = a.residual == nullptr ? nullptr : a.sum + row * a.sum_stride + col;
  float squares = 0;
  for (int64_t i = 4 * static_cast<int64_t>(threadIdx.x); i < a.dim; i += 4 * kThreads) {
    const int64_t left = a.dim - i;
    float4 v = load_four(in + i, left, a.wide);
    if (sum != nullptr) {
      const float4 r = load_four(a.residual + row * a.residual_stride + col + i, left, a.wide);
      v = make_float4(v.x + r.x, v.y + r.y, v.z + r.z, v.w + r.w);
      store_four(sum + i, v, left, a.wide);
    }
    squares = fmaf(v.x, v.x, squares);
    squares = fmaf(v.y, v.y, squares);
    squares = fmaf(v.z, v.z, squares);
    squares = fmaf(v.w, v.w, squares);
  }
  squares = sum_of_block<kThreads / 32>(squares, sums);
  const float inv = 1.0f / sqrtf(squares / static_cast<float>(a.dim) + a.eps);
  if (a.inv_rms != nullptr && threadIdx.x == 0) a.inv_rms[part] = inv;
  Out* out = y.row(row) + col;
  for (int64_t i = 4 * static_cast<int64_t>(threadIdx.x); i < a.dim; i += 4 * kThreads) {
    const int64_t left = a.dim - i;
    const float4 v =
        sum != nullptr ? load_four(sum + i, left, a.wide) : load_four(in + i, left, a.wide);
    const float4 w = load_four(a.weight + i, left, a.wide);
    store_four(out + i,
               make_float4(v.x * inv * w.x, v.y * inv * w.y, v.z * inv * w.z, v.w * inv * w.w),
               left, a.wide);
  }
}

template <class In, class Out>
void norm_rows(const Stream& stream, MatrixView<const In> x, MatrixView<Out> y, NormRow a) {
  a.wide = a.wide && rows_are_wide(x.data, x.stride) && rows_are_wide(y.data, y.stride);
  const dim3 grid(static_cast<unsigned>(x.rows * a.heads));
  if (a.dim <= 128) {
    launch(rms_norm_kernel<32, In, Out>, grid, dim3(32), 0, stream, x, y, a);
  } else {
    launch(rms_norm_kernel<256, In, Out>, grid, dim3(256), 0, stream, x, y, a);
  }
}

}  // namespace

void rms_norm(const Stream& stream, const RmsNorm& args) {
  const int64_t dim = static_cast<int64_t>(args.weight.size());
  TR_CHECK(dim > 0 && args.x.cols % dim == 0 && args.y.rows == args.x.rows &&
           args.y.cols == args.x.cols);
  if (args.x.rows == 0) return;
  NormRow a;
  a.weight = args.weight.data();
  if (!args.inv_rms.empty()) a.inv_rms = args.inv_rms.data();
  a.eps = args.eps;
  a.dim = static_cast<int>(dim);
  a.heads = static_cast<int>(args.x.cols / dim);
  a.wide = dim % 4 == 0 && rows_are_wide(a.weight, 4);
  if (args.residual.rows > 0) {
    TR_CHECK(args.residual.rows == args.x.rows && args.sum.rows == args.x.rows &&
             args.residual.cols == args.x.cols && args.sum.cols == args.x.cols);
    const auto residual = args.residual.on<float>(stream.device);
    const auto sum = args.sum.on<float>(stream.device);
    a.residual = residual.data;
    a.residual_stride = residual.stride;
    a.sum = sum.data;
    a.sum_stride = sum.stride;
    a.wide = a.wide && rows_are_wide(residual.data, residual.stride) &&
             rows_are_wide(sum.data, sum.stride);
  }
  const Device device = stream.device;
  if (args.x.dtype == Dtype::kF32 && args.y.dtype == Dtype::kF32)
    return norm_rows(stream, args.x.on<float>(device), args.y.on<float>(device), a);
  if (args.x.dtype == Dtype::kF32)
    return norm_rows(stream, args.x.on<float>(device), args.y.on<Bf16>(device), a);
  if (args.y.dtype == Dtype::kF32)
    return norm_rows(stream, args.x.on<Bf16>(device), args.y.on<float>(device), a);
  norm_rows(stream, args.x.on<Bf16>(device), args.y.on<Bf16>(device), a);
}

}  // namespace tailrace::cuda
