#include "kernels/ops/log_softmax.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "kernels/ref/ref.h"
#include "tests/kernels/ops/op_testing.h"

namespace tailrace {
namespace {

using namespace op_testing;

// KeptSets of sets by row.
struct FlatSets {
  std::vector<int64_t> offsets;
  std::vector<int32_t> ids;

  FlatSets() = default;
  explicit FlatSets(const std::vector<std::vector<int32_t>>& sets) : offsets{0} {
    for (const auto& set : sets) {
      ids.insert(ids.end(), set.begin(), set.end());
      offsets.push_back(std::ssize(ids));
    }
  }
  KeptSets view() const { return {offsets, ids}; }
};

// Rows of a head with its packed weight.
struct Head {
  GuardedMatrix hidden, weight;
  std::vector<int32_t> targets;
  std::vector<std::vector<int32_t>> sets;  // of kept ids; empty: none
  FlatSets flat;
  Packed packed;

  Head(int64_t rows, int64_t vocab, int64_t dim, Rng& rng, Dtype dtype = Dtype::kF32)
      : hidden(rows, dim, rng), weight(vocab, dim, rng), packed(weight, dtype) {
    for (int64_t r = 0; r < rows; ++r) {
      targets.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab)));
    }
  }
  size_t rows() const { return targets.size(); }

  // A random set about each target; every fourth row has none.
  void truncate(Rng& rng) {
    const auto vocab = static_cast<uint64_t>(weight.rows());
    for (size_t r = 0; r < rows(); ++r) {
      std::set<int32_t> ids;
      const uint64_t draws = 1 + rng() % vocab;
      for (uint64_t i = 0; i < draws; ++i) ids.insert(static_cast<int32_t>(rng() % vocab));
      ids.insert(targets[r]);
      sets.push_back(r % 4 == 3 ? std::vector<int32_t>() : std::vector(ids.begin(), ids.end()));
    }
    flat = FlatSets(sets);
  }

  LogprobHead op(float inv_temperature) {
    return {.hidden = hidden.view(),
            .weight = packed.weight,
            .targets = targets,
            .inv_temperature = inv_temperature,
            .kept = flat.view()};
  }
};

struct Rows {
  std::vector<float> logprob, lse, entropy;
  explicit Rows(size_t n) : logprob(n), lse(n), entropy(n) {}
  LogprobRows op() { return {.logprob = logprob, .lse = lse, .entropy = entropy}; }
};

TEST(LogSumExp, AgreesWithTheReference) {
  Rng rng(1);
  for (int64_t vocab : {1, 2, 15, 17, 512, 513, 1500}) {
    for (int64_t rows : {0, 1, 5, 40}) {
      for (float inv_temperature : {1.0f, 0.7f, 3.0f}) {
        GuardedMatrix logits(rows, vocab, rng, 5);
        if (rows > 1) logits.at(1, 0) = 90;  // an outlier
        const auto n = static_cast<size_t>(rows);
        std::vector<float> lse(n), entropy(n), lse1(n), entropy1(n);
        ref::log_sum_exp(logits.view(), inv_temperature, lse1, entropy1);
        TestStream stream(2);
        log_sum_exp(stream.get(), {.logits = logits.view(),
                                   .inv_temperature = inv_temperature,
                                   .lse = lse,
                                   .entropy = entropy});
        // z' and z' - max are rounded at the size of the logits, below 300; the sums of positive
        // terms lose vocab / 16 + 8 roundings, relative to the sum.
        const double size = 6 * kUnit * 300;
        const double sums = (static_cast<double>(vocab) / 16 + 20) * kUnit;
        expect_close(as_row(lse), as_row(lse1), size + sums, "lse");
        expect_close(as_row(entropy), as_row(entropy1), 8 * (size + sums) + 1e-6, "entropy");
      }
    }
  }
}

TEST(LogSumExp, MasksWithMinusInfinity) {
  const float inf = std::numeric_limits<float>::infinity();
  GuardedMatrix logits(1, 1100);
  logits.fill(-inf);
  logits.at(0, 700) = 2;
  logits.at(0, 900) = 2;
  std::vector<float> lse(1), entropy(1);
  log_sum_exp(Stream{},
              {.logits = logits.view(), .inv_temperature = 1, .lse = lse, .entropy = entropy});
  EXPECT_NEAR(lse[0], 2 + std::log(2.0), 1e-6);
  EXPECT_NEAR(entropy[0], std::log(2.0), 1e-6);
}

