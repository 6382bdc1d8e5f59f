// The router on a GPU against the plain loops of kernels/ref, over numbers of experts that no warp
// divides.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <random>
#include <set>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/cuda.h"
#include "kernels/ref/ref.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/router_testing.h"

namespace tailrace {
namespace {

using namespace cuda_testing;

constexpr double kFloatRounding = 0x1p-24;

const RouterShape kMostExperts = {2, kMaxExperts, 6};

struct HostRoutes {
  RouterShape shape;
  std::vector<float> probabilities, weights;
  std::vector<int32_t> chosen;

  explicit HostRoutes(const RouterShape& of)
      : shape(of),
        probabilities(size_at(of.tokens * of.experts)),
        weights(size_at(of.tokens * of.k)),
        chosen(size_at(of.tokens * of.k)) {}
  Matrix matrix() { return {probabilities.data(), shape.tokens, shape.experts}; }
  void route(std::vector<float>& logits, std::span<const float> bias, bool normalised,
             MatrixView<const int32_t> given = {}) {
    ref::route({.logits = Matrix(logits.data(), shape.tokens, shape.experts),
                .choice_bias = bias,
                .given = given,
                .normalised = normalised,
                .probabilities = matrix(),
                .chosen = chosen,
                .weights = Matrix(weights.data(), shape.tokens, shape.k)});
  }
};

struct DeviceRoutes {
  DeviceMatrix<float> probabilities, weights;
  GuardedArray<int32_t> chosen;

  explicit DeviceRoutes(const RouterShape& of)
      : probabilities(of.tokens, of.experts), weights(of.tokens, of.k), chosen(of.tokens * of.k) {}
  Route args(ConstTensor logits, std::span<const float> bias, bool normalised) {
    return {.logits = logits,
            .choice_bias = bias,
            .normalised = normalised,
            .probabilities = probabilities.view(),
            .chosen = chosen.span(),
            .weights = weights.view()};
  }
  void run(const Route& args) {
    cuda::route(gpu_stream(), args);
    expect_no_findings();
    probabilities.expect_canaries();
    weights.expect_canaries();
  }
  void expect_same(const DeviceRoutes& other) const {
    EXPECT_EQ(probabilities.get(), other.probabilities.get());
    EXPECT_EQ(weights.get(), other.weights.get());
    EXPECT_EQ(chosen.get(), other.chosen.get());
  }
};

// A difference of logits is rounded by so many units as it is large, and expf by four; the sum has
// experts / 32 terms a lane and five levels.
double roundings_of_softmax(std::span<const float> logits) {
  const auto [least, most] = std::ranges::minmax(logits);
  return 2 * (double{most} - least + 4) + static_cast<double>(logits.size()) / 32 + 7;
}

void expect_rows_close(std::span<const float> got, std::span<const float> want, double roundings) {
  // The results of expf that are no normal numbers have fewer digits.
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], roundings * kFloatRounding * want[i] + FLT_MIN) << i;
}

