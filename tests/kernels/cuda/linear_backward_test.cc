// Gradients of linear layers and products of experts on a GPU, against kernels/ref, over shapes
// that fit no tile.
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/product.h"
#include "kernels/ref/ref.h"
#include "tests/kernels/cuda/device_array.h"

namespace tailrace {
namespace {

using cuda_testing::DeviceArray;
using cuda_testing::DeviceMatrix;
using cuda_testing::expect_no_findings;
using cuda_testing::gpu_stream;
using cuda_testing::kGpu;
using cuda_testing::random_floats;

using Floats = std::vector<float>;

ConstMatrix view_of(const Floats& values, int64_t rows, int64_t cols) {
  return {values.data(), rows, cols};
}
Matrix view_of(Floats& values, int64_t rows, int64_t cols) { return {values.data(), rows, cols}; }

Floats absolute(Floats values) {
  for (float& x : values) x = std::abs(x);
  return values;
}

// As a product with operands of that dtype takes them.
Floats as_operand(Floats values, Dtype dtype) {
  if (dtype == Dtype::kBF16)
    for (float& x : values) x = to_float(to_bf16(x));
  return values;
}

// Each of `terms` terms and the sum's own rounding, of the sum of magnitudes.
void expect_sums(const Floats& actual, const Floats& expected, const Floats& magnitude,
                 int64_t terms) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const double tolerance = 0x1p-24 * static_cast<double>(terms + 2) * magnitude[i];
    ASSERT_LE(std::abs(double{actual[i]} - expected[i]), tolerance + 1e-30) << "at " << i;
  }
}

void expect_equal_bits(const Floats& actual, const Floats& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i)
    ASSERT_EQ(std::memcmp(&actual[i], &expected[i], sizeof(float)), 0)
        << what << ", at " << i << ": " << actual[i] << ", expected " << expected[i];
}

struct Sums {
  int64_t rows, cols;
  const Floats &before, &after;
};
// Tiles of each size give the same bits.
void expect_in_other_tiles(cuda::ProductKind kind, ConstMatrix a, MatrixView<const Bf16> b,
                           int64_t k, bool add, const Sums& sums) {
  for (const auto tiles : {cuda::GradTiles::kSmall, cuda::GradTiles::kLarge}) {
    DeviceMatrix<float> to(sums.rows, sums.cols, sums.before);
    const auto c = to.view().on<float>(kGpu);
    cuda::multiply_grad(gpu_stream(), kind,
                        {.a = a.data,
                         .a_stride = a.stride,
                         .b = b.data,
                         .b_stride = b.stride,
                         .c = c.data,
                         .c_stride = c.stride,
                         .m = sums.rows,
                         .n = sums.cols,
                         .k = k,
                         .add = add},
                        tiles);
    to.expect_canaries();
    expect_no_findings();
    expect_equal_bits(to.get(), sums.after, "other tiles");
  }
}

// The weights of some experts, one behind the other; of one, a linear layer's.
struct DeviceExperts {
  DeviceArray<std::byte> memory;
  WeightStack stack;
  DeviceExperts(const Floats& master, int64_t experts, int64_t out, int64_t in, Dtype dtype)
      : memory(static_cast<size_t>(experts) * cuda::weight_bytes(dtype, out, in)) {
    stack.count = experts;
    stack.bytes = cuda::weight_bytes(dtype, out, in);
    for (int64_t e = 0; e < experts; ++e) {
      const Weight weight =
          cuda::pack_weight(gpu_stream(), ConstMatrix(master.data() + e * out * in, out, in), dtype,
                            memory.span().subspan(static_cast<size_t>(e) * stack.bytes));
      if (e == 0) stack.first = weight;
    }
  }
};

Workspace no_workspace() { return Workspace(std::span<std::byte>{}, kGpu); }

struct LayerShape {
  int64_t tokens, out, in;
};
std::string name_of(const LayerShape& s) {
  return fmt::format("{} tokens, [{}, {}]", s.tokens, s.out, s.in);
}

Floats grad_input_of(const Floats& dy, const Weight& weight, const LayerShape& s, const Floats& old,
                     bool accumulate) {
  const DeviceMatrix<float> from(s.tokens, s.out, dy);
  DeviceMatrix<float> dx(s.tokens, s.in, old);
  Workspace workspace = no_workspace();
  cuda::linear_grad_input(
      gpu_stream(), workspace,
      {.dy = from.view(), .weight = weight, .dx = dx.view(), .accumulate = accumulate});
  dx.expect_canaries();
  expect_no_findings();
  return dx.get();
}

