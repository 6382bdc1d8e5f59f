// Ops that treat each row, or each element, on its own: rms_norm, rope, swiglu, embedding, adamw.
#include <cmath>
#include <limits>
#include <tuple>

#include "kernels/ops/adamw.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/swiglu.h"
#include "kernels/ref/ref.h"
#include "tests/kernels/ops/op_testing.h"

namespace tailrace {
namespace {

using namespace op_testing;

const std::vector<std::pair<int64_t, int64_t>> kShapes = {
    {0, 4}, {1, 1}, {1, 16}, {3, 17}, {5, 8}, {2, 64}, {33, 31}, {130, 128}, {257, 172}};

std::span<float> span_of(GuardedMatrix& m) {
  return {m.view().data, static_cast<size_t>(m.cols())};
}

// Relative to a value: a few roundings, each of at most kUnit.
auto relative(const GuardedMatrix& expected, double roundings, double absolute = 1e-30) {
  return [&expected, roundings, absolute](int64_t r, int64_t c) {
    return roundings * kUnit * std::abs(expected.at(r, c)) + absolute;
  };
}

TEST(RmsNorm, AgreesWithTheReference) {
  Rng rng(1);
  for (int threads : {1, 3}) {
    TestStream stream(threads);
    for (auto [tokens, dim] : kShapes) {
      GuardedMatrix x(tokens, dim, rng), y(tokens, dim), expected(tokens, dim);
      if (tokens > 1) x.at(1, 0) = 3e3f;
      if (tokens > 2) x.view().row(2)[dim - 1] = 0;
      auto weight = random_vector(dim, rng);
      std::vector<float> inv(static_cast<size_t>(tokens)), inv_expected(inv.size());
      ref::rms_norm(x.view(), weight, 1e-5f, expected.view(), inv_expected);
      rms_norm(stream.get(),
               {.x = x.view(), .weight = weight, .eps = 1e-5f, .y = y.view(), .inv_rms = inv});
      // A sum of squares of dim terms in 16 lanes (dim / 16 + 4 roundings, all of one sign), halved
      // by the root; then mean, eps, root, quotient, two products and the reference's own rounding.
      const double roundings = 0.5 * (static_cast<double>(dim) / 16 + 4) + 7;
      expect_close(y.view(), expected.view(), relative(expected, roundings), "y");
      y.expect_canaries();
      rms_norm(stream.get(), {.x = x.view(), .weight = weight, .eps = 1e-5f, .y = x.view()});
      expect_same_bits(x.view(), y.view(), "in place");
    }
  }
}

TEST(RmsNorm, ARowHasTheSameBitsAloneAndInABatch) {
  Rng rng(2);
  GuardedMatrix x(400, 93, rng), y(400, 93);
  auto weight = random_vector(93, rng);
  TestStream stream(3);
  rms_norm(stream.get(), {.x = x.view(), .weight = weight, .eps = 1e-6f, .y = y.view()});
  for (int64_t t = 0; t < 400; ++t) {
    GuardedMatrix one(1, 93);
    rms_norm(Stream{},
             {.x = x.view().slice_rows(t, t + 1), .weight = weight, .eps = 1e-6f, .y = one.view()});
    expect_same_bits(one.view(), y.view().slice_rows(t, t + 1), "row");
  }
}

TEST(RmsNorm, BackwardAgreesWithTheReference) {
  Rng rng(3);
  for (int threads : {1, 3}) {
    TestStream stream(threads);
    for (auto [tokens, dim] : kShapes) {
      GuardedMatrix x(tokens, dim, rng), dy(tokens, dim, rng), y(tokens, dim);
      auto weight = random_vector(dim, rng);
      std::vector<float> inv(static_cast<size_t>(tokens));
      rms_norm(stream.get(),
               {.x = x.view(), .weight = weight, .eps = 1e-5f, .y = y.view(), .inv_rms = inv});
      for (bool accumulate : {false, true}) {
        GuardedMatrix dx(tokens, dim, rng), dweight(1, dim, rng);
        GuardedMatrix expected = dx, dweight_expected = dweight;
        const GuardedMatrix before = dx;
        ref::rms_norm_backward(x.view(), weight, inv, dy.view(), expected.view(), accumulate,
                               span_of(dweight_expected));
        rms_norm_backward(stream.get(), {.x = x.view(),
                                         .weight = weight,
                                         .inv_rms = inv,
                                         .dy = dy.view(),
                                         .dx = dx.view(),
                                         .accumulate = accumulate,
                                         .dweight = span_of(dweight)});
        // Frozen factors have no gradient, and that to x is the same.
        GuardedMatrix frozen = before;
        rms_norm_backward(stream.get(), {.x = x.view(),
                                         .weight = weight,
                                         .inv_rms = inv,
                                         .dy = dy.view(),
                                         .dx = frozen.view(),
                                         .accumulate = accumulate,
                                         .dweight = {}});
        expect_same_bits(frozen.view(), dx.view(), "dx of a frozen norm");
        // A dot product of dim terms of size |dy w n|, divided by dim; a dozen roundings around it.
        // All factors are normal deviates: 5 sigma each bounds the magnitudes.
        float largest = 1;
        for (float r : inv) largest = std::max(largest, r);
        expect_close(dx.view(), expected.view(),
                     (static_cast<double>(dim) / 16 + 16) * kUnit * 50 * largest, "dx");
        const double terms = static_cast<double>(tokens) + 4;
        expect_close(dweight.view(), dweight_expected.view(), terms * kUnit * terms * largest * 4,
                     "dweight");
        dx.expect_canaries();
        dweight.expect_canaries();
        if (!accumulate) {
          GuardedMatrix in_place = dy;
          rms_norm_backward(stream.get(), {.x = x.view(),
                                           .weight = weight,
                                           .inv_rms = inv,
                                           .dy = in_place.view(),
                                           .dx = in_place.view(),
                                           .accumulate = false,
                                           .dweight = span_of(dweight)});
          expect_same_bits(in_place.view(), dx.view(), "dx over dy");
        }
      }
    }
  }
}

// The norms of queries and keys: each head as if it were a row of its own, in a matrix whose rows
// hold more than the heads.
TEST(RmsNorm, OfHeadsIsTheNormOfEach) {
  Rng rng(14);
  constexpr int64_t kTokens = 37, kHeads = 3, kDim = 20;
  TestStream stream(3);
  GuardedMatrix wide(kTokens, kHeads * kDim + 5, rng), dy(kTokens, kHeads * kDim, rng);
  const Matrix x = wide.view().slice_cols(2, 2 + kHeads * kDim);
  const auto weight = random_vector(kDim, rng);
  GuardedMatrix y(kTokens, kHeads * kDim), dx(kTokens, kHeads * kDim, rng), dweight(1, kDim, rng);
  const GuardedMatrix dx_before = dx, dweight_before = dweight;
  std::vector<float> inv(kTokens * kHeads);
  rms_norm(stream.get(), {.x = x, .weight = weight, .eps = 1e-5f, .y = y.view(), .inv_rms = inv});
  rms_norm_backward(stream.get(), {.x = x,
                                   .weight = weight,
                                   .inv_rms = inv,
                                   .dy = dy.view(),
                                   .dx = dx.view(),
                                   .accumulate = true,
                                   .dweight = span_of(dweight)});
  y.expect_canaries();
  dx.expect_canaries();
  dweight.expect_canaries();

  // As rows: head h of token t is row t * heads + h.
  GuardedMatrix rows(kTokens * kHeads, kDim), dy_rows(rows), dx_rows(rows), y_rows(rows);
  const auto split = [&](ConstMatrix from, GuardedMatrix& to) {
    for (int64_t r = 0; r < kTokens * kHeads; ++r)
      std::copy_n(from.row(r / kHeads) + r % kHeads * kDim, kDim, to.view().row(r));
  };
  split(x, rows);
  split(dy.view(), dy_rows);
  split(dx_before.view(), dx_rows);
  GuardedMatrix dweight_rows = dweight_before;
  std::vector<float> inv_rows(inv.size());
  rms_norm(
      Stream{},
      {.x = rows.view(), .weight = weight, .eps = 1e-5f, .y = y_rows.view(), .inv_rms = inv_rows});
  rms_norm_backward(Stream{}, {.x = rows.view(),
                               .weight = weight,
                               .inv_rms = inv_rows,
                               .dy = dy_rows.view(),
                               .dx = dx_rows.view(),
                               .accumulate = true,
                               .dweight = span_of(dweight_rows)});
  EXPECT_EQ(inv, inv_rows);
  GuardedMatrix got(rows);
  split(y.view(), got);
  expect_same_bits(got.view(), y_rows.view(), "y");
  split(dx.view(), got);
  expect_same_bits(got.view(), dx_rows.view(), "dx");
  expect_same_bits(dweight.view(), dweight_rows.view(), "dweight");
  GuardedMatrix expected = dx_before, dweight_expected = dweight_before;
  ref::rms_norm_backward(x, weight, inv, dy.view(), expected.view(), true,
                         span_of(dweight_expected));
  expect_close(dx.view(), expected.view(), 1e-4, "dx");
  expect_close(dweight.view(), dweight_expected.view(), 1e-4, "dweight");
}

// Loss = sum of coefficients * y; central differences with step h have error h^2 and eps / h.
TEST(RmsNorm, ReferenceBackwardIsTheDerivativeOfTheReference) {
  Rng rng(4);
  GuardedMatrix x(2, 7, rng), dy(2, 7, rng), y(2, 7), dx(2, 7);
  auto weight = random_vector(7, rng);
  std::vector<float> inv(2), dweight(7);
  auto loss = [&] {
    ref::rms_norm(x.view(), weight, 1e-5f, y.view(), inv);
    double sum = 0;
    for (int64_t t = 0; t < 2; ++t) {
      for (int64_t i = 0; i < 7; ++i) sum += double{y.at(t, i)} * dy.at(t, i);
    }
    return sum;
  };
  loss();
  ref::rms_norm_backward(x.view(), weight, inv, dy.view(), dx.view(), false, dweight);
  auto slope = [&](float& at) { return central_difference(loss, at); };
  for (int64_t t = 0; t < 2; ++t) {
    for (int64_t i = 0; i < 7; ++i) EXPECT_NEAR(dx.at(t, i), slope(x.at(t, i)), 2e-3);
  }
  for (size_t i = 0; i < 7; ++i) EXPECT_NEAR(dweight[i], slope(weight[i]), 2e-3);
}

TEST(Rope, AgreesWithTheReferenceAndTurnsBack) {
  Rng rng(5);
  for (int64_t head_dim : {2, 8, 32, 34, 64}) {
    for (int64_t tokens : {0, 1, 7, 300}) {
      const int heads = 3;
      std::vector<double> inv_freq;
      for (int64_t i = 0; i < head_dim / 2; ++i) {
        inv_freq.push_back(
            std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
      }
      GuardedMatrix table(500, head_dim), x(tokens, heads * head_dim, rng);
      rope_table(Stream{}, {.inv_freq = inv_freq, .scale = 1, .table = table.view()});
      table.expect_canaries();
      std::vector<int32_t> positions;
      for (int64_t t = 0; t < tokens; ++t) positions.push_back(static_cast<int32_t>(rng() % 500));
      GuardedMatrix original = x, expected = x;
      ref::rope(expected.view(), heads, positions, inv_freq, false);
      TestStream stream(2);
      rope(stream.get(), {.x = x.view(),
                          .num_heads = heads,
                          .positions = positions,
                          .table = table.view(),
                          .inverse = false});
      x.expect_canaries();
      // Rounded cosine and sine, two products and a sum.
      const double tolerance = 5 * kUnit * 2 * (1 + x.max_magnitude());
      expect_close(x.view(), expected.view(), tolerance, "rotated");
      rope(stream.get(), {.x = x.view(),
                          .num_heads = heads,
                          .positions = positions,
                          .table = table.view(),
                          .inverse = true});
      expect_close(x.view(), original.view(), 2 * tolerance, "turned back");
    }
  }
}

// YaRN's factor of queries and keys.
TEST(Rope, ATableMayBeScaled) {
  const std::vector<double> inv_freq = {1, 0.25};
  GuardedMatrix plain(9, 4), scaled(9, 4);
  rope_table(Stream{}, {.inv_freq = inv_freq, .scale = 1, .table = plain.view()});
  rope_table(Stream{}, {.inv_freq = inv_freq, .scale = 1.5, .table = scaled.view()});
  for (int64_t p = 0; p < 9; ++p) {
    for (int64_t i = 0; i < 4; ++i)
      EXPECT_NEAR(scaled.at(p, i), 1.5 * plain.at(p, i), 2 * kUnit * 1.5);
  }
}

class Swiglu : public ::testing::TestWithParam<GateActivation> {};
INSTANTIATE_TEST_SUITE_P(Activations, Swiglu,
                         ::testing::Values(GateActivation::kSilu, GateActivation::kGeluTanh));

TEST_P(Swiglu, AgreesWithTheReference) {
  Rng rng(6);
  for (int threads : {1, 3}) {
    TestStream stream(threads);
    for (auto [tokens, dim] : kShapes) {
      GuardedMatrix gate(tokens, dim, rng, 4), up(tokens, dim, rng), dy(tokens, dim, rng);
      if (tokens > 2) {
        gate.at(0, 0) = 100;
        gate.at(1, 0) = -100;
      }
      GuardedMatrix y(tokens, dim), dgate(tokens, dim), dup(tokens, dim);
      GuardedMatrix y1 = y, dgate1 = y, dup1 = y;
      ref::swiglu(gate.view(), up.view(), y1.view(), GetParam());
      swiglu(stream.get(),
             {.gate = gate.view(), .up = up.view(), .y = y.view(), .activation = GetParam()});
      // exp within 2 units (4 half-units), sum, quotient, two products, the reference's rounding.
      // GELU's exponent is rounded some times itself, and far below 0, where that shows most, the
      // reference's 1 + tanh loses its digits.
      const bool gelu = GetParam() == GateActivation::kGeluTanh;
      const double units = gelu ? 200 : 10, least = gelu ? 1e-13 : 1e-34;
      expect_close(y.view(), y1.view(), relative(y1, units, least), "y");
      y.expect_canaries();
      ref::swiglu_backward(gate.view(), up.view(), dy.view(), dgate1.view(), dup1.view(),
                           GetParam());
      swiglu_backward(stream.get(), {.gate = gate.view(),
                                     .up = up.view(),
                                     .dy = dy.view(),
                                     .dgate = dgate.view(),
                                     .dup = dup.view(),
                                     .activation = GetParam()});
      expect_close(dup.view(), dup1.view(), relative(dup1, units, least), "dup");
      // silu' crosses zero near -1.28, where 1 + g (1 - s) cancels: the error is relative to its
      // terms, s * (1 + |g| (1 - s)) <= 1.3, times |dy up|.
      auto tolerance = [&](int64_t r, int64_t c) {
        return (gelu ? 40 : 16) * kUnit * 1.3 * std::abs(dy.at(r, c) * up.at(r, c)) + 1e-30;
      };
      expect_close(dgate.view(), dgate1.view(), tolerance, "dgate");
      dgate.expect_canaries();
      dup.expect_canaries();

      GuardedMatrix in_place = gate, grads = dy;
      swiglu(stream.get(), {.gate = in_place.view(),
                            .up = up.view(),
                            .y = in_place.view(),
                            .activation = GetParam()});
      expect_same_bits(in_place.view(), y.view(), "y over gate");
      swiglu_backward(stream.get(), {.gate = gate.view(),
                                     .up = up.view(),
                                     .dy = grads.view(),
                                     .dgate = dgate1.view(),
                                     .dup = grads.view(),
                                     .activation = GetParam()});
      expect_same_bits(grads.view(), dup.view(), "dup over dy");
      GuardedMatrix product(tokens, dim);
      grads = dy;
      swiglu_backward(stream.get(), {.gate = gate.view(),
                                     .up = up.view(),
                                     .dy = grads.view(),
                                     .dgate = grads.view(),
                                     .dup = dup1.view(),
                                     .activation = GetParam(),
                                     .product = product.view()});
      expect_same_bits(product.view(), y.view(), "product along the way");
      expect_same_bits(grads.view(), dgate.view(), "dgate beside it");
      product.expect_canaries();
    }
  }
}

TEST_P(Swiglu, ReferenceBackwardIsTheDerivativeOfTheReference) {
  Rng rng(7);
  GuardedMatrix gate(1, 9, rng), up(1, 9, rng), one(1, 9), y(1, 9), dgate(1, 9), dup(1, 9);
  one.fill(1);
  ref::swiglu_backward(gate.view(), up.view(), one.view(), dgate.view(), dup.view(), GetParam());
  const float h = 0x1p-8f;
  for (int64_t i = 0; i < 9; ++i) {
    auto slope = [&](float& at) {
      const float kept = at;
      at = kept + h;
      ref::swiglu(gate.view(), up.view(), y.view(), GetParam());
      const double above = y.at(0, i);
      at = kept - h;
      ref::swiglu(gate.view(), up.view(), y.view(), GetParam());
      at = kept;
      return (above - y.at(0, i)) / (2 * double{h});
    };
    EXPECT_NEAR(dgate.at(0, i), slope(gate.at(0, i)), 1e-3);
    EXPECT_NEAR(dup.at(0, i), slope(up.at(0, i)), 1e-3);
  }
}

TEST(Embedding, CopiesRowsAndAddsGradientsInOrder) {
  Rng rng(8);
  for (auto [tokens, dim] : kShapes) {
    GuardedMatrix table(41, dim, rng), y(tokens, dim), expected(tokens, dim), dy(tokens, dim, rng);
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < tokens; ++t) ids.push_back(static_cast<int32_t>(rng() % 41));
    TestStream stream(3);
    embedding(stream.get(), {.table = Packed(table).weight, .ids = ids, .y = y.view()});
    ref::embedding(table.view(), ids, expected.view());
    expect_same_bits(y.view(), expected.view(), "y");
    embedding(stream.get(),
              {.table = Packed(table).weight, .ids = ids, .y = y.view(), .scale = 5.6f});
    ref::embedding(table.view(), ids, expected.view(), 5.6f);
    expect_same_bits(y.view(), expected.view(), "y, scaled");
    embedding(stream.get(),
              {.table = Packed(table, Dtype::kBF16).weight, .ids = ids, .y = y.view()});
    ref::embedding(rounded_to_bf16(table).view(), ids, expected.view());
    expect_same_bits(y.view(), expected.view(), "y, bf16");
    y.expect_canaries();

    GuardedMatrix dtable(41, dim, rng);
    GuardedMatrix in_order = dtable, sums = dtable;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < dim; ++i) in_order.at(ids[static_cast<size_t>(t)], i) += dy.at(t, i);
    }
    embedding_backward(stream.get(), {.ids = ids, .dy = dy.view(), .dtable = dtable.view()});
    expect_same_bits(dtable.view(), in_order.view(), "dtable");
    dtable.expect_canaries();
    ref::embedding_backward(ids, dy.view(), sums.view());
    const double terms = static_cast<double>(tokens) + 1;  // each of size below 6
    expect_close(dtable.view(), sums.view(), terms * kUnit * terms * 6, "dtable");
    embedding_backward(stream.get(),
                       {.ids = ids, .dy = dy.view(), .dtable = dtable.view(), .scale = 5.6f});
    ref::embedding_backward(ids, dy.view(), sums.view(), 5.6f);
    expect_close(dtable.view(), sums.view(), 8 * terms * kUnit * terms * 6, "dtable, scaled");
  }
}

