#include "kernels/ops/muon.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"

namespace tailrace::cpu::inline TR_ISA {

namespace {

constexpr int kIterations = 5;
// Jordan's polynomial: it lifts small singular values fast and lets the large ones swing about 1
// instead of coming to it, so five rounds do.
constexpr float kLinear = 3.4445f, kCubic = -4.775f, kQuintic = 2.0315f;

// X, and all that its iterations need beside it. `r` is the smaller side.
struct Scratch {
  Matrix x;                 // [r, c]
  Matrix a, b;              // [r, r]
  std::span<float> panels;  // of the right factor of whatever product comes next

  Scratch(Workspace& workspace, int64_t rows, int64_t cols) {
    const int64_t r = std::min(rows, cols), c = std::max(rows, cols);
    x = {workspace.take<float>(r * c).data(), r, c};
    a = {workspace.take<float>(r * r).data(), r, r};
    b = {workspace.take<float>(r * r).data(), r, r};
    panels = workspace.take<float>(std::max(gemm::panels_size(r, c), gemm::panels_size(c, r)));
  }
};

// Rows that one thread takes at least: some thousand elements.
int64_t row_grain(int64_t cols) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(cols, 1)); }

void multiply(const Stream& stream, ConstMatrix left, const float* panels, Matrix to) {
  gemm::multiply(stream, {.a = left.data,
                          .a_stride = left.stride,
                          .panels = panels,
                          .rows = to.rows,
                          .cols = to.cols,
                          .k = left.cols,
                          .c = to.data,
                          .c_stride = to.stride});
}

// Leaves u in x.
void gather_momentum(const Stream& stream, const Muon& args, Matrix x) {
  const Vec16 scale = simd::broadcast(args.state[0].grad_scale);
  const Vec16 mu = simd::broadcast(args.constants.momentum);
  const bool turned = args.parameters.rows > args.parameters.cols;
  const int64_t cols = args.gradients.cols;
  parallel_for(stream, args.gradients.rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    std::array<float, kLanes> lanes;
    for (int64_t row = begin; row < end; ++row) {
      const float* gradient = args.gradients.row(row);
      float* momentum = args.momentum.row(row);
      for (int64_t i = 0; i < cols; i += kLanes) {
        const int64_t left = cols - i;
        const Vec16 g = simd::mul(simd::load(gradient + i, left), scale);
        const Vec16 m = simd::fma(mu, simd::load(momentum + i, left), g);
        simd::store(momentum + i, m, left);
        const Vec16 u = simd::fma(mu, m, g);
        // The smaller side is that of A = X X^T, so X is turned while it is written here, and again
        // where step() reads it: neither needs a pass of its own.
        if (!turned) {
          simd::store(x.row(row) + i, u, left);
          continue;
        }
        simd::store(lanes.data(), u);
        for (int64_t j = 0; j < std::min(kLanes, left); ++j)
          x.row(i + j)[row] = lanes[static_cast<size_t>(j)];
      }
    }
  });
}

void normalise(const Stream& stream, Matrix x) {
  const std::span<float> all(x.data, static_cast<size_t>(x.rows * x.cols));
  double sum = 0;
  cpu::sum_of_squares(stream, {.x = all, .sum = {&sum, 1}});
  const Vec16 factor = simd::broadcast(static_cast<float>(1 / (std::sqrt(sum) + 1e-7)));
  parallel_for(stream, x.rows, row_grain(x.cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < x.cols; i += kLanes) {
        float* at = x.row(row) + i;
        simd::store(at, simd::mul(simd::load(at, x.cols - i), factor), x.cols - i);
      }
    }
  });
}

void iterate(const Stream& stream, const Scratch& scratch) {
  const auto& [x, a, b, panels] = scratch;
  gemm::pack_panels_transposed(stream, x, gemm::Form::kFloats, panels.data());
  multiply(stream, x, panels.data(), a);
  gemm::pack_panels(stream, a, panels.data());
  multiply(stream, a, panels.data(), b);
  // The polynomial in A, with its constant on the diagonal, so that one product makes the new X.
  const Vec16 cubic = simd::broadcast(kCubic), quintic = simd::broadcast(kQuintic);
  parallel_for(stream, b.rows, row_grain(b.cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < b.cols; i += kLanes) {
        const int64_t left = b.cols - i;
        const Vec16 term = simd::mul(cubic, simd::load(a.row(row) + i, left));
        simd::store(b.row(row) + i, simd::fma(quintic, simd::load(b.row(row) + i, left), term),
                    left);
      }
      b.row(row)[row] += kLinear;
    }
  });
  // In the place of the old X, which is in the panels.
  gemm::pack_panels(stream, x, panels.data());
  multiply(stream, b, panels.data(), x);
}

void step(const Stream& stream, const Muon& args, ConstMatrix x) {
  const double lr = args.state[0].lr;
  const Matrix p = args.parameters;
  const bool turned = p.rows > p.cols;
  const Vec16 decay = simd::broadcast(static_cast<float>(-lr * args.constants.weight_decay));
  const Vec16 minus_lr = simd::broadcast(
      static_cast<float>(-lr * 0.2 * std::sqrt(static_cast<double>(std::max(p.rows, p.cols)))));
  parallel_for(stream, p.rows, row_grain(p.cols), [&](int64_t begin, int64_t end) {
    std::array<float, kLanes> lanes{};
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < p.cols; i += kLanes) {
        const int64_t left = p.cols - i;
        if (turned) {
          for (int64_t j = 0; j < std::min(kLanes, left); ++j)
            lanes[static_cast<size_t>(j)] = x.row(i + j)[row];
        }
        const Vec16 update = turned ? simd::load(lanes.data()) : simd::load(x.row(row) + i, left);
        Vec16 value = simd::load(p.row(row) + i, left);
        value = simd::fma(decay, value, value);
        simd::store(p.row(row) + i, simd::fma(minus_lr, update, value), left);
      }
    }
  });
}

}  // namespace

void muon(const Stream& stream, Workspace& workspace, const Muon& args) {
  const Matrix p = args.parameters;
  TR_CHECK(args.state.size() == 1, "state [{}]", args.state.size());
  TR_CHECK(args.gradients.rows == p.rows && args.gradients.cols == p.cols &&
               args.momentum.rows == p.rows && args.momentum.cols == p.cols,
           "parameters [{}, {}], gradients [{}, {}], momentum [{}, {}]", p.rows, p.cols,
           args.gradients.rows, args.gradients.cols, args.momentum.rows, args.momentum.cols);
  if (args.state[0].skips || p.rows == 0 || p.cols == 0) return;
  Workspace::Scope scope(workspace);
  const Scratch scratch(workspace, p.rows, p.cols);
  gather_momentum(stream, args, scratch.x);
  normalise(stream, scratch.x);
  for (int i = 0; i < kIterations; ++i) iterate(stream, scratch);
  step(stream, args, scratch.x);
}

size_t muon_workspace_bytes(int64_t rows, int64_t cols) {
  Workspace workspace = Workspace::measuring();
  Scratch(workspace, rows, cols);
  return workspace.peak();
}

}  // namespace tailrace::cpu::inline TR_ISA
