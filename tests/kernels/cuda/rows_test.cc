// Ops on a GPU that treat each row, or each element, on its own: against the plain loops of
// kernels/ref, over lengths that no vector divides.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/ref/ref.h"
#include "tests/kernels/cuda/device_array.h"

namespace tailrace {
namespace {

using namespace cuda_testing;

constexpr float kUnit = 0x1p-24f, kBf16Unit = 0x1p-8f;

class CudaRows : public ::testing::Test {
 protected:
  ~CudaRows() override { expect_no_findings(); }
  std::mt19937 rng{5};
  const Stream stream = gpu_stream();
};

struct Shape {
  int64_t rows, cols;
};
const std::vector<Shape> kShapes = {{0, 8},   {1, 1},    {3, 17},  {2, 64},
                                    {5, 129}, {33, 172}, {2, 1030}};

Matrix host(std::vector<float>& values, Shape shape) {
  return {values.data(), shape.rows, shape.cols};
}

// Within some roundings of each value, and those of what it is stored as.
template <class T>
void expect_close(const std::vector<float>& got, const std::vector<float>& want, double roundings,
                  const char* what, double least = 1e-30) {
  ASSERT_EQ(got.size(), want.size()) << what;
  const double unit = std::is_same_v<T, Bf16> ? kBf16Unit : 0;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], (roundings * kUnit + unit) * std::abs(want[i]) + least)
        << what << " " << i;
}

template <class In, class Out>
void check_norm(const Stream& stream, std::mt19937& rng, Shape shape, int64_t heads,
                bool with_residual) {
  const Shape all{shape.rows, shape.cols * heads};
  const int64_t size = all.rows * all.cols;
  DeviceMatrix<In> x(all.rows, all.cols, random_floats(size, rng));
  DeviceMatrix<float> residual(all.rows, all.cols, random_floats(size, rng)),
      sum(all.rows, all.cols);
  DeviceMatrix<Out> y(all.rows, all.cols);
  DeviceArray<float> weight(random_floats(shape.cols, rng));
  DeviceArray<float> inv_rms(static_cast<size_t>(all.rows * heads));
  RmsNorm args{.x = x.view(),
               .weight = weight.span(),
               .eps = 1e-5f,
               .y = y.view(),
               .inv_rms = inv_rms.span()};
  if (with_residual) {
    args.residual = residual.view();
    args.sum = sum.view();
  }
  cuda::rms_norm(stream, args);
  std::vector<float> in = x.get(), want(in.size()), inv(inv_rms.size());
  if (with_residual) {
    const std::vector<float> added = residual.get();
    for (size_t i = 0; i < in.size(); ++i) in[i] += added[i];
    EXPECT_EQ(sum.get(), in);
  }
  ref::rms_norm(host(in, all), weight.get(), 1e-5f, host(want, all), inv);
  const double roundings = static_cast<double>(shape.cols) / 32 + 16;
  expect_close<Out>(y.get(), want, roundings, "y");
  expect_close<float>(inv_rms.get(), inv, roundings, "inv_rms");
  y.expect_canaries();
  sum.expect_canaries();

  // A row alone, elsewhere in memory, has the same bits.
  if (all.rows < 2) return;
  DeviceMatrix<Out> one(1, all.cols);
  const int64_t last = all.rows - 1;
  args.x = args.x.slice_rows(last, all.rows);
  args.y = one.view();
  args.inv_rms = {};
  if (with_residual) {
    args.residual = args.residual.slice_rows(last, all.rows);
    args.sum = args.sum.slice_rows(last, all.rows);
  }
  cuda::rms_norm(stream, args);
  const std::vector<float> batch = y.get(), alone = one.get();
  EXPECT_EQ(std::memcmp(alone.data(), batch.data() + last * all.cols, alone.size() * sizeof(float)),
            0);
}

TEST_F(CudaRows, RmsNormAgreesWithTheReference) {
  for (const Shape shape : kShapes) {
    check_norm<float, float>(stream, rng, shape, 1, false);
    check_norm<float, Bf16>(stream, rng, shape, 1, true);
    check_norm<Bf16, Bf16>(stream, rng, shape, 3, false);
    check_norm<Bf16, float>(stream, rng, shape, 2, true);
  }
}

