// The gradient of an embedding, and rows that go back to their places.
//
// Order of a sum: what the row of dtable holds, then the tokens of its id, ascending; a product and
// an addition each. These are the bits of the CPU. The first token of an id adds all of them, so no
// two blocks have the same row.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/rows.cuh"

namespace tailrace::cuda {
namespace {

constexpr int kWarpsOfRow = kRowThreads / 32;
constexpr int kRowsInFlight = 4;  // loaded before the first of them is added

// In all threads of the block.
__device__ __forceinline__ bool is_first_of_its_id(const int32_t* ids, int token) {
  __shared__ int is_found;
  if (threadIdx.x == 0) is_found = 0;
  __syncthreads();
  for (int t = static_cast<int>(threadIdx.x); t < token; t += kRowThreads) {
    if (ids[t] != ids[token]) continue;
    atomicMax(&is_found, 1);
    break;
  }
  __syncthreads();
  return is_found == 0;
}

// Grid: tokens, times blocks of columns.
__global__ void __launch_bounds__(kRowThreads)
    embedding_backward_kernel(const int32_t* ids, MatrixView<const float> dy,
                              MatrixView<float> dtable, float scale, bool wide) {
  // Bit l of word w: token 32 w + l of kRowThreads has the id. Twice: one barrier a round.
  __shared__ unsigned same[2][kWarpsOfRow];
  const int token = static_cast<int>(blockIdx.x), tokens = static_cast<int>(dy.rows);
  if (!is_first_of_its_id(ids, token)) return;
  const int thread = static_cast<int>(threadIdx.x), id = ids[token];
  const int64_t i = own_element(), left = dy.cols - i;
  float* out = dtable.row(id) + i;
  float4 sum = load_four(out, left, wide);
  int buffer = 0;
  for (int begin = token; begin < tokens; begin += kRowThreads, buffer ^= 1) {
    const int own = begin + thread;
    const unsigned word = __ballot_sync(~0u, own < tokens && ids[own] == id);
    if (thread % 32 == 0) same[buffer][thread / 32] = word;
    __syncthreads();
    for (int w = 0; w < kWarpsOfRow; ++w) {
      unsigned left_of_word = same[buffer][w];
      while (left_of_word != 0) {
        bool has[kRowsInFlight];
        float4 row[kRowsInFlight];
#pragma unroll
        for (int k = 0; k < kRowsInFlight; ++k) {
          has[k] = left_of_word != 0;
          if (!has[k]) continue;
          const int t = begin + 32 * w + __ffs(static_cast<int>(left_of_word)) - 1;
          left_of_word &= left_of_word - 1;
          row[k] = load_four(dy.row(t) + i, left, wide);
        }
#pragma unroll
        for (int k = 0; k < kRowsInFlight; ++k) {
          if (!has[k]) continue;
          sum = make_float4(sum.x + scale * row[k].x, sum.y + scale * row[k].y,
                            sum.z + scale * row[k].z, sum.w + scale * row[k].w);
        }
      }
    }
  }
  store_four(out, sum, left, wide);
}

__global__ void __launch_bounds__(kRowThreads) clear_rows_kernel(MatrixView<float> y, bool wide) {
  const int64_t i = own_element(), row = blockIdx.x;
  store_four(y.row(row) + i, make_float4(0, 0, 0, 0), y.cols - i, wide);
}

__global__ void __launch_bounds__(kRowThreads)
    scatter_rows_kernel(MatrixView<const float> x, const int32_t* rows, MatrixView<float> y,
                        bool wide) {
  const int64_t i = own_element(), row = blockIdx.x, left = y.cols - i;
  store_four(y.row(rows[row]) + i, load_four(x.row(row) + i, left, wide), left, wide);
}

}  // namespace

void embedding_backward(const Stream& stream, const EmbeddingBackward& args) {
  const auto dy = args.dy.on<float>(stream.device);
  const auto dtable = args.dtable.on<float>(stream.device);
  TR_CHECK(dy.rows == static_cast<int64_t>(args.ids.size()) && dy.cols == dtable.cols,
           "dy [{}, {}], {} ids, dtable [{}, {}]", dy.rows, dy.cols, args.ids.size(), dtable.rows,
           dtable.cols);
  if (dy.rows == 0 || dy.cols == 0) return;
  const bool wide = rows_are_wide(dy.data, dy.stride) && rows_are_wide(dtable.data, dtable.stride);
  launch(embedding_backward_kernel, grid_of_rows(dy.rows, dy.cols), dim3(kRowThreads), 0, stream,
         args.ids.data(), dy, dtable, args.scale, wide);
}

void scatter_rows(const Stream& stream, const ScatterRows& args) {
  const auto x = args.x.on<float>(stream.device);
  const auto y = args.y.on<float>(stream.device);
  TR_CHECK(x.rows == static_cast<int64_t>(args.rows.size()) && y.cols == x.cols,
           "x [{}, {}], {} rows, y [{}, {}]", x.rows, x.cols, args.rows.size(), y.rows, y.cols);
  if (y.rows == 0 || y.cols == 0) return;
  launch(clear_rows_kernel, grid_of_rows(y.rows, y.cols), dim3(kRowThreads), 0, stream, y,
         rows_are_wide(y.data, y.stride));
  if (x.rows == 0) return;
  launch(scatter_rows_kernel, grid_of_rows(x.rows, x.cols), dim3(kRowThreads), 0, stream, x,
         args.rows.data(), y, rows_are_wide(x.data, x.stride) && rows_are_wide(y.data, y.stride));
}

}  // namespace tailrace::cuda