void expect_grad_input(Dtype dtype, const LayerShape& s, bool accumulate) {
  SCOPED_TRACE(name_of(s));
  std::mt19937 rng(static_cast<unsigned>(s.tokens * 7919 + s.out * 31 + s.in));
  const Floats dy = random_floats(s.tokens * s.out, rng), w = random_floats(s.out * s.in, rng),
               old = random_floats(s.tokens * s.in, rng);
  const DeviceExperts packed(w, 1, s.out, s.in, dtype);
  const Weight& weight = packed.stack.first;
  const Floats dx = grad_input_of(dy, weight, s, old, accumulate);
  const Floats used_dy = as_operand(dy, dtype), used_w = as_operand(w, dtype);
  Floats expected = old, magnitude = absolute(old);
  ref::linear_grad_input(view_of(used_dy, s.tokens, s.out), view_of(used_w, s.out, s.in),
                         view_of(expected, s.tokens, s.in), accumulate);
  ref::linear_grad_input(view_of(absolute(used_dy), s.tokens, s.out),
                         view_of(absolute(used_w), s.out, s.in), view_of(magnitude, s.tokens, s.in),
                         accumulate);
  expect_sums(dx, expected, magnitude, s.out);
  expect_equal_bits(grad_input_of(dy, weight, s, old, accumulate), dx, "again");
  if (dtype == Dtype::kF32) return;
  const DeviceMatrix<float> from(s.tokens, s.out, dy);
  expect_in_other_tiles(cuda::ProductKind::kGradInput, from.view().on<float>(kGpu),
                        cuda::rows_of<Bf16>(weight), /*k=*/s.out, accumulate,
                        {.rows = s.tokens, .cols = s.in, .before = old, .after = dx});
}

constexpr LayerShape kLayerShapes[] = {{1, 1, 1},   {3, 17, 20},  {33, 40, 65},
                                       {65, 31, 7}, {9, 97, 130}, {129, 33, 70}};

TEST(CudaLinearGradInput, IsRef) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
    for (const LayerShape& shape : kLayerShapes)
      expect_grad_input(dtype, shape, /*accumulate=*/shape.tokens % 2 == 0);
  expect_grad_input(Dtype::kF32, {9, 20, 13}, /*accumulate=*/true);
  expect_grad_input(Dtype::kBF16, {9, 70, 13}, /*accumulate=*/true);
}

template <class X>
Floats grad_weight_of(const Floats& dy, const Floats& x, const LayerShape& s, const Floats& old) {
  const DeviceMatrix<float> dys(s.tokens, s.out, dy);
  const DeviceMatrix<X> xs(s.tokens, s.in, x);
  DeviceMatrix<float> dweight(s.out, s.in, old);
  Workspace workspace = no_workspace();
  cuda::linear_grad_weight(gpu_stream(), workspace,
                           {.dy = dys.view(), .x = xs.view(), .dweight = dweight.view()});
  dweight.expect_canaries();
  expect_no_findings();
  return dweight.get();
}

template <class X>
void expect_grad_weight(const LayerShape& s) {
  SCOPED_TRACE(name_of(s));
  std::mt19937 rng(static_cast<unsigned>(s.tokens * 7919 + s.out * 31 + s.in));
  const Floats dy = random_floats(s.tokens * s.out, rng), x = random_floats(s.tokens * s.in, rng),
               old = random_floats(s.out * s.in, rng);
  const Floats dweight = grad_weight_of<X>(dy, x, s, old);
  const Floats used_dy = as_operand(dy, dtype_of<X>()), used_x = as_operand(x, dtype_of<X>());
  Floats expected = old, magnitude = absolute(old);
  ref::linear_grad_weight(view_of(used_dy, s.tokens, s.out), view_of(used_x, s.tokens, s.in),
                          view_of(expected, s.out, s.in));
  ref::linear_grad_weight(view_of(absolute(used_dy), s.tokens, s.out),
                          view_of(absolute(used_x), s.tokens, s.in),
                          view_of(magnitude, s.out, s.in));
  expect_sums(dweight, expected, magnitude, s.tokens);
  expect_equal_bits(grad_weight_of<X>(dy, x, s, old), dweight, "again");
  if constexpr (std::is_same_v<X, Bf16>) {
    const DeviceMatrix<float> dys(s.tokens, s.out, dy);
    const DeviceMatrix<X> xs(s.tokens, s.in, x);
    expect_in_other_tiles(cuda::ProductKind::kGradWeight, dys.view().on<float>(kGpu),
                          xs.view().template on<X>(kGpu), /*k=*/s.tokens, /*add=*/true,
                          {.rows = s.out, .cols = s.in, .before = old, .after = dweight});
  }
}

