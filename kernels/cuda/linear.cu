// Products of linear layers: the weight's form on a device, and the product with a float32 weight.
//
// W is row-major, [out, in], rows padded with zeros to kWeightAlignment elements.
//
// Order of a sum with a float32 weight: one accumulator from 0, one fused multiply-add a term, k
// ascending; then the bias. These are the bits of the CPU's product. With a bfloat16 weight: see
// gemm.cu.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gemm.h"

namespace tailrace::cuda {
namespace {

constexpr int kF32Tile = 64, kF32TileK = 16, kF32Threads = 256;
// Rows of a tile in shared memory, k first: a thread's four tokens (rows of W) are one load.
constexpr int kF32Pitch = kF32Tile + 4;

struct F32Product {
  const float* x;
  int64_t x_stride;
  const float* weight;
  int64_t weight_stride;
  const float* bias;
  float* y;
  int64_t y_stride;
  int64_t tokens, out, in;
};

// [kF32Tile rows, kF32TileK] of a matrix to to[k][row], zeros outside it.
__device__ __forceinline__ void load_f32_tile(float (&to)[kF32TileK][kF32Pitch], const float* from,
                                              int64_t stride, int64_t row, int64_t rows, int64_t k,
                                              int64_t in) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < kF32Tile * kF32TileK / kF32Threads; ++i) {
    const int r = thread / kF32TileK + i * (kF32Threads / kF32TileK), c = thread % kF32TileK;
    const bool inside = row + r < rows && k + c < in;
    to[c][r] = inside ? from[(row + r) * stride + k + c] : 0.0f;
  }
}

// Grid: tiles of tokens, the faster, times tiles of rows of W. A thread has 4 tokens and 4 rows.
__global__ void __launch_bounds__(kF32Threads) multiply_f32(F32Product p, int64_t token_tiles) {
  alignas(16) __shared__ float x[kF32TileK][kF32Pitch];
  alignas(16) __shared__ float w[kF32TileK][kF32Pitch];
  const int64_t block = static_cast<int64_t>(blockIdx.x);
  const int64_t first_token = block % token_tiles * kF32Tile;
  const int64_t first_row = block / token_tiles * kF32Tile;
  const int own_row = static_cast<int>(threadIdx.x) % 16 * 4;
  const int own_token = static_cast<int>(threadIdx.x) / 16 * 4;
  float acc[4][4] = {};
  for (int64_t k = 0; k < p.in; k += kF32TileK) {
    __syncthreads();
    load_f32_tile(x, p.x, p.x_stride, first_token, p.tokens, k, p.in);
    load_f32_tile(w, p.weight, p.weight_stride, first_row, p.out, k, p.in);
    __syncthreads();
    // Not one step beyond `in`: adding 0 changes the bits of a sum that is -0.
    const int steps = static_cast<int>(min(p.in - k, int64_t{kF32TileK}));
#pragma unroll 4
    for (int i = 0; i < steps; ++i) {
      const float4 xs = *reinterpret_cast<const float4*>(&x[i][own_token]);
      const float4 ws = *reinterpret_cast<const float4*>(&w[i][own_row]);
      const float a[4] = {xs.x, xs.y, xs.z, xs.w}, b[4] = {ws.x, ws.y, ws.z, ws.w};
#pragma unroll
      for (int t = 0; t < 4; ++t)
#pragma unroll
        for (int o = 0; o < 4; ++o) acc[t][o] = fmaf(a[t], b[o], acc[t][o]);
    }
  }
#pragma unroll
  for (int t = 0; t < 4; ++t) {
#pragma unroll
    for (int o = 0; o < 4; ++o) {
      const int64_t token = first_token + own_token + t, row = first_row + own_row + o;
      if (token >= p.tokens || row >= p.out) continue;
      p.y[token * p.y_stride + row] = p.bias == nullptr ? acc[t][o] : acc[t][o] + p.bias[row];
    }
  }
}

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

}  // namespace

size_t weight_bytes(Dtype dtype, int64_t out, int64_t in) {
  return static_cast<size_t>(out * padded(in) * size_of(dtype));
}

Weight pack_weight(const Stream& stream, ConstTensor from, Dtype dtype,
                   std::span<std::byte> memory) {
  const ConstMatrix master = from.host();
  TR_CHECK(dtype == Dtype::kF32 || dtype == Dtype::kBF16, "weights are of float32 or bfloat16");
  const size_t bytes = cuda::weight_bytes(dtype, master.rows, master.cols);
  TR_CHECK(memory.size() >= bytes, "{} bytes for {}", memory.size(), bytes);
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
  return {.dtype = dtype,
          .data = memory.data(),
          .out = master.rows,
          .in = master.cols,
          .device = stream.device};
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
  const auto& [x, weight, bias, y, accumulate] = args;
  TR_CHECK(!accumulate, "a product that is added runs on the CPU alone");
  TR_CHECK(x.cols == weight.in && y.cols == weight.out && x.rows == y.rows,
           "x [{}, {}], W [{}, {}], y [{}, {}]", x.rows, x.cols, weight.out, weight.in, y.rows,
           y.cols);
  TR_CHECK(bias.empty() || static_cast<int64_t>(bias.size()) == weight.out, "bias [{}]",
           bias.size());
  TR_CHECK(weight.device == stream.device, "a weight of device {}", weight.device.index);
  if (x.rows == 0 || weight.out == 0) return;
  const float* const bias_data = bias.empty() ? nullptr : bias.data();
  if (weight.dtype == Dtype::kF32) {
    const auto from = x.on<float>(stream.device);
    const auto to = y.on<float>(stream.device);
    const F32Product product = {.x = from.data,
                                .x_stride = from.stride,
                                .weight = reinterpret_cast<const float*>(weight.data),
                                .weight_stride = padded(weight.in),
                                .bias = bias_data,
                                .y = to.data,
                                .y_stride = to.stride,
                                .tokens = x.rows,
                                .out = weight.out,
                                .in = weight.in};
    const int64_t token_tiles = (x.rows + kF32Tile - 1) / kF32Tile;
    const int64_t row_tiles = (weight.out + kF32Tile - 1) / kF32Tile;
    launch(multiply_f32, dim3(static_cast<unsigned>(token_tiles * row_tiles)), dim3(kF32Threads), 0,
           stream, product, token_tiles);
    return;
  }
  const bool x_is_float = x.dtype == Dtype::kF32, y_is_float = y.dtype == Dtype::kF32;
  Bf16Product product = {.x_is_float = x_is_float,
                         .x_stride = x.stride,
                         .weight = reinterpret_cast<const Bf16*>(weight.data),
                         .weight_stride = padded(weight.in),
                         .bias = bias_data,
                         .y_is_float = y_is_float,
                         .y_stride = y.stride,
                         .tokens = x.rows,
                         .out = weight.out,
                         .in = weight.in};
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
  multiply_bf16(stream, product);
}

}  // namespace tailrace::cuda
