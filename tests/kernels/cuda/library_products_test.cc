// Which products go through a library, how that is proved, and what becomes of the others. In the
// place of cuBLASLt stand libraries that multiply by our own kernels, some of them with a mistake.
#include <algorithm>
#include <cstring>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/backend.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/product_table.h"
#include "tests/kernels/cuda/device_array.h"

namespace tailrace {
namespace {

using cuda::LibraryAlgorithm;
using cuda::LibraryProduct;
using cuda::ProductKind;
using cuda_testing::DeviceArray;
using cuda_testing::DeviceMatrix;
using cuda_testing::expect_no_findings;
using cuda_testing::gpu_stream;
using cuda_testing::kGpu;
using cuda_testing::random_floats;

constexpr int64_t kMostRows = 512;

// Multiplies by our kernels. `mistake_at`: of products with so many rows, one bit of one element
// of the last row is wrong.
class LibraryOfOurs : public cuda::LibraryProducts {
 public:
  std::string version() const override { return "ours 1"; }
  std::vector<LibraryAlgorithm> choose(const Stream&, const LibraryProduct&) override {
    return {{{1}}, {{2}}};
  }
  bool check(const Stream&, const LibraryProduct& p, const LibraryAlgorithm& algorithm) override {
    return p.m != refuses_rows && (only_algorithm == 0 || algorithm.data[0] == only_algorithm);
  }
  bool multiply(const Stream& stream, const LibraryProduct& p,
                const LibraryAlgorithm& algorithm) override {
    if (refuses_all || p.m == 0) return false;
    rows_made.push_back(p.m);
    last_algorithm = algorithm.data[0];
    if (p.kind == ProductKind::kForward) {
      cuda::multiply_bf16(stream, {.x = p.a,
                                   .x_stride = p.a_stride,
                                   .weight = p.b,
                                   .weight_stride = p.b_stride,
                                   .y = p.c,
                                   .y_is_float = p.c_is_float,
                                   .y_stride = p.c_stride,
                                   .tokens = p.m,
                                   .out = p.n,
                                   .in = p.k,
                                   .add = p.add});
    } else {
      multiply_gradient(stream, p);
    }
    if (p.m == mistake_at || (p.kind != ProductKind::kForward && gradients_differ))
      flip_bit(stream, p);
    return true;
  }

  int64_t refuses_rows = -1, mistake_at = -1;
  uint64_t only_algorithm = 0;
  bool refuses_all = false, gradients_differ = false;
  std::vector<int64_t> rows_made;
  uint64_t last_algorithm = 0;

 private:
  // Our kernel takes dy as floats.
  static void multiply_gradient(const Stream& stream, const LibraryProduct& p) {
    const int64_t rows = p.kind == ProductKind::kGradWeight ? p.k : p.m;
    std::vector<Bf16> rounded(static_cast<size_t>(rows * p.a_stride));
    copy(stream, bytes_of(std::span(rounded)),
         {kGpu, reinterpret_cast<const std::byte*>(p.a), rounded.size() * sizeof(Bf16)});
    wait(stream);
    std::vector<float> values(rounded.size());
    std::ranges::transform(rounded, values.begin(), [](Bf16 x) { return to_float(x); });
    const DeviceArray<float> dy(values);
    cuda::multiply_grad(stream, p.kind,
                        {.a = dy.data(),
                         .a_stride = p.a_stride,
                         .b = p.b,
                         .b_stride = p.b_stride,
                         .c = static_cast<float*>(p.c),
                         .c_stride = p.c_stride,
                         .m = p.m,
                         .n = p.n,
                         .k = p.k,
                         .add = p.add});
    wait(stream);
  }
  void flip_bit(const Stream& stream, const LibraryProduct& p) const {
    const int64_t element = (p.m - 1) * p.c_stride + p.n / 2;
    std::byte* const at = static_cast<std::byte*>(p.c) + element * (p.c_is_float ? 4 : 2);
    std::byte byte{};
    copy(stream, {{}, &byte, 1}, {kGpu, at, 1});
    wait(stream);
    byte ^= std::byte{1};
    copy(stream, {kGpu, at, 1}, {{}, &byte, 1});
    wait(stream);
  }
};

LibraryOfOurs* g_library = nullptr;

// A library for one test. The process has none before and after it.
class CudaLibraryProducts : public ::testing::Test {
 protected:
  CudaLibraryProducts() {
    gpu_stream();
    g_library = &library_;
    cuda::provide_library([]() -> cuda::LibraryProducts* { return g_library; });
  }
  ~CudaLibraryProducts() override {
    cuda::provide_library(nullptr);
    expect_no_findings();
  }

