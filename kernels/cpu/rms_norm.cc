#include "kernels/ops/rms_norm.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

namespace tailrace::cpu::inline TR_ISA {

namespace {

constexpr int64_t kGrainFloats = 32 * 1024;

int64_t rms_norm_grain(int64_t cols) {
  return std::max<int64_t>(1, kGrainFloats / std::max<int64_t>(cols, 1));
}

// Parts of a row.
int64_t num_heads(ConstMatrix x, std::span<const float> weight) {
  const auto dim = static_cast<int64_t>(weight.size());
  TR_CHECK(dim > 0 && x.cols % dim == 0, "x [{}, {}], weight [{}]", x.rows, x.cols, dim);
  return x.cols / dim;
}

// `sum`, filled.
ConstMatrix add_residual(const Stream& stream, ConstMatrix x, ConstMatrix residual, Matrix sum) {
  TR_CHECK(residual.rows == x.rows && residual.cols == x.cols && sum.rows == x.rows &&
               sum.cols == x.cols,
           "x [{}, {}], residual [{}, {}], sum [{}, {}]", x.rows, x.cols, residual.rows,
           residual.cols, sum.rows, sum.cols);
  parallel_for(stream, x.rows, rms_norm_grain(x.cols), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t i = 0; i < x.cols; i += kLanes) {
        const int64_t left = x.cols - i;
        simd::store(
            sum.row(t) + i,
            simd::add(simd::load(x.row(t) + i, left), simd::load(residual.row(t) + i, left)), left);
      }
  });
  return sum;
}

}  // namespace

void rms_norm(const Stream& stream, const RmsNorm& args) {
  const std::span<const float> weight = args.weight;
  const std::span<float> inv_rms = args.inv_rms;
  const float eps = args.eps;
  ConstMatrix x = args.x.host();
  const Matrix y = args.y.host();
  if (args.residual.rows > 0) x = add_residual(stream, x, args.residual.host(), args.sum.host());
  const auto dim = static_cast<int64_t>(weight.size());
  const int64_t heads = num_heads(x, weight);
  TR_CHECK(y.rows == x.rows && y.cols == x.cols, "x [{}, {}], y [{}, {}]", x.rows, x.cols, y.rows,
           y.cols);
  TR_CHECK(inv_rms.empty() || static_cast<int64_t>(inv_rms.size()) == x.rows * heads);
  parallel_for(stream, x.rows, rms_norm_grain(x.cols), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t head = 0; head < heads; ++head) {
        const float* in = x.row(t) + head * dim;
        float* out = y.row(t) + head * dim;
        Vec16 squares = simd::zero();
        for (int64_t i = 0; i < dim; i += kLanes) {
          Vec16 v = simd::load(in + i, dim - i);
          squares = simd::fma(v, v, squares);
        }
        const float mean = simd::reduce_add(squares) / static_cast<float>(dim);
        // A correctly rounded division and root: the approximate reciprocal root has other bits on
        // other processors.
        const float inv = 1.0f / std::sqrt(mean + eps);
        if (!inv_rms.empty()) inv_rms[static_cast<size_t>(t * heads + head)] = inv;
        for (int64_t i = 0; i < dim; i += kLanes) {
          Vec16 scaled = simd::mul(simd::load(in + i, dim - i), simd::broadcast(inv));
          simd::store(out + i, simd::mul(scaled, simd::load(weight.data() + i, dim - i)), dim - i);
        }
      }
    }
  });
}

void rms_norm_backward(const Stream& stream, const RmsNormBackward& args) {
  const ConstMatrix x = args.x.host(), dy = args.dy.host();
  const Matrix dx = args.dx.host();
  const std::span<const float> weight = args.weight, inv_rms = args.inv_rms;
  const std::span<float> dweight = args.dweight;
  const bool accumulate = args.accumulate;
  const auto dim = static_cast<int64_t>(weight.size());
  const int64_t heads = num_heads(x, weight), parts = x.rows * heads;
  TR_CHECK(dy.rows == x.rows && dx.rows == x.rows && dy.cols == x.cols && dx.cols == x.cols);
  TR_CHECK((dweight.empty() || static_cast<int64_t>(dweight.size()) == dim) &&
           static_cast<int64_t>(inv_rms.size()) == parts);
  // dweight first: dx may overwrite dy.
  const int64_t vectors = dweight.empty() ? 0 : (dim + kLanes - 1) / kLanes;
  const int64_t grain = std::max<int64_t>(1, kGrainFloats / kLanes / std::max<int64_t>(parts, 1));
  parallel_for(stream, vectors, grain, [&](int64_t begin, int64_t end) {
    // Four columns of vectors at once: each is a chain of additions in the order of (t, h).
    constexpr int64_t kColumns = 4;
    for (int64_t v = begin; v < end; v += kColumns) {
      const int64_t col = v * kLanes;
      const int64_t stop = std::min(dim, std::min(end, v + kColumns) * kLanes);
      Vec16 sum[kColumns];
      for (auto& s : sum) s = simd::zero();
      const float* inv_of = inv_rms.data();
      for (int64_t t = 0; t < x.rows; ++t) {
        for (int64_t head = 0; head < x.cols; head += dim) {
          const Vec16 inv = simd::broadcast(*inv_of++);
          const float *in = x.row(t) + head, *grad = dy.row(t) + head;
          for (int64_t c = 0; c < kColumns; ++c) {
            const int64_t at = col + c * kLanes;
            Vec16 normed = simd::mul(simd::load(in + at, stop - at), inv);
            sum[c] = simd::fma(simd::load(grad + at, stop - at), normed, sum[c]);
          }
        }
      }
      for (int64_t c = 0; c < kColumns; ++c) {
        const int64_t at = col + c * kLanes;
        float* out = dweight.data() + at;
        simd::store(out, simd::add(simd::load(out, stop - at), sum[c]), stop - at);
      }
    }
  });
  // With n = x * inv and g = dy * weight: dx = inv * (g - n * mean(g * n)).
  parallel_for(stream, x.rows, rms_norm_grain(x.cols), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t head = 0; head < heads; ++head) {
        const float *in = x.row(t) + head * dim, *grad = dy.row(t) + head * dim;
        float* out = dx.row(t) + head * dim;
        const Vec16 inv = simd::broadcast(inv_rms[static_cast<size_t>(t * heads + head)]);
        Vec16 dot = simd::zero();
        for (int64_t i = 0; i < dim; i += kLanes) {
          Vec16 g =
              simd::mul(simd::load(grad + i, dim - i), simd::load(weight.data() + i, dim - i));
          dot = simd::fma(g, simd::mul(simd::load(in + i, dim - i), inv), dot);
        }
        const Vec16 mean = simd::broadcast(-simd::reduce_add(dot) / static_cast<float>(dim));
        for (int64_t i = 0; i < dim; i += kLanes) {
          Vec16 g =
              simd::mul(simd::load(grad + i, dim - i), simd::load(weight.data() + i, dim - i));
          Vec16 n = simd::mul(simd::load(in + i, dim - i), inv);
          Vec16 d = simd::mul(inv, simd::fma(n, mean, g));
          if (accumulate) d = simd::add(simd::load(out + i, dim - i), d);
          simd::store(out + i, d, dim - i);
        }
      }
    }
  });
}

}  // namespace tailrace::cpu::inline TR_ISA
