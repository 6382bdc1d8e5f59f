// Choices sorted by their expert, and how evenly experts are used, on a GPU.
#include <algorithm>
#include <iterator>
#include <numeric>
#include <random>
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

std::vector<int32_t> random_choices(const RouterShape& shape, std::mt19937& rng) {
  std::vector<int32_t> chosen;
  std::vector<int32_t> ids(size_at(shape.experts));
  std::iota(ids.begin(), ids.end(), 0);
  for (int64_t t = 0; t < shape.tokens; ++t) {
    std::vector<int32_t> own;
    std::ranges::sample(ids, std::back_inserter(own), shape.k, rng);
    own[0] = 0;  // one that all choose
    chosen.insert(chosen.end(), own.begin(), own.end());
  }
  return chosen;
}

void check_groups(const RouterShape& shape, std::mt19937& rng) {
  SCOPED_TRACE(testing::Message() << shape.tokens << " x " << shape.experts << ", " << shape.k);
  const std::vector<int32_t> chosen = random_choices(shape, rng);
  std::vector<int32_t> offsets(size_at(shape.experts) + 1), tokens(chosen.size()),
      rows(chosen.size());
  ref::group_by_expert({.chosen = chosen,
                        .experts_per_token = shape.k,
                        .offsets = offsets,
                        .tokens = tokens,
                        .rows = rows});
  const DeviceArray<int32_t> device_chosen(chosen);
  const int64_t choices = std::ssize(chosen);
  GuardedArray<int32_t> got_offsets(shape.experts + 1), got_tokens(choices), got_rows(choices);
  cuda::group_by_expert(gpu_stream(), {.chosen = device_chosen.span(),
                                       .experts_per_token = shape.k,
                                       .offsets = got_offsets.span(),
                                       .tokens = got_tokens.span(),
                                       .rows = got_rows.span()});
  expect_no_findings();
  EXPECT_EQ(got_offsets.get(), offsets);
  EXPECT_EQ(got_tokens.get(), tokens);
  EXPECT_EQ(got_rows.get(), rows);
}

TEST(CudaGroupByExpert, AgreesWithTheReference) {
  std::mt19937 rng(7);
  for (const RouterShape& shape : kRouterShapes) check_groups(shape, rng);
  check_groups({700, 9, 3}, rng);
  check_groups({16 * 1024, 3, 2}, rng);
}

// The sums have one order on both devices, so the bits are the CPU's.
TEST(CudaExpertBalance, HasTheBitsOfTheCpu) {
  std::mt19937 rng(8);
  std::vector<RouterShape> shapes = kRouterShapes;
  shapes.push_back({150, 70, 3});
  for (const RouterShape& shape : shapes) {
    const auto [tokens, experts, k] = shape;
    SCOPED_TRACE(testing::Message() << tokens << " x " << experts << ", " << k);
    std::vector<float> p = random_floats(tokens * experts, rng);
    const std::vector<int32_t> chosen = random_choices(shape, rng);
    const DeviceMatrix<float> device_p(tokens, experts, p);
    const DeviceArray<int32_t> device_chosen(chosen);
    for (const int sequences : {4, 16, 17, 40}) {
      for (const bool wants_gradient : {false, true}) {
        const std::vector<int32_t> offsets = unequal_sequences(tokens, sequences);
        const int64_t rows = wants_gradient ? sequences : 0;
        std::vector<int64_t> choices(size_at(experts), 3);
        std::vector<double> losses(size_at(experts), 0.5);
        std::vector<float> gradient(size_at(rows * experts));
        GuardedArray<int64_t> got_choices(choices);
        GuardedArray<double> got_losses(losses);
        DeviceMatrix<float> got_gradient(rows, experts);
        ExpertBalance args{.probabilities = Matrix(p.data(), tokens, experts),
                           .chosen = chosen,
                           .sequence_offsets = offsets,
                           .scale = 0.3f,
                           .gradient = Matrix(gradient.data(), rows, experts),
                           .choices = choices,
                           .losses = losses};
        expert_balance(Stream{}, args);
        const DeviceArray<int32_t> device_offsets(offsets);
        args.probabilities = device_p.view();
        args.chosen = device_chosen.span();
        args.sequence_offsets = device_offsets.span();
        args.gradient = got_gradient.view();
        args.choices = got_choices.span();
        args.losses = got_losses.span();
        cuda::expert_balance(gpu_stream(), args);
        expect_no_findings();
        EXPECT_EQ(got_choices.get(), choices);
        EXPECT_EQ(got_losses.get(), losses);
        if (tokens > 0) {
          EXPECT_EQ(got_gradient.get(), gradient);
        }
        got_gradient.expect_canaries();
      }
    }
  }
}

}  // namespace
}  // namespace tailrace