TEST(Scale, MultipliesEachElement) {
  Rng rng(21);
  for (auto [tokens, dim] : kShapes) {
    GuardedMatrix x(tokens, dim, rng);
    GuardedMatrix expected = x;
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t i = 0; i < dim; ++i) expected.at(t, i) *= 5.6f;
    TestStream stream(3);
    scale(stream.get(), {.x = x.view(), .factor = 5.6f});
    expect_same_bits(x.view(), expected.view(), "x");
    x.expect_canaries();
  }
}

TEST(ShiftAndFill, ChangeTheirRangeAlone) {
  Rng rng(22);
  for (int64_t n : {0, 1, 17, 70001}) {
    TestStream stream(3);
    for (float offset : {0.0f, 2.5f}) {
      GuardedMatrix x(1, n, rng), y(1, n);
      if (n > 0) x.at(0, 0) = -0.0f;
      GuardedMatrix expected = x;
      if (offset != 0)
        for (int64_t i = 0; i < n; ++i) expected.at(0, i) = x.at(0, i) + offset;
      shift(stream.get(), {.x = span_of(x), .offset = offset, .y = span_of(y)});
      expect_same_bits(y.view(), expected.view(), "y");
      y.expect_canaries();
      shift(stream.get(), {.x = span_of(x), .offset = offset, .y = span_of(x)});
      expect_same_bits(x.view(), expected.view(), "in place");
      x.expect_canaries();
      fill(stream.get(), {.x = span_of(x), .value = -1.5f});
      expected.fill(-1.5f);
      expect_same_bits(x.view(), expected.view(), "filled");
      x.expect_canaries();
    }
  }
}

