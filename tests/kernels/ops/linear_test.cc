#include "kernels/ops/linear.h"

#include <array>
#include <numeric>

#include "kernels/base/isa.h"
#include "kernels/ref/ref.h"
#include "tests/kernels/ops/op_testing.h"

namespace tailrace {
namespace {

using namespace op_testing;

struct LinearShape {
  int64_t tokens, in, out;
};

// Nothing, one, odd, a tile or panel exactly and just past it, and sums longer than one block.
const std::vector<LinearShape> kLinearShapes = {
    {0, 8, 8},      {1, 1, 1},     {1, 64, 64},   {1, 33, 161}, {2, 31, 97},
    {3, 17, 33},    {5, 64, 32},   {7, 172, 64},  {8, 64, 172}, {11, 40, 31},
    {12, 16, 65},   {13, 48, 64},  {25, 128, 96}, {64, 64, 40}, {97, 5, 3},
    {130, 96, 128}, {257, 33, 50}, {300, 20, 70}, {513, 64, 64}};

// A sum of k terms, one rounding a term, differs from the exact one by at most k half-units of the
// sum of the magnitudes; one more for the last rounding of the reference and one for the bias.
auto sum_tolerance(const GuardedMatrix& magnitudes, int64_t k) {
  return [&magnitudes, k](int64_t r, int64_t c) {
    return static_cast<double>(k + 2) * kUnit * magnitudes.at(r, c) + 1e-30;
  };
}

TEST(Linear, AgreesWithTheReference) {
  Rng rng(1);
  for (int threads : {1, 2, 3}) {
    TestStream stream(threads);
    for (auto [tokens, in, out] : kLinearShapes) {
      SCOPED_TRACE(testing::Message() << tokens << " x " << in << " -> " << out);
      GuardedMatrix x(tokens, in, rng), w(out, in, rng), y(tokens, out), expected(tokens, out),
          bound(tokens, out);
      // As trained models have them: the bound is by magnitude, so other rows stay as strict.
      if (tokens > 2) x.at(1, 0) = 1e4f;  // an outlier
      auto bias = random_vector(out, rng);
      ref::linear(x.view(), w.view(), bias, expected.view());
      std::vector<float> bias_magnitude = bias;
      for (float& b : bias_magnitude) b = std::abs(b);
      ref::linear(x.magnitude().view(), w.magnitude().view(), bias_magnitude, bound.view());
      linear(stream.get(),
             {.x = x.view(), .weight = Packed(w).weight, .bias = bias, .y = y.view()});
      expect_close(y.view(), expected.view(), sum_tolerance(bound, in), "y");
      y.expect_canaries();

      ref::linear(x.view(), w.view(), {}, expected.view());
      linear(stream.get(), {.x = x.view(), .weight = Packed(w).weight, .y = y.view()});
      expect_close(y.view(), expected.view(), sum_tolerance(bound, in), "y without bias");
    }
  }
}

TEST(Linear, AddsTheFinishedSumToWhatIsThere) {
  Rng rng(12);
  for (auto [tokens, in, out] : kLinearShapes) {
    SCOPED_TRACE(testing::Message() << tokens << " x " << in << " -> " << out);
    GuardedMatrix x(tokens, in, rng), w(out, in, rng), sum(tokens, out), y(tokens, out, rng);
    GuardedMatrix expected = y;
    TestStream stream(3);
    linear(stream.get(), {.x = x.view(), .weight = Packed(w).weight, .y = sum.view()});
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t o = 0; o < out; ++o) expected.at(t, o) += sum.at(t, o);
    linear(stream.get(),
           {.x = x.view(), .weight = Packed(w).weight, .y = y.view(), .accumulate = true});
    expect_same_bits(y.view(), expected.view(), "y");
    y.expect_canaries();
  }
}

TEST(Linear, IsOneAccumulatorOverKInOrder) {
  Rng rng(2);
  for (auto [tokens, in, out] : kLinearShapes) {
    GuardedMatrix x(tokens, in, rng), w(out, in, rng), y(tokens, out), expected(tokens, out);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t o = 0; o < out; ++o) {
        float sum = 0;
        // This order is what makes a row's bits independent of its batch; kernels of any
        // instruction set have it.
        for (int64_t i = 0; i < in; ++i) sum = std::fma(x.at(t, i), w.at(o, i), sum);
        expected.at(t, o) = sum;
      }
    }
    linear(Stream{}, {.x = x.view(), .weight = Packed(w).weight, .y = y.view()});
    expect_same_bits(y.view(), expected.view(), "y");
  }
}

