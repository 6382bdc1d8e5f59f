// The gradients of an MLP's gated product, element by element: four of them a thread.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/rows.cuh"

namespace tailrace::cuda {
namespace {

struct GateGradient {
  float gate, up;
};

// With act = g s, s = sigmoid(z(g)): the derivative of act is s (1 + g z' (1 - s)).
template <GateActivation kActivation>
__device__ __forceinline__ GateGradient gate_gradient(float g, float u, float d) {
  float z = g, dz = 1;
  if (kActivation == GateActivation::kGeluTanh) {
    constexpr float kLinear = 1.5957691216057308f;  // 2 sqrt(2 / pi)
    constexpr float kCubic = 0.044715f * kLinear;
    const float squared = g * g;
    z = g * fmaf(squared, kCubic, kLinear);
    dz = fmaf(squared, 3 * kCubic, kLinear);
  }
  const float s = 1.0f / (1.0f + expf(-z));
  const float slope = s * fmaf(g * dz, 1.0f - s, 1.0f);
  return {d * u * slope, d * (g * s)};
}

// All of a thread's inputs are loaded before its outputs are stored: dgate or dup may be dy.
template <class T, GateActivation kActivation>
__global__ void __launch_bounds__(kRowThreads)
    swiglu_backward_kernel(MatrixView<const T> gate, MatrixView<const T> up,
                           MatrixView<const float> dy, MatrixView<float> dgate,
                           MatrixView<float> dup, bool wide) {
  const int64_t i = own_element(), row = blockIdx.x, left = gate.cols - i;
  if (left <= 0) return;
  const float4 g = load_four(gate.row(row) + i, left, wide);
  const float4 u = load_four(up.row(row) + i, left, wide);
  const float4 d = load_four(dy.row(row) + i, left, wide);
  const GateGradient x = gate_gradient<kActivation>(g.x, u.x, d.x);
  const GateGradient y = gate_gradient<kActivation>(g.y, u.y, d.y);
  const GateGradient z = gate_gradient<kActivation>(g.z, u.z, d.z);
  const GateGradient w = gate_gradient<kActivation>(g.w, u.w, d.w);
  store_four(dgate.row(row) + i, make_float4(x.gate, y.gate, z.gate, w.gate), left, wide);
  store_four(dup.row(row) + i, make_float4(x.up, y.up, z.up, w.up), left, wide);
}

template <class T>
void gate_gradients(const Stream& stream, const SwigluBackward& args) {
  const auto gate = args.gate.on<T>(stream.device), up = args.up.on<T>(stream.device);
  const auto dy = args.dy.on<float>(stream.device);
  const auto dgate = args.dgate.on<float>(stream.device), dup = args.dup.on<float>(stream.device);
  const bool wide = rows_are_wide(gate.data, gate.stride) && rows_are_wide(up.data, up.stride) &&
                    rows_are_wide(dy.data, dy.stride) && rows_are_wide(dgate.data, dgate.stride) &&
                    rows_are_wide(dup.data, dup.stride);
  const auto kernel = args.activation == GateActivation::kSilu
                          ? swiglu_backward_kernel<T, GateActivation::kSilu>
                          : swiglu_backward_kernel<T, GateActivation::kGeluTanh>;
  launch(kernel, grid_of_rows(gate.rows, gate.cols), dim3(kRowThreads), 0, stream, gate, up, dy,
         dgate, dup, wide);
}

}  // namespace

void swiglu_backward(const Stream& stream, const SwigluBackward& args) {
  const auto& [gate, up, dy, dgate, dup, activation, product] = args;
  TR_CHECK(product.rows == 0, "the product is made along the way on the CPU alone");
  TR_CHECK(up.rows == gate.rows && dy.rows == gate.rows && dgate.rows == gate.rows &&
           dup.rows == gate.rows);
  TR_CHECK(up.cols == gate.cols && dy.cols == gate.cols && dgate.cols == gate.cols &&
           dup.cols == gate.cols);
  if (gate.rows == 0 || gate.cols == 0) return;
  if (gate.dtype == Dtype::kF32) return gate_gradients<float>(stream, args);
  gate_gradients<Bf16>(stream, args);
}

}  // namespace tailrace::cuda
