// Ops of backward on a GPU that treat each row, or each element, on its own: against the plain
// loops of kernels/ref, over lengths that no vector divides.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/cuda/cuda.h"
#include "kernels/ref/ref.h"
#include "tests/kernels/cuda/device_array.h"

namespace tailrace {
namespace {

using namespace cuda_testing;

constexpr double kRounding = 0x1p-24;  // of a float, relative

class BackwardRows : public ::testing::Test {
 protected:
  ~BackwardRows() override { expect_no_findings(); }
  std::mt19937 rng{7};
  const Stream stream = gpu_stream();
};
using CudaRmsNormBackward = BackwardRows;
using CudaSwigluBackward = BackwardRows;
using CudaEmbeddingBackward = BackwardRows;
using CudaScatterRows = BackwardRows;
using CudaElementwise = BackwardRows;

struct GradShape {
  int64_t rows, cols;
  size_t size() const { return static_cast<size_t>(rows * cols); }
  Matrix of(std::vector<float>& values) const { return {values.data(), rows, cols}; }
};
const std::vector<GradShape> kGradShapes = {{0, 8},   {1, 1},    {3, 17},  {2, 64},
                                            {5, 129}, {33, 172}, {2, 1030}};

void expect_bits(const std::vector<float>& got, const std::vector<float>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(float)), 0)
        << what << " " << i << ": " << got[i] << ", expected " << want[i];
}

// Each within `roundings` of its magnitude, and the rounding of the reference.
void expect_within(const std::vector<float>& got, const std::vector<float>& want,
                   const std::vector<double>& magnitude, double roundings, const char* what,
                   double least = 1e-30) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_LE(std::abs(double{got[i]} - want[i]),
              kRounding * (roundings * magnitude[i] + std::abs(want[i])) + least)
        << what << " " << i << ": " << got[i] << ", expected " << want[i];
}

struct NormCase {
  int64_t rows, dim, heads;
  bool accumulate = false;
};

// What the roundings of each result are relative to: the sum of its terms' magnitudes.
struct NormMagnitudes {
  std::vector<double> dx, dweight;
  NormMagnitudes(const NormCase& c, const std::vector<float>& x, const std::vector<float>& weight,
                 const std::vector<float>& inv, const std::vector<float>& dy,
                 const std::vector<float>& dx_before, const std::vector<float>& dweight_before)
      : dx(x.size()), dweight(weight.size()) {
    for (size_t i = 0; i < dweight.size(); ++i) dweight[i] = std::abs(dweight_before[i]);
    for (size_t part = 0; part < inv.size(); ++part) {
      const size_t begin = part * weight.size();
      double mean = 0;
      for (size_t i = 0; i < weight.size(); ++i) {
        const double normed = std::abs(double{x[begin + i]} * inv[part]);
        mean += normed * std::abs(dy[begin + i] * weight[i]) / static_cast<double>(c.dim);
        dweight[i] += normed * std::abs(dy[begin + i]);
      }
      for (size_t i = 0; i < weight.size(); ++i)
        dx[begin + i] = inv[part] * (std::abs(dy[begin + i] * weight[i]) +
                                     std::abs(x[begin + i] * inv[part]) * mean) +
                        (c.accumulate ? std::abs(dx_before[begin + i]) : 0);
    }
  }
};

