// The gradient of the head on a GPU, against plain loops.
#include <algorithm>
#include <random>
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
using cuda_testing::kGpu;
using cuda_testing::random_floats;

struct HeadCase {
  int64_t rows = 9, vocab = 1043, dim = 40;
  bool with_entropy = true, with_sets = true, with_weight = true;
};
struct HeadGradient {
  std::vector<float> dhidden, dweight;
};

std::vector<float> as_bf16(std::vector<float> values) {
  for (float& x : values) x = to_float(to_bf16(x));
  return values;
}

// A head, and what comes to it from a loss. Values are those of bfloat16.
struct HeadData {
  HeadCase how;
  std::vector<float> hidden, weight, dlogprob, dentropy, lse, entropy, dweight;
  std::vector<int32_t> targets, ids;
  std::vector<int64_t> offsets = {0};

  explicit HeadData(const HeadCase& given) : how(given) {
    std::mt19937 rng(7);
    hidden = as_bf16(random_floats(how.rows * how.dim, rng));
    weight = as_bf16(random_floats(how.vocab * how.dim, rng, 0.3f));
    dlogprob = random_floats(how.rows, rng);
    dentropy = random_floats(how.rows, rng, 0.1f);
    dweight = random_floats(how.vocab * how.dim, rng);
    // A row without any gradient, and one of the entropy alone.
    if (how.rows > 3) dlogprob[2] = dentropy[2] = dlogprob[3] = 0;
    for (int64_t r = 0; r < how.rows; ++r) {
      targets.push_back(static_cast<int32_t>((r * 131) % how.vocab));
      const int64_t step = r % 3 == 0 ? how.vocab + 1 : 1 + r % 3;
      for (int64_t id = targets.back() % step; r % 3 != 0 && id < how.vocab; id += step)
        ids.push_back(static_cast<int32_t>(id));
      offsets.push_back(std::ssize(ids));
    }
    lse.resize(static_cast<size_t>(how.rows));
    entropy = lse;
    std::vector<float> logprob(lse.size());
    ref::linear_logprob(head(), {weight.data(), how.vocab, how.dim}, {logprob, lse, entropy});
  }
  LogprobHead head() const {
    return {.hidden = ConstMatrix(hidden.data(), how.rows, how.dim),
            .weight = {},
            .targets = targets,
            .inv_temperature = 0.9f,
            .kept = how.with_sets ? KeptSets{offsets, ids} : KeptSets{}};
  }

  HeadGradient expected() const {
    HeadGradient result{std::vector<float>(hidden.size()), dweight};
    ref::linear_logprob_backward(
        head(), {weight.data(), how.vocab, how.dim},
        {.lse = lse,
         .entropy = entropy,
         .dlogprob = dlogprob,
         .dentropy = how.with_entropy ? std::span<const float>(dentropy) : std::span<const float>(),
         .dhidden = Matrix(result.dhidden.data(), how.rows, how.dim),
         .dweight = Matrix(result.dweight.data(), how.vocab, how.dim)});
    return result;
  }

  template <class X>
  HeadGradient run(Dtype dtype) const {
    const DeviceMatrix<X> x(how.rows, how.dim, hidden);
    DeviceArray<std::byte> packed(cuda::weight_bytes(dtype, how.vocab, how.dim));
    const Weight on_device = cuda::pack_weight(
        gpu_stream(), ConstMatrix(weight.data(), how.vocab, how.dim), dtype, packed.span());
    const DeviceArray<int32_t> device_targets(targets), device_ids(ids);
    const DeviceArray<int64_t> device_offsets(offsets);
    const DeviceArray<float> device_lse(lse), device_entropy(entropy), dl(dlogprob), dh(dentropy);
    DeviceMatrix<float> dhidden(how.rows, how.dim), to_weight(how.vocab, how.dim, dweight);
    DeviceArray<std::byte> scratch(
        cuda::linear_logprob_workspace_bytes(how.rows, how.vocab, how.dim));
    Workspace workspace(scratch.span(), kGpu);
    const std::span<const float> none;
    cuda::linear_logprob_backward(
        gpu_stream(), workspace,
        {.head = {.hidden = x.view(),
                  .weight = on_device,
                  .targets = device_targets.span(),
                  .inv_temperature = 0.9f,
                  .kept = how.with_sets ? KeptSets{device_offsets.span(), device_ids.span()}
                                        : KeptSets{}},
         .gradient = {.lse = device_lse.span(),
                      .entropy = how.with_entropy ? device_entropy.span() : none,
                      .dlogprob = dl.span(),
                      .dentropy = how.with_entropy ? dh.span() : none,
                      .dhidden = dhidden.view(),
                      .dweight = how.with_weight ? to_weight.view() : Tensor{}}});
    expect_no_findings();
    dhidden.expect_canaries();
    to_weight.expect_canaries();
    return {dhidden.get(), to_weight.get()};
  }
};

void expect_gradient(const std::vector<float>& actual, const std::vector<float>& expected,
                     double tolerance, const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], expected[i], tolerance) << what << " at " << i;
}

template <class X>
void expect_head(const HeadCase& how, Dtype dtype, double tolerance) {
  const HeadData data(how);
  const HeadGradient actual = data.run<X>(dtype), expected = data.expected();
  expect_gradient(actual.dhidden, expected.dhidden, tolerance, "dhidden");
  expect_gradient(actual.dweight, how.with_weight ? expected.dweight : data.dweight, tolerance,
                  "dweight");
  for (int64_t i = 0; how.rows > 3 && i < how.dim; ++i)
    EXPECT_EQ(actual.dhidden[static_cast<size_t>(2 * how.dim + i)], 0) << "a row without gradient";
  const HeadGradient again = data.run<X>(dtype);
  EXPECT_TRUE(again.dhidden == actual.dhidden && again.dweight == actual.dweight);
}

TEST(CudaLinearLogprobBackward, IsThatOfPlainLoops) {
  for (const bool with_sets : {false, true}) {
    for (const bool with_entropy : {false, true}) {
      SCOPED_TRACE(with_sets * 2 + with_entropy);
      const HeadCase how{.with_entropy = with_entropy, .with_sets = with_sets};
      expect_head<float>(how, Dtype::kF32, 2e-5);
      // dlogits are rounded to bfloat16: half a unit in the last place of elements of up to 3, of
      // which a sum has few.
      expect_head<Bf16>(how, Dtype::kBF16, 1.5e-2);
    }
  }
}

TEST(CudaLinearLogprobBackward, AFrozenHeadHasNoGradientOfItsOwn) {
  expect_head<float>({.rows = 3, .vocab = 33, .dim = 8, .with_weight = false}, Dtype::kF32, 2e-5);
  expect_head<float>({.rows = 0, .vocab = 33, .dim = 8}, Dtype::kF32, 0);
}

}  // namespace
}  // namespace tailrace