TEST(Linear, ARowHasTheSameBitsInEveryBatchAndForEveryThreadCount) {
  Rng rng(3);
  const int64_t tokens = 150;
  GuardedMatrix x(tokens, 129, rng), w(203, 129, rng);
  Packed packed(w);
  auto bias = random_vector(203, rng);
  GuardedMatrix whole(tokens, 203);
  linear(Stream{}, {.x = x.view(), .weight = packed.weight, .bias = bias, .y = whole.view()});
  for (int threads : {1, 2, 3}) {
    TestStream stream(threads);
    // More rows than a tile has, from any place: a row meets every edge of a tile.
    for (int64_t rows = 1; rows <= 50; ++rows) {
      const auto first = static_cast<int64_t>(rng() % static_cast<uint64_t>(tokens - rows));
      GuardedMatrix part(rows, 203);
      linear(stream.get(), {.x = x.view().slice_rows(first, first + rows),
                            .weight = packed.weight,
                            .bias = bias,
                            .y = part.view()});
      expect_same_bits(part.view(), whole.view().slice_rows(first, first + rows), "rows");
    }
    GuardedMatrix again(tokens, 203);
    linear(stream.get(), {.x = x.view(), .weight = packed.weight, .bias = bias, .y = again.view()});
    expect_same_bits(again.view(), whole.view(), "threads");
  }
}

// A decode step has one row: its product is divided by columns.
TEST(Linear, OneRowIsDividedAndKeepsItsBits) {
  Rng rng(5);
  GuardedMatrix x(1, 513, rng), w(4099, 513, rng);
  Packed packed(w);
  GuardedMatrix alone(1, 4099);
  linear(Stream{}, {.x = x.view(), .weight = packed.weight, .y = alone.view()});
  for (int threads : {2, 3, 5}) {
    TestStream stream(threads);
    GuardedMatrix divided(1, 4099);
    linear(stream.get(), {.x = x.view(), .weight = packed.weight, .y = divided.view()});
    expect_same_bits(divided.view(), alone.view(), "one row");
    EXPECT_GT(stream.num_divided(), 0) << threads;
  }
}

// Rows are taken in blocks whose part of x stays in the cache: 60 of them at this k.
TEST(Linear, AProductOverSeveralRowBlocksHasTheBitsOfItsRows) {
  Rng rng(6);
  const int64_t rows = 200, k = 1100, cols = 70;
  GuardedMatrix x(rows, k, rng), w(cols, k, rng);
  Packed packed(w);
  GuardedMatrix whole(rows, cols);
  linear(Stream{}, {.x = x.view(), .weight = packed.weight, .y = whole.view()});
  for (int64_t row : {0, 11, 59, 60, 61, 119, 120, 121, 180, 199}) {
    GuardedMatrix one(1, cols);
    linear(Stream{},
           {.x = x.view().slice_rows(row, row + 1), .weight = packed.weight, .y = one.view()});
    expect_same_bits(one.view(), whole.view().slice_rows(row, row + 1), "row");
  }
  for (int threads : {2, 3}) {
    TestStream stream(threads);
    GuardedMatrix divided(rows, cols);
    linear(stream.get(), {.x = x.view(), .weight = packed.weight, .y = divided.view()});
    expect_same_bits(divided.view(), whole.view(), "threads");
    EXPECT_GT(stream.num_divided(), 0) << threads;
  }
}