template <class In>
void check_norm_gradients(const Stream& stream, std::mt19937& rng, const NormCase& c) {
  SCOPED_TRACE(fmt::format("[{}, {} x {}], accumulate {}", c.rows, c.heads, c.dim, c.accumulate));
  const GradShape all{c.rows, c.dim * c.heads};
  const auto size = static_cast<int64_t>(all.size());
  const DeviceMatrix<In> x(all.rows, all.cols, random_floats(size, rng));
  const DeviceMatrix<float> dy(all.rows, all.cols, random_floats(size, rng));
  std::vector<float> in = x.get(), grads = dy.get(), weight = random_floats(c.dim, rng);
  std::vector<float> inv(static_cast<size_t>(c.rows * c.heads)), normed(in.size());
  ref::rms_norm(all.of(in), weight, 1e-5f, all.of(normed), inv);
  const std::vector<float> dx_before = random_floats(size, rng),
                           dweight_before = random_floats(c.dim, rng);
  const DeviceArray<float> device_weight(weight), device_inv(inv);
  struct Gradients {
    std::vector<float> dx, dweight;
  };
  const auto run = [&](ConstTensor from, bool over_dy, bool is_frozen) {
    DeviceMatrix<float> dx(all.rows, all.cols, over_dy ? grads : dx_before);
    DeviceArray<float> dweight(dweight_before);
    RmsNormBackward args{.x = from,
                         .weight = device_weight.span(),
                         .inv_rms = device_inv.span(),
                         .dy = dy.view(),
                         .dx = dx.view(),
                         .accumulate = c.accumulate,
                         .dweight = dweight.span()};
    if (over_dy) args.dy = args.dx;
    if (is_frozen) args.dweight = {};
    cuda::rms_norm_backward(stream, args);
    dx.expect_canaries();
    expect_no_findings();
    return Gradients{dx.get(), dweight.get()};
  };
  const Gradients got = run(x.view(), false, false);
  Gradients want{dx_before, dweight_before};
  ref::rms_norm_backward(all.of(in), weight, inv, all.of(grads), all.of(want.dx), c.accumulate,
                         want.dweight);
  const NormMagnitudes magnitudes(c, in, weight, inv, grads, dx_before, dweight_before);
  // A thread's terms, a tree of at most 8 levels, and the products and quotients around them.
  expect_within(got.dx, want.dx, magnitudes.dx, static_cast<double>(c.dim) / 32 + 4 + 8 + 8, "dx");
  // A thread's terms, a tree of 3 levels, 32 warps, and the products.
  expect_within(got.dweight, want.dweight, magnitudes.dweight,
                static_cast<double>(inv.size()) / 256 + 1 + 3 + 32 + 3, "dweight");

  const Gradients again = run(x.view(), false, false);
  expect_bits(again.dx, got.dx, "dx again");
  expect_bits(again.dweight, got.dweight, "dweight again");
  // Frozen factors have no gradient, and that to x is the same.
  const Gradients frozen = run(x.view(), false, true);
  expect_bits(frozen.dx, got.dx, "dx of a frozen norm");
  expect_bits(frozen.dweight, dweight_before, "frozen factors");
  if (!c.accumulate) {
    const Gradients over = run(x.view(), true, false);
    expect_bits(over.dx, got.dx, "dx over dy");
    expect_bits(over.dweight, got.dweight, "dweight, dx over dy");
  }
  // A part of a wider matrix, at places where no four elements are one access.
  constexpr int64_t kBefore = 3, kBehind = 2;
  std::vector<float> wide_values;
  for (int64_t r = 0; r < all.rows; ++r) {
    wide_values.insert(wide_values.end(), kBefore, NAN);
    wide_values.insert(wide_values.end(), in.begin() + r * all.cols,
                       in.begin() + (r + 1) * all.cols);
    wide_values.insert(wide_values.end(), kBehind, NAN);
  }
  const DeviceMatrix<In> wide(all.rows, kBefore + all.cols + kBehind, wide_values);
  const Gradients part = run(wide.view().slice_cols(kBefore, kBefore + all.cols), false, false);
  expect_bits(part.dx, got.dx, "dx, part of a row");
  expect_bits(part.dweight, got.dweight, "dweight, part of a row");
}

TEST_F(CudaRmsNormBackward, AgreesWithTheReference) {
  for (const bool accumulate : {false, true}) {
    for (const GradShape shape : kGradShapes) {
      const int64_t heads = 1 + shape.rows % 3;
      check_norm_gradients<float>(stream, rng, {shape.rows, shape.cols, heads, accumulate});
      check_norm_gradients<Bf16>(stream, rng, {shape.rows, shape.cols, heads, accumulate});
    }
    // More parts than threads that add them.
    check_norm_gradients<float>(stream, rng, {300, 20, 1, accumulate});
    check_norm_gradients<Bf16>(stream, rng, {150, 20, 4, accumulate});
  }
}