TEST_F(CudaRows, RmsNormWorksInPlace) {
  DeviceMatrix<float> x(5, 300, random_floats(1500, rng)), y(5, 300),
      residual(5, 300, random_floats(1500, rng));
  DeviceMatrix<float> sum(5, 300);
  DeviceArray<float> weight(random_floats(300, rng));
  cuda::rms_norm(stream, {.x = x.view(),
                          .weight = weight.span(),
                          .eps = 1e-6f,
                          .y = y.view(),
                          .residual = residual.view(),
                          .sum = sum.view()});
  DeviceMatrix<float> other(5, 300);
  cuda::rms_norm(stream, {.x = x.view(),
                          .weight = weight.span(),
                          .eps = 1e-6f,
                          .y = other.view(),
                          .residual = residual.view(),
                          .sum = x.view()});
  EXPECT_EQ(other.get(), y.get());
  EXPECT_EQ(x.get(), sum.get());
}

template <class T>
void check_swiglu(const Stream& stream, std::mt19937& rng, Shape shape, GateActivation activation) {
  // Halves of one matrix: the second begins wherever the first ends.
  DeviceMatrix<T> both(shape.rows, 2 * shape.cols,
                       random_floats(shape.rows * 2 * shape.cols, rng, 3));
  DeviceMatrix<T> y(shape.rows, shape.cols);
  cuda::swiglu(stream, {.gate = both.view().slice_cols(0, shape.cols),
                        .up = both.view().slice_cols(shape.cols, 2 * shape.cols),
                        .y = y.view(),
                        .activation = activation});
  std::vector<float> in = both.get(), want(static_cast<size_t>(shape.rows * shape.cols));
  const Matrix halves(in.data(), shape.rows, 2 * shape.cols);
  ref::swiglu(halves.slice_cols(0, shape.cols), halves.slice_cols(shape.cols, 2 * shape.cols),
              host(want, shape), activation);
  // GELU's exponent is rounded some times itself, and far below 0 the reference's 1 + tanh loses
  // its digits.
  const bool gelu = activation == GateActivation::kGeluTanh;
  expect_close<T>(y.get(), want, gelu ? 200 : 64, "y", gelu ? 1e-13 : 1e-30);
  y.expect_canaries();

  // Matrices of their own, of which all rows begin at wide places.
  std::vector<float> gates, ups;
  for (int64_t r = 0; r < shape.rows; ++r) {
    const auto row = in.begin() + r * 2 * shape.cols;
    gates.insert(gates.end(), row, row + shape.cols);
    ups.insert(ups.end(), row + shape.cols, row + 2 * shape.cols);
  }
  const DeviceMatrix<T> gate(shape.rows, shape.cols, gates), up(shape.rows, shape.cols, ups);
  DeviceMatrix<T> other(shape.rows, shape.cols);
  cuda::swiglu(stream,
               {.gate = gate.view(), .up = up.view(), .y = other.view(), .activation = activation});
  EXPECT_EQ(other.get(), y.get());
  other.expect_canaries();
}

TEST_F(CudaRows, SwigluAgreesWithTheReference) {
  for (const Shape shape : kShapes)
    for (const auto activation : {GateActivation::kSilu, GateActivation::kGeluTanh}) {
      check_swiglu<float>(stream, rng, shape, activation);
      check_swiglu<Bf16>(stream, rng, shape, activation);
    }
}