TEST(LogSumExp, ARowHasTheSameBitsAloneAndInABatch) {
  Rng rng(2);
  GuardedMatrix logits(200, 1037, rng, 3);
  std::vector<float> lse(200), entropy(200), without(200), one(1), one_entropy(1);
  TestStream stream(3);
  log_sum_exp(stream.get(),
              {.logits = logits.view(), .inv_temperature = 0.9f, .lse = lse, .entropy = entropy});
  log_sum_exp(stream.get(), {.logits = logits.view(), .inv_temperature = 0.9f, .lse = without});
  expect_same_bits(as_row(without), as_row(lse), "lse without entropy");
  for (int64_t r = 0; r < 200; ++r) {
    log_sum_exp(Stream{}, {.logits = logits.view().slice_rows(r, r + 1),
                           .inv_temperature = 0.9f,
                           .lse = one,
                           .entropy = one_entropy});
    EXPECT_EQ(std::bit_cast<uint32_t>(one[0]),
              std::bit_cast<uint32_t>(lse[static_cast<size_t>(r)]));
    EXPECT_EQ(one_entropy[0], entropy[static_cast<size_t>(r)]);
  }
}

// The set of all tokens is no truncation, down to the bits: its mass is exactly 1.
TEST(KeptLogSumExp, OfTheWholeVocabularyIsTheLogSumExp) {
  Rng rng(11);
  for (int64_t vocab : {1, 15, 17, 512, 513, 1500}) {
    GuardedMatrix logits(9, vocab, rng, 5);
    std::vector<int32_t> all(static_cast<size_t>(vocab));
    std::iota(all.begin(), all.end(), 0);
    const FlatSets kept(std::vector(9, all));
    std::vector<float> lse(9), kept_lse(9);
    log_sum_exp(Stream{}, {.logits = logits.view(), .inv_temperature = 0.7f, .lse = lse});
    kept_log_sum_exp(Stream{}, {.logits = logits.view(),
                                .kept = kept.view(),
                                .inv_temperature = 0.7f,
                                .kept_lse = kept_lse});
    expect_same_bits(as_row(kept_lse), as_row(lse), "lse");
    for (size_t r = 0; r < 9; ++r) EXPECT_EQ(log_mass(kept_lse[r], lse[r]), 0.0f);
  }
}

TEST(KeptLogSumExp, AgreesWithTheReferenceForAnyThreads) {
  Rng rng(12);
  for (int64_t vocab : {1, 16, 40, 1500}) {
    Head head(40, vocab, 1, rng);
    head.truncate(rng);
    GuardedMatrix logits(40, vocab, rng, 5);
    std::vector<float> expected(40, -7), one(expected), many(expected);
    ref::kept_log_sum_exp(logits.view(), head.flat.view(), 1.3f, expected);
    kept_log_sum_exp(Stream{}, {.logits = logits.view(),
                                .kept = head.flat.view(),
                                .inv_temperature = 1.3f,
                                .kept_lse = one});
    kept_log_sum_exp(TestStream(3).get(), {.logits = logits.view(),
                                           .kept = head.flat.view(),
                                           .inv_temperature = 1.3f,
                                           .kept_lse = many});
    // As of LogSumExp; of rows without a set nothing is said.
    const double tolerance = 6 * kUnit * 40 + (static_cast<double>(vocab) / 16 + 20) * kUnit;
    expect_close(as_row(one), as_row(expected), tolerance, "lse");
    expect_same_bits(as_row(many), as_row(one), "lse");
    EXPECT_EQ(one[3], -7);
  }
}

