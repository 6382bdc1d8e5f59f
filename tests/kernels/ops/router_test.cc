#include "kernels/ops/router.h"

#include <algorithm>
#include <array>
#include <set>

#include "kernels/ref/ref.h"
#include "tests/kernels/ops/op_testing.h"

namespace tailrace {
namespace {

using namespace op_testing;

struct RouterShape {
  int64_t tokens, experts, k;
};
const std::vector<RouterShape> kRouterShapes = {{0, 4, 2},   {1, 1, 1},     {1, 8, 2},
                                                {3, 5, 5},   {7, 16, 1},    {33, 17, 3},
                                                {64, 60, 4}, {130, 128, 8}, {41, 513, 8}};

// A router's results, with room for canaries around the matrices.
struct Routes {
  GuardedMatrix probabilities, weights;
  std::vector<int32_t> chosen;

  Routes(int64_t tokens, int64_t experts, int64_t k)
      : probabilities(tokens, experts),
        weights(tokens, k),
        chosen(static_cast<size_t>(tokens * k), -1) {}
  Route args(ConstMatrix logits, std::span<const float> bias, bool normalised) {
    return {.logits = logits,
            .choice_bias = bias,
            .normalised = normalised,
            .probabilities = probabilities.view(),
            .chosen = chosen,
            .weights = weights.view()};
  }
};

TEST(Route, AgreesWithTheReference) {
  Rng rng(1);
  for (int threads : {1, 3}) {
    TestStream stream(threads);
    for (const auto& [tokens, experts, k] : kRouterShapes) {
      for (const bool normalised : {false, true}) {
        SCOPED_TRACE(testing::Message() << tokens << " x " << experts << ", " << k);
        GuardedMatrix logits(tokens, experts, rng, 3);
        if (tokens > 2) logits.at(1, 0) = 200;
        const auto bias = random_vector(experts, rng, 0.1f);
        for (const std::span<const float> choice : {std::span<const float>{}, std::span(bias)}) {
          Routes got(tokens, experts, k), want(tokens, experts, k);
          route(stream.get(), got.args(logits.view(), choice, normalised));
          ref::route(want.args(logits.view(), choice, normalised));
          EXPECT_EQ(got.chosen, want.chosen);
          // exp to an ulp of an argument that is off by |logit| ulp, and a sum of experts / 16 + 4
          // roundings; the sum over the chosen adds k.
          const double roundings =
              16 + static_cast<double>(experts) / 16 + 2 * static_cast<double>(k);
          const auto within = [&](const GuardedMatrix& m) {
            return [&m, roundings](int64_t r, int64_t c) {
              return roundings * kUnit * std::abs(m.at(r, c)) + 1e-37;
            };
          };
          expect_close(got.probabilities.view(), want.probabilities.view(),
                       within(want.probabilities), "probabilities");
          expect_close(got.weights.view(), want.weights.view(), within(want.weights), "weights");
          got.probabilities.expect_canaries();
          got.weights.expect_canaries();
          // In place, as the model calls it.
          Routes in_place(tokens, experts, k);
          Route args = in_place.args(logits.view(), choice, normalised);
          args.probabilities = logits.view();
          GuardedMatrix kept = logits;
          route(stream.get(), args);
          expect_same_bits(logits.view(), got.probabilities.view(), "in place");
          logits = kept;
        }
      }
    }
  }
}

TEST(Route, OfEqualScoresTheLowerIdIsChosen) {
  GuardedMatrix logits(2, 6);
  for (const int64_t e : {1, 3, 4}) logits.at(0, e) = 2;
  Routes routes(2, 6, 2);
  route(Stream{}, routes.args(logits.view(), {}, true));
  EXPECT_EQ(routes.chosen, (std::vector<int32_t>{1, 3, 0, 1}));
  EXPECT_EQ(routes.weights.at(0, 0), 0.5f);
}

TEST(Route, TheBiasChoosesAndWeighsNothing) {
  Rng rng(2);
  GuardedMatrix logits(5, 9, rng);
  std::vector<float> bias(9);
  bias[7] = 2;  // above any probability
  Routes plain(5, 9, 9), biased(5, 9, 2);
  route(Stream{}, plain.args(logits.view(), {}, false));
  route(Stream{}, biased.args(logits.view(), bias, false));
  for (int64_t t = 0; t < 5; ++t) {
    const auto* ids = &biased.chosen[static_cast<size_t>(2 * t)];
    EXPECT_TRUE(ids[0] == 7 || ids[1] == 7) << t;
    for (int64_t j = 0; j < 2; ++j)
      EXPECT_EQ(biased.weights.at(t, j), plain.probabilities.at(t, ids[j])) << t;
  }
}

// Algorithms note R3-1: the set is given, values and gradients come from the logits.
TEST(Route, GivenExpertsAreWeighedByTheirOwnProbabilities) {
  GuardedMatrix logits(1, 3);
  for (const int64_t e : {0, 1, 2})
    logits.at(0, e) = std::array{1.0f, 2.0f, 0.5f}.at(static_cast<size_t>(e));
  const std::vector<int32_t> given = {1, 2};
  Routes routes(1, 3, 2);
  Route args = routes.args(logits.view(), {}, true);
  args.given = {given.data(), 1, 2};
  route(Stream{}, args);
  EXPECT_EQ(routes.chosen, given);
  EXPECT_NEAR(routes.weights.at(0, 0), 0.817574, 1e-6);
  EXPECT_NEAR(routes.weights.at(0, 1), 0.182426, 1e-6);
  GuardedMatrix dweights(1, 2), dlogits(1, 3);
  dweights.at(0, 0) = 1;
  route_backward(Stream{}, {.probabilities = routes.probabilities.view(),
                            .chosen = routes.chosen,
                            .dweights = dweights.view(),
                            .normalised = true,
                            .dlogits = dlogits.view()});
  EXPECT_NEAR(dlogits.at(0, 0), 0, 1e-6);
  EXPECT_NEAR(dlogits.at(0, 1), 0.149146, 1e-6);
  EXPECT_NEAR(dlogits.at(0, 2), -0.149146, 1e-6);
}

// Every other token is given what lies at another one; the rest choose, past the bias too.
TEST(Route, TokensThatAreGivenNothingChoose) {
  Rng rng(9);
  for (int threads : {1, 3}) {
    TestStream stream(threads);
    for (const auto& [tokens, experts, k] : kRouterShapes) {
      SCOPED_TRACE(testing::Message() << tokens << " x " << experts << ", " << k);
      GuardedMatrix logits(tokens, experts, rng, 2);
      const auto bias = random_vector(experts, rng, 0.1f);
      Routes own(tokens, experts, k), got(tokens, experts, k), want(tokens, experts, k);
      route(stream.get(), own.args(logits.view(), bias, true));
      // Between the ids of other layers, as a batch has them.
      const int64_t stride = 2 * k + 1;
      std::vector<int32_t> given(static_cast<size_t>(tokens * stride), 1 << 30);
      const MatrixView<int32_t> ids(given.data() + k, tokens, k, stride);
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t j = 0; j < k; ++j)
          ids.row(t)[j] =
              t % 2 == 0 ? kChoose : own.chosen[static_cast<size_t>((tokens - 1 - t) * k + j)];
      Route args = got.args(logits.view(), bias, true);
      args.given = ids;
      route(stream.get(), args);
      args = want.args(logits.view(), bias, true);
      args.given = ids;
      ref::route(args);
      EXPECT_EQ(got.chosen, want.chosen);
      expect_close(got.weights.view(), want.weights.view(), 1e-5, "weights");
      for (int64_t t = 0; t < tokens; ++t) {
        const int64_t from = t % 2 == 0 ? t : tokens - 1 - t;
        for (int64_t j = 0; j < k; ++j)
          ASSERT_EQ(got.chosen[static_cast<size_t>(t * k + j)],
                    own.chosen[static_cast<size_t>(from * k + j)]);
      }
      // One's own choices, given, cost no bit.
      const std::vector<int32_t> same = own.chosen;
      args = got.args(logits.view(), bias, true);
      args.given = {same.data(), tokens, k};
      route(stream.get(), args);
      EXPECT_EQ(got.chosen, own.chosen);
      expect_same_bits(got.weights.view(), own.weights.view(), "weights");
    }
  }
}

TEST(RouteDeathTest, GivenIdsThatAreNoChoiceAreRefused) {
  GuardedMatrix logits(1, 3);
  for (const std::vector<int32_t>& given :
       {std::vector<int32_t>{1, 3}, {1, 1}, {2, 0}, {0, kChoose}}) {
    Routes routes(1, 3, 2);
    Route args = routes.args(logits.view(), {}, true);
    args.given = {given.data(), 1, 2};
    EXPECT_DEATH(route(Stream{}, args), "expert -?[0-9]+ after [0-9] of 3");
  }
}

TEST(Route, ChoosesDistinctExpertsWhateverTheLogitsAre) {
  GuardedMatrix logits(3, 7);
  logits.at(0, 2) = NAN;
  logits.at(1, 5) = INFINITY;
  for (int64_t e = 0; e < 7; ++e) logits.at(2, e) = -INFINITY;
  Routes routes(3, 7, 3);
  route(Stream{}, routes.args(logits.view(), {}, true));
  for (size_t t = 0; t < 3; ++t) {
    const std::set<int32_t> ids(&routes.chosen[3 * t], &routes.chosen[3 * t] + 3);
    EXPECT_EQ(ids.size(), 3u);
    EXPECT_TRUE(*ids.begin() >= 0 && *ids.rbegin() < 7);
  }
}

TEST(Route, ATokenHasTheSameBitsAloneAndInABatch) {
  Rng rng(3);
  GuardedMatrix logits(300, 61, rng);
  Routes all(300, 61, 4);
  TestStream stream(3);
  route(stream.get(), all.args(logits.view(), {}, true));
  EXPECT_GT(stream.num_divided(), 0);
  for (int64_t t = 0; t < 300; ++t) {
    Routes one(1, 61, 4);
    route(Stream{}, one.args(logits.view().slice_rows(t, t + 1), {}, true));
    expect_same_bits(one.weights.view(), all.weights.view().slice_rows(t, t + 1), "weights");
    EXPECT_TRUE(std::ranges::equal(one.chosen,
                                   std::span(all.chosen).subspan(static_cast<size_t>(4 * t), 4)));
  }
}

// Sequences of unequal lengths, one of them empty.
std::vector<int32_t> sequence_offsets(int64_t tokens) {
  const auto n = static_cast<int32_t>(tokens);
  return {0, n / 5, n / 5, n / 2, n};
}

TEST(RouteBackward, AgreesWithTheReference) {
  Rng rng(4);
  for (int threads : {1, 3}) {
    TestStream stream(threads);
    for (const auto& [tokens, experts, k] : kRouterShapes) {
      SCOPED_TRACE(testing::Message() << tokens << " x " << experts << ", " << k);
      GuardedMatrix logits(tokens, experts, rng), dweights(tokens, k, rng),
          balance(4, experts, rng);
      Routes routes(tokens, experts, k);
      route(Stream{}, routes.args(logits.view(), {}, true));
      const std::vector<int32_t> offsets = sequence_offsets(tokens);
      for (const bool normalised : {false, true}) {
        for (const bool balances : {false, true}) {
          GuardedMatrix got(tokens, experts), want(tokens, experts);
          RouteBackward args{.probabilities = routes.probabilities.view(),
                             .chosen = routes.chosen,
                             .dweights = dweights.view(),
                             .normalised = normalised,
                             .balance = balances ? balance.view() : Matrix{},
                             .sequence_offsets = offsets,
                             .dlogits = got.view()};
          route_backward(stream.get(), args);
          args.dlogits = want.view();
          ref::route_backward(args);
          // Differences of terms of the size of a gradient times a probability, over the sum of
          // the chosen: cancellation leaves an absolute error.
          double least = 1;
          for (int64_t t = 0; t < tokens; ++t) {
            double sum = 0;
            for (int64_t j = 0; j < k; ++j)
              sum += routes.probabilities.at(t, routes.chosen[static_cast<size_t>(t * k + j)]);
            least = std::min(least, sum);
          }
          const double size = 4 * (normalised ? 1 / least : 1) + (balances ? 4 : 0);
          expect_close(got.view(), want.view(),
                       (12 + static_cast<double>(experts) / 8) * kUnit * size, "dlogits");
          got.expect_canaries();
        }
      }
    }
  }
}

TEST(RouteBackward, IsTheSlopeOfTheWeights) {
  Rng rng(5);
  GuardedMatrix logits(6, 9, rng), dweights(6, 3, rng), dlogits(6, 9);
  Routes routes(6, 9, 3);
  route(Stream{}, routes.args(logits.view(), {}, true));
  const std::vector<int32_t> chosen = routes.chosen;
  route_backward(Stream{}, {.probabilities = routes.probabilities.view(),
                            .chosen = chosen,
                            .dweights = dweights.view(),
                            .normalised = true,
                            .dlogits = dlogits.view()});
  for (int64_t t = 0; t < 6; ++t) {
    for (int64_t e = 0; e < 9; ++e) {
      const auto loss = [&] {
        Routes moved(6, 9, 3);
        ref::route(moved.args(logits.view(), {}, true));
        EXPECT_EQ(moved.chosen, chosen) << "another choice: there is no slope";
        double sum = 0;
        for (int64_t j = 0; j < 3; ++j) sum += double{dweights.at(t, j)} * moved.weights.at(t, j);
        return sum;
      };
      EXPECT_NEAR(dlogits.at(t, e), central_difference(loss, logits.at(t, e)), 1e-4);
    }
  }
}

// A bias may choose experts that have no probability at all, or next to none: the sum of the chosen
// is then held at the smallest normal float.
TEST(RouteBackward, IsTheSlopeOfTheWeightsAlsoOfExpertsThatABiasAloneChose) {
  const std::vector<float> bias = {0, 2, 2};
  GuardedMatrix logits(3, 3), dweights(3, 2), dlogits(3, 3), want(3, 3);
  for (const auto& [t, logit] : {std::pair(0, -88.0f), {1, -300.0f}, {2, -86.0f}}) {
    logits.at(t, 1) = logit;
    logits.at(t, 2) = logit - 1;
    dweights.at(t, 0) = 50;
    dweights.at(t, 1) = -70;
  }
  Routes routes(3, 3, 2);
  ref::route(routes.args(logits.view(), bias, true));
  ASSERT_EQ(routes.chosen, (std::vector<int32_t>{1, 2, 1, 2, 1, 2}));
  RouteBackward args{.probabilities = routes.probabilities.view(),
                     .chosen = routes.chosen,
                     .dweights = dweights.view(),
                     .normalised = true,
                     .dlogits = dlogits.view()};
  route_backward(Stream{}, args);
  args.dlogits = want.view();
  ref::route_backward(args);
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t e = 0; e < 3; ++e) {
      const auto loss = [&] {
        Routes moved(3, 3, 2);
        ref::route(moved.args(logits.view(), bias, true));
        return 50.0 * moved.weights.at(t, 0) - 70.0 * moved.weights.at(t, 1);
      };
      const double slope = central_difference(loss, logits.at(t, e));
      EXPECT_NEAR(dlogits.at(t, e), slope, 0.01) << t << ", " << e;
      EXPECT_NEAR(want.at(t, e), slope, 0.01) << t << ", " << e;
    }
  }
  EXPECT_GT(std::abs(dlogits.at(0, 1)), 1) << "a sum below the least";
  EXPECT_EQ(dlogits.at(1, 1), 0.0f);
  EXPECT_GT(std::abs(dlogits.at(2, 1)), 1) << "a sum just above it";
}

