// Multiples and sums element by element, of matrices and of flat ranges: four elements a thread.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/rows.cuh"

namespace tailrace::cuda {
namespace {

__global__ void __launch_bounds__(kRowThreads)
    scale_kernel(MatrixView<float> x, float factor, bool wide) {
  const int64_t i = own_element(), row = blockIdx.x, left = x.cols - i;
  if (left <= 0) return;
  const float4 v = load_four(x.row(row) + i, left, wide);
  store_four(x.row(row) + i, make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor),
             left, wide);
}

// A flat range has as many blocks as it wants, where a row has 65535 at most.
dim3 grid_of_flat(int64_t size) {
  return dim3(static_cast<unsigned>((size + kRowElements - 1) / kRowElements));
}
__device__ __forceinline__ int64_t own_flat_element() {
  return 4 * (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x);
}

__global__ void __launch_bounds__(kRowThreads)
    shift_kernel(const float* x, float offset, float* y, int64_t size, bool wide) {
  const int64_t i = own_flat_element(), left = size - i;
  if (left <= 0) return;
  float4 v = load_four(x + i, left, wide);
  // -0 + 0 is 0.
  if (offset != 0) v = make_float4(v.x + offset, v.y + offset, v.z + offset, v.w + offset);
  store_four(y + i, v, left, wide);
}

__global__ void __launch_bounds__(kRowThreads)
    fill_kernel(float* x, float value, int64_t size, bool wide) {
  const int64_t i = own_flat_element(), left = size - i;
  if (left <= 0) return;
  store_four(x + i, make_float4(value, value, value, value), left, wide);
}

// Whether a flat range may be read four elements at a time.
bool flat_is_wide(const float* x) { return rows_are_wide(x, 4); }

}  // namespace

void scale(const Stream& stream, const Scale& args) {
  const auto x = args.x.on<float>(stream.device);
  if (x.rows == 0 || x.cols == 0) return;
  launch(scale_kernel, grid_of_rows(x.rows, x.cols), dim3(kRowThreads), 0, stream, x, args.factor,
         rows_are_wide(x.data, x.stride));
}

void shift(const Stream& stream, const Shift& args) {
  TR_CHECK(args.x.size() == args.y.size(), "x [{}], y [{}]", args.x.size(), args.y.size());
  const auto size = static_cast<int64_t>(args.x.size());
  const float* x = args.x.data();
  float* y = args.y.data();
  if (size == 0 || (args.offset == 0 && x == y)) return;
  launch(shift_kernel, grid_of_flat(size), dim3(kRowThreads), 0, stream, x, args.offset, y, size,
         flat_is_wide(x) && flat_is_wide(y));
}

void fill(const Stream& stream, const Fill& args) {
  const auto size = static_cast<int64_t>(args.x.size());
  if (size == 0) return;
  launch(fill_kernel, grid_of_flat(size), dim3(kRowThreads), 0, stream, args.x.data(), args.value,
         size, flat_is_wide(args.x.data()));
}

}  // namespace tailrace::cuda