// A logit counts as sixteen multiply-adds.
TEST(LogSumExp, BeatsByItsWork) {
  const int64_t rows = 1100, vocab = 10000;
  const GuardedMatrix logits(rows, vocab);
  std::vector<int32_t> all(static_cast<size_t>(vocab));
  std::iota(all.begin(), all.end(), 0);
  const FlatSets kept(std::vector(static_cast<size_t>(rows), all));
  std::vector<float> lse(static_cast<size_t>(rows));
  expect_beats(rows * vocab * 16, 1, vocab * 16, [&](const Stream& stream) {
    log_sum_exp(stream, {.logits = logits.view(), .inv_temperature = 1, .lse = lse});
  });
  expect_beats(rows * vocab * 16, 1, vocab * 16, [&](const Stream& stream) {
    kept_log_sum_exp(
        stream,
        {.logits = logits.view(), .kept = kept.view(), .inv_temperature = 1, .kept_lse = lse});
  });
}

TEST(LinearLogprob, AgreesWithTheReference) {
  Rng rng(3);
  for (int64_t vocab : {3, 40, 700}) {
    for (int64_t rows : {0, 1, 13, 400}) {
      for (bool truncated : {false, true}) {
        Head head(rows, vocab, 24, rng);
        if (truncated) head.truncate(rng);
        Rows expected(head.rows()), actual(head.rows());
        ref::linear_logprob(head.op(0.8f), head.weight.view(), expected.op());
        TestWorkspace workspace(linear_logprob_workspace_bytes(rows, vocab, 24));
        linear_logprob(TestStream(2).get(), workspace.get(),
                       {.head = head.op(0.8f), .out = actual.op()});
        // A logit is a sum of 24 products of normal deviates (below 40 in magnitude with all signs
        // equal), so 26 half-units of 40; then the error of log-sum-exp. With a set there are two
        // of those and a difference more.
        const double tolerance =
            26 * kUnit * 40 + 64 * kUnit * 8 + (static_cast<double>(vocab) / 16) * kUnit;
        expect_close(as_row(actual.logprob), as_row(expected.logprob), 4 * tolerance, "logprob");
        expect_close(as_row(actual.lse), as_row(expected.lse), tolerance, "lse");
        expect_close(as_row(actual.entropy), as_row(expected.entropy), 8 * tolerance, "entropy");
      }
    }
  }
}

// What makes a sampled log-probability (from logits) and a recomputed one (fused) the same number.
TEST(LinearLogprob, HasTheBitsOfLinearThenLogSumExp) {
  Rng rng(4);
  const int64_t rows = 900, vocab = 517, dim = 48;
  Head head(rows, vocab, dim, rng);
  head.truncate(rng);
  GuardedMatrix logits(rows, vocab);
  std::vector<float> lse(900), kept_lse(900), separate(900), drawn(900);
  linear(Stream{}, {.x = head.hidden.view(), .weight = head.packed.weight, .y = logits.view()});
  log_sum_exp(Stream{}, {.logits = logits.view(), .inv_temperature = 1.3f, .lse = lse});
  kept_log_sum_exp(Stream{}, {.logits = logits.view(),
                              .kept = head.flat.view(),
                              .inv_temperature = 1.3f,
                              .kept_lse = kept_lse});
  for (int64_t r = 0; r < rows; ++r) {
    const auto i = static_cast<size_t>(r);
    separate[i] = logits.at(r, head.targets[i]) * 1.3f - lse[i];
    // As the sampler records it and the trainer reads it: two numbers, then their difference.
    const float mass = head.sets[i].empty() ? 0 : log_mass(kept_lse[i], lse[i]);
    drawn[i] = separate[i] - mass;
  }
  TestWorkspace workspace(linear_logprob_workspace_bytes(rows, vocab, dim));
  for (int threads : {1, 2, 3}) {
    TestStream stream(threads);
    for (int64_t count : {1, 7, 100, 900}) {
      const auto n = static_cast<size_t>(count);
      Rows fused(n);
      LogprobHead op = head.op(1.3f);
      op.hidden = head.hidden.view().slice_rows(0, count);
      op.targets = std::span(head.targets).first(n);
      op.kept = {};
      linear_logprob(stream.get(), workspace.get(), {.head = op, .out = fused.op()});
      expect_same_bits(as_row(fused.logprob), as_row(std::span(separate).first(n)), "logprob");
      expect_same_bits(as_row(fused.lse), as_row(std::span(lse).first(n)), "lse");
      op.kept = head.flat.view().slice(0, count);
      linear_logprob(stream.get(), workspace.get(), {.head = op, .out = fused.op()});
      expect_same_bits(as_row(fused.logprob), as_row(std::span(drawn).first(n)), "of a draw");
      expect_same_bits(as_row(fused.lse), as_row(std::span(lse).first(n)), "lse");
    }
  }
}