TEST(Embedding, GathersAndScattersRows) {
  Rng rng(9);
  GuardedMatrix x(20, 37, rng), some(4, 37), back(20, 37, rng), sum = x;
  const std::vector<int32_t> rows = {3, 19, 0, 7};
  TestStream stream(2);
  gather_rows(stream.get(), {.x = x.view(), .rows = rows, .y = some.view()});
  scatter_rows(stream.get(), {.x = some.view(), .rows = rows, .y = back.view()});
  some.expect_canaries();
  back.expect_canaries();
  for (int64_t r = 0; r < 20; ++r) {
    const bool chosen = r == 3 || r == 19 || r == 0 || r == 7;
    for (int64_t i = 0; i < 37; ++i) EXPECT_EQ(back.at(r, i), chosen ? x.at(r, i) : 0.0f);
  }
  add(stream.get(), {.x = x.view(), .y = sum.view()});
  sum.expect_canaries();
  for (int64_t r = 0; r < 20; ++r) {
    for (int64_t i = 0; i < 37; ++i) EXPECT_EQ(sum.at(r, i), 2 * x.at(r, i));
  }
}

TEST(TakeDrawn, TakesTheTokensThatTheHostDoesNotKnow) {
  const std::vector<int32_t> drawn = {50, -1, 52};
  std::vector<int32_t> ids = {1, 2, 3, 4, 5};
  take_drawn({}, {.drawn = drawn, .from = std::vector<int32_t>{-1, 2, 1, -1, 0}, .ids = ids});
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 52, 0, 4, 50}));
  take_drawn({}, {.drawn = {}, .from = {}, .ids = {}});
}