// The sum of k terms x[i] * w[i], in the order of products with a weight of this dtype.
template <class X, class W>
float sum_in_order(int64_t k, Dtype weight, const X& x, const W& w) {
  const bool pairs = weight == Dtype::kBF16 && isa() == Isa::kAvx512Bf16;
  float sum = 0;
  for (int64_t i = 0; i < k; i += 2) {
    const auto add = [&](int64_t at) {
      if (at < k) sum = std::fma(pairs ? to_float(to_bf16(x(at))) : x(at), w(at), sum);
    };
    add(pairs ? i + 1 : i);
    add(pairs ? i : i + 1);
  }
  return sum;
}

// On this machine bf16 is another form of the weights and not of the arithmetic, or pairs are both.
TEST(Linear, WithBfloatWeightsAddsTheRoundedOnesInTheOrderOfItsClass) {
  Rng rng(8);
  for (auto [tokens, in, out] : kLinearShapes) {
    SCOPED_TRACE(testing::Message() << tokens << " x " << in << " -> " << out);
    GuardedMatrix x(tokens, in, rng), dy(tokens, out, rng), w(out, in, rng);
    const GuardedMatrix rounded = rounded_to_bf16(w);
    const Packed bf16(w, Dtype::kBF16);
    EXPECT_LE(bf16.memory.size(), Packed(w).memory.size());
    auto bias = random_vector(out, rng);
    GuardedMatrix expected(tokens, out), expected_dx(tokens, in);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t o = 0; o < out; ++o) {
        expected.at(t, o) = sum_in_order(
            in, Dtype::kBF16, [&](int64_t i) { return x.at(t, i); },
            [&](int64_t i) { return rounded.at(o, i); });
        expected.at(t, o) += bias[static_cast<size_t>(o)];
      }
      for (int64_t i = 0; i < in; ++i)
        expected_dx.at(t, i) = sum_in_order(
            out, Dtype::kBF16, [&](int64_t o) { return dy.at(t, o); },
            [&](int64_t o) { return rounded.at(o, i); });
    }
    for (int threads : {1, 3}) {
      TestStream stream(threads);
      TestWorkspace workspace(linear_grad_workspace_bytes(tokens, out, in));
      GuardedMatrix y(tokens, out), dx(tokens, in);
      linear(stream.get(), {.x = x.view(), .weight = bf16.weight, .bias = bias, .y = y.view()});
      expect_same_bits(y.view(), expected.view(), "y");
      linear_grad_input(
          stream.get(), workspace.get(),
          {.dy = dy.view(), .weight = bf16.weight, .dx = dx.view(), .accumulate = false});
      expect_same_bits(dx.view(), expected_dx.view(), "dx");
      y.expect_canaries();
      dx.expect_canaries();
    }
  }
}

// Real widths: several parts of W, blocks of rows and of k, odd sizes; a row alone and among
// others.
TEST(Linear, WithBfloatWeightsARowHasTheSameBitsInEveryBatch) {
  Rng rng(14);
  for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{
           {576, 1536}, {1536, 576}, {1023, 197}, {4096, 256}, {9001, 64}}) {
    SCOPED_TRACE(testing::Message() << in << " -> " << out);
    constexpr int64_t kRows = 200;
    GuardedMatrix x(kRows, in, rng), w(out, in, rng), whole(kRows, out);
    const Packed packed(w, Dtype::kBF16);
    linear(Stream{}, {.x = x.view(), .weight = packed.weight, .y = whole.view()});
    // Few rows of a weight that comes from memory ask for it ahead.
    Weight far = packed.weight;
    far.from_memory = true;
    for (int threads : {1, 2}) {
      TestStream stream(threads);
      for (int64_t rows : {1, 2, 3, 5, 12, 13, 25, 64, 121, 200}) {
        const int64_t first = kRows - rows;
        GuardedMatrix part(rows, out);
        linear(stream.get(), {.x = x.view().slice_rows(first, kRows),
                              .weight = threads == 1 ? far : packed.weight,
                              .y = part.view()});
        expect_same_bits(part.view(), whole.view().slice_rows(first, kRows), "rows");
        part.expect_canaries();
      }
    }
  }
}

