#include "kernels/ops/experts.h"

#include <algorithm>
#include <numeric>

#include "kernels/ref/ref.h"
#include "tests/kernels/ops/op_testing.h"

namespace tailrace {
namespace {

using namespace op_testing;

// Rows of each expert: none, one, a tile and past it, all in one.
struct ExpertsShape {
  std::vector<int32_t> rows;
  int64_t in, out;
};
const std::vector<ExpertsShape> kExpertsShapes = {
    {{0, 0}, 8, 8},          {{1}, 5, 3},
    {{1, 0, 2}, 31, 97},     {{3, 12, 0, 13}, 48, 64},
    {{0, 0, 40, 0}, 17, 33}, {{7, 1, 1, 25, 0, 2}, 64, 172},
    {{300, 20}, 20, 70},     {{1, 1, 1, 1, 1, 1, 1, 1}, 40, 65}};

std::vector<int32_t> offsets_of(const ExpertsShape& shape) {
  std::vector<int32_t> offsets = {0};
  for (const int32_t rows : shape.rows) offsets.push_back(offsets.back() + rows);
  return offsets;
}

// The weights of all experts, as they are trained and as they are read.
struct Stack {
  std::vector<float> values;
  Buffer memory;
  MatrixStack<const float> master;
  WeightStack packed;

  Stack(const ExpertsShape& shape, Dtype dtype, Rng& rng) {
    const auto count = static_cast<int64_t>(shape.rows.size());
    values = random_vector(count * shape.out * shape.in, rng);
    if (dtype == Dtype::kBF16)
      for (float& value : values) value = to_float(to_bf16(value));
    master = {values.data(), count, shape.out, shape.in};
    const size_t bytes = weight_bytes(dtype, shape.out, shape.in);
    memory = Buffer(bytes * static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const Weight weight =
          pack_weight(Stream{}, master.at(i), dtype,
                      memory.as<std::byte>().subspan(bytes * static_cast<size_t>(i), bytes));
      if (i == 0) packed.first = weight;
    }
    packed.count = count;
    packed.bytes = bytes;
  }
};

double magnitude(const GuardedMatrix& m, std::span<const float> values) {
  double largest = 0;
  for (const float value : values) largest = std::max<double>(largest, std::abs(value));
  return m.max_magnitude() * largest;
}

TEST(GroupedLinear, AgreesWithTheReferenceAndIsLinearRowByRow) {
  Rng rng(1);
  for (int threads : {1, 2, 3}) {
    TestStream stream(threads);
    for (const ExpertsShape& shape : kExpertsShapes) {
      for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
        SCOPED_TRACE(testing::Message() << shape.rows.size() << " experts, " << shape.in);
        const std::vector<int32_t> offsets = offsets_of(shape);
        const Stack weights(shape, dtype, rng);
        GuardedMatrix x(offsets.back(), shape.in, rng), y(offsets.back(), shape.out),
            want(offsets.back(), shape.out);
        GroupedLinear args{
            .x = x.view(), .weights = weights.packed, .offsets = offsets, .y = y.view()};
        grouped_linear(stream.get(), args);
        const GuardedMatrix operand = operand_of(x, dtype);
        args.x = operand.view(), args.y = want.view();
        ref::grouped_linear(args, weights.master);
        const double bound = static_cast<double>(shape.in + 2) * kUnit *
                             static_cast<double>(shape.in) * magnitude(x, weights.values);
        expect_close(y.view(), want.view(), bound + 1e-30, "y");
        y.expect_canaries();
        for (int64_t e = 0; e < weights.packed.count; ++e) {
          for (int64_t r = offsets[static_cast<size_t>(e)]; r < offsets[static_cast<size_t>(e) + 1];
               ++r) {
            GuardedMatrix one(1, shape.out);
            linear(Stream{}, {.x = x.view().slice_rows(r, r + 1),
                              .weight = weights.packed.at(e),
                              .y = one.view()});
            expect_same_bits(one.view(), y.view().slice_rows(r, r + 1), "row");
          }
        }
      }
    }
  }
}

// Many experts of a few rows each are as much work as one of many.
TEST(GroupedLinear, BeatsByItsWork) {
  Rng rng(2);
  const ExpertsShape shape{std::vector<int32_t>(60, 8), 512, 1024};
  const Stack weights(shape, Dtype::kF32, rng);
  const std::vector<int32_t> offsets = offsets_of(shape);
  const GuardedMatrix x(offsets.back(), shape.in, rng);
  GuardedMatrix y(offsets.back(), shape.out);
  expect_beats(offsets.back() * shape.in * shape.out, /*loops=*/1,
               /*round=*/8 * 4 * 32 * shape.in, [&](const Stream& stream) {
                 grouped_linear(
                     stream,
                     {.x = x.view(), .weights = weights.packed, .offsets = offsets, .y = y.view()});
               });
}

TEST(GroupedLinear, GradientsAgreeWithTheReferenceForEveryThreadCount) {
  Rng rng(3);
  for (const ExpertsShape& shape : kExpertsShapes) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      SCOPED_TRACE(testing::Message() << shape.rows.size() << " experts, " << shape.in);
      const std::vector<int32_t> offsets = offsets_of(shape);
      const int64_t rows = offsets.back();
      const Stack weights(shape, dtype, rng);
      const GuardedMatrix x(rows, shape.in, rng), dy(rows, shape.out, rng);
      GuardedMatrix want(rows, shape.in), first(rows, shape.in);
      const auto count = static_cast<int64_t>(shape.rows.size());
      const std::vector<float> before = random_vector(count * shape.out * shape.in, rng);
      std::vector<float> dweights_want = before, dweights_first;
      const GuardedMatrix operand_x = operand_of(x, dtype), operand_dy = operand_of(dy, dtype);
      const auto input = [&](const GuardedMatrix& from, GuardedMatrix& dx) {
        return GroupedGradInput{
            .dy = from.view(), .weights = weights.packed, .offsets = offsets, .dx = dx.view()};
      };
      const auto weight = [&](std::vector<float>& into) {
        return GroupedGradWeight{.dy = dy.view(),
                                 .x = x.view(),
                                 .offsets = offsets,
                                 .dweights = {into.data(), count, shape.out, shape.in},
                                 .weight = dtype};
      };
      ref::grouped_grad_input(input(operand_dy, want), weights.master);
      GroupedGradWeight of_operands = weight(dweights_want);
      of_operands.dy = operand_dy.view(), of_operands.x = operand_x.view();
      ref::grouped_grad_weight(of_operands);
      for (int threads : {1, 2, 3}) {
        TestStream stream(threads);
        TestWorkspace workspace(linear_grad_workspace_bytes(*std::ranges::max_element(shape.rows),
                                                            shape.out, shape.in));
        GuardedMatrix dx(rows, shape.in);
        std::vector<float> dweights = before;
        grouped_grad_input(stream.get(), workspace.get(), input(dy, dx));
        grouped_grad_weight(stream.get(), workspace.get(), weight(dweights));
        const auto bound = [](int64_t terms, double size) {
          const auto n = static_cast<double>(terms);
          return (n + 3) * kUnit * (n * size + 5) + 1e-30;
        };
        expect_close(dx.view(), want.view(), bound(shape.out, magnitude(dy, weights.values)), "dx");
        expect_close(as_row(dweights), as_row(dweights_want),
                     bound(rows, double{dy.max_magnitude()} * x.max_magnitude()), "dW");
        dx.expect_canaries();
        if (threads == 1) {
          first = dx;
          dweights_first = dweights;
        }
        expect_same_bits(dx.view(), first.view(), "dx");
        expect_same_bits(as_row(dweights), as_row(dweights_first), "dW");
      }
    }
  }
}

