// The gradients of linear layers, of one weight and of experts. Sums of products: gemm_grad.cu for
// bfloat16, gemm_f32.cu for float32, or a library's (product_table.h). The gradient of a bias:
// kBiasChains sums of every so many tokens, each in ascending order, joined in a tree; then what
// dbias holds.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/product.h"
#include "kernels/cuda/product_table.h"

namespace tailrace::cuda {
namespace {

constexpr int kBiasColumns = 32, kBiasChains = 16;

__global__ void __launch_bounds__(kBiasColumns* kBiasChains)
    bias_gradient(ConstMatrix dy, float* dbias) {
  __shared__ float sums[kBiasChains][kBiasColumns];
  const int own = static_cast<int>(threadIdx.x) % kBiasColumns;
  const int chain = static_cast<int>(threadIdx.x) / kBiasColumns;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kBiasColumns + own;
  float sum = 0;
  if (col < dy.cols) {
#pragma unroll 4
    for (int64_t t = chain; t < dy.rows; t += kBiasChains) sum += dy.row(t)[col];
  }
  sums[chain][own] = sum;
  for (int half = kBiasChains / 2; half > 0; half /= 2) {
    __syncthreads();
    if (chain < half) sums[chain][own] += sums[chain + half][own];
  }
  if (chain == 0 && col < dy.cols) dbias[col] += sums[0][own];
}

template <class B>
void multiply_by_dtype(const Stream& stream, ProductKind kind, const Product<B>& product) {
  if constexpr (std::is_same_v<B, float>) {
    multiply_f32(stream, kind, product);
  } else {
    multiply_grad(stream, kind, product);
  }
}

template <class B>
void grad_input(const Stream& stream, ConstTensor dy_tensor, const Weight& weight, Tensor dx_tensor,
                bool accumulate, const RowGroups& groups = {}, size_t group_bytes = 0) {
  const auto dy = dy_tensor.on<float>(stream.device);
  const auto dx = dx_tensor.on<float>(stream.device);
  const auto w = rows_of<B>(weight);
  multiply_by_dtype<B>(stream, ProductKind::kGradInput,
                       {.a = dy.data,
                        .a_stride = dy.stride,
                        .b = w.data,
                        .b_stride = w.stride,
                        .c = dx.data,
                        .c_stride = dx.stride,
                        .m = dy.rows,
                        .n = weight.in,
                        .k = weight.out,
                        .add = accumulate,
                        .groups = groups,
                        .group_stride = static_cast<int64_t>(group_bytes / sizeof(B))});
}

template <class B>
void grad_weight(const Stream& stream, ConstTensor dy_tensor, ConstTensor x_tensor, Matrix dweight,
                 const RowGroups& groups = {}) {
  const auto dy = dy_tensor.on<float>(stream.device);
  const auto x = x_tensor.on<B>(stream.device);
  multiply_by_dtype<B>(stream, ProductKind::kGradWeight,
                       {.a = dy.data,
                        .a_stride = dy.stride,
                        .b = x.data,
                        .b_stride = x.stride,
                        .c = dweight.data,
                        .c_stride = dweight.stride,
                        .m = dweight.rows,
                        .n = dweight.cols,
                        .k = dy.rows,
                        .add = true,
                        .groups = groups,
                        .group_stride = dweight.rows * dweight.stride});
}

// dy as the library takes it, in scratch memory that is free again when the op returns.
Weight rounded_rows(const Stream& stream, Workspace& workspace, ConstTensor dy) {
  const size_t bytes = cuda::weight_bytes(Dtype::kBF16, dy.rows, dy.cols);
  return cuda::pack_weight(stream, dy, Dtype::kBF16,
                           workspace.take<std::byte>(static_cast<int64_t>(bytes)));
}

// False: not the library's, and nothing is done.
bool grad_input_by_library(const Stream& stream, Workspace& workspace,
                           const LinearGradInput& args) {
  const auto& [dy, weight, dx, accumulate] = args;
  if (!may_take_gradient(stream, ProductKind::kGradInput, dy.rows, weight.out, weight.in))
    return false;
  const Workspace::Scope scope(workspace);
  const auto to = dx.on<float>(stream.device);
  const auto a = rows_of<Bf16>(rounded_rows(stream, workspace, dy)), b = rows_of<Bf16>(weight);
  return multiply_gradient(stream, {.kind = ProductKind::kGradInput,
                                    .a = a.data,
                                    .a_stride = a.stride,
                                    .b = b.data,
                                    .b_stride = b.stride,
                                    .c = to.data,
                                    .c_stride = to.stride,
                                    .m = dy.rows,
                                    .n = weight.in,
                                    .k = weight.out,
                                    .add = accumulate});
}
bool grad_weight_by_library(const Stream& stream, Workspace& workspace,
                            const LinearGradWeight& args, Matrix dweight) {
  const ConstTensor dy = args.dy, x = args.x;
  if (!may_take_gradient(stream, ProductKind::kGradWeight, dy.rows, dy.cols, x.cols)) return false;
  const Workspace::Scope scope(workspace);
  const auto a = rows_of<Bf16>(rounded_rows(stream, workspace, dy));
  const auto b = x.on<Bf16>(stream.device);
  return multiply_gradient(stream, {.kind = ProductKind::kGradWeight,
                                    .a = a.data,
                                    .a_stride = a.stride,
                                    .b = b.data,
                                    .b_stride = b.stride,
                                    .c = dweight.data,
                                    .c_stride = dweight.stride,
                                    .m = dweight.rows,
                                    .n = dweight.cols,
                                    .k = dy.rows,
                                    .add = true});
}

void check_grad_input(const Stream& stream, ConstTensor dy, const Weight& weight, ConstTensor dx) {
  TR_CHECK(dy.cols == weight.out && dx.cols == weight.in && dx.rows == dy.rows,
           "dy [{}, {}], W [{}, {}], dx [{}, {}]", dy.rows, dy.cols, weight.out, weight.in, dx.rows,
           dx.cols);
  TR_CHECK(weight.device == stream.device, "a weight of device {}", weight.device.index);
}

void check_grad_weight(ConstTensor dy, ConstTensor x, int64_t rows, int64_t cols) {
  TR_CHECK(dy.rows == x.rows && rows == dy.cols && cols == x.cols,
           "dy [{}, {}], x [{}, {}], dW [{}, {}]", dy.rows, dy.cols, x.rows, x.cols, rows, cols);
}

// The offsets themselves are the device's to read.
RowGroups groups_of(std::span<const int32_t> offsets, int64_t experts) {
  TR_CHECK(std::ssize(offsets) == experts + 1, "{} offsets of {} experts", offsets.size(), experts);
  return {offsets.data(), static_cast<int>(experts)};
}

}  // namespace

void linear_grad_input(const Stream& stream, Workspace& workspace, const LinearGradInput& args) {
  check_grad_input(stream, args.dy, args.weight, args.dx);
  if (args.dy.rows == 0) return;
  if (args.weight.dtype == Dtype::kF32) {
    grad_input<float>(stream, args.dy, args.weight, args.dx, args.accumulate);
  } else if (!grad_input_by_library(stream, workspace, args)) {
    grad_input<Bf16>(stream, args.dy, args.weight, args.dx, args.accumulate);
  }
}

void linear_grad_weight(const Stream& stream, Workspace& workspace, const LinearGradWeight& args) {
  check_grad_weight(args.dy, args.x, args.dweight.rows, args.dweight.cols);
  if (args.dy.rows == 0) return;
  const Matrix dweight = args.dweight.on<float>(stream.device);
  if (args.x.dtype == Dtype::kF32) {
    grad_weight<float>(stream, args.dy, args.x, dweight);
  } else if (!grad_weight_by_library(stream, workspace, args, dweight)) {
    grad_weight<Bf16>(stream, args.dy, args.x, dweight);
  }
}

void linear_grad_bias(const Stream& stream, const LinearGradBias& args) {
  const auto dy = args.dy.on<float>(stream.device);
  TR_CHECK(dy.cols == std::ssize(args.dbias), "dy [{}, {}], dbias [{}]", dy.rows, dy.cols,
           args.dbias.size());
  if (dy.rows == 0 || dy.cols == 0) return;
  const int64_t blocks = (dy.cols + kBiasColumns - 1) / kBiasColumns;
  launch(bias_gradient, dim3(static_cast<unsigned>(blocks)), dim3(kBiasColumns * kBiasChains), 0,
         stream, dy, args.dbias.data());
}

void grouped_grad_input(const Stream& stream, Workspace& /*workspace*/,
                        const GroupedGradInput& args) {
  const WeightStack& weights = args.weights;
  check_grad_input(stream, args.dy, weights.first, args.dx);
  const RowGroups groups = groups_of(args.offsets, weights.count);
  if (args.dy.rows == 0) return;
  if (weights.first.dtype == Dtype::kF32) {
    grad_input<float>(stream, args.dy, weights.first, args.dx, /*accumulate=*/false, groups,
                      weights.bytes);
  } else {
    grad_input<Bf16>(stream, args.dy, weights.first, args.dx, /*accumulate=*/false, groups,
                     weights.bytes);
  }
}

void grouped_grad_weight(const Stream& stream, Workspace& /*workspace*/,
                         const GroupedGradWeight& args) {
  const MatrixStack<float>& dweights = args.dweights;
  check_grad_weight(args.dy, args.x, dweights.rows, dweights.cols);
  const RowGroups groups = groups_of(args.offsets, dweights.count);
  if (args.dy.rows == 0) return;
  if (args.x.dtype == Dtype::kF32) {
    grad_weight<float>(stream, args.dy, args.x, dweights.at(0), groups);
  } else {
    grad_weight<Bf16>(stream, args.dy, args.x, dweights.at(0), groups);
  }
}

// Every sum is finished where it began. The library alone wants dy rounded.
size_t linear_grad_workspace_bytes(int64_t tokens, int64_t out, int64_t /*in*/) {
  return tokens >= kLeastLibraryRows && has_library()
             ? Workspace::aligned(cuda::weight_bytes(Dtype::kBF16, tokens, out))
             : 0;
}

}  // namespace tailrace::cuda