  LibraryOfOurs library_;
};

constexpr int64_t kLayerOut = 40, kLayerIn = 72;

struct Layer {
  DeviceArray<std::byte> memory;
  Weight weight;
  explicit Layer(std::mt19937& rng, int64_t out = kLayerOut, int64_t in = kLayerIn)
      : memory(cuda::weight_bytes(Dtype::kBF16, out, in)) {
    const auto master = random_floats(out * in, rng);
    weight = cuda::pack_weight(gpu_stream(), ConstMatrix(master.data(), out, in), Dtype::kBF16,
                               memory.span());
  }
};

void expect_same_bits(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  EXPECT_EQ(std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(float)), 0);
}

template <class Y>
std::vector<float> forward(const Weight& weight, int64_t tokens, bool accumulate,
                           std::span<const float> bias = {}) {
  std::mt19937 rng(3);
  const DeviceMatrix<Bf16> x(tokens, weight.in, random_floats(tokens * weight.in, rng));
  DeviceMatrix<Y> y(tokens, weight.out, random_floats(tokens * weight.out, rng));
  cuda::linear(
      gpu_stream(),
      {.x = x.view(), .weight = weight, .bias = bias, .y = y.view(), .accumulate = accumulate});
  return y.get();
}

TEST_F(CudaLibraryProducts, NothingIsTheLibrarysBeforeItsProof) {
  std::mt19937 rng(1);
  const Layer layer(rng);
  forward<float>(layer.weight, 300, false);
  EXPECT_TRUE(library_.rows_made.empty());
  EXPECT_EQ(cuda::proved_products(0), "");
}

TEST_F(CudaLibraryProducts, MakesRowsInPiecesOfProvedCounts) {
  std::mt19937 rng(1);
  const Layer layer(rng);
  const auto ours = forward<float>(layer.weight, 940, true);
  const auto ours_bf16 = forward<Bf16>(layer.weight, 300, false);
  cuda::prove_shape(gpu_stream(), kLayerOut, kLayerIn, kMostRows);
  library_.rows_made.clear();
  expect_same_bits(forward<float>(layer.weight, 940, true), ours);
  EXPECT_EQ(library_.rows_made, (std::vector<int64_t>{512, 256, 128}));
  EXPECT_EQ(library_.last_algorithm, 1);
  library_.rows_made.clear();
  expect_same_bits(forward<Bf16>(layer.weight, 300, false), ours_bf16);
  EXPECT_EQ(library_.rows_made, (std::vector<int64_t>{256}));
  library_.rows_made.clear();
  forward<float>(layer.weight, 127, false);
  EXPECT_TRUE(library_.rows_made.empty());
  EXPECT_EQ(cuda::proved_products(0).size(), 8);
  EXPECT_EQ(cuda::proved_products(1), "");
  // The backend names them to the class of a run.
  EXPECT_EQ(library_products(kGpu), cuda::proved_products(0));
}

TEST_F(CudaLibraryProducts, ABiasIsOurs) {
  std::mt19937 rng(1);
  const Layer layer(rng);
  const DeviceArray<float> bias(random_floats(kLayerOut, rng));
  cuda::prove_shape(gpu_stream(), kLayerOut, kLayerIn, kMostRows);
  library_.rows_made.clear();
  forward<float>(layer.weight, 300, false, bias.span());
  EXPECT_TRUE(library_.rows_made.empty());
}

TEST_F(CudaLibraryProducts, OneWrongBitAtOneRowCountIsRefused) {
  for (const int64_t rows : {128, 256, 512}) {
    library_.mistake_at = rows;
    cuda::provide_library([]() -> cuda::LibraryProducts* { return g_library; });
    EXPECT_FALSE(cuda::prove_forward(gpu_stream(), library_, kLayerOut, kLayerIn, true, kMostRows))
        << rows;
    EXPECT_FALSE(cuda::prove_forward(gpu_stream(), library_, kLayerOut, kLayerIn, false, kMostRows))
        << rows;
    cuda::prove_shape(gpu_stream(), kLayerOut, kLayerIn, kMostRows);
    std::mt19937 rng(1);
    const Layer layer(rng);
    library_.rows_made.clear();
    forward<float>(layer.weight, 600, false);
    EXPECT_TRUE(library_.rows_made.empty());
    EXPECT_EQ(cuda::proved_products(0), "");
  }
}

TEST_F(CudaLibraryProducts, AnAlgorithmThatTheCheckRefusesIsNotTaken) {
  library_.refuses_rows = 256;
  EXPECT_FALSE(cuda::prove_forward(gpu_stream(), library_, kLayerOut, kLayerIn, true, kMostRows));
  library_.refuses_rows = -1;
  library_.only_algorithm = 2;
  const auto way =
      cuda::prove_forward(gpu_stream(), library_, kLayerOut, kLayerIn, true, kMostRows);
  ASSERT_TRUE(way);
  EXPECT_EQ(way->algorithm.data[0], 2);
  EXPECT_EQ(way->most_rows, kMostRows);
}

TEST_F(CudaLibraryProducts, ARefusedProductIsOurs) {
  std::mt19937 rng(1);
  const Layer layer(rng);
  const auto ours = forward<float>(layer.weight, 300, true);
  cuda::prove_shape(gpu_stream(), kLayerOut, kLayerIn, kMostRows);
  library_.refuses_all = true;
  expect_same_bits(forward<float>(layer.weight, 300, true), ours);
}

TEST_F(CudaLibraryProducts, TheHashNamesShapesAlgorithmsAndVersion) {
  cuda::prove_shape(gpu_stream(), 8, 8, 128);
  const std::string one = cuda::proved_products(0);
  cuda::prove_shape(gpu_stream(), 8, 8, 128);
  EXPECT_EQ(cuda::proved_products(0), one);
  cuda::prove_shape(gpu_stream(), 8, 16, 128);
  EXPECT_NE(cuda::proved_products(0), one);
  library_.only_algorithm = 2;
  cuda::provide_library([]() -> cuda::LibraryProducts* { return g_library; });
  EXPECT_EQ(cuda::proved_products(0), "");
  cuda::prove_shape(gpu_stream(), 8, 8, 128);
  EXPECT_NE(cuda::proved_products(0), one);
}

struct Gradients {
  std::vector<float> dx, dweight;
};
Gradients gradients(const Weight& weight, int64_t tokens) {
  std::mt19937 rng(4);
  const DeviceMatrix<float> dy(tokens, weight.out, random_floats(tokens * weight.out, rng));
  const DeviceMatrix<Bf16> x(tokens, weight.in, random_floats(tokens * weight.in, rng));
  DeviceMatrix<float> dx(tokens, weight.in, random_floats(tokens * weight.in, rng));
  DeviceMatrix<float> dweight(weight.out, weight.in, random_floats(weight.out * weight.in, rng));
  DeviceArray<std::byte> scratch(cuda::linear_grad_workspace_bytes(tokens, weight.out, weight.in));
  Workspace workspace(scratch.span(), kGpu);
  cuda::linear_grad_input(gpu_stream(), workspace,
                          {.dy = dy.view(), .weight = weight, .dx = dx.view(), .accumulate = true});
  cuda::linear_grad_weight(gpu_stream(), workspace,
                           {.dy = dy.view(), .x = x.view(), .dweight = dweight.view()});
  EXPECT_EQ(workspace.used(), 0);
  return {dx.get(), dweight.get()};
}

TEST_F(CudaLibraryProducts, GradientsAreTheLibrarysFromItsLeastRowCount) {
  std::mt19937 rng(1);
  const Layer layer(rng);
  const Gradients ours = gradients(layer.weight, 203);
  EXPECT_TRUE(library_.rows_made.empty());
  cuda::prove_shape(gpu_stream(), kLayerOut, kLayerIn, kMostRows);
  library_.rows_made.clear();
  const Gradients found = gradients(layer.weight, 203);
  EXPECT_EQ(library_.rows_made, (std::vector<int64_t>{203, kLayerOut}));
  expect_same_bits(found.dx, ours.dx);
  expect_same_bits(found.dweight, ours.dweight);
  library_.rows_made.clear();
  gradients(layer.weight, 127);
  EXPECT_TRUE(library_.rows_made.empty());
}

TEST_F(CudaLibraryProducts, AGradientThatIsWrongOnIntegersIsRefused) {
  library_.gradients_differ = true;
  for (const ProductKind kind : {ProductKind::kGradInput, ProductKind::kGradWeight})
    EXPECT_FALSE(cuda::prove_gradient(gpu_stream(), library_, kind, kLayerOut, kLayerIn, 128));
  cuda::prove_shape(gpu_stream(), kLayerOut, kLayerIn, 128);
  std::mt19937 rng(1);
  const Layer layer(rng);
  library_.rows_made.clear();
  gradients(layer.weight, 203);
  EXPECT_TRUE(library_.rows_made.empty());
}

TEST_F(CudaLibraryProducts, ARefusedGradientIsOurs) {
  std::mt19937 rng(1);
  const Layer layer(rng);
  const Gradients ours = gradients(layer.weight, 203);
  cuda::prove_shape(gpu_stream(), kLayerOut, kLayerIn, kMostRows);
  library_.refuses_all = true;
  const Gradients found = gradients(layer.weight, 203);
  expect_same_bits(found.dx, ours.dx);
  expect_same_bits(found.dweight, ours.dweight);
}

TEST(CudaLibraryWorkspace, IsTakenWhereThereIsALibrary) {
  gpu_stream();
  cuda::provide_library(nullptr);
  EXPECT_EQ(cuda::linear_grad_workspace_bytes(4096, kLayerOut, kLayerIn), 0);
}

#ifndef TAILRACE_EMULATED_GPU
// cuBLASLt itself, where the machine has it: which shapes it takes is its own affair, and the bits
// of forward are ours whichever they are.
TEST(CudaCublasLt, ChangesNoBitOfForwardAndLittleOfGradients) {
  gpu_stream();
  if (cuda::load_cublaslt() == nullptr) GTEST_SKIP() << "there is no cuBLASLt";
  constexpr int64_t kWide = 896, kNarrow = 512, kTokens = 1500;
  std::mt19937 rng(1);
  const Layer layer(rng, kWide, kNarrow);
  cuda::provide_library(nullptr);
  const auto ours = forward<float>(layer.weight, kTokens, true);
  const auto ours_bf16 = forward<Bf16>(layer.weight, kTokens, false);
  const Gradients own = gradients(layer.weight, kTokens);
  cuda::provide_library(cuda::load_cublaslt);
  cuda::prove_shape(gpu_stream(), kWide, kNarrow);
  const bool takes_forward = !cuda::proved_products(0).empty();
  const bool takes_dx =
      cuda::may_take_gradient(gpu_stream(), ProductKind::kGradInput, kTokens, kWide, kNarrow);
  const bool takes_dweight =
      cuda::may_take_gradient(gpu_stream(), ProductKind::kGradWeight, kTokens, kWide, kNarrow);
  std::cout << cuda::load_cublaslt()->version() << ": forward " << takes_forward << ", dx "
            << takes_dx << ", dW " << takes_dweight << std::endl;
  expect_same_bits(forward<float>(layer.weight, kTokens, true), ours);
  expect_same_bits(forward<Bf16>(layer.weight, kTokens, false), ours_bf16);
  const Gradients found = gradients(layer.weight, kTokens);
  // Sums of up to 1500 products of normal values, in float32: an error of their size times
  // 2^-24 * sqrt(1500) is usual, and 2^-14 far beyond it.
  for (size_t i = 0; i < own.dx.size(); ++i) ASSERT_NEAR(found.dx[i], own.dx[i], 40 * 0x1p-14);
  for (size_t i = 0; i < own.dweight.size(); ++i)
    ASSERT_NEAR(found.dweight[i], own.dweight[i], 40 * 0x1p-14);
  const Gradients again = gradients(layer.weight, kTokens);
  expect_same_bits(again.dx, found.dx);
  expect_same_bits(again.dweight, found.dweight);
  cuda::provide_library(nullptr);
}
#endif

}  // namespace
}  // namespace tailrace