TEST(AdamW, AgreesWithTheReferenceForEverySizeAndThreadCount) {
  Rng rng(10);
  for (int64_t n : {0, 1, 15, 16, 17, 1000, 70001}) {
    GuardedMatrix p(1, n, rng), m(1, n, rng, 0.1f), v = GuardedMatrix(1, n, rng, 0.1f).magnitude();
    const GuardedMatrix g(1, n, rng);
    GuardedMatrix p1 = p, m1 = m, v1 = v, p3 = p, m3 = m, v3 = v;
    const std::span<const float> grads(g.view().data, static_cast<size_t>(n));
    UpdateState state{.updates = 3, .lr = 1e-2f, .grad_scale = 0.5f};
    const auto update = [&](GuardedMatrix& parameters, GuardedMatrix& first,
                            GuardedMatrix& second) {
      return AdamW{.state = {&state, 1},
                   .constants = {.weight_decay = 0.1f},
                   .parameters = span_of(parameters),
                   .gradients = grads,
                   .m = span_of(first),
                   .v = span_of(second)};
    };
    ref::adamw(update(p1, m1, v1));
    adamw(Stream{}, update(p, m, v));
    // Two products and a sum for m and v. For p: the update, lr times a quotient with the roundings
    // of m, v, the root and the bias corrections; m^2 / v may be large here, m and v are unrelated.
    expect_close(m.view(), m1.view(), 4 * kUnit * (1 + m1.max_magnitude()), "m");
    expect_close(v.view(), v1.view(), relative(v1, 8), "v");
    auto tolerance = [&](int64_t, int64_t c) {
      const double change = std::abs(p1.at(0, c)) +
                            0.01 * (std::abs(m1.at(0, c)) + 1) * 4 / std::sqrt(v1.at(0, c) / 0.003);
      return 16 * kUnit * change;
    };
    expect_close(p.view(), p1.view(), tolerance, "p");
    p.expect_canaries();
    m.expect_canaries();
    v.expect_canaries();
    TestStream stream(3);
    adamw(stream.get(), update(p3, m3, v3));
    expect_same_bits(p3.view(), p.view(), "p, three threads");
    expect_same_bits(v3.view(), v.view(), "v, three threads");
    state.skips = true;
    adamw(stream.get(), update(p3, m3, v3));
    expect_same_bits(p3.view(), p.view(), "p, skipped");
    expect_same_bits(m3.view(), m.view(), "m, skipped");
    expect_same_bits(v3.view(), v.view(), "v, skipped");
  }
}