void check_route(const RouterShape& shape, bool normalised, bool with_bias) {
  const auto [tokens, experts, k] = shape;
  SCOPED_TRACE(::testing::Message() << tokens << " x " << experts << ", " << k);
  std::mt19937 rng(static_cast<unsigned>(experts * 31 + tokens));
  std::vector<float> logits = random_floats(tokens * experts, rng, 3);
  if (tokens > 2) logits[size_at(experts)] = 200;
  const std::vector<float> bias = random_floats(with_bias ? experts : 0, rng, 0.1f);
  HostRoutes want(shape);
  want.route(logits, bias, normalised);

  DeviceMatrix<float> device_logits(tokens, experts, logits);
  const DeviceArray<float> device_bias(bias);
  DeviceRoutes got(shape), again(shape), in_place(shape);
  got.run(got.args(device_logits.view(), device_bias.span(), normalised));
  EXPECT_EQ(got.chosen.get(), want.chosen);
  const std::vector<float> probabilities = got.probabilities.get(), weights = got.weights.get();
  for (int64_t t = 0; t < tokens; ++t) {
    const auto row = [&](const std::vector<float>& all, int64_t cols) {
      return std::span(all).subspan(size_at(t * cols), size_at(cols));
    };
    const double roundings = roundings_of_softmax(row(logits, experts));
    expect_rows_close(row(probabilities, experts), row(want.probabilities, experts), roundings);
    expect_rows_close(row(weights, k), row(want.weights, k),
                      2 * roundings + static_cast<double>(k) + 1);
  }
  again.run(again.args(device_logits.view(), device_bias.span(), normalised));
  again.expect_same(got);
  if (tokens > 0) {  // the last token alone
    DeviceRoutes one({1, experts, k});
    one.run(one.args(device_logits.view().slice_rows(tokens - 1, tokens), device_bias.span(),
                     normalised));
    const std::vector<int32_t> chosen = got.chosen.get();
    EXPECT_TRUE(std::ranges::equal(one.probabilities.get(),
                                   std::span(probabilities).last(size_at(experts))));
    EXPECT_TRUE(std::ranges::equal(one.weights.get(), std::span(weights).last(size_at(k))));
    EXPECT_TRUE(std::ranges::equal(one.chosen.get(), std::span(chosen).last(size_at(k))));
  }
  Route args = in_place.args(device_logits.view(), device_bias.span(), normalised);
  args.probabilities = device_logits.view();
  in_place.run(args);
  EXPECT_EQ(device_logits.get(), probabilities);
  EXPECT_EQ(in_place.weights.get(), weights);
  device_logits.expect_canaries();
}

TEST(CudaRoute, AgreesWithTheReferenceAndWithItself) {
  for (const RouterShape& shape : kRouterShapes)
    for (const bool normalised : {false, true})
      for (const bool with_bias : {false, true}) check_route(shape, normalised, with_bias);
  check_route(kMostExperts, true, true);
}

TEST(CudaRoute, OfEqualScoresTheLowerIdIsChosen) {
  std::vector<float> logits(2 * 70);
  for (const size_t e : {1, 40, 65}) logits[e] = 2;
  const DeviceMatrix<float> device_logits(2, 70, logits);
  DeviceRoutes routes({2, 70, 2});
  routes.run(routes.args(device_logits.view(), {}, true));
  EXPECT_EQ(routes.chosen.get(), (std::vector<int32_t>{1, 40, 0, 1}));
  EXPECT_EQ(routes.weights.get(), (std::vector<float>{0.5f, 0.5f, 0.5f, 0.5f}));
}

// Scores below 0, which only a bias makes, are in order too.
TEST(CudaRoute, TheBiasChoosesAndWeighsNothing) {
  const std::vector<float> logits(40);
  std::vector<float> bias(40, -3);
  bias[7] = -1.5f, bias[38] = -2, bias[39] = -2;
  const DeviceMatrix<float> device_logits(1, 40, logits);
  const DeviceArray<float> device_bias(bias);
  DeviceRoutes routes({1, 40, 2});
  routes.run(routes.args(device_logits.view(), device_bias.span(), false));
  EXPECT_EQ(routes.chosen.get(), (std::vector<int32_t>{7, 38}));
  EXPECT_EQ(routes.weights.get(), (std::vector<float>{1.0f / 40, 1.0f / 40}));
}

TEST(CudaRoute, ChoosesDistinctExpertsWhateverTheLogitsAre) {
  constexpr int64_t kExperts = 37;
  std::vector<float> logits(4 * kExperts), bias(kExperts);
  logits[2] = NAN;
  logits[kExperts + 5] = INFINITY;
  std::fill_n(logits.begin() + 2 * kExperts, kExperts, -INFINITY);
  bias[0] = bias[30] = NAN;
  const DeviceMatrix<float> device_logits(4, kExperts, logits);
  const DeviceArray<float> device_bias(bias);
  DeviceRoutes routes({4, kExperts, 3});
  routes.run(routes.args(device_logits.view(), device_bias.span(), true));
  const std::vector<int32_t> chosen = routes.chosen.get();
  for (size_t t = 0; t < 4; ++t) {
    const std::vector<int32_t> ids(&chosen[3 * t], &chosen[3 * t] + 3);
    EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), 3u);
    EXPECT_TRUE(std::ranges::is_sorted(ids) && ids.front() >= 0 && ids.back() < kExperts);
    // Where all is NaN the first are as good as any; a NaN of the bias alone is the last to go.
    EXPECT_EQ(ids.front(), t < 3 ? 0 : 1);
  }
}