TEST(GroupByExpert, AgreesWithTheReferenceAndLosesNoChoice) {
  Rng rng(6);
  for (const auto& [tokens, experts, k] : kRouterShapes) {
    GuardedMatrix logits(tokens, experts, rng, 2);
    if (tokens > 0)
      for (int64_t t = 0; t < tokens; ++t) logits.at(t, 0) = 9;  // one that all choose
    Routes routes(tokens, experts, k);
    route(Stream{}, routes.args(logits.view(), {}, true));
    const auto choices = static_cast<size_t>(tokens * k);
    struct Groups {
      std::vector<int32_t> offsets, tokens, rows;
    };
    Groups got{std::vector<int32_t>(static_cast<size_t>(experts) + 1, 7),
               std::vector<int32_t>(choices), std::vector<int32_t>(choices)};
    Groups want = got;
    const auto args = [&](Groups& g) {
      return ExpertGroups{.chosen = routes.chosen,
                          .experts_per_token = k,
                          .offsets = g.offsets,
                          .tokens = g.tokens,
                          .rows = g.rows};
    };
    group_by_expert(Stream{}, args(got));
    ref::group_by_expert(args(want));
    EXPECT_EQ(got.offsets, want.offsets);
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.rows, want.rows);
    std::vector<int32_t> sorted = got.rows;
    std::ranges::sort(sorted);
    for (size_t i = 0; i < sorted.size(); ++i) ASSERT_EQ(sorted[i], static_cast<int32_t>(i));
  }
}