// Rows of a token's choices, in no order.
std::vector<int32_t> shuffled_rows(int64_t count, Rng& rng) {
  std::vector<int32_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  std::shuffle(rows.begin(), rows.end(), rng);
  return rows;
}

const std::vector<std::array<int64_t, 3>> kSums = {
    {0, 2, 8}, {1, 1, 1}, {1, 8, 33}, {5, 3, 17}, {64, 2, 48}, {130, 4, 31}, {33, 8, 172}};

TEST(WeightedSum, AgreesWithTheReferenceAndWithItselfAlone) {
  Rng rng(4);
  for (int threads : {1, 3}) {
    TestStream stream(threads);
    for (const auto& [tokens, k, dim] : kSums) {
      const GuardedMatrix x(tokens * k, dim, rng), weights(tokens, k, rng);
      const std::vector<int32_t> rows = shuffled_rows(tokens * k, rng);
      for (const bool weighs : {false, true}) {
        GuardedMatrix y(tokens, dim), want(tokens, dim);
        WeightedSum args{.x = x.view(),
                         .rows = rows,
                         .weights = weighs ? weights.view() : ConstMatrix{},
                         .y = y.view()};
        weighted_sum(stream.get(), args);
        args.y = want.view();
        ref::weighted_sum(args);
        const auto terms = static_cast<double>(k);
        const double size = x.max_magnitude() * (weighs ? weights.max_magnitude() : 1);
        expect_close(y.view(), want.view(), (terms + 1) * kUnit * terms * size + 1e-30, "y");
        y.expect_canaries();
        for (int64_t t = 0; t < tokens; ++t) {
          GuardedMatrix own(k, dim), one(1, dim);
          std::vector<int32_t> order(static_cast<size_t>(k));
          std::iota(order.begin(), order.end(), 0);
          for (int64_t j = 0; j < k; ++j)
            std::copy_n(x.view().row(rows[static_cast<size_t>(t * k + j)]), dim, own.view().row(j));
          weighted_sum(Stream{},
                       {.x = own.view(),
                        .rows = order,
                        .weights = weighs ? weights.view().slice_rows(t, t + 1) : ConstMatrix{},
                        .y = one.view()});
          expect_same_bits(one.view(), y.view().slice_rows(t, t + 1), "alone");
        }
      }
    }
  }
}

TEST(WeightBackward, AgreesWithTheReference) {
  Rng rng(5);
  for (int threads : {1, 3}) {
    TestStream stream(threads);
    for (const auto& [tokens, k, dim] : kSums) {
      GuardedMatrix h(tokens * k, dim, rng), dh(tokens * k, dim, rng);
      const GuardedMatrix weights(tokens, k, rng);
      GuardedMatrix h_want = h, dh_want = dh, dweights(tokens, k), dweights_want(tokens, k);
      const std::vector<int32_t> rows = shuffled_rows(tokens * k, rng);
      const double size = double{h.max_magnitude()} * dh.max_magnitude();
      weight_backward(stream.get(), {.h = h.view(),
                                     .dh = dh.view(),
                                     .rows = rows,
                                     .weights = weights.view(),
                                     .dweights = dweights.view()});
      ref::weight_backward({.h = h_want.view(),
                            .dh = dh_want.view(),
                            .rows = rows,
                            .weights = weights.view(),
                            .dweights = dweights_want.view()});
      const auto n = static_cast<double>(dim);
      expect_close(dweights.view(), dweights_want.view(), (n / 16 + 6) * kUnit * n * size + 1e-30,
                   "dweights");
      expect_same_bits(h.view(), h_want.view(), "h");
      expect_same_bits(dh.view(), dh_want.view(), "dh");
      h.expect_canaries();
      dh.expect_canaries();
    }
  }
}

}  // namespace
}  // namespace tailrace