// Every other token is given what another one chose, from rows between those of other layers.
TEST(CudaRoute, TokensThatAreGivenNothingChoose) {
  std::mt19937 rng(9);
  for (const RouterShape& shape : kRouterShapes) {
    const auto [tokens, experts, k] = shape;
    SCOPED_TRACE(::testing::Message() << tokens << " x " << experts << ", " << k);
    std::vector<float> logits = random_floats(tokens * experts, rng, 2);
    const std::vector<float> bias = random_floats(experts, rng, 0.1f);
    HostRoutes own(shape), want(shape);
    own.route(logits, bias, true);
    const int64_t stride = 2 * k + 1;
    std::vector<int32_t> given(size_at(tokens * stride + k), 1 << 30);
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t j = 0; j < k; ++j)
        given[size_at(k + t * stride + j)] =
            t % 2 == 0 ? kChoose : own.chosen[size_at((tokens - 1 - t) * k + j)];
    want.route(logits, bias, true, {given.data() + k, tokens, k, stride});
    const DeviceMatrix<float> device_logits(tokens, experts, logits);
    const DeviceArray<float> device_bias(bias);
    const DeviceArray<int32_t> device_given(given);
    DeviceRoutes got(shape);
    Route args = got.args(device_logits.view(), device_bias.span(), true);
    args.given = {device_given.data() + k, tokens, k, stride};
    got.run(args);
    EXPECT_EQ(got.chosen.get(), want.chosen);
    const std::vector<float> weights = got.weights.get();
    if (tokens > 0)
      expect_rows_close(weights, want.weights,
                        2 * roundings_of_softmax(logits) + static_cast<double>(k) + 1);
    // One's own choices, given, cost no bit.
    const DeviceArray<int32_t> same(got.chosen.get());
    DeviceRoutes replayed(shape);
    args = replayed.args(device_logits.view(), device_bias.span(), true);
    args.given = {same.data(), tokens, k};
    replayed.run(args);
    replayed.expect_same(got);
  }
}

