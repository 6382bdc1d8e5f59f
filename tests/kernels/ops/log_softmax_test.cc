#include "kernels/ops/log_softmax.h"

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/ref/ref.h"
#include "tests/kernels/ops/op_testing.h"

namespace tailrace {
namespace {

using namespace op_testing;

// Rows of a head with its packed weight.
struct Head {
  GuardedMatrix hidden, weight;
  std::vector<int32_t> targets;
  Buffer memory;
  PackedWeight packed;

  Head(int64_t rows, int64_t vocab, int64_t dim, Rng& rng)
      : hidden(rows, dim, rng),
        weight(vocab, dim, rng),
        memory(static_cast<size_t>(packed_weight_size(vocab, dim)) * sizeof(float)) {
    for (int64_t r = 0; r < rows; ++r) {
      targets.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab)));
    }
    packed = pack_weight(Stream{}, weight.view(), memory.as<float>());
  }
  size_t rows() const { return targets.size(); }
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
        log_sum_exp(stream.get(), logits.view(), inv_temperature, lse, entropy);
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
  log_sum_exp(Stream{}, logits.view(), 1, lse, entropy);
  EXPECT_NEAR(lse[0], 2 + std::log(2.0), 1e-6);
  EXPECT_NEAR(entropy[0], std::log(2.0), 1e-6);
}

TEST(LogSumExp, ARowHasTheSameBitsAloneAndInABatch) {
  Rng rng(2);
  GuardedMatrix logits(200, 1037, rng, 3);
  std::vector<float> lse(200), entropy(200), without(200), one(1), one_entropy(1);
  TestStream stream(3);
  log_sum_exp(stream.get(), logits.view(), 0.9f, lse, entropy);
  log_sum_exp(stream.get(), logits.view(), 0.9f, without, {});
  expect_same_bits(as_row(without), as_row(lse), "lse without entropy");
  for (int64_t r = 0; r < 200; ++r) {
    log_sum_exp(Stream{}, logits.view().slice_rows(r, r + 1), 0.9f, one, one_entropy);
    EXPECT_EQ(std::bit_cast<uint32_t>(one[0]),
              std::bit_cast<uint32_t>(lse[static_cast<size_t>(r)]));
    EXPECT_EQ(one_entropy[0], entropy[static_cast<size_t>(r)]);
  }
}

TEST(LinearLogprob, AgreesWithTheReference) {
  Rng rng(3);
  for (int64_t vocab : {3, 40, 700}) {
    for (int64_t rows : {0, 1, 13, 400}) {
      Head head(rows, vocab, 24, rng);
      const size_t n = head.rows();
      std::vector<float> lp(n), lse(n), h(n), lp1(n), lse1(n), h1(n);
      ref::linear_logprob(head.hidden.view(), head.weight.view(), head.targets, 0.8f, lp1, lse1,
                          h1);
      TestWorkspace workspace(linear_logprob_workspace_bytes(rows, vocab, 24));
      TestStream stream(2);
      linear_logprob(stream.get(), workspace.get(), head.hidden.view(), head.packed, head.targets,
                     0.8f, lp, lse, h);
      // A logit is a sum of 24 products of normal deviates (below 40 in magnitude with all signs
      // equal), so 26 half-units of 40; then the error of log-sum-exp.
      const double tolerance =
          26 * kUnit * 40 + 64 * kUnit * 8 + (static_cast<double>(vocab) / 16) * kUnit;
      expect_close(as_row(lp), as_row(lp1), 2 * tolerance, "logprob");
      expect_close(as_row(lse), as_row(lse1), tolerance, "lse");
      expect_close(as_row(h), as_row(h1), 8 * tolerance, "entropy");
    }
  }
}

// What makes a sampled log-probability (from logits) and a recomputed one (fused) the same number.
TEST(LinearLogprob, HasTheBitsOfLinearThenLogSumExp) {
  Rng rng(4);
  const int64_t rows = 900, vocab = 517, dim = 48;
  Head head(rows, vocab, dim, rng);
  GuardedMatrix logits(rows, vocab);
  std::vector<float> lse(900), separate(900);
  linear(Stream{}, head.hidden.view(), head.packed, {}, logits.view());
  log_sum_exp(Stream{}, logits.view(), 1.3f, lse, {});
  for (int64_t r = 0; r < rows; ++r) {
    const auto i = static_cast<size_t>(r);
    separate[i] = logits.at(r, head.targets[i]) * 1.3f - lse[i];
  }
  TestWorkspace workspace(linear_logprob_workspace_bytes(rows, vocab, dim));
  for (int threads : {1, 2, 3}) {
    TestStream stream(threads);
    for (int64_t count : {1, 7, 100, 900}) {
      const auto n = static_cast<size_t>(count);
      std::vector<float> lp(n), fused_lse(n), entropy(n);
      linear_logprob(stream.get(), workspace.get(), head.hidden.view().slice_rows(0, count),
                     head.packed, std::span(head.targets).first(n), 1.3f, lp, fused_lse, entropy);
      expect_same_bits(as_row(lp), as_row(std::span(separate).first(n)), "logprob");
      expect_same_bits(as_row(fused_lse), as_row(std::span(lse).first(n)), "lse");
    }
  }
}

