// Rotary position embedding in place: a block a token, whose threads take four neighbouring pairs
// of a head at a time.
//
// Each element is of two products, by the expressions of cache_qkv.cu, so that the bits are the
// same; there is no sum over elements.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/rows.cuh"

namespace tailrace::cuda {

namespace {

constexpr int kRopeThreads = 128;

// `sign` of the sine: -1 turns back.
template <class T>
__global__ void __launch_bounds__(kRopeThreads)
    rope_kernel(MatrixView<T> x, MatrixView<const float> table, const int32_t* positions,
                int num_heads, float sign, bool wide, bool wide_table) {
  const int half = static_cast<int>(table.cols / 2), pieces = (half + 3) / 4;
  const int64_t token = blockIdx.x;
  const float* angles = table.row(positions[token]);
  T* row = x.row(token);
  for (int i = static_cast<int>(threadIdx.x); i < num_heads * pieces; i += kRopeThreads) {
    const int column = i % pieces * 4, left = half - column;
    T* first = row + int64_t{i / pieces} * 2 * half + column;
    const float4 a = load_four(first, left, wide), b = load_four(first + half, left, wide);
    const float4 cosine = load_four(angles + column, left, wide_table);
    const float4 sine = load_four(angles + half + column, left, wide_table);
    const auto low = [&](float p, float q, float c, float s) {
      return fmaf(p, c, -(q * (sign * s)));
    };
    const auto high = [&](float p, float q, float c, float s) {
      return fmaf(q, c, p * (sign * s));
    };
    store_four(first,
               make_float4(low(a.x, b.x, cosine.x, sine.x), low(a.y, b.y, cosine.y, sine.y),
                           low(a.z, b.z, cosine.z, sine.z), low(a.w, b.w, cosine.w, sine.w)),
               left, wide);
    store_four(first + half,
               make_float4(high(a.x, b.x, cosine.x, sine.x), high(a.y, b.y, cosine.y, sine.y),
                           high(a.z, b.z, cosine.z, sine.z), high(a.w, b.w, cosine.w, sine.w)),
               left, wide);
  }
}

template <class T>
void run_rope(const Stream& stream, const Rope& args) {
  const MatrixView<T> x = args.x.on<T>(stream.device);
  const auto table = args.table.on<float>(stream.device);
  const bool halves_are_wide = table.cols % 8 == 0;
  launch(rope_kernel<T>, dim3(static_cast<unsigned>(x.rows)), dim3(kRopeThreads), 0, stream, x,
         table, args.positions.data(), args.num_heads, args.inverse ? -1.0f : 1.0f,
         halves_are_wide && rows_are_wide(x.data, x.stride),
         halves_are_wide && rows_are_wide(table.data, table.stride));
}

}  // namespace

void rope(const Stream& stream, const Rope& args) {
  TR_CHECK(args.table.cols % 2 == 0 && args.x.cols == args.num_heads * args.table.cols &&
               static_cast<int64_t>(args.positions.size()) == args.x.rows,
           "x [{}, {}], {} heads of {}, {} positions", args.x.rows, args.x.cols, args.num_heads,
           args.table.cols, args.positions.size());
  if (args.x.rows == 0 || args.x.cols == 0) return;
  args.x.dtype == Dtype::kF32 ? run_rope<float>(stream, args) : run_rope<Bf16>(stream, args);
}

}  // namespace tailrace::cuda