template <class T>
void check_gate_gradients(const Stream& stream, std::mt19937& rng, GradShape shape,
                          GateActivation activation) {
  const int64_t cols = shape.cols;
  const auto size = static_cast<int64_t>(shape.size());
  std::vector<float> gate_values = random_floats(size, rng, 4);
  if (size > 2) gate_values[0] = 100, gate_values[1] = -100;
  const DeviceMatrix<T> gate(shape.rows, cols, gate_values),
      up(shape.rows, cols, random_floats(size, rng));
  const DeviceMatrix<float> dy(shape.rows, cols, random_floats(size, rng));
  DeviceMatrix<float> dgate(shape.rows, cols), dup(shape.rows, cols);
  SwigluBackward args{.gate = gate.view(),
                      .up = up.view(),
                      .dy = dy.view(),
                      .dgate = dgate.view(),
                      .dup = dup.view(),
                      .activation = activation};
  cuda::swiglu_backward(stream, args);
  expect_no_findings();
  std::vector<float> gates = gate.get(), ups = up.get(), grads = dy.get();
  std::vector<float> want_gate(shape.size()), want_up(shape.size());
  ref::swiglu_backward(shape.of(gates), shape.of(ups), shape.of(grads), shape.of(want_gate),
                       shape.of(want_up), activation);
  // exp within 2 units (4 halves), sum, quotient, products. GELU's exponent is rounded some times
  // itself, and far below 0 the reference's 1 + tanh loses its digits. silu' crosses zero near
  // -1.28: the error is relative to its terms, s * (1 + |g| (1 - s)) <= 1.3, times |dy up|.
  const bool gelu = activation == GateActivation::kGeluTanh;
  std::vector<double> of_gate(shape.size()), of_up(shape.size());
  for (size_t i = 0; i < of_up.size(); ++i) {
    of_gate[i] = 1.3 * std::abs(double{grads[i]} * ups[i]);
    of_up[i] = std::abs(want_up[i]);
  }
  const double least = gelu ? 1e-13 : 1e-30;
  expect_within(dgate.get(), want_gate, of_gate, gelu ? 40 : 16, "dgate", least);
  expect_within(dup.get(), want_up, of_up, gelu ? 200 : 16, "dup", least);
  dgate.expect_canaries();
  dup.expect_canaries();

  // dgate over dy, then dup over dy; of halves of one matrix, the second wherever the first ends.
  std::vector<float> both_values;
  for (int64_t r = 0; r < shape.rows; ++r) {
    const auto begin = r * cols, end = begin + cols;
    both_values.insert(both_values.end(), gates.begin() + begin, gates.begin() + end);
    both_values.insert(both_values.end(), ups.begin() + begin, ups.begin() + end);
  }
  const DeviceMatrix<T> both(shape.rows, 2 * cols, both_values);
  args.gate = both.view().slice_cols(0, cols);
  args.up = both.view().slice_cols(cols, 2 * cols);
  DeviceMatrix<float> over(shape.rows, cols, grads), other(shape.rows, cols);
  args.dy = args.dgate = over.view();
  args.dup = other.view();
  cuda::swiglu_backward(stream, args);
  expect_bits(over.get(), dgate.get(), "dgate over dy");
  expect_bits(other.get(), dup.get(), "dup again");
  over.set(grads);
  args.dup = over.view();
  args.dgate = other.view();
  cuda::swiglu_backward(stream, args);
  expect_bits(over.get(), dup.get(), "dup over dy");
  expect_bits(other.get(), dgate.get(), "dgate again");
  expect_no_findings();
}

TEST_F(CudaSwigluBackward, AgreesWithTheReference) {
  for (const GradShape shape : kGradShapes)
    for (const auto activation : {GateActivation::kSilu, GateActivation::kGeluTanh}) {
      check_gate_gradients<float>(stream, rng, shape, activation);
      check_gate_gradients<Bf16>(stream, rng, shape, activation);
    }
}

TEST_F(CudaEmbeddingBackward, AddsInTheOrderOfTokens) {
  std::vector<GradShape> shapes = kGradShapes;
  shapes.push_back({600, 20});  // more tokens than a block has threads
  for (const GradShape shape : shapes) {
    for (const float scale : {1.0f, 5.6f}) {
      SCOPED_TRACE(fmt::format("[{}, {}], scale {}", shape.rows, shape.cols, scale));
      const GradShape table{41, shape.cols};
      const auto before = random_floats(static_cast<int64_t>(table.size()), rng);
      const DeviceMatrix<float> dy(shape.rows, shape.cols,
                                   random_floats(static_cast<int64_t>(shape.size()), rng));
      std::vector<int32_t> ids;
      // Half of them one id: some words have more rows than are loaded at once.
      for (int64_t t = 0; t < shape.rows; ++t)
        ids.push_back(rng() % 2 == 0 ? 3 : static_cast<int32_t>(rng() % 40));
      const DeviceArray<int32_t> device_ids(ids);
      const auto run = [&] {
        DeviceMatrix<float> dtable(table.rows, table.cols, before);
        cuda::embedding_backward(
            stream,
            {.ids = device_ids.span(), .dy = dy.view(), .dtable = dtable.view(), .scale = scale});
        dtable.expect_canaries();
        expect_no_findings();
        return dtable.get();
      };
      const std::vector<float> got = run();
      std::vector<float> grads = dy.get(), in_order = before, want = before;
      std::vector<double> magnitude(before.begin(), before.end());
      for (double& x : magnitude) x = std::abs(x);
      for (size_t t = 0; t < ids.size(); ++t)
        for (size_t i = 0; i < static_cast<size_t>(shape.cols); ++i) {
          const size_t to = static_cast<size_t>(ids[t] * shape.cols) + i;
          const float term = scale * grads[t * static_cast<size_t>(shape.cols) + i];
          in_order[to] += term;
          magnitude[to] += std::abs(term);
        }
      expect_bits(got, in_order, "in order");
      ref::embedding_backward(ids, shape.of(grads), table.of(want), scale);
      expect_within(got, want, magnitude, static_cast<double>(shape.rows) + 1, "dtable");
      expect_bits(run(), got, "again");
    }
  }
}