struct Gradient {
  GuardedMatrix dhidden, dweight;
};

// `logits`: kept by the forward pass and read by backward, but where that is to `read` others.
Gradient backward(const Stream& stream, Head& head, float inv_temperature,
                  std::span<const float> dlogprob, std::span<const float> dentropy,
                  float dweight_before, Tensor logits = {}, const GuardedMatrix* read = nullptr) {
  const int64_t rows = head.hidden.rows(), dim = head.hidden.cols(), vocab = head.weight.rows();
  Rows forward(head.rows());
  TestWorkspace workspace(linear_logprob_workspace_bytes(rows, vocab, dim));
  LogprobRows out = forward.op();
  out.logits = logits;
  linear_logprob(stream, workspace.get(), {.head = head.op(inv_temperature), .out = out});
  Gradient g{GuardedMatrix(rows, dim), GuardedMatrix(vocab, dim)};
  g.dhidden.fill(NAN);
  g.dweight.fill(dweight_before);
  linear_logprob_backward(
      stream, workspace.get(),
      {.head = head.op(inv_temperature),
       .gradient = {.lse = forward.lse,
                    .entropy = forward.entropy,
                    .dlogprob = dlogprob,
                    .dentropy = dentropy,
                    .dhidden = g.dhidden.view(),
                    .dweight = g.dweight.view(),
                    .logits = read != nullptr ? read->view() : ConstTensor(logits)}});
  g.dhidden.expect_canaries();
  g.dweight.expect_canaries();
  return g;
}

// A head whose logits the forward pass kept has the gradient of one that makes them again, whatever
// rows count and whether sets and entropies do; several blocks of rows, and of a vocabulary.
TEST(LinearLogprob, KeptLogitsHaveTheBitsOfThoseMadeAgain) {
  struct Shape {
    int64_t rows, vocab, dim;
    Dtype dtype;
    bool truncated, with_entropy;
  };
  constexpr Dtype kFloat = Dtype::kF32, kHalf = Dtype::kBF16;
  for (const Shape& c :
       {Shape{1, 5, 24, kFloat, false, true}, Shape{300, 700, 24, kFloat, true, true},
        Shape{300, 700, 24, kHalf, true, false}, Shape{2100, 4608, 256, kHalf, false, false}}) {
    SCOPED_TRACE(fmt::format("{} rows, {} ids", c.rows, c.vocab));
    Rng rng(17);
    Head head(c.rows, c.vocab, c.dim, rng, c.dtype);
    if (c.truncated) head.truncate(rng);
    std::vector<float> dlogprob = random_vector(c.rows, rng),
                       dentropy =
                           c.with_entropy ? random_vector(c.rows, rng) : std::vector<float>();
    // Rows that nobody asks for lie between those that count.
    for (size_t i = 3; i < dlogprob.size(); i += 7) {
      dlogprob[i] = 0;
      if (c.with_entropy) dentropy[i] = 0;
    }
    GuardedMatrix logits(c.rows, c.vocab), product(c.rows, c.vocab);
    const Gradient kept = backward(TestStream(2).get(), head, 0.7f, dlogprob, dentropy, 0.5f,
                                   logits.view()),
                   made = backward(TestStream(2).get(), head, 0.7f, dlogprob, dentropy, 0.5f);
    expect_same_bits(kept.dhidden.view(), made.dhidden.view(), "dhidden");
    expect_same_bits(kept.dweight.view(), made.dweight.view(), "dweight");
    linear(Stream{}, {.x = head.hidden.view(), .weight = head.packed.weight, .y = product.view()});
    expect_same_bits(logits.view(), product.view(), "logits");
    logits.expect_canaries();
    // They are read: other logits have another gradient.
    product.fill(0);
    const Gradient other = backward(TestStream(2).get(), head, 0.7f, dlogprob, dentropy, 0.5f,
                                    logits.view(), &product);
    EXPECT_NE(other.dhidden.at(0, 0), made.dhidden.at(0, 0));
  }
}

