// Sums over the experts of a token on a GPU against the plain loops of kernels/ref.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/cuda.h"
#include "kernels/ref/ref.h"
#include "tests/kernels/cuda/device_array.h"

namespace tailrace {
namespace {

using cuda_testing::DeviceArray;
using cuda_testing::DeviceMatrix;
using cuda_testing::expect_no_findings;
using cuda_testing::gpu_stream;
using cuda_testing::random_floats;

struct SumShape {
  int64_t tokens, k, dim;
  int64_t choices() const { return tokens * k; }
};
const std::vector<SumShape> kSumShapes = {{0, 2, 8},  {1, 1, 1},   {1, 8, 33},  {5, 3, 17},
                                          {9, 2, 48}, {13, 4, 31}, {6, 8, 172}, {2, 2, 1030}};

std::vector<int32_t> shuffled(int64_t count, std::mt19937& rng) {
  std::vector<int32_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  std::ranges::shuffle(rows, rng);
  return rows;
}

// The same values one column further on, where no row can be read four elements at a time.
template <class T>
class Shifted {
 public:
  Shifted(int64_t rows, int64_t cols, const std::vector<float>& values) : all_(rows, cols + 1) {
    std::vector<float> wider;
    for (int64_t r = 0; r < rows; ++r) {
      wider.push_back(kFirst);
      wider.insert(wider.end(), values.begin() + r * cols, values.begin() + (r + 1) * cols);
    }
    all_.set(wider);
  }
  Tensor view() { return all_.view().slice_cols(1, all_.cols()); }
  std::vector<float> get() const {
    const std::vector<float> wider = all_.get();
    std::vector<float> values;
    for (size_t i = 0; i < wider.size(); ++i) {
      if (i % static_cast<size_t>(all_.cols()) != 0) {
        values.push_back(wider[i]);
      } else {
        EXPECT_EQ(wider[i], kFirst) << "a write before the row";
      }
    }
    return values;
  }