TEST(ExpertBalance, AgreesWithTheReference) {
  Rng rng(7);
  for (int threads : {1, 3}) {
    TestStream stream(threads);
    for (const auto& [tokens, experts, k] : kRouterShapes) {
      GuardedMatrix logits(tokens, experts, rng);
      Routes routes(tokens, experts, k);
      route(Stream{}, routes.args(logits.view(), {}, true));
      const std::vector<int32_t> offsets = sequence_offsets(tokens);
      const auto count = static_cast<size_t>(experts);
      GuardedMatrix gradient(4, experts), want_gradient(4, experts);
      std::vector<int64_t> choices(count, 3), want_choices(count, 3);
      std::vector<double> losses(count, 0.5), want_losses(count, 0.5);
      ExpertBalance args{.probabilities = routes.probabilities.view(),
                         .chosen = routes.chosen,
                         .sequence_offsets = offsets,
                         .scale = 0.25f,
                         .gradient = gradient.view(),
                         .choices = choices,
                         .losses = losses};
      expert_balance(stream.get(), args);
      args.gradient = want_gradient.view();
      args.choices = want_choices;
      args.losses = want_losses;
      ref::expert_balance(args);
      EXPECT_EQ(choices, want_choices);
      for (size_t e = 0; e < count; ++e) EXPECT_NEAR(losses[e], want_losses[e], 1e-9 * losses[e]);
      if (tokens > 0)
        expect_close(gradient.view(), want_gradient.view(), 1e-6 * static_cast<double>(experts),
                     "gradient");
      gradient.expect_canaries();
    }
  }
}