struct Gradient {
  GuardedMatrix dhidden, dweight;
};

Gradient backward(const Stream& stream, const Head& head, float inv_temperature,
                  std::span<const float> dlogprob, std::span<const float> dentropy,
                  float dweight_before) {
  const int64_t rows = head.hidden.rows(), dim = head.hidden.cols(), vocab = head.weight.rows();
  std::vector<float> lp(head.rows()), lse(head.rows()), entropy(head.rows());
  TestWorkspace workspace(linear_logprob_workspace_bytes(rows, vocab, dim));
  linear_logprob(stream, workspace.get(), head.hidden.view(), head.packed, head.targets,
                 inv_temperature, lp, lse, entropy);
  Gradient g{GuardedMatrix(rows, dim), GuardedMatrix(vocab, dim)};
  g.dhidden.fill(NAN);
  g.dweight.fill(dweight_before);
  linear_logprob_backward(stream, workspace.get(), head.hidden.view(), head.packed,
                          head.weight.view(), head.targets, inv_temperature, lse, entropy, dlogprob,
                          dentropy, g.dhidden.view(), g.dweight.view());
  g.dhidden.expect_canaries();
  g.dweight.expect_canaries();
  return g;
}

TEST(LinearLogprob, BackwardAgreesWithTheReference) {
  Rng rng(5);
  for (int64_t vocab : {5, 40, 700}) {
    for (int64_t rows : {1, 13, 300}) {
      for (bool with_entropy : {false, true}) {
        Head head(rows, vocab, 24, rng);
        auto dlogprob = random_vector(rows, rng);
        auto dentropy = with_entropy ? random_vector(rows, rng) : std::vector<float>();
        if (rows > 4) {
          dlogprob[2] = 0;
          if (with_entropy) dentropy[2] = 0;
        }
        GuardedMatrix dhidden(rows, 24), dweight(vocab, 24);
        dweight.fill(0.5f);
        ref::linear_logprob_backward(head.hidden.view(), head.weight.view(), head.targets, 0.8f,
                                     dlogprob, dentropy, dhidden.view(), dweight.view());
        auto actual = backward(TestStream(2).get(), head, 0.8f, dlogprob, dentropy, 0.5f);
        // A probability has the relative error of exp(z' - lse), that is the absolute error of its
        // argument: 26 half-units of 40 and the error of lse. dlogits are below 3 * (1 + |log p|)
        // and are summed with weights or hidden states below 5, over mostly small p.
        const double p_error = 26 * kUnit * 40 + 64 * kUnit * 8;
        expect_close(actual.dhidden.view(), dhidden.view(), p_error * 3 * 8 * 5, "dhidden");
        const double terms = std::sqrt(static_cast<double>(rows));
        expect_close(actual.dweight.view(), dweight.view(), p_error * 3 * 8 * 5 * terms, "dweight");
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
  auto dlogprob = random_vector(700, rng);
  auto dentropy = random_vector(700, rng);
  auto one = backward(Stream{}, head, 1, dlogprob, dentropy, 0);
  for (int threads : {2, 3}) {
    auto many = backward(TestStream(threads).get(), head, 1, dlogprob, dentropy, 0);
    expect_same_bits(many.dhidden.view(), one.dhidden.view(), "dhidden");
    expect_same_bits(many.dweight.view(), one.dweight.view(), "dweight");
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
  Rng rng(8);
  Head head(3, 6, 4, rng);
  auto dlogprob = random_vector(3, rng), dentropy = random_vector(3, rng);
  GuardedMatrix dhidden(3, 4), dweight(6, 4);
  ref::linear_logprob_backward(head.hidden.view(), head.weight.view(), head.targets, 0.7f, dlogprob,
                               dentropy, dhidden.view(), dweight.view());
  std::vector<float> lp(3), lse(3), entropy(3);
  auto loss = [&] {
    ref::linear_logprob(head.hidden.view(), head.weight.view(), head.targets, 0.7f, lp, lse,
                        entropy);
    double sum = 0;
    for (size_t i = 0; i < 3; ++i)
      sum += double{lp[i]} * dlogprob[i] + double{entropy[i]} * dentropy[i];
    return sum;
  };
  auto slope = [&](float& at) { return central_difference(loss, at); };
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t c = 0; c < 4; ++c)
      EXPECT_NEAR(dhidden.at(r, c), slope(head.hidden.at(r, c)), 1e-3);
  }
  for (int64_t r = 0; r < 6; ++r) {
    for (int64_t c = 0; c < 4; ++c)
      EXPECT_NEAR(dweight.at(r, c), slope(head.weight.at(r, c)), 1e-3);
  }
}

}  // namespace
}  // namespace tailrace
