// Rows of a table, and the addition of the residual stream: four elements a thread. Tokens that
// were drawn: one a thread. Nothing is summed.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/rows.cuh"

namespace tailrace::cuda {
namespace {

// y[r] = scale * table[rows[r]]
template <class In, class Out>
__global__ void __launch_bounds__(kRowThreads)
    take_rows_kernel(MatrixView<const In> table, const int32_t* rows, MatrixView<Out> y,
                     float scale, bool wide) {
  const int64_t i = own_element(), row = blockIdx.x, left = y.cols - i;
  if (left <= 0) return;
  const float4 v = load_four(table.row(rows[row]) + i, left, wide);
  store_four(y.row(row) + i, make_float4(scale * v.x, scale * v.y, scale * v.z, scale * v.w), left,
             wide);
}

template <class In, class Out>
void take_rows(const Stream& stream, MatrixView<const In> table, std::span<const int32_t> rows,
               MatrixView<Out> y, float scale) {
  if (y.rows == 0 || y.cols == 0) return;
  const bool wide = rows_are_wide(table.data, table.stride) && rows_are_wide(y.data, y.stride);
  launch(take_rows_kernel<In, Out>, grid_of_rows(y.rows, y.cols), dim3(kRowThreads), 0, stream,
         table, rows.data(), y, scale, wide);
}

__global__ void __launch_bounds__(kRowThreads)
    take_drawn_kernel(const int32_t* drawn, const int32_t* from, int32_t* ids, int64_t count) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (t >= count) return;
  const int32_t row = from[t];
  if (row < 0) return;
  const int32_t id = drawn[row];
  ids[t] = id < 0 ? 0 : id;
}

__global__ void __launch_bounds__(kRowThreads)
    add_kernel(MatrixView<const float> x, MatrixView<float> y, bool wide) {
  const int64_t i = own_element(), row = blockIdx.x, left = y.cols - i;
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
  const Device device = stream.device;
  const auto take_from = [&](auto x) {
    if (args.y.dtype == Dtype::kF32)
      return take_rows(stream, x, args.rows, args.y.on<float>(device), 1);
    take_rows(stream, x, args.rows, args.y.on<Bf16>(device), 1);
  };
  if (args.x.dtype == Dtype::kF32) return take_from(args.x.on<float>(device));
  take_from(args.x.on<Bf16>(device));
}

void take_drawn(const Stream& stream, const TakeDrawn& args) {
  TR_CHECK(args.from.size() == args.ids.size());
  const auto count = static_cast<int64_t>(args.ids.size());
  if (count == 0) return;
  launch(take_drawn_kernel, dim3(static_cast<unsigned>((count + kRowThreads - 1) / kRowThreads)),
         dim3(kRowThreads), 0, stream, args.drawn.data(), args.from.data(), args.ids.data(), count);
}

void add(const Stream& stream, const Add& args) {
  TR_CHECK(args.x.rows == args.y.rows && args.x.cols == args.y.cols);
  const auto x = args.x.on<float>(stream.device);
  const auto y = args.y.on<float>(stream.device);
  if (y.rows == 0 || y.cols == 0) return;
  const bool wide = rows_are_wide(x.data, x.stride) && rows_are_wide(y.data, y.stride);
  launch(add_kernel, grid_of_rows(y.rows, y.cols), dim3(kRowThreads), 0, stream, x, y, wide);
}

}  // namespace tailrace::cuda