TEST_F(CudaRows, RowsAreTakenScaledAndAdded) {
  for (const Shape shape : kShapes) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      constexpr int64_t kVocab = 11;
      std::vector<float> table = random_floats(kVocab * shape.cols, rng);
      Buffer memory(cuda::weight_bytes(dtype, kVocab, shape.cols), kGpu);
      Weight weight = cuda::pack_weight(stream, Matrix(table.data(), kVocab, shape.cols), dtype,
                                        {memory.bytes().data, memory.size()});
      weight.device = kGpu;
      std::vector<int32_t> ids;
      for (int64_t r = 0; r < shape.rows; ++r)
        ids.push_back(static_cast<int32_t>((r * 7 + 3) % kVocab));
      const DeviceArray<int32_t> device_ids(ids);
      DeviceMatrix<float> y(shape.rows, shape.cols);
      cuda::embedding(stream,
                      {.table = weight, .ids = device_ids.span(), .y = y.view(), .scale = 1.5f});
      std::vector<float> want(static_cast<size_t>(shape.rows * shape.cols));
      if (dtype == Dtype::kBF16)
        for (float& x : table) x = to_float(to_bf16(x));
      ref::embedding(Matrix(table.data(), kVocab, shape.cols), ids, host(want, shape), 1.5f);
      EXPECT_EQ(y.get(), want);
      y.expect_canaries();
      if (shape.rows == 0) continue;

      const std::vector<int32_t> rows = {static_cast<int32_t>(shape.rows) - 1, 0};
      const DeviceArray<int32_t> device_rows(rows);
      DeviceMatrix<float> taken(2, shape.cols);
      cuda::gather_rows(stream, {.x = y.view(), .rows = device_rows.span(), .y = taken.view()});
      const std::vector<float> before = taken.get();
      for (int64_t i = 0; i < shape.cols; ++i) {
        EXPECT_EQ(before[i], want[(shape.rows - 1) * shape.cols + i]);
        EXPECT_EQ(before[shape.cols + i], want[i]);
      }
      cuda::add(stream, {.x = y.view().slice_rows(0, 1), .y = taken.view().slice_rows(1, 2)});
      const std::vector<float> after = taken.get();
      for (int64_t i = 0; i < shape.cols; ++i) EXPECT_EQ(after[shape.cols + i], 2 * want[i]);
      taken.expect_canaries();
    }
  }
}

template <class In, class Out>
void check_gather(const Stream& stream, std::mt19937& rng, Shape shape) {
  DeviceMatrix<In> x(shape.rows, shape.cols, random_floats(shape.rows * shape.cols, rng));
  std::vector<int32_t> rows;
  for (int64_t r = 0; shape.rows > 0 && r < shape.rows + 2; ++r)
    rows.push_back(static_cast<int32_t>((r * 5 + 2) % shape.rows));
  const DeviceArray<int32_t> device_rows(rows);
  DeviceMatrix<Out> y(std::ssize(rows), shape.cols);
  cuda::gather_rows(stream, {.x = x.view(), .rows = device_rows.span(), .y = y.view()});
  const std::vector<float> from = x.get();
  std::vector<float> want;
  for (const int32_t row : rows)
    for (int64_t c = 0; c < shape.cols; ++c) {
      const float value = from[static_cast<size_t>(row * shape.cols + c)];
      want.push_back(std::is_same_v<Out, Bf16> ? to_float(to_bf16(value)) : value);
    }
  EXPECT_EQ(y.get(), want);
  y.expect_canaries();
}

TEST_F(CudaRows, RowsAreGatheredFromAndAsEachDtype) {
  for (const Shape shape : kShapes) {
    check_gather<float, float>(stream, rng, shape);
    check_gather<float, Bf16>(stream, rng, shape);
    check_gather<Bf16, float>(stream, rng, shape);
    check_gather<Bf16, Bf16>(stream, rng, shape);
  }
}

TEST_F(CudaRows, DrawnTokensAreTaken) {
  for (const int32_t count : {0, 1, 3, 255, 257, 700}) {
    // Of several draws one is -1, which is no id; the host knows two tokens of three.
    const int32_t draws = count / 3 + 1;
    std::vector<int32_t> drawn, from, ids, want;
    for (int32_t r = 0; r < draws; ++r) drawn.push_back(r % 5 == 4 ? -1 : 1000 + r);
    for (int32_t t = 0; t < count; ++t) {
      from.push_back(t % 3 == 0 ? (t * 7) % draws : -1);
      ids.push_back(t);
      want.push_back(from.back() < 0 ? t : std::max(drawn[static_cast<size_t>(from.back())], 0));
    }
    constexpr int32_t kCanary = -77;
    ids.push_back(kCanary);
    want.push_back(kCanary);
    DeviceArray<int32_t> device_ids(ids);
    const DeviceArray<int32_t> device_drawn(drawn), device_from(from);
    for (int time = 0; time < 2; ++time) {
      cuda::take_drawn(stream, {.drawn = device_drawn.span(),
                                .from = device_from.span(),
                                .ids = device_ids.span().first(static_cast<size_t>(count))});
      EXPECT_EQ(device_ids.get(), want) << count;
      expect_no_findings();
    }
  }
}

