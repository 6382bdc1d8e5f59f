// The product that all linear ops of the CPU share: C = A * B with B in panels of 32 columns.
//
// An output element is one accumulator over k ascending, one fused multiply-add a term. Tiles,
// threads and the number of rows only decide *when* an element is computed. When k is cut, the
// unfinished float goes through memory, which changes no bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/base/view.h"
#include "kernels/cpu/simd.h"

namespace tailrace::inline TR_ISA::gemm {

constexpr int64_t kPanel = 32;  // columns of a panel: two vectors
#if defined(__AVX512F__)
constexpr int64_t kTileRows = 12;  // 24 accumulators of 32 registers
#else
constexpr int64_t kTileRows = 3;  // 12 accumulators of 16 registers
#endif

enum class Layout {
  kRows,   // a(m, k) = a[m * a_stride + k]
  kTiles,  // packed by pack_tiles()
};

struct Product {
  Layout layout = Layout::kRows;
  const float* a = nullptr;
  int64_t a_stride = 0;          // kRows only
  const void* panels = nullptr;  // [panels][k][kPanel], of kF32, or kBF16 with kRows
  Dtype panels_dtype = Dtype::kF32;
  int64_t panel_stride = 0;  // elements from one panel to the next; 0: k * kPanel
  int64_t rows = 0, cols = 0, k = 0;
  const float* start = nullptr;  // unfinished sums to go on from; null: start at 0
  int64_t start_stride = 0;
  const float* bias = nullptr;  // added to the finished sum; may be null
  bool add_to_c = false;        // c += the finished sum, otherwise c = it
  float* c = nullptr;
  int64_t c_stride = 0;
};

inline int64_t num_panels(int64_t cols) { return (cols + kPanel - 1) / kPanel; }
inline int64_t num_tiles(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }
inline int64_t panels_size(int64_t cols, int64_t k) { return num_panels(cols) * kPanel * k; }
inline int64_t tiles_size(int64_t rows, int64_t k) { return num_tiles(rows) * kTileRows * k; }

// Divides the outputs among the threads of the stream.
void multiply(const Stream& stream, const Product& product);
// Products of one shape side by side: rows offsets[i] to below offsets[i + 1] of A and C are those
// of group i, whose B lies i * panels_bytes further. kRows only.
void multiply_groups(const Stream& stream, const Product& product, std::span<const int32_t> offsets,
                     size_t panels_bytes);

// B given as [k, cols]: a copy in which each panel is contiguous.
void pack_panels(const Stream& stream, ConstMatrix b, float* panels);
// B given as [cols, k], as weights are stored; T: float or Bf16, to which elements are rounded.
template <class T>
void pack_panels_transposed(const Stream& stream, ConstMatrix b_transposed, T* panels);
// The way back: rows [first, first + n) of B transposed, of the [n, k] that they are read into.
template <class T>
void unpack_panels(const Stream& stream, const T* panels, int64_t first, Matrix b_transposed);
// From those panels (of B, [k, cols]) the panels of B^T, [cols, k]: what dx = dy W reads of a
// weight that is packed for y = x W^T.
template <class T>
void transpose_panels(const Stream& stream, const T* panels, int64_t cols, int64_t k,
                      float* transposed);
// A given as [k, rows]: tiles of kTileRows rows, [tiles][k][kTileRows].
void pack_tiles(const Stream& stream, ConstMatrix a_transposed, float* tiles);

}  // namespace tailrace::inline TR_ISA::gemm
