// The optimizer on a GPU: the state of an update in memory of the device, AdamW by the bits of the
// CPU, and the sum of squares.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/cuda/cuda.h"
#include "kernels/ref/ref.h"
#include "tests/kernels/cuda/device_array.h"

namespace tailrace {
namespace {

using namespace cuda_testing;

class CudaOptimizer : public ::testing::Test {
 protected:
  ~CudaOptimizer() override { expect_no_findings(); }
  std::mt19937 rng{9};
  const Stream stream = gpu_stream();
};

DeviceArray<UpdateState> on_gpu(const UpdateState& state) {
  return DeviceArray<UpdateState>(std::vector<UpdateState>{state});
}

TEST_F(CudaOptimizer, BeginUpdateAgreesWithTheReference) {
  constexpr double kInf = std::numeric_limits<double>::infinity(),
                   kNan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<float> rates = {0.25f, 0.5f, 1e-3f};
  const DeviceArray<float> device_rates(rates);
  for (const double max_grad_norm : {0.0, 0.5, 1.0, 1e9}) {
    UpdateState expected{.updates = 40, .skipped = 2};
    DeviceArray<UpdateState> device_state = on_gpu(expected);
    for (const double sum : {25.0, 0.0, kNan, 1e-30, kInf, 1.0, 1e80, 0.25, 2.0}) {
      UpdateState state = device_state.get()[0];
      state.sum_of_squares = expected.sum_of_squares = sum;
      device_state.set({state});
      cuda::begin_update(stream, {.state = device_state.span(),
                                  .rates = device_rates.span(),
                                  .first_rate = 41,
                                  .max_grad_norm = max_grad_norm});
      ref::begin_update({.state = {&expected, 1},
                         .rates = rates,
                         .first_rate = 41,
                         .max_grad_norm = max_grad_norm});
      state = device_state.get()[0];
      EXPECT_EQ(std::isnan(state.grad_norm), std::isnan(expected.grad_norm));
      if (!std::isnan(expected.grad_norm)) {
        EXPECT_EQ(state.grad_norm, expected.grad_norm);
      }
      EXPECT_EQ(std::tuple(state.updates, state.skipped, state.lr, state.grad_scale, state.skips),
                std::tuple(expected.updates, expected.skipped, expected.lr, expected.grad_scale,
                           expected.skips))
          << sum << ", at most " << max_grad_norm;
    }
    EXPECT_EQ(expected.updates, 47);
    EXPECT_EQ(expected.skipped, 4);
  }
}

TEST_F(CudaOptimizer, AnUpdateBeforeTheFirstRateShows) {
  DeviceArray<UpdateState> state = on_gpu({.sum_of_squares = 1});
  const DeviceArray<float> rates(std::vector<float>{0.5f});
  cuda::begin_update(stream, {.state = state.span(), .rates = rates.span(), .first_rate = 2});
  EXPECT_TRUE(std::isnan(state.get()[0].lr));
}

// The four arrays of AdamW, each with an element before and behind it that nobody may touch.
struct Moments {
  std::vector<float> parameters, gradients, m, v;
};
struct DeviceMoments {
  DeviceArray<float> parameters, gradients, m, v;
  explicit DeviceMoments(const Moments& from)
      : parameters(from.parameters), gradients(from.gradients), m(from.m), v(from.v) {}
};
template <class Arrays, class SpanOf>
AdamW adamw_args(std::span<const UpdateState> state, const Arrays& arrays, const SpanOf& span_of) {
  return {.state = state,
          .constants = {.beta2 = 0.99f, .weight_decay = 0.1f},
          .parameters = span_of(arrays.parameters),
          .gradients = span_of(arrays.gradients),
          .m = span_of(arrays.m),
          .v = span_of(arrays.v)};
}

void expect_equal_bits(const std::vector<float>& got, const std::vector<float>& want,
                       const char* what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(float)), 0)
        << what << " " << i << ": " << got[i] << ", expected " << want[i];
}