TEST_F(CudaRows, DrawnTokensEndTheirSequences) {
  constexpr int32_t kSpare = 99, kMaxBlocks = 3;
  for (const int32_t count : {0, 1, 7, 255, 257}) {
    // Draw r is the id r; those of r % 3 == 0 are among their stop tokens, each in another place.
    std::vector<int32_t> drawn, stops, from, ids, positions, tables;
    for (int32_t r = 0; r < count; ++r) {
      drawn.push_back(r % 11 == 10 ? -1 : r);
      for (int32_t i = 0; i < kDrawnStops; ++i)
        stops.push_back(i > r % kDrawnStops                  ? -1
                        : r % 3 == 0 && i == r % kDrawnStops ? r
                                                             : r + 1 + i);
      from.push_back(r % 5 == 4 ? -1 : count - 1 - r);
      ids.push_back(1000 + r);
      positions.push_back(20 + r);
      for (int32_t b = 0; b < kMaxBlocks; ++b) tables.push_back(kMaxBlocks * r + b);
    }
    std::vector<int32_t> want_ids = ids, want_positions = positions, want_tables = tables;
    for (int32_t t = 0; t < count; ++t) {
      const int32_t r = from[t];
      if (r < 0 || drawn[r] < 0 || r % 3 != 0) continue;
      want_ids[t] = want_positions[t] = 0;
      want_tables[t * kMaxBlocks] = kSpare;
    }
    DeviceArray<int32_t> device_ids(ids), device_positions(positions), device_tables(tables);
    const DeviceArray<int32_t> device_drawn(drawn), device_stops(stops), device_from(from);
    cuda::end_drawn(stream, {.drawn = device_drawn.span(),
                             .stops = device_stops.span(),
                             .from = device_from.span(),
                             .ids = device_ids.span(),
                             .positions = device_positions.span(),
                             .block_tables = device_tables.span(),
                             .max_blocks = kMaxBlocks,
                             .spare = kSpare});
    EXPECT_EQ(device_ids.get(), want_ids) << count;
    EXPECT_EQ(device_positions.get(), want_positions) << count;
    EXPECT_EQ(device_tables.get(), want_tables) << count;
    expect_no_findings();
  }
}

// Matrices in which no four elements of a row, or of some rows, are one access: x and y each alone.
TEST_F(CudaRows, RowsAreTakenAndAddedInAnyPlace) {
  constexpr int64_t kRows = 4, kCols = 12;
  struct Place {
    int64_t before, stride;
    Tensor in(DeviceArray<float>& memory, int64_t rows) const {
      Tensor tensor(reinterpret_cast<std::byte*>(memory.data() + before), rows, kCols, Dtype::kF32,
                    kGpu);
      tensor.stride = stride;
      return tensor;
    }
  };
  const std::vector<Place> places = {{0, 16}, {3, 16}, {0, 15}};
  const DeviceArray<int32_t> rows(std::vector<int32_t>{3, 1});
  for (const Place& of_x : places) {
    for (const Place& of_y : places) {
      const std::vector<float> values = random_floats(kRows * of_x.stride, rng);
      DeviceArray<float> memory(values), result(std::vector<float>(2 * 16, 7));
      const ConstTensor x = of_x.in(memory, kRows);
      const Tensor y = of_y.in(result, 2);
      cuda::gather_rows(stream, {.x = x, .rows = rows.span(), .y = y});
      cuda::add(stream, {.x = x.slice_rows(0, 2), .y = y});
      std::vector<float> want(2 * 16, 7);
      for (int64_t r = 0; r < 2; ++r)
        for (int64_t c = 0; c < kCols; ++c) {
          const auto at = [&](int64_t row) {
            return values[static_cast<size_t>(of_x.before + row * of_x.stride + c)];
          };
          want[static_cast<size_t>(of_y.before + r * of_y.stride + c)] = at(r == 0 ? 3 : 1) + at(r);
        }
      EXPECT_EQ(result.get(), want)
          << of_x.before << "/" << of_x.stride << ", " << of_y.before << "/" << of_y.stride;
    }
  }
}

}  // namespace
}  // namespace tailrace