TEST(Bfloat, IsRoundedToTheNearestAndTiesToEven) {
  EXPECT_EQ(to_float(to_bf16(1.0f)), 1.0f);
  EXPECT_EQ(to_float(to_bf16(1.00390625f)), 1.0f);        // 1 + 2^-8: the even one is below
  EXPECT_EQ(to_float(to_bf16(1.01171875f)), 1.015625f);   // 1 + 3 * 2^-8: and above
  EXPECT_EQ(to_float(to_bf16(1.00390637f)), 1.0078125f);  // just above the middle
  EXPECT_EQ(to_bf16(-0.0f).bits, 0x8000);
  EXPECT_EQ(to_float(to_bf16(3.4e38f)), INFINITY);  // beyond the largest
  EXPECT_EQ(to_float(to_bf16(-INFINITY)), -INFINITY);
  EXPECT_TRUE(std::isnan(to_float(to_bf16(NAN))));
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7F800001u)))));
  Rng rng(9);
  for (int i = 0; i < 1000; ++i) {
    const float x = std::normal_distribution<float>()(rng);
    EXPECT_LE(std::abs(to_float(to_bf16(x)) - x), std::abs(x) / 256) << x;
  }
}

// W is turned in parts where it is large, which no sum shows.
TEST(LinearGrad, ASumOverSeveralPartsOfWeightsIsOneAccumulator) {
  constexpr int64_t kTokens = 2, kIn = 1100, kOut = 1003;
  Rng rng(12);
  GuardedMatrix w(kOut, kIn, rng), dy(kTokens, kOut, rng), expected(kTokens, kIn);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t i = 0; i < kIn; ++i) {
      float sum = 0;
      for (int64_t o = 0; o < kOut; ++o) sum = std::fma(dy.at(t, o), w.at(o, i), sum);
      expected.at(t, i) = sum;
    }
  }
  const Packed packed(w);
  for (int threads : {1, 3}) {
    TestStream stream(threads);
    TestWorkspace workspace(linear_grad_workspace_bytes(kTokens, kOut, kIn));
    GuardedMatrix dx(kTokens, kIn), added(kTokens, kIn, rng), sum = added;
    linear_grad_input(stream.get(), workspace.get(),
                      {.dy = dy.view(), .weight = packed.weight, .dx = dx.view()});
    expect_same_bits(dx.view(), expected.view(), "dx");
    linear_grad_input(
        stream.get(), workspace.get(),
        {.dy = dy.view(), .weight = packed.weight, .dx = added.view(), .accumulate = true});
    for (int64_t t = 0; t < kTokens; ++t)
      for (int64_t i = 0; i < kIn; ++i) sum.at(t, i) += expected.at(t, i);
    expect_same_bits(added.view(), sum.view(), "dx, added to");
    dx.expect_canaries();
    added.expect_canaries();
  }
}

// Infinities, numbers below the normal ones and what is none: a kernel widens each as it is; in
// pairs those below the normal ones are zeros.
TEST(Bfloat, EachOfThemIsWidenedExactlyInAProduct) {
  constexpr int64_t kAll = 1 << 16;
  GuardedMatrix x(1, 1), w(kAll, 1), y(1, kAll);
  x.at(0, 0) = 1;
  for (int64_t i = 0; i < kAll; ++i) w.at(i, 0) = to_float(Bf16{static_cast<uint16_t>(i)});
  linear(Stream{}, {.x = x.view(), .weight = Packed(w, Dtype::kBF16).weight, .y = y.view()});
  for (int64_t i = 0; i < kAll; ++i) {
    float value = w.at(i, 0);
    if (isa() == Isa::kAvx512Bf16 && std::fpclassify(value) == FP_SUBNORMAL) value = 0;
    ASSERT_TRUE(y.at(0, i) == value || (std::isnan(y.at(0, i)) && std::isnan(value))) << i;
  }
}

