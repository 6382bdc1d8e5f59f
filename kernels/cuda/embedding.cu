// Rows of a table, and the addition of the residual stream: four elements a thread.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/rows.cuh"

namespace tailrace::cuda {
namespace {

constexpr int kRowThreads = 256;
constexpr int64_t kRowElements = 4 * kRowThreads;

dim3 grid_of(int64_t rows, int64_t cols) {
  return dim3(static_cast<unsigned>(rows),
              static_cast<unsigned>((cols + kRowElements - 1) / kRowElements));
}
__device__ __forceinline__ int64_t first_element() {
  return 4 * (static_cast<int64_t>(blockIdx.y) * kRowThreads + threadIdx.x);
}

// y[r] = scale * table[rows[r]]
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    take_rows_kernel(MatrixView<const T> table, const int32_t* rows, MatrixView<float> y,
                     float scale, bool wide) {
  const int64_t i = first_element(), row = blockIdx.x, left = y.cols - i;
  if (left <= 0) return;
  const float4 v = load_four(table.row(rows[row]) + i, left, wide);
  store_four(y.row(row) + i, make_float4(scale * v.x, scale * v.y, scale * v.z, scale * v.w), left,
             wide);
}

template <class T>
void take_rows(const Stream& stream, MatrixView<const T> table, std::span<const int32_t> rows,
               MatrixView<float> y, float scale) {
  if (y.rows == 0 || y.cols == 0) return;
  const bool wide = rows_are_wide(table.data, table.stride) && rows_are_wide(y.data, y.stride);
  launch(take_rows_kernel<T>, grid_of(y.rows, y.cols), dim3(kRowThreads), 0, stream, table,
         rows.data(), y, scale, wide);
}

__global__ void __launch_bounds__(kRowThreads)
    add_kernel(MatrixView<const float> x, MatrixView<float> y, bool wide) {
  const int64_t i = first_element(), row = blockIdx.x, left = y.cols - i;
  if (left <= 0) return;
  const float4 a = load_four(y.row(row) + i, left, wide), b = load_four(x.row(row) + i, left, wide);
  store_four(y.row(row) + i, make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w), left, wide);
}

}  // namespace

void embedding(const Stream& stream, const Embedding& args) {
  const Weight& table = args.table;
  TR_CHECK(args.y.rows == static_cast<int64_t>(args.ids.size()) && args.y.cols == table.in);
  const auto y = args.y.on<float>(stream.device);
  if (table.dtype == Dtype::kF32) {
    take_rows(stream, rows_of<float>(table), args.ids, y, args.scale);
  } else {
    take_rows(stream, rows_of<Bf16>(table), args.ids, y, args.scale);
  }
}

void gather_rows(const Stream& stream, const GatherRows& args) {
  TR_CHECK(args.y.rows == static_cast<int64_t>(args.rows.size()) && args.y.cols == args.x.cols);
  take_rows(stream, args.x.on<float>(stream.device), args.rows, args.y.on<float>(stream.device), 1);
}

void add(const Stream& stream, const Add& args) {
  TR_CHECK(args.x.rows == args.y.rows && args.x.cols == args.y.cols);
  const auto x = args.x.on<float>(stream.device);
  const auto y = args.y.on<float>(stream.device);
  if (y.rows == 0 || y.cols == 0) return;
  const bool wide = rows_are_wide(x.data, x.stride) && rows_are_wide(y.data, y.stride);
  launch(add_kernel, grid_of(y.rows, y.cols), dim3(kRowThreads), 0, stream, x, y, wide);
}

}  // namespace tailrace::cuda