TEST(CudaLinearGradWeight, IsRef) {
  for (const LayerShape& shape : kLayerShapes) {
    expect_grad_weight<float>(shape);
    expect_grad_weight<Bf16>(shape);
  }
}

// More tiles of m than follow each other for one of n; and a grid that large tiles fill.
TEST(CudaLinearGradWeight, Groups) {
  expect_grad_weight<Bf16>({2, 17 * 64 + 5, 70});
  expect_grad_weight<Bf16>({2, 17 * 128 + 5, 8 * 128 + 9});
}

TEST(CudaLinearGradBias, IsRef) {
  for (const int64_t tokens : {0, 1, 2, 15, 17, 70}) {
    for (const int64_t out : {1, 31, 40}) {
      SCOPED_TRACE(fmt::format("[{}, {}]", tokens, out));
      std::mt19937 rng(static_cast<unsigned>(tokens * 31 + out));
      const Floats dy = random_floats(tokens * out, rng), old = random_floats(out, rng);
      const auto run = [&] {
        const DeviceMatrix<float> from(tokens, out, dy);
        DeviceMatrix<float> dbias(1, out, old);
        const std::span<float> to{dbias.view().on<float>(kGpu).data, static_cast<size_t>(out)};
        cuda::linear_grad_bias(gpu_stream(), {.dy = from.view(), .dbias = to});
        dbias.expect_canaries();
        expect_no_findings();
        return dbias.get();
      };
      Floats expected = old, magnitude = absolute(old);
      ref::linear_grad_bias(view_of(dy, tokens, out), expected);
      ref::linear_grad_bias(view_of(absolute(dy), tokens, out), magnitude);
      const Floats got = run();
      expect_sums(got, expected, magnitude, tokens);
      expect_equal_bits(run(), got, "again");
    }
  }
}

TEST(CudaLinear, AddsToY) {
  constexpr LayerShape s{21, 35, 70};
  std::mt19937 rng(7);
  const Floats x = random_floats(s.tokens * s.in, rng), w = random_floats(s.out * s.in, rng),
               bias = random_floats(s.out, rng), old = random_floats(s.tokens * s.out, rng);
  const DeviceArray<float> device_bias(bias);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    const DeviceExperts packed(w, 1, s.out, s.in, dtype);
    const DeviceMatrix<float> from(s.tokens, s.in, x);
    const auto run = [&](bool accumulate) {
      DeviceMatrix<float> y(s.tokens, s.out, old);
      cuda::linear(gpu_stream(), {.x = from.view(),
                                  .weight = packed.stack.first,
                                  .bias = device_bias.span(),
                                  .y = y.view(),
                                  .accumulate = accumulate});
      y.expect_canaries();
      expect_no_findings();
      return y.get();
    };
    Floats expected = run(false);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += old[i];
    expect_equal_bits(run(true), expected, "added");
  }
}

// Offsets of experts with so many rows.
std::vector<int32_t> offsets_of(const std::vector<int32_t>& rows) {
  std::vector<int32_t> offsets(rows.size() + 1);
  std::inclusive_scan(rows.begin(), rows.end(), offsets.begin() + 1);
  return offsets;
}

// Of experts with the rows, one after the other: visit(expert, first row, last row).
template <class Visit>
void for_each_expert(const std::vector<int32_t>& offsets, const Visit& visit) {
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    visit(static_cast<int64_t>(e), offsets[e], offsets[e + 1]);
}

// None, one, several tiles; and more experts than a warp has lanes.
std::vector<std::vector<int32_t>> groupings() {
  std::vector<int32_t> many(70, 0);
  many[0] = 1, many[3] = 9, many[31] = 2, many[32] = 66, many[69] = 3;
  return {{5}, {0, 3, 0, 17, 0}, {0, 0}, {70, 0, 130}, many};
}