TEST(AdamW, BeginUpdateAgreesWithTheReference) {
  constexpr double kInf = std::numeric_limits<double>::infinity(),
                   kNan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<float> rates = {0.25f, 0.5f, 1e-3f};
  const auto same = [](const UpdateState& a, const UpdateState& b) {
    EXPECT_EQ(std::isnan(a.grad_norm), std::isnan(b.grad_norm));
    if (!std::isnan(a.grad_norm)) {
      EXPECT_EQ(a.grad_norm, b.grad_norm);
    }
    EXPECT_EQ(std::tuple(a.updates, a.skipped, a.lr, a.grad_scale, a.skips),
              std::tuple(b.updates, b.skipped, b.lr, b.grad_scale, b.skips));
  };
  for (const double max_grad_norm : {0.0, 0.5, 1.0, 1e9}) {
    UpdateState state{.updates = 40, .skipped = 2}, expected = state;
    for (const double sum : {25.0, 0.0, kNan, 1e-30, kInf, 1.0, 1e80, 0.25, 2.0}) {
      state.sum_of_squares = expected.sum_of_squares = sum;
      const BeginUpdate args{
          .state = {&state, 1}, .rates = rates, .first_rate = 41, .max_grad_norm = max_grad_norm};
      begin_update(Stream{}, args);
      BeginUpdate ref_args = args;
      ref_args.state = {&expected, 1};
      ref::begin_update(ref_args);
      same(state, expected);
    }
    EXPECT_EQ(state.updates, 47);
    EXPECT_EQ(state.skipped, 4);
  }
}

