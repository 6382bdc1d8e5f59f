// The gradients of root-mean-square norms.
//
// dx: a block of threads for each row (or head of a row). Its dot product: a thread's elements in
// ascending order, one fused multiply-add each, then a tree over the block; how many threads there
// are is decided by dim alone.
//
// dweight: a block for each kGradCols elements of it. Of the rows (or heads of rows), each of
// kGradSlices threads adds every kGradSlices-th in ascending order, one fused multiply-add each;
// then a tree over the threads of a warp, then the warps in ascending order, then what was there.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/rows.cuh"

namespace tailrace::cuda {
namespace {

constexpr int kGradCols = 16, kGradQuads = kGradCols / 4;
constexpr int kGradThreads = 1024, kGradWarps = kGradThreads / 32;
constexpr int kGradSlices = kGradThreads / kGradQuads;

struct NormGradient {
  const float *weight = nullptr, *inv_rms = nullptr;
  int dim = 0, heads = 0;
  bool accumulate = false, wide = false;
};

// With n = x * inv and g = dy * weight: dx = inv * (g - n * mean(g * n)).
template <int kThreads, class In>
__global__ void __launch_bounds__(kThreads)
    norm_input_gradient(MatrixView<const In> x, MatrixView<const float> dy, MatrixView<float> dx,
                        NormGradient a) {
  __shared__ float sums[kThreads / 32];
  const int64_t part = blockIdx.x, row = part / a.heads, col = part % a.heads * a.dim;
  const In* in = x.row(row) + col;
  const float* grad = dy.row(row) + col;
  const float inv = a.inv_rms[part];
  float dot = 0;
  for (int64_t i = 4 * static_cast<int64_t>(threadIdx.x); i < a.dim; i += 4 * kThreads) {
    const int64_t left = a.dim - i;
    const float4 v = load_four(in + i, left, a.wide), d = load_four(grad + i, left, a.wide);
    const float4 w = load_four(a.weight + i, left, a.wide);
    dot = fmaf(d.x * w.x, v.x * inv, dot);
    dot = fmaf(d.y * w.y, v.y * inv, dot);
    dot = fmaf(d.z * w.z, v.z * inv, dot);
    dot = fmaf(d.w * w.w, v.w * inv, dot);
  }
  const float mean = -sum_of_block<kThreads / 32>(dot, sums) / static_cast<float>(a.dim);
  // dx may be dy: a thread reads again what it alone overwrites.
  float* out = dx.row(row) + col;
  for (int64_t i = 4 * static_cast<int64_t>(threadIdx.x); i < a.dim; i += 4 * kThreads) {
    const int64_t left = a.dim - i;
    const float4 v = load_four(in + i, left, a.wide), d = load_four(grad + i, left, a.wide);
    const float4 w = load_four(a.weight + i, left, a.wide);
    float4 r =
        make_float4(inv * fmaf(v.x * inv, mean, d.x * w.x), inv * fmaf(v.y * inv, mean, d.y * w.y),
                    inv * fmaf(v.z * inv, mean, d.z * w.z), inv * fmaf(v.w * inv, mean, d.w * w.w));
    if (a.accumulate) {
      const float4 old = load_four(out + i, left, a.wide);
      r = make_float4(old.x + r.x, old.y + r.y, old.z + r.z, old.w + r.w);
    }
    store_four(out + i, r, left, a.wide);
  }
}

// Neighbouring threads have neighbouring quads of a row, so that a warp reads whole sectors.
template <class In>
__global__ void __launch_bounds__(kGradThreads)
    norm_weight_gradient(MatrixView<const In> x, MatrixView<const float> dy, NormGradient a,
                         float* dweight) {
  __shared__ float sums[kGradWarps][kGradCols];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int quad = thread % kGradQuads, parts = static_cast<int>(x.rows) * a.heads;
  const int first = static_cast<int>(blockIdx.x) * kGradCols, col = first + 4 * quad;
  const int64_t left = a.dim - col;
  float sum[4] = {};
#pragma unroll 4
  for (int part = thread / kGradQuads; part < parts; part += kGradSlices) {
    const int64_t row = part / a.heads, at = part % a.heads * int64_t{a.dim} + col;
    const float inv = a.inv_rms[part];
    const float4 v = load_four(x.row(row) + at, left, a.wide);
    const float4 d = load_four(dy.row(row) + at, left, a.wide);
    sum[0] = fmaf(d.x, v.x * inv, sum[0]);
    sum[1] = fmaf(d.y, v.y * inv, sum[1]);
    sum[2] = fmaf(d.z, v.z * inv, sum[2]);
    sum[3] = fmaf(d.w, v.w * inv, sum[3]);
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    for (int bits = 16; bits >= kGradQuads; bits /= 2) sum[e] += __shfl_xor_sync(~0u, sum[e], bits);
    if (lane < kGradQuads) sums[warp][4 * lane + e] = sum[e];
  }
  __syncthreads();
  if (thread >= kGradCols || first + thread >= a.dim) return;
  float total = 0;
  for (int w = 0; w < kGradWarps; ++w) total += sums[w][thread];
  dweight[first + thread] += total;
}

template <class In>
void norm_gradients(const Stream& stream, const RmsNormBackward& args, NormGradient a) {
  const auto x = args.x.on<In>(stream.device);
  const auto dy = args.dy.on<float>(stream.device);
  const auto dx = args.dx.on<float>(stream.device);
  a.wide = a.dim % 4 == 0 && rows_are_wide(a.weight, 4) && rows_are_wide(x.data, x.stride) &&
           rows_are_wide(dy.data, dy.stride) && rows_are_wide(dx.data, dx.stride);
  // dweight first: dx may overwrite dy.
  if (!args.dweight.empty())
    launch(norm_weight_gradient<In>, dim3(static_cast<unsigned>((a.dim - 1) / kGradCols + 1)),
           dim3(kGradThreads), 0, stream, x, dy, a, args.dweight.data());
  const dim3 grid(static_cast<unsigned>(x.rows * a.heads));
  if (a.dim <= 128) {
    launch(norm_input_gradient<32, In>, grid, dim3(32), 0, stream, x, dy, dx, a);
  } else {
    launch(norm_input_gradient<256, In>, grid, dim3(256), 0, stream, x, dy, dx, a);
  }
}

}  // namespace

void rms_norm_backward(const Stream& stream, const RmsNormBackward& args) {
  const auto& [x, weight, inv_rms, dy, dx, accumulate, dweight] = args;
  const auto dim = static_cast<int64_t>(weight.size());
  TR_CHECK(dim > 0 && x.cols % dim == 0, "x [{}, {}], weight [{}]", x.rows, x.cols, dim);
  TR_CHECK(dy.rows == x.rows && dx.rows == x.rows && dy.cols == x.cols && dx.cols == x.cols);
  TR_CHECK((dweight.empty() || dweight.size() == weight.size()) &&
               static_cast<int64_t>(inv_rms.size()) == x.rows * (x.cols / dim),
           "dweight [{}], inv_rms [{}]", dweight.size(), inv_rms.size());
  if (x.rows == 0) return;
  NormGradient a;
  a.weight = weight.data();
  a.inv_rms = inv_rms.data();
  a.dim = static_cast<int>(dim);
  a.heads = static_cast<int>(x.cols / dim);
  a.accumulate = accumulate;
  if (x.dtype == Dtype::kF32) return norm_gradients<float>(stream, args, a);
  norm_gradients<Bf16>(stream, args, a);
}

}  // namespace tailrace::cuda