// With the choices held, as the loss has it.
TEST(ExpertBalance, GradientIsTheSlopeOfTheLoss) {
  Rng rng(8);
  GuardedMatrix logits(11, 6, rng), gradient(4, 6);
  Routes routes(11, 6, 2);
  route(Stream{}, routes.args(logits.view(), {}, true));
  const std::vector<int32_t> offsets = sequence_offsets(11);
  const auto loss_of = [&](Matrix into) {
    std::vector<int64_t> choices(6);
    std::vector<double> losses(6);
    expert_balance(Stream{}, {.probabilities = routes.probabilities.view(),
                              .chosen = routes.chosen,
                              .sequence_offsets = offsets,
                              .scale = 1,
                              .gradient = into,
                              .choices = choices,
                              .losses = losses});
    double sum = 0;
    for (const double loss : losses) sum += loss;
    return sum;
  };
  const double loss = loss_of(gradient.view());
  // Of 11 tokens; 2 each would be the balance.
  EXPECT_GT(loss, 11 * 2.0 * 0.9);
  for (size_t s = 0; s < 4; ++s)
    for (int64_t t = offsets[s]; t < offsets[s + 1]; ++t)
      for (int64_t e = 0; e < 6; ++e)
        EXPECT_NEAR(gradient.at(static_cast<int64_t>(s), e),
                    central_difference([&] { return loss_of({}); }, routes.probabilities.at(t, e)),
                    1e-3);
}

}  // namespace
}  // namespace tailrace