Gradient reference_backward(Head& head, float inv_temperature, std::span<const float> dlogprob,
                            std::span<const float> dentropy, float dweight_before) {
  Gradient g{GuardedMatrix(head.hidden.rows(), head.hidden.cols()),
             GuardedMatrix(head.weight.rows(), head.weight.cols())};
  g.dweight.fill(dweight_before);
  ref::linear_logprob_backward(head.op(inv_temperature), head.weight.view(),
                               {.lse = {},
                                .entropy = {},
                                .dlogprob = dlogprob,
                                .dentropy = dentropy,
                                .dhidden = g.dhidden.view(),
                                .dweight = g.dweight.view()});
  return g;
}

// Two chunks of rows, each one product and one loop over its logits.
TEST(LinearLogprob, BeatsByItsWork) {
  Rng rng(13);
  const int64_t rows = 512, vocab = 512, dim = 2000;
  Head head(rows, vocab, dim, rng);
  Rows out(head.rows());
  TestWorkspace workspace(linear_logprob_workspace_bytes(rows, vocab, dim));
  expect_beats(rows * vocab * (dim + 16), 4, int64_t{4} << 20, [&](const Stream& stream) {
    linear_logprob(stream, workspace.get(), {.head = head.op(1), .out = out.op()});
  });
}

TEST(LinearLogprob, BackwardAgreesWithTheReference) {
  Rng rng(5);
  for (int64_t vocab : {5, 40, 700}) {
    for (int64_t rows : {1, 13, 300}) {
      for (int mode = 0; mode < 4; ++mode) {
        const bool with_entropy = mode % 2 == 1, truncated = mode >= 2;
        Head head(rows, vocab, 24, rng);
        if (truncated) head.truncate(rng);
        auto dlogprob = random_vector(rows, rng);
        auto dentropy = with_entropy ? random_vector(rows, rng) : std::vector<float>();
        if (rows > 4) {
          dlogprob[2] = 0;
          if (with_entropy) dentropy[2] = 0;
        }
        auto expected = reference_backward(head, 0.8f, dlogprob, dentropy, 0.5f);
        auto actual = backward(TestStream(2).get(), head, 0.8f, dlogprob, dentropy, 0.5f);
        // A probability has the relative error of exp(z' - lse), that is the absolute error of its
        // argument: 26 half-units of 40 and the error of lse. dlogits are below 3 * (1 + |log p|)
        // and are summed with weights or hidden states below 5, over mostly small p.
        const double p_error = 26 * kUnit * 40 + 64 * kUnit * 8;
        expect_close(actual.dhidden.view(), expected.dhidden.view(), p_error * 3 * 8 * 5,
                     "dhidden");
        const double terms = std::sqrt(static_cast<double>(rows));
        expect_close(actual.dweight.view(), expected.dweight.view(), p_error * 3 * 8 * 5 * terms,
                     "dweight");
        if (rows > 4) {
          for (int64_t c = 0; c < 24; ++c) EXPECT_EQ(actual.dhidden.at(2, c), 0.0f);
        }
      }
    }
  }
}

TEST(LinearLogprob, BackwardHasTheSameBitsForEveryThreadCount) {
  Rng rng(6);
  Head head(700, 517, 40, rng);
  head.truncate(rng);
  auto dlogprob = random_vector(700, rng);
  auto dentropy = random_vector(700, rng);
  auto one = backward(Stream{}, head, 1, dlogprob, dentropy, 0);
  for (int threads : {2, 3}) {
    auto many = backward(TestStream(threads).get(), head, 1, dlogprob, dentropy, 0);
    expect_same_bits(many.dhidden.view(), one.dhidden.view(), "dhidden");
    expect_same_bits(many.dweight.view(), one.dweight.view(), "dweight");
  }
}