// dlogits against the reference, given what a router found.
void check_route_backward(HostRoutes& routes, const std::vector<float>& dweights, bool normalised,
                          int sequences, std::mt19937& rng) {
  const auto [tokens, experts, k] = routes.shape;
  const bool balances = sequences > 0;
  std::vector<float> balance = random_floats(sequences * experts, rng);
  const std::vector<int32_t> offsets =
      balances ? unequal_sequences(tokens, sequences) : std::vector<int32_t>{};
  std::vector<float> slopes = dweights, want(size_at(tokens * experts));
  RouteBackward args{.probabilities = routes.matrix(),
                     .chosen = routes.chosen,
                     .dweights = Matrix(slopes.data(), tokens, k),
                     .normalised = normalised,
                     .balance = Matrix(balance.data(), sequences, experts),
                     .sequence_offsets = offsets,
                     .dlogits = Matrix(want.data(), tokens, experts)};
  ref::route_backward(args);

  DeviceMatrix<float> probabilities(tokens, experts, routes.probabilities), got(tokens, experts);
  const DeviceMatrix<float> device_dweights(tokens, k, dweights),
      device_balance(sequences, experts, balance);
  const DeviceArray<int32_t> chosen(routes.chosen), device_offsets(offsets);
  args = {.probabilities = probabilities.view(),
          .chosen = chosen.span(),
          .dweights = device_dweights.view(),
          .normalised = normalised,
          .balance = device_balance.view(),
          .sequence_offsets = device_offsets.span(),
          .dlogits = got.view()};
  cuda::route_backward(gpu_stream(), args);
  expect_no_findings();
  got.expect_canaries();
  const std::vector<float> dlogits = got.get();
  for (int64_t t = 0; t < tokens; ++t) {
    const float* p = &routes.probabilities[size_at(t * experts)];
    const auto* row = balances ? balance.data() : nullptr;
    for (int s = 0; balances && offsets[size_at(s) + 1] <= t; ++s)
      row = balance.data() + (s + 1) * experts;
    const auto g = [&](int64_t e) { return row == nullptr ? 0.0 : std::abs(double{row[e]}); };
    // The magnitudes of what is added, term by term.
    double sum = 0, of_weights = 0, of_balance = 0;
    for (int64_t j = 0; j < k; ++j) sum += p[routes.chosen[size_at(t * k + j)]];
    sum = normalised ? std::max(sum, double{FLT_MIN}) : 1;
    std::vector<double> own(size_at(experts));
    for (int64_t j = 0; j < k; ++j) {
      const auto e = size_at(routes.chosen[size_at(t * k + j)]);
      own[e] = std::abs(double{dweights[size_at(t * k + j)]});
      of_weights += p[e] / sum * own[e];
    }
    for (int64_t e = 0; e < experts; ++e) of_balance += p[e] * g(e);
    const double roundings = static_cast<double>(experts) / 32 + 3 * static_cast<double>(k) + 12;
    for (int64_t e = 0; e < experts; ++e) {
      const bool is_chosen =
          std::ranges::count(std::span(routes.chosen).subspan(size_at(t * k), size_at(k)), e) > 0;
      const double size = p[e] * (g(e) + of_balance + 2 * of_weights) +
                          (is_chosen ? p[e] / sum * (own[size_at(e)] + of_weights) : 0);
      ASSERT_NEAR(dlogits[size_at(t * experts + e)], want[size_at(t * experts + e)],
                  roundings * kFloatRounding * size + FLT_MIN)
          << t << ", " << e;
    }
  }
  DeviceMatrix<float> again(tokens, experts);
  args.dlogits = again.view();
  cuda::route_backward(gpu_stream(), args);
  EXPECT_EQ(again.get(), dlogits);
  args.dlogits = probabilities.view();
  cuda::route_backward(gpu_stream(), args);
  expect_no_findings();
  EXPECT_EQ(probabilities.get(), dlogits) << "in place";
  probabilities.expect_canaries();
}

TEST(CudaRouteBackward, AgreesWithTheReferenceAndWithItself) {
  std::mt19937 rng(4);
  for (const RouterShape& shape : kRouterShapes) {
    SCOPED_TRACE(::testing::Message() << shape.tokens << " x " << shape.experts << ", " << shape.k);
    std::vector<float> logits = random_floats(shape.tokens * shape.experts, rng);
    HostRoutes routes(shape);
    routes.route(logits, {}, true);
    const std::vector<float> dweights = random_floats(shape.tokens * shape.k, rng);
    for (const bool normalised : {false, true})
      for (const int sequences : {0, 4, 9})
        check_route_backward(routes, dweights, normalised, sequences, rng);
  }
}

// A bias may choose experts of next to no probability, the sum of which is held at a least.
TEST(CudaRouteBackward, AgreesWithTheReferenceOnExpertsThatABiasAloneChose) {
  std::mt19937 rng(6);
  std::vector<float> logits = {0, -88, -89, 0, -300, -301, 0, -86, -87};
  const std::vector<float> bias = {0, 2, 2};
  HostRoutes routes({3, 3, 2});
  routes.route(logits, bias, true);
  ASSERT_EQ(routes.chosen, (std::vector<int32_t>{1, 2, 1, 2, 1, 2}));
  check_route_backward(routes, {50, -70, 50, -70, 50, -70}, true, 0, rng);
}

}  // namespace
}  // namespace tailrace