TEST_F(CudaScatterRows, PutsRowsBackAndClearsTheOthers) {
  for (const GradShape shape : kGradShapes) {
    for (const bool has_rows : {false, true}) {
      // The last row first; every second one.
      std::vector<int32_t> rows;
      for (int64_t r = shape.rows - 1; has_rows && r >= 0; r -= 2)
        rows.push_back(static_cast<int32_t>(r));
      const auto count = static_cast<int64_t>(rows.size());
      const DeviceMatrix<float> x(count, shape.cols, random_floats(count * shape.cols, rng));
      const DeviceArray<int32_t> device_rows(rows);
      DeviceMatrix<float> y(shape.rows, shape.cols);
      cuda::scatter_rows(stream, {.x = x.view(), .rows = device_rows.span(), .y = y.view()});
      const std::vector<float> from = x.get();
      std::vector<float> want(shape.size(), 0.0f);
      for (int64_t r = 0; r < count; ++r)
        std::copy_n(from.begin() + r * shape.cols, shape.cols,
                    want.begin() + rows[static_cast<size_t>(r)] * shape.cols);
      expect_bits(y.get(), want, "y");
      y.expect_canaries();
    }
  }
  // x begins where y's rows do, but not at a wide place.
  const DeviceMatrix<float> x(2, 12, random_floats(24, rng));
  const DeviceArray<int32_t> rows(std::vector<int32_t>{2, 0});
  DeviceMatrix<float> y(3, 8);
  cuda::scatter_rows(stream, {.x = x.view().slice_cols(3, 11), .rows = rows.span(), .y = y.view()});
  const std::vector<float> from = x.get(), got = y.get();
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(got[i], from[12 + 3 + i]);
    EXPECT_EQ(got[8 + i], 0);
    EXPECT_EQ(got[16 + i], from[3 + i]);
  }
}

TEST_F(CudaElementwise, ScaleMultipliesEachElement) {
  for (const GradShape shape : kGradShapes) {
    DeviceMatrix<float> x(shape.rows, shape.cols,
                          random_floats(static_cast<int64_t>(shape.size()), rng));
    std::vector<float> want = x.get();
    for (float& value : want) value *= 5.6f;
    cuda::scale(stream, {.x = x.view(), .factor = 5.6f});
    expect_bits(x.get(), want, "x");
    x.expect_canaries();
  }
}

// Flat ranges inside of longer ones, at wide places and at others.
TEST_F(CudaElementwise, ShiftAndFillFlatRanges) {
  constexpr size_t kRoom = 8;
  for (const size_t size : {0, 1, 3, 5, 1023, 1024, 5002}) {
    for (const size_t before : {0, 1}) {
      SCOPED_TRACE(fmt::format("{} from {}", size, before));
      std::vector<float> values = random_floats(static_cast<int64_t>(size + kRoom), rng);
      if (size > 0) values[before] = -0.0f;
      for (const float offset : {0.0f, -0.0f, 2.5f}) {
        for (const bool in_place : {false, true}) {
          DeviceArray<float> x(values), y(std::vector<float>(values.size(), 7));
          DeviceArray<float>& to = in_place ? x : y;
          cuda::shift(stream, {.x = x.span().subspan(before, size),
                               .offset = offset,
                               .y = to.span().subspan(before, size)});
          std::vector<float> want = in_place ? values : std::vector<float>(values.size(), 7);
          for (size_t i = before; i < before + size; ++i)
            want[i] = offset == 0 ? values[i] : values[i] + offset;
          expect_bits(to.get(), want, "shifted");
        }
      }
      DeviceArray<float> x(values);
      cuda::fill(stream, {.x = x.span().subspan(before, size), .value = -1.5f});
      std::vector<float> want = values;
      std::fill_n(want.begin() + static_cast<int64_t>(before), size, -1.5f);
      expect_bits(x.get(), want, "filled");
    }
  }
}

}  // namespace
}  // namespace tailrace
