// Products of linear layers: the weight's form on a device, and the product with a float32 weight.
//
// W is row-major, [out, in], rows padded with zeros to kWeightAlignment elements.
//
// Order of a sum: with a float32 weight see gemm_f32.cu, with a bfloat16 weight gemm.cu. Rows that
// a library multiplies (product_table.h) have the same bits.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/product_table.h"
#include "kernels/cuda/rows.cuh"

namespace tailrace::cuda {
namespace {

int64_t padded(int64_t in) {
  return (in + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment;
}

// Rows [begin, end) of `master`, each padded, to `to`, which is zeros.
template <class T>
void round_rows(ConstMatrix master, int64_t begin, int64_t end, std::byte* to) {
  const int64_t width = padded(master.cols);
  for (int64_t r = begin; r < end; ++r) {
    const float* from = master.row(r);
    T* row = reinterpret_cast<T*>(to) + (r - begin) * width;
    if constexpr (std::is_same_v<T, float>) {
      std::copy_n(from, master.cols, row);
    } else {
      std::transform(from, from + master.cols, row, to_bf16);
    }
  }
}

// Rows that a staging buffer holds: a second copy of a whole head would be the largest thing in
// memory.
int64_t rows_at_once(int64_t rows, size_t row_bytes) {
  constexpr size_t kPiece = size_t{16} << 20;
  return std::clamp<int64_t>(static_cast<int64_t>(kPiece / std::max<size_t>(row_bytes, 1)), 1,
                             std::max<int64_t>(rows, 1));
}

void check_shapes(const Stream& stream, ConstTensor x, const Weight& weight, ConstTensor y) {
  TR_CHECK(x.cols == weight.in && y.cols == weight.out && x.rows == y.rows,
           "x [{}, {}], W [{}, {}], y [{}, {}]", x.rows, x.cols, weight.out, weight.in, y.rows,
           y.cols);
  TR_CHECK(weight.device == stream.device, "a weight of device {}", weight.device.index);
}

void multiply(const Stream& stream, const Linear& args, const RowGroups& groups = {},
              size_t group_bytes = 0) {
  const auto& [x, weight, bias, y, accumulate] = args;
  if (x.rows == 0 || weight.out == 0) return;
  const float* const bias_data = bias.empty() ? nullptr : bias.data();
  if (weight.dtype == Dtype::kF32) {
    const auto from = x.on<float>(stream.device);
    const auto to = y.on<float>(stream.device);
    const auto w = rows_of<float>(weight);
    return multiply_f32(stream, ProductKind::kForward,
                        {.a = from.data,
                         .a_stride = from.stride,
                         .b = w.data,
                         .b_stride = w.stride,
                         .bias = bias_data,
                         .c = to.data,
                         .c_stride = to.stride,
                         .m = x.rows,
                         .n = weight.out,
                         .k = weight.in,
                         .add = accumulate,
                         .groups = groups,
                         .group_stride = static_cast<int64_t>(group_bytes / sizeof(float))});
  }
  const bool x_is_float = x.dtype == Dtype::kF32, y_is_float = y.dtype == Dtype::kF32;
  TR_CHECK(y_is_float || !accumulate, "a product is added to float32");
  Bf16Product product = {.x_is_float = x_is_float,
                         .x_stride = x.stride,
                         .weight = reinterpret_cast<const Bf16*>(weight.data),
                         .weight_stride = padded(weight.in),
                         .bias = bias_data,
                         .y_is_float = y_is_float,
                         .y_stride = y.stride,
                         .tokens = x.rows,
                         .out = weight.out,
                         .in = weight.in,
                         .add = accumulate,
                         .groups = groups,
                         .group_stride = static_cast<int64_t>(group_bytes / sizeof(Bf16))};
  if (x_is_float) {
    product.x = x.on<float>(stream.device).data;
  } else {
    product.x = x.on<Bf16>(stream.device).data;
  }
  if (y_is_float) {
    product.y = y.on<float>(stream.device).data;
  } else {
    product.y = y.on<Bf16>(stream.device).data;
  }
  const int64_t done = multiply_first_rows(stream, product);
  const auto behind = [&](int64_t stride, bool is_float) {
    return static_cast<size_t>(done * stride) * (is_float ? sizeof(float) : sizeof(Bf16));
  };
  product.x = static_cast<const std::byte*>(product.x) + behind(x.stride, x_is_float);
  product.y = static_cast<std::byte*>(product.y) + behind(y.stride, y_is_float);
  product.tokens -= done;
  multiply_bf16(stream, product);
}

// A row of `to` is longer than one of `from`, by zeros.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    pack_rows_kernel(MatrixView<const float> from, MatrixView<T> to, bool wide) {
  const int64_t i = own_element(), row = blockIdx.x;
  if (i >= to.stride) return;
  store_four(to.row(row) + i, load_four(from.row(row) + i, from.cols - i, wide), to.stride - i,
             true);
}

template <class T>
void pack_on_device(const Stream& stream, MatrixView<const float> master, std::byte* memory) {
  const MatrixView<T> to(reinterpret_cast<T*>(memory), master.rows, master.cols,
                         padded(master.cols));
  if (to.rows == 0 || to.stride == 0) return;
  launch(pack_rows_kernel<T>, grid_of_rows(to.rows, to.stride), dim3(kRowThreads), 0, stream,
         master, to, rows_are_wide(master.data, master.stride));
}

}  // namespace

size_t weight_bytes(Dtype dtype, int64_t out, int64_t in) {
  return static_cast<size_t>(out * padded(in) * size_of(dtype));
}

Weight pack_weight(const Stream& stream, ConstTensor from, Dtype dtype,
                   std::span<std::byte> memory) {
  TR_CHECK(dtype == Dtype::kF32 || dtype == Dtype::kBF16, "weights are of float32 or bfloat16");
  const size_t bytes = cuda::weight_bytes(dtype, from.rows, from.cols);
  TR_CHECK(memory.size() >= bytes, "{} bytes for {}", memory.size(), bytes);
  const Weight weight = {.dtype = dtype,
                         .data = memory.data(),
                         .out = from.rows,
                         .in = from.cols,
                         .device = stream.device};
  if (from.device == stream.device) {
    const auto master = from.on<float>(stream.device);
    if (dtype == Dtype::kF32) {
      pack_on_device<float>(stream, master, memory.data());
    } else {
      pack_on_device<Bf16>(stream, master, memory.data());
    }
    return weight;
  }
  const ConstMatrix master = from.host();
  const auto row_bytes = static_cast<size_t>(padded(master.cols) * size_of(dtype));
  const int64_t piece = rows_at_once(master.rows, row_bytes);
  // Made of zeros, and the padding of rows is never written.
  std::vector<std::byte> staging(static_cast<size_t>(piece) * row_bytes);
  for (int64_t begin = 0; begin < master.rows; begin += piece) {
    const int64_t end = std::min(master.rows, begin + piece);
    if (dtype == Dtype::kF32) {
      round_rows<float>(master, begin, end, staging.data());
    } else {
      round_rows<Bf16>(master, begin, end, staging.data());
    }
    const size_t size = static_cast<size_t>(end - begin) * row_bytes;
    copy(stream, {stream.device, memory.data() + static_cast<size_t>(begin) * row_bytes, size},
         {{}, staging.data(), size});
    wait(stream);  // before the staging buffer is filled again, or dies
  }
  return weight;
}

void unpack_rows(const Stream& stream, const Weight& weight, int64_t first, Matrix rows) {
  const int64_t width = padded(weight.in);
  const auto row_bytes = static_cast<size_t>(width * size_of(weight.dtype));
  const int64_t piece = rows_at_once(rows.rows, row_bytes);
  std::vector<std::byte> staging(static_cast<size_t>(piece) * row_bytes);
  for (int64_t begin = 0; begin < rows.rows; begin += piece) {
    const int64_t end = std::min(rows.rows, begin + piece);
    const size_t size = static_cast<size_t>(end - begin) * row_bytes;
    const std::byte* from = weight.data + static_cast<size_t>(first + begin) * row_bytes;
    copy(stream, {{}, staging.data(), size}, {stream.device, from, size});
    wait(stream);
    for (int64_t r = begin; r < end; ++r) {
      const std::byte* row = staging.data() + static_cast<size_t>(r - begin) * row_bytes;
      if (weight.dtype == Dtype::kF32) {
        std::copy_n(reinterpret_cast<const float*>(row), weight.in, rows.row(r));
      } else {
        const auto* values = reinterpret_cast<const Bf16*>(row);
        std::transform(values, values + weight.in, rows.row(r), [](Bf16 x) { return to_float(x); });
      }
    }
  }
}

void linear(const Stream& stream, const Linear& args) {
  check_shapes(stream, args.x, args.weight, args.y);
  TR_CHECK(args.bias.empty() || std::ssize(args.bias) == args.weight.out, "bias [{}]",
           args.bias.size());
  multiply(stream, args);
}

void grouped_linear(const Stream& stream, const GroupedLinear& args) {
  const WeightStack& weights = args.weights;
  check_shapes(stream, args.x, weights.first, args.y);
  TR_CHECK(std::ssize(args.offsets) == weights.count + 1, "{} offsets of {} experts",
           args.offsets.size(), weights.count);
  multiply(stream, {.x = args.x, .weight = weights.first, .y = args.y},
           {args.offsets.data(), static_cast<int>(weights.count)}, weights.bytes);
}

}  // namespace tailrace::cuda