TEST_F(CudaOptimizer, AdamwHasTheBitsOfTheCpu) {
  // The second range has no wide places; 4096 elements are a block's.
  for (const size_t before : {4, 1}) {
    for (const size_t n : {0, 1, 3, 17, 1000, 4096, 9001}) {
      SCOPED_TRACE(fmt::format("{} from {}", n, before));
      const auto room = static_cast<int64_t>(before + n + 1);
      Moments host{.parameters = random_floats(room, rng),
                   .gradients = random_floats(room, rng),
                   .m = random_floats(room, rng, 0.1f),
                   .v = random_floats(room, rng, 0.1f)};
      for (float& x : host.v) x = std::abs(x);
      DeviceMoments device(host);
      const auto of_host = [&](const std::vector<float>& values) {
        return std::span(const_cast<float*>(values.data()) + before, n);
      };
      const auto of_device = [&](const DeviceArray<float>& values) {
        return std::span(const_cast<float*>(values.data()) + before, n);
      };
      UpdateState state{.lr = 1e-2f, .grad_scale = 0.5f};
      for (const int64_t update : {1, 2, 3000}) {
        state.updates = update;
        const DeviceArray<UpdateState> device_state = on_gpu(state);
        const Moments start = host;
        adamw(Stream{}, adamw_args({&state, 1}, host, of_host));
        cuda::adamw(stream, adamw_args(device_state.span(), device, of_device));
        expect_no_findings();
        expect_equal_bits(device.parameters.get(), host.parameters, "parameter");
        expect_equal_bits(device.m.get(), host.m, "m");
        expect_equal_bits(device.v.get(), host.v, "v");
        // The reference too, so that both cannot be wrong in the same way: the step is lr times a
        // quotient with the roundings of m, v, the root and the bias corrections.
        Moments expected = start;
        ref::adamw(adamw_args({&state, 1}, expected, of_host));
        for (size_t i = before; i < before + n; ++i) {
          const double root = std::sqrt(expected.v[i] / (1 - std::pow(0.99, update)));
          const double correction = 1 - std::pow(0.9, update);
          const double step = 0.01 * (std::abs(start.m[i]) + 0.1) / correction / root;
          ASSERT_NEAR(host.parameters[i], expected.parameters[i],
                      16 * 0x1p-24 * (std::abs(expected.parameters[i]) + step))
              << i;
        }
      }
      state.skips = true;
      const DeviceArray<UpdateState> skipping = on_gpu(state);
      cuda::adamw(stream, adamw_args(skipping.span(), device, of_device));
      expect_equal_bits(device.parameters.get(), host.parameters, "parameter, skipped");
      expect_equal_bits(device.m.get(), host.m, "m, skipped");
      expect_equal_bits(device.v.get(), host.v, "v, skipped");
    }
  }
}

double squares_on_gpu(const Stream& stream, const DeviceArray<float>& x, size_t before) {
  DeviceArray<double> sum(1), scratch(kSquaresBlocks);
  forbid_reading(scratch.data(), scratch.size() * sizeof(double));
  cuda::sum_of_squares(
      stream, {.x = x.span().subspan(before), .sum = sum.span(), .scratch = scratch.span()});
  expect_no_findings();
  return sum.get()[0];
}

TEST_F(CudaOptimizer, SumOfSquaresAgreesWithTheReference) {
  // The last has more pieces than there are blocks.
  for (const int64_t n : {0, 1, 4095, 4097, 30001, kSquaresBlocks * 4096 + 4099}) {
    const std::vector<float> values = random_floats(n, rng);
    const DeviceArray<float> x(values);
    const double got = squares_on_gpu(stream, x, 0);
    // The reference is one chain.
    const double want = ref::sum_of_squares(values);
    EXPECT_NEAR(got, want, 0x1p-53 * static_cast<double>(n + 64) * want) << n;
    EXPECT_EQ(squares_on_gpu(stream, x, 0), got);
    if (n > 30001 || n == 0) continue;
    // Elsewhere in memory, with the same bits.
    std::vector<float> shifted = values;
    shifted.insert(shifted.begin(), NAN);
    EXPECT_EQ(squares_on_gpu(stream, DeviceArray<float>(shifted), 1), got) << n;
  }
}

TEST_F(CudaOptimizer, SumOfSquaresOfWhatIsNotFinite) {
  const auto with = [&](size_t at, float value) {
    std::vector<float> values = random_floats(5000, rng);
    values[at] = value;
    return squares_on_gpu(stream, DeviceArray<float>(values), 0);
  };
  for (const size_t at : {0, 4095, 4999}) {
    EXPECT_EQ(with(at, INFINITY), INFINITY);
    EXPECT_EQ(with(at, -INFINITY), INFINITY);
    EXPECT_TRUE(std::isnan(with(at, NAN)));
    // No overflow in double: the other squares are below its last place.
    EXPECT_EQ(with(at, 3e38f), double{3e38f} * double{3e38f});
  }
}

}  // namespace
}  // namespace tailrace