TEST(AdamW, BeginUpdateClipsCountsAndSkips) {
  const std::vector<float> rates = {0.25f, 0.5f};
  UpdateState state;
  const auto begin = [&](double sum, double max_grad_norm) {
    state.sum_of_squares = sum;
    begin_update(Stream{}, {.state = {&state, 1}, .rates = rates, .max_grad_norm = max_grad_norm});
    return state;
  };
  begin(25, 1);
  EXPECT_EQ(state.grad_norm, 5);
  EXPECT_EQ(state.grad_scale, static_cast<float>(1 / (5 + 1e-6)));
  EXPECT_EQ(state.lr, 0.25f);
  EXPECT_EQ(state.updates, 1);
  // Neither the count nor the rate moves.
  EXPECT_TRUE(begin(std::numeric_limits<double>::quiet_NaN(), 1).skips);
  EXPECT_EQ(state.lr, 0);
  EXPECT_EQ(state.updates, 1);
  EXPECT_EQ(state.skipped, 1);
  EXPECT_FALSE(begin(25, 0).skips);
  EXPECT_EQ(state.grad_scale, 1);
  EXPECT_EQ(state.lr, 0.5f);
  EXPECT_EQ(begin(25, 100).grad_scale, 1);
  EXPECT_EQ(state.lr, 0.5f);  // the last for all behind it
  EXPECT_EQ(state.updates, 3);
}

double squares(const Stream& stream, std::span<const float> x) {
  double sum = 0;
  sum_of_squares(stream, {.x = x, .sum = {&sum, 1}});
  return sum;
}

TEST(AdamW, SumOfSquaresDoesNotDependOnTheThreads) {
  Rng rng(11);
  for (int64_t n : {0, 1, 4095, 4097, 300000}) {
    auto x = random_vector(n, rng);
    const double one = squares(Stream{}, x);
    // Sums of n positive doubles in two orders.
    EXPECT_NEAR(one, ref::sum_of_squares(x), 1e-16 * static_cast<double>(n + 1) * (one + 1));
    for (int threads : {2, 3}) EXPECT_EQ(squares(TestStream(threads).get(), x), one);
  }
}

}  // namespace
}  // namespace tailrace