TEST(LinearGrad, AgreesWithTheReference) {
  Rng rng(4);
  for (int threads : {1, 3}) {
    TestStream stream(threads);
    for (auto [tokens, in, out] : kLinearShapes) {
      SCOPED_TRACE(testing::Message() << tokens << " x " << in << " -> " << out);
      GuardedMatrix x(tokens, in, rng), w(out, in, rng), dy(tokens, out, rng);
      TestWorkspace workspace(linear_grad_workspace_bytes(tokens, out, in));
      for (bool accumulate : {false, true}) {
        GuardedMatrix dx(tokens, in, rng);
        GuardedMatrix expected = dx, bound = dx.magnitude();
        ref::linear_grad_input(dy.view(), w.view(), expected.view(), accumulate);
        ref::linear_grad_input(dy.magnitude().view(), w.magnitude().view(), bound.view(), true);
        linear_grad_input(stream.get(), workspace.get(),
                          {.dy = dy.view(),
                           .weight = Packed(w).weight,
                           .dx = dx.view(),
                           .accumulate = accumulate});
        expect_close(dx.view(), expected.view(), sum_tolerance(bound, out), "dx");
        dx.expect_canaries();
      }
      GuardedMatrix dw(out, in, rng);
      GuardedMatrix expected = dw, bound = dw.magnitude();
      ref::linear_grad_weight(dy.view(), x.view(), expected.view());
      ref::linear_grad_weight(dy.magnitude().view(), x.magnitude().view(), bound.view());
      linear_grad_weight(stream.get(), workspace.get(),
                         {.dy = dy.view(), .x = x.view(), .dweight = dw.view()});
      expect_close(dw.view(), expected.view(), sum_tolerance(bound, tokens), "dw");
      dw.expect_canaries();

      GuardedMatrix dbias(1, out, rng);
      expected = dbias, bound = dbias.magnitude();
      const auto n = static_cast<size_t>(out);
      ref::linear_grad_bias(dy.view(), {expected.view().data, n});
      ref::linear_grad_bias(dy.magnitude().view(), {bound.view().data, n});
      linear_grad_bias(stream.get(), {.dy = dy.view(), .dbias = {dbias.view().data, n}});
      expect_close(dbias.view(), expected.view(), sum_tolerance(bound, tokens), "dbias");
      dbias.expect_canaries();
    }
  }
}

// dW of a weight that is read in bfloat16.
TEST(LinearGrad, OfABfloatWeightAddsTokensInTheOrderOfItsClass) {
  Rng rng(15);
  // The last has more tokens than the products take at once, and more columns of dy.
  std::vector<LinearShape> shapes = kLinearShapes;
  shapes.push_back({2500, 33, 100});
  for (auto [tokens, in, out] : shapes) {
    SCOPED_TRACE(testing::Message() << tokens << " x " << in << " -> " << out);
    GuardedMatrix x(tokens, in, rng), dy(tokens, out, rng), dw0(out, in, rng), expected = dw0;
    const GuardedMatrix operand = operand_of(x, Dtype::kBF16);
    for (int64_t o = 0; o < out; ++o)
      for (int64_t i = 0; i < in; ++i)
        expected.at(o, i) += sum_in_order(
            tokens, Dtype::kBF16, [&](int64_t t) { return dy.at(t, o); },
            [&](int64_t t) { return operand.at(t, i); });
    for (int threads : {1, 2, 3}) {
      TestStream stream(threads);
      TestWorkspace workspace(linear_grad_workspace_bytes(tokens, out, in));
      GuardedMatrix dw = dw0;
      linear_grad_weight(
          stream.get(), workspace.get(),
          {.dy = dy.view(), .x = x.view(), .dweight = dw.view(), .weight = Dtype::kBF16});
      // No tokens: a sum of none is not added, which a zero would do to -0.
      if (tokens > 0) expect_same_bits(dw.view(), expected.view(), "dw");
      dw.expect_canaries();
    }
  }
}