 private:
  static constexpr float kFirst = 7;
  DeviceMatrix<T> all_;
};

TEST(CudaWeightedSum, HasTheBitsOfTheCpuInAnyPlaceAndAlone) {
  std::mt19937 rng(4);
  for (const SumShape& shape : kSumShapes) {
    const auto [tokens, k, dim] = shape;
    SCOPED_TRACE(testing::Message() << tokens << ", " << k << ", " << dim);
    std::vector<float> x = random_floats(shape.choices() * dim, rng),
                       weights = random_floats(shape.choices(), rng);
    const std::vector<int32_t> rows = shuffled(shape.choices(), rng);
    DeviceMatrix<float> device_x(shape.choices(), dim, x);
    Shifted<float> shifted_x(shape.choices(), dim, x);
    const DeviceMatrix<float> device_weights(tokens, k, weights);
    const DeviceArray<int32_t> device_rows(rows);
    for (const bool weighs : {false, true}) {
      std::vector<float> want(static_cast<size_t>(tokens * dim)), exact = want;
      WeightedSum args{.x = Matrix(x.data(), shape.choices(), dim),
                       .rows = rows,
                       .weights = Matrix(weights.data(), weighs ? tokens : 0, k),
                       .y = Matrix(want.data(), tokens, dim)};
      weighted_sum(Stream{}, args);
      args.y = Matrix(exact.data(), tokens, dim);
      ref::weighted_sum(args);
      DeviceMatrix<float> y(tokens, dim);
      args = {.x = device_x.view(),
              .rows = device_rows.span(),
              .weights = weighs ? device_weights.view() : ConstTensor{},
              .y = y.view()};
      cuda::weighted_sum(gpu_stream(), args);
      expect_no_findings();
      y.expect_canaries();
      EXPECT_EQ(y.get(), want);
      // A rounding a term, of sums of at most k terms of about the size of 16.
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(want[i], exact[i], static_cast<double>(k * k) * 16 * 0x1p-24) << i;

      Shifted<float> shifted_y(tokens, dim, want);
      args.y = shifted_y.view();
      cuda::weighted_sum(gpu_stream(), args);
      EXPECT_EQ(shifted_y.get(), want);
      args.x = shifted_x.view();
      args.y = y.view();
      cuda::weighted_sum(gpu_stream(), args);
      EXPECT_EQ(y.get(), want);
      expect_no_findings();

      if (tokens == 0) continue;
      std::vector<float> own, expected(want.end() - dim, want.end());
      std::vector<int32_t> order(static_cast<size_t>(k));
      std::iota(order.begin(), order.end(), 0);
      for (int64_t j = 0; j < k; ++j) {
        const auto row = x.begin() + rows[static_cast<size_t>((tokens - 1) * k + j)] * dim;
        own.insert(own.end(), row, row + dim);
      }
      DeviceMatrix<float> one_x(k, dim, own), one_y(1, dim);
      const DeviceArray<int32_t> one_rows(order);
      args.x = one_x.view();
      args.rows = one_rows.span();
      if (weighs) args.weights = device_weights.view().slice_rows(tokens - 1, tokens);
      args.y = one_y.view();
      cuda::weighted_sum(gpu_stream(), args);
      EXPECT_EQ(one_y.get(), expected);
      expect_no_findings();
    }
  }
}

template <class T>
std::vector<float> stored(std::vector<float> values) {
  if constexpr (std::is_same_v<T, Bf16>)
    for (float& x : values) x = to_float(to_bf16(x));
  return values;
}

template <class T>
void check_weight_backward(const SumShape& shape, std::mt19937& rng) {
  const int64_t tokens = shape.tokens, k = shape.k, dim = shape.dim, choices = shape.choices();
  SCOPED_TRACE(testing::Message() << tokens << ", " << k << ", " << dim);
  const std::vector<float> h = stored<T>(random_floats(choices * dim, rng)),
                           dh = random_floats(choices * dim, rng);
  std::vector<float> weights = random_floats(choices, rng);
  const std::vector<int32_t> rows = shuffled(choices, rng);
  std::vector<float> want_h = h, want_dh = dh, want(static_cast<size_t>(choices)), size = want;
  std::vector<float> magnitude_h = h, magnitude_dh = dh;
  for (float& x : magnitude_h) x = std::abs(x);
  for (float& x : magnitude_dh) x = std::abs(x);
  const auto reference = [&](std::vector<float>& of_h, std::vector<float>& of_dh,
                             std::vector<float>& sums) {
    ref::weight_backward({.h = Matrix(of_h.data(), choices, dim),
                          .dh = Matrix(of_dh.data(), choices, dim),
                          .rows = rows,
                          .weights = Matrix(weights.data(), tokens, k),
                          .dweights = Matrix(sums.data(), tokens, k)});
  };
  reference(want_h, want_dh, want);
  reference(magnitude_h, magnitude_dh, size);

  const DeviceArray<int32_t> device_rows(rows);
  const DeviceMatrix<float> device_weights(tokens, k, weights);
  DeviceMatrix<T> device_h(choices, dim, h);
  DeviceMatrix<float> device_dh(choices, dim, dh), dweights(tokens, k);
  const auto run = [&](Tensor of_h, Tensor of_dh, Tensor sums) {
    cuda::weight_backward(gpu_stream(), {.h = of_h,
                                         .dh = of_dh,
                                         .rows = device_rows.span(),
                                         .weights = device_weights.view(),
                                         .dweights = sums});
    expect_no_findings();
  };
  run(device_h.view(), device_dh.view(), dweights.view());
  EXPECT_EQ(device_h.get(), stored<T>(want_h));
  EXPECT_EQ(device_dh.get(), want_dh);
  // A lane's terms, of which the last four may be one more than the others have, and the tree.
  const double roundings = static_cast<double>(dim) / 32 + 4 + 5;
  const std::vector<float> sums = dweights.get();
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(sums[i], want[i], (roundings + 1) * 0x1p-24 * size[i]) << i;
  device_h.expect_canaries();
  device_dh.expect_canaries();
  dweights.expect_canaries();

  // Again, with each of the two where it cannot be read wide: the same bits.
  for (const bool shifts_h : {false, true}) {
    DeviceMatrix<T> other_h(choices, dim, h);
    DeviceMatrix<float> other_dh(choices, dim, dh), other(tokens, k);
    Shifted<T> shifted_h(choices, dim, h);
    Shifted<float> shifted_dh(choices, dim, dh);
    run(shifts_h ? shifted_h.view() : other_h.view(),
        shifts_h ? other_dh.view() : shifted_dh.view(), other.view());
    EXPECT_EQ(shifts_h ? shifted_h.get() : other_h.get(), stored<T>(want_h));
    EXPECT_EQ(shifts_h ? other_dh.get() : shifted_dh.get(), want_dh);
    EXPECT_EQ(other.get(), sums);
  }
}

TEST(CudaWeightBackward, AgreesWithTheReferenceAndWithItself) {
  std::mt19937 rng(5);
  for (const SumShape& shape : kSumShapes) {
    check_weight_backward<float>(shape, rng);
    check_weight_backward<Bf16>(shape, rng);
  }
}

}  // namespace
}  // namespace tailrace