template <class X, class Y>
void expect_grouped_linear(Dtype dtype, const std::vector<int32_t>& rows, int64_t out, int64_t in) {
  const std::vector<int32_t> offsets = offsets_of(rows);
  const int64_t total = offsets.back(), experts = std::ssize(rows);
  SCOPED_TRACE(fmt::format("{} experts, {} rows, [{}, {}]", experts, total, out, in));
  std::mt19937 rng(static_cast<unsigned>(total * 31 + out));
  const Floats x = random_floats(total * in, rng), w = random_floats(experts * out * in, rng);
  const DeviceExperts packed(w, experts, out, in, dtype);
  const DeviceArray<int32_t> device_offsets(offsets);
  const DeviceMatrix<X> from(total, in, x);
  DeviceMatrix<Y> grouped(total, out), each(total, out);
  cuda::grouped_linear(gpu_stream(), {.x = from.view(),
                                      .weights = packed.stack,
                                      .offsets = device_offsets.span(),
                                      .y = grouped.view()});
  grouped.expect_canaries();
  expect_no_findings();
  for_each_expert(offsets, [&](int64_t e, int64_t begin, int64_t end) {
    cuda::linear(gpu_stream(), {.x = from.view().slice_rows(begin, end),
                                .weight = packed.stack.at(e),
                                .y = each.view().slice_rows(begin, end)});
  });
  expect_no_findings();
  expect_equal_bits(grouped.get(), each.get(), "linear() of each expert");
}

TEST(CudaGroupedLinear, RowsHaveTheBitsOfLinear) {
  for (const auto& rows : groupings()) {
    expect_grouped_linear<float, float>(Dtype::kF32, rows, 70, 20);
    expect_grouped_linear<Bf16, Bf16>(Dtype::kBF16, rows, 17, 136);
    expect_grouped_linear<float, float>(Dtype::kBF16, rows, 33, 20);
  }
  expect_grouped_linear<Bf16, float>(Dtype::kBF16, {2, 0, 40}, 33, 264);  // two slices
}

// Tiles of many tokens: they are taken from 66 on.
TEST(CudaGroupedLinear, LargeTilesToo) {
  expect_grouped_linear<Bf16, Bf16>(Dtype::kBF16, {150, 0, 3, 130}, 128 * 17 - 3, 12);
}

template <class X>
void expect_grouped_gradients(Dtype dtype, const std::vector<int32_t>& rows, int64_t out,
                              int64_t in) {
  const std::vector<int32_t> offsets = offsets_of(rows);
  const int64_t total = offsets.back(), experts = std::ssize(rows);
  SCOPED_TRACE(fmt::format("{} experts, {} rows, [{}, {}]", experts, total, out, in));
  std::mt19937 rng(static_cast<unsigned>(total * 31 + out));
  const Floats dy = random_floats(total * out, rng), x = random_floats(total * in, rng),
               w = random_floats(experts * out * in, rng),
               old = random_floats(experts * out * in, rng);
  const DeviceExperts packed(w, experts, out, in, dtype);
  const DeviceArray<int32_t> device_offsets(offsets);
  const DeviceMatrix<float> dys(total, out, dy);
  const DeviceMatrix<X> xs(total, in, x);
  DeviceMatrix<float> dx(total, in);
  DeviceArray<float> dweights(old);
  Workspace workspace = no_workspace();
  cuda::grouped_grad_input(gpu_stream(), workspace,
                           {.dy = dys.view(),
                            .weights = packed.stack,
                            .offsets = device_offsets.span(),
                            .dx = dx.view()});
  dx.expect_canaries();
  expect_no_findings();
  cuda::grouped_grad_weight(gpu_stream(), workspace,
                            {.dy = dys.view(),
                             .x = xs.view(),
                             .offsets = device_offsets.span(),
                             .dweights = {dweights.data(), experts, out, in}});
  expect_no_findings();
  // Those of each expert alone, which are held against ref.
  DeviceMatrix<float> each_dx(total, in);
  const Floats got = dweights.get();
  for_each_expert(offsets, [&](int64_t e, int64_t begin, int64_t end) {
    cuda::linear_grad_input(gpu_stream(), workspace,
                            {.dy = dys.view().slice_rows(begin, end),
                             .weight = packed.stack.at(e),
                             .dx = each_dx.view().slice_rows(begin, end)});
    const auto part = [&](const Floats& all) {
      return Floats(all.begin() + e * out * in, all.begin() + (e + 1) * out * in);
    };
    const LayerShape shape{end - begin, out, in};
    const Floats own_dy(dy.begin() + begin * out, dy.begin() + end * out);
    const Floats own_x(x.begin() + begin * in, x.begin() + end * in);
    expect_equal_bits(part(got), grad_weight_of<X>(own_dy, own_x, shape, part(old)), "dW");
  });
  expect_no_findings();
  expect_equal_bits(dx.get(), each_dx.get(), "dx");
}

TEST(CudaGroupedGradients, AreThoseOfEachExpert) {
  for (const auto& rows : groupings()) {
    expect_grouped_gradients<float>(Dtype::kF32, rows, 17, 13);
    expect_grouped_gradients<Bf16>(Dtype::kBF16, rows, 35, 21);
  }
}

}  // namespace
}  // namespace tailrace