TEST(LinearGrad, HasTheSameBitsForEveryThreadCount) {
  Rng rng(5);
  // More than one block of tokens, and edges in every direction.
  const int64_t tokens = 700, in = 70, out = 131;
  GuardedMatrix x(tokens, in, rng), w(out, in, rng), dy(tokens, out, rng), dw0(out, in, rng);
  TestWorkspace workspace(linear_grad_workspace_bytes(tokens, out, in));
  GuardedMatrix dx1(tokens, in), dw1 = dw0;
  linear_grad_input(
      Stream{}, workspace.get(),
      {.dy = dy.view(), .weight = Packed(w).weight, .dx = dx1.view(), .accumulate = false});
  linear_grad_weight(Stream{}, workspace.get(),
                     {.dy = dy.view(), .x = x.view(), .dweight = dw1.view()});
  for (int threads : {2, 3, 4}) {
    TestStream stream(threads);
    GuardedMatrix dx(tokens, in), dw = dw0;
    linear_grad_input(
        stream.get(), workspace.get(),
        {.dy = dy.view(), .weight = Packed(w).weight, .dx = dx.view(), .accumulate = false});
    linear_grad_weight(stream.get(), workspace.get(),
                       {.dy = dy.view(), .x = x.view(), .dweight = dw.view()});
    expect_same_bits(dx.view(), dx1.view(), "dx");
    expect_same_bits(dw.view(), dw1.view(), "dw");
  }
}

// The sum over tokens is finished before it meets what dW held: an accumulation of two
// micro-batches is the float sum of their gradients.
TEST(LinearGrad, AddsFinishedSums) {
  Rng rng(6);
  const int64_t tokens = 600, in = 40, out = 50;
  // dW is large against the sum: added term by term it would round elsewhere.
  GuardedMatrix x(tokens, in, rng), dy(tokens, out, rng), dw0(out, in, rng, 100);
  TestWorkspace workspace(linear_grad_workspace_bytes(tokens, out, in));
  GuardedMatrix fresh(out, in), added = dw0;
  linear_grad_weight(Stream{}, workspace.get(),
                     {.dy = dy.view(), .x = x.view(), .dweight = fresh.view()});
  linear_grad_weight(Stream{}, workspace.get(),
                     {.dy = dy.view(), .x = x.view(), .dweight = added.view()});
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t i = 0; i < in; ++i) {
      float sum = 0;
      for (int64_t t = 0; t < tokens; ++t) sum = std::fma(dy.at(t, o), x.at(t, i), sum);
      ASSERT_EQ(fresh.at(o, i), sum);
      ASSERT_EQ(added.at(o, i), dw0.at(o, i) + sum);
    }
  }
}

// Any rows, also those that begin or end inside of a panel, and nothing beside them.
TEST(UnpackRows, GivesTheRowsThatWerePacked) {
  Rng rng(9);
  for (int threads : {1, 3}) {
    TestStream stream(threads);
    for (auto [tokens, in, out] : kLinearShapes) {
      GuardedMatrix w(out, in, rng);
      w.at(0, 0) = -0.0f;
      for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
        const Packed packed(w, dtype);
        const GuardedMatrix expected = dtype == Dtype::kBF16 ? rounded_to_bf16(w) : w;
        for (const int64_t first : {int64_t{0}, out / 3, out - 1}) {
          for (const int64_t last : {first, std::min(out, first + 40), out}) {
            GuardedMatrix rows(last - first, in);
            unpack_rows(stream.get(), packed.weight, first, rows.view());
            expect_same_bits(rows.view(), ConstMatrix(expected.view()).slice_rows(first, last),
                             "rows");
            rows.expect_canaries();
          }
        }
      }
    }
  }
}

// What kWeightRows says: who has the rows in several places packs them piece by piece.
TEST(PackWeight, RowsByPiecesAreTheWholeWeight) {
  Rng rng(10);
  for (auto [tokens, in, out] : kLinearShapes) {
    GuardedMatrix w(out, in, rng);
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      const Packed whole(w, dtype);
      Buffer pieces(whole.memory.size());
      for (int64_t begin = 0; begin < out; begin += 2 * kWeightRows) {
        const int64_t end = std::min(out, begin + 2 * kWeightRows);
        pack_weight(Stream{}, ConstMatrix(w.view()).slice_rows(begin, end), dtype,
                    pieces.as<std::byte>().subspan(weight_bytes(dtype, begin, in),
                                                   weight_bytes(dtype, end - begin, in)));
      }
      EXPECT_TRUE(std::ranges::equal(pieces.as<std::byte>(), whole.memory.as<std::byte>()));
    }
  }
}