// A head that the caches do not hold is passed over in blocks of its vocabulary: 1,100 rows make
// two of 4,200 ids. Sets, of which each row here has none, keep it in one piece of 96 rows.
TEST(LinearLogprob, BlocksOfTheVocabularyChangeNoBitOfARow) {
  Rng rng(14);
  const int64_t rows = 1100, vocab = 4200, dim = 256;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    Head head(rows, vocab, dim, rng, dtype);
    auto dlogprob = random_vector(rows, rng), dentropy = random_vector(rows, rng);
    dlogprob[7] = dentropy[7] = 0;
    const auto blocks = backward(TestStream(2).get(), head, 0.05f, dlogprob, dentropy, 0.5f);
    const auto alone = backward(Stream{}, head, 0.05f, dlogprob, dentropy, 0.5f);
    head.flat = FlatSets(std::vector<std::vector<int32_t>>(static_cast<size_t>(rows)));
    const auto whole = backward(TestStream(2).get(), head, 0.05f, dlogprob, dentropy, 0.5f);
    expect_same_bits(blocks.dhidden.view(), whole.dhidden.view(), "dhidden");
    expect_same_bits(blocks.dhidden.view(), alone.dhidden.view(), "dhidden, one thread");
    expect_same_bits(blocks.dweight.view(), alone.dweight.view(), "dweight, one thread");
    // The sum over rows is cut in other places: an ordinary sum of 1,100 terms, each below the
    // largest gradient times 5.
    float largest = 0;
    for (int64_t r = 0; r < vocab; ++r) {
      for (int64_t c = 0; c < dim; ++c)
        largest = std::max(largest, std::abs(whole.dweight.at(r, c)));
    }
    EXPECT_GT(largest, 1);
    expect_close(blocks.dweight.view(), whole.dweight.view(), 1100 * kUnit * 5 * largest,
                 "dweight");
  }
}

TEST(LinearLogprob, BackwardWithoutGradientsTouchesNothing) {
  Rng rng(7);
  Head head(9, 33, 8, rng);
  auto g = backward(Stream{}, head, 1, std::vector<float>(9, 0.0f), {}, 0.25f);
  for (int64_t r = 0; r < 9; ++r) {
    for (int64_t c = 0; c < 8; ++c) EXPECT_EQ(g.dhidden.at(r, c), 0.0f);
  }
  for (int64_t r = 0; r < 33; ++r) {
    for (int64_t c = 0; c < 8; ++c) EXPECT_EQ(g.dweight.at(r, c), 0.25f);
  }
}

TEST(LinearLogprob, ReferenceBackwardIsTheDerivativeOfTheReference) {
  for (bool truncated : {false, true}) {
    Rng rng(8);
    Head head(3, 6, 4, rng);
    if (truncated) head.truncate(rng);
    auto dlogprob = random_vector(3, rng), dentropy = random_vector(3, rng);
    auto gradient = reference_backward(head, 0.7f, dlogprob, dentropy, 0);
    Rows rows(3);
    auto loss = [&] {
      ref::linear_logprob(head.op(0.7f), head.weight.view(), rows.op());
      double sum = 0;
      for (size_t i = 0; i < 3; ++i)
        sum += double{rows.logprob[i]} * dlogprob[i] + double{rows.entropy[i]} * dentropy[i];
      return sum;
    };
    auto slope = [&](float& at) { return central_difference(loss, at); };
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t c = 0; c < 4; ++c)
        EXPECT_NEAR(gradient.dhidden.at(r, c), slope(head.hidden.at(r, c)), 1e-3);
    }
    for (int64_t r = 0; r < 6; ++r) {
      for (int64_t c = 0; c < 4; ++c)
        EXPECT_NEAR(gradient.dweight.at(r, c), slope(head.weight.at(r, c)), 1e-3);
    }
  }
}

// A kept token's gradient does not depend on what was cut; what was cut has none but the entropy's.
TEST(LinearLogprob, WhatWasCutHasNoGradient) {
  Rng rng(9);
  Head head(1, 50, 8, rng);
  head.truncate(rng);
  auto g = backward(Stream{}, head, 1, std::vector<float>{1.5f}, {}, 0);
  for (int32_t id = 0; id < 50; ++id) {
    const bool kept = std::ranges::binary_search(head.sets[0], id);
    EXPECT_EQ(g.dweight.at(id, 0) != 0, kept) << id;
  }
}

}  // namespace
}  // namespace tailrace
