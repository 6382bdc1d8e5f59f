// The gated product of an MLP, element by element: four of them a thread.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/rows.cuh"

namespace tailrace::cuda {
namespace {

constexpr int kSwigluThreads = 256;

template <GateActivation kActivation>
__device__ __forceinline__ float gated(float g, float u) {
  float z = g;
  if (kActivation == GateActivation::kGeluTanh) {
    const float cube = g * g * g;
    z = 1.5957691216057308f * fmaf(0.044715f, cube, g);  // 2 sqrt(2 / pi)
  }
  return g * (1.0f / (1.0f + expf(-z))) * u;
}

template <class T, GateActivation kActivation>
__global__ void __launch_bounds__(kSwigluThreads)
    swiglu_kernel(MatrixView<const T> gate, MatrixView<const T> up, MatrixView<T> y, bool wide) {
  const int64_t i = 4 * (static_cast<int64_t>(blockIdx.y) * kSwigluThreads + threadIdx.x);
  const int64_t row = blockIdx.x, left = y.cols - i;
  if (left <= 0) return;
  const float4 g = load_four(gate.row(row) + i, left, wide);
  const float4 u = load_four(up.row(row) + i, left, wide);
  store_four(y.row(row) + i,
             make_float4(gated<kActivation>(g.x, u.x), gated<kActivation>(g.y, u.y),
                         gated<kActivation>(g.z, u.z), gated<kActivation>(g.w, u.w)),
             left, wide);
}

template <class T>
void gate_rows(const Stream& stream, const Swiglu& args) {
  const auto gate = args.gate.on<T>(stream.device), up = args.up.on<T>(stream.device);
  const auto y = args.y.on<T>(stream.device);
  const bool wide = rows_are_wide(gate.data, gate.stride) && rows_are_wide(up.data, up.stride) &&
                    rows_are_wide(y.data, y.stride);
  constexpr int64_t kElements = 4 * kSwigluThreads;
  const dim3 grid(static_cast<unsigned>(y.rows),
                  static_cast<unsigned>((y.cols + kElements - 1) / kElements));
  if (args.activation == GateActivation::kSilu) {
    launch(swiglu_kernel<T, GateActivation::kSilu>, grid, dim3(kSwigluThreads), 0, stream, gate, up,
           y, wide);
  } else {
    launch(swiglu_kernel<T, GateActivation::kGeluTanh>, grid, dim3(kSwigluThreads), 0, stream, gate,
           up, y, wide);
  }
}

}  // namespace

void swiglu(const Stream& stream, const Swiglu& args) {
  TR_CHECK(args.up.rows == args.gate.rows && args.y.rows == args.gate.rows &&
           args.up.cols == args.gate.cols && args.y.cols == args.gate.cols);
  if (args.y.rows == 0 || args.y.cols == 0) return;
  if (args.y.dtype == Dtype::kF32) {
    gate_rows<float>(stream, args);
  } else {
    gate_rows<Bf16>(stream, args);
  }
}

}  // namespace tailrace::cuda