// Long rows, odd ones, and elements that are rounded in their own ways; whatever lay there before.
TEST(PackWeight, RoundsEachElementAndFillsUpWithZeros) {
  Rng rng(11);
  const float special[] = {-0.0f, 1e-40f, -3e-39f, INFINITY, -INFINITY, NAN, 3.4e38f, 1.00390625f};
  for (const int64_t in : {1, 30, 31, 33, 2047, 2049, 4131}) {
    for (const int64_t out : {1, 17, 33}) {
      GuardedMatrix w(out, in, rng);
      for (int64_t i = 0; i < std::min<int64_t>(8, out * in); ++i)
        w.at(i % out, in - 1 - i / out) = special[i];
      const auto pack = [](const GuardedMatrix& of) {
        Buffer memory(weight_bytes(Dtype::kBF16, of.rows(), of.cols()));
        std::ranges::fill(memory.as<std::byte>(), std::byte{0xFF});
        pack_weight(Stream{}, of.view(), Dtype::kBF16, memory.as<std::byte>());
        return memory;
      };
      const Buffer packed = pack(w);
      GuardedMatrix rows(out, in);
      unpack_rows(Stream{}, {Dtype::kBF16, packed.as<std::byte>().data(), out, in}, 0, rows.view());
      expect_same_bits(rows.view(), rounded_to_bf16(w).view(), "rows");
      // What fills up the memory of this weight is in a larger one zeros of its own.
      for (const int64_t more : {0, 1}) {
        const int64_t all = (out + kWeightRows - 1) / kWeightRows * kWeightRows;
        GuardedMatrix wider(all, in + more);
        for (int64_t r = 0; r < all; ++r)
          for (int64_t c = 0; c < in + more; ++c)
            wider.at(r, c) = r < out && c < in ? w.at(r, c) : 0.0f;
        const Buffer expected = pack(wider);
        if (expected.size() != packed.size()) continue;
        EXPECT_TRUE(std::ranges::equal(packed.as<std::byte>(), expected.as<std::byte>()))
            << in << " " << out;
      }
    }
  }
}

TEST(Linear, BeatsByItsWork) {
  Rng rng(8);
  const int64_t tokens = 512, in = 1200, out = 1200;
  GuardedMatrix x(tokens, in, rng), w(out, in, rng), y(tokens, out), dx(tokens, in), dw(out, in);
  Packed packed(w);
  TestWorkspace workspace(linear_grad_workspace_bytes(tokens, out, in));
  const int64_t work = tokens * in * out;
  // A panel of 32 columns by as many rows as fit into a cache.
  const int64_t round = int64_t{4} << 20;
  expect_beats(work, 1, round, [&](const Stream& stream) {
    linear(stream, {.x = x.view(), .weight = packed.weight, .y = y.view()});
  });
  expect_beats(work, 2, round, [&](const Stream& stream) {
    linear_grad_input(
        stream, workspace.get(),
        {.dy = y.view(), .weight = packed.weight, .dx = dx.view(), .accumulate = false});
  });
  expect_beats(work, 6, round, [&](const Stream& stream) {
    linear_grad_weight(stream, workspace.get(),
                       {.dy = y.view(), .x = x.view(), .dweight = dw.view()});
  });
}

TEST(LinearDeathTest, NamesTheShapesThatDoNotFit) {
  Rng rng(7);
  GuardedMatrix x(3, 8, rng), w(4, 9, rng), y(3, 4);
  Packed packed(w);
  EXPECT_DEATH(linear(Stream{}, {.x = x.view(), .weight = packed.weight, .y = y.view()}),
               "x \\[3, 8\\], W \\[4, 9\\]");
}

}  // namespace
}  // namespace tailrace
