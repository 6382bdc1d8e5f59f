#include "kernels/ops/swiglu.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

namespace tailrace::cpu::inline TR_ISA {

namespace {

int64_t swiglu_grain(int64_t dim) {
  return std::max<int64_t>(1, 8 * 1024 / std::max<int64_t>(dim, 1));
}

// sigmoid(z(g)) and the derivative of z.
struct Slope {
  Vec16 sigmoid, dz;
};
TR_INLINE Slope slope_of(GateActivation activation, Vec16 g) {
  if (activation == GateActivation::kSilu) return {simd::sigmoid(g), simd::broadcast(1.0f)};
  // GELU in its tanh form: (1 + tanh a) / 2 is sigmoid(2 a), so it is a gate with a sigmoid too.
  constexpr float kLinear = 1.5957691216f;  // 2 sqrt(2 / pi)
  constexpr float kCubic = 0.044715f * kLinear;
  const Vec16 squared = simd::mul(g, g), linear = simd::broadcast(kLinear);
  const Vec16 z = simd::mul(g, simd::fma(squared, simd::broadcast(kCubic), linear));
  return {simd::sigmoid(z), simd::fma(squared, simd::broadcast(3 * kCubic), linear)};
}

}  // namespace

void swiglu(const Stream& stream, const Swiglu& args) {
  const ConstMatrix gate = args.gate.host(), up = args.up.host();
  const Matrix y = args.y.host();
  const int64_t dim = gate.cols;
  TR_CHECK(up.rows == gate.rows && y.rows == gate.rows && up.cols == dim && y.cols == dim);
  parallel_for(stream, gate.rows, swiglu_grain(dim), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < dim; i += kLanes) {
        Vec16 g = simd::load(gate.row(t) + i, dim - i), u = simd::load(up.row(t) + i, dim - i);
        const Vec16 s = slope_of(args.activation, g).sigmoid;
        simd::store(y.row(t) + i, simd::mul(simd::mul(g, s), u), dim - i);
      }
    }
  });
}

void swiglu_backward(const Stream& stream, const SwigluBackward& args) {
  const ConstMatrix gate = args.gate.host(), up = args.up.host(), dy = args.dy.host();
  const Matrix dgate = args.dgate.host(), dup = args.dup.host();
  const bool wants_product = args.product.rows > 0;
  const Matrix product = wants_product ? args.product.host() : Matrix();
  const GateActivation activation = args.activation;
  const int64_t dim = gate.cols;
  TR_CHECK(up.rows == gate.rows && dy.rows == gate.rows && dgate.rows == gate.rows &&
           dup.rows == gate.rows);
  TR_CHECK(up.cols == dim && dy.cols == dim && dgate.cols == dim && dup.cols == dim);
  TR_CHECK(!wants_product || (product.rows == gate.rows && product.cols == dim));
  parallel_for(stream, gate.rows, swiglu_grain(dim), [&](int64_t begin, int64_t end) {
    const Vec16 one = simd::broadcast(1.0f);
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < dim; i += kLanes) {
        const int64_t left = dim - i;
        const Vec16 g = simd::load(gate.row(t) + i, left), u = simd::load(up.row(t) + i, left);
        // All of a vector's inputs are loaded before its outputs are stored, because dgate or dup
        // may be dy.
        const Vec16 d = simd::load(dy.row(t) + i, left);
        const auto [s, dz] = slope_of(activation, g);
        // The derivative of g s is s * (1 + g z' * (1 - s)).
        const Vec16 slope = simd::mul(s, simd::fma(simd::mul(g, dz), simd::sub(one, s), one));
        simd::store(dgate.row(t) + i, simd::mul(simd::mul(d, u), slope), left);
        const Vec16 gated = simd::mul(g, s);
        simd::store(dup.row(t) + i, simd::mul(d, gated), left);
        if (wants_product) simd::store(product.row(t) + i, simd::mul(gated, u), left);
      }
    }
  });
}

}  // namespace tailrace::cpu::inline TR_ISA
