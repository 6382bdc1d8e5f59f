// How a product (gemm.h) has its operands: tiles of rows of A, and panels of 32 columns of B.
#pragma once

#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/base/view.h"
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/simd.h"

namespace tailrace::inline TR_ISA::gemm {

constexpr int64_t kPanel = 32;  // columns of a panel: two vectors
#if defined(__AVX512F__)
constexpr int64_t kTileRows = 12;  // 24 accumulators of 32 registers
#else
constexpr int64_t kTileRows = 3;  // 12 accumulators of 16 registers
#endif

enum class Layout {
  kRows,     // a(m, k) = a[m * a_stride + k]
  kColumns,  // a(m, k) = a[k * a_stride + m]; not with panels of Form::kBf16
};

// Elements of B in its panels.
enum class Form : uint8_t {
  kFloats,  // [panels][k][kPanel]
  kBf16,    // the same, each a float again where it is read; with kRows alone
  kPairs,   // [panels][k / 2, rounded up][kPanel][2] of Bf16
};
// How products read a weight of this dtype.
Form form_of(Dtype weight);

inline int64_t num_panels(int64_t cols) { return (cols + kPanel - 1) / kPanel; }
inline int64_t num_tiles(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }
// In elements: floats or Bf16.
inline int64_t panels_size(Form form, int64_t cols, int64_t k) {
  return num_panels(cols) * kPanel * (form == Form::kPairs ? round_up(k, 2) : k);
}
// As floats of memory.
inline int64_t num_floats(Form form, int64_t elements) {
  return form == Form::kFloats ? elements : elements / 2;
}
inline int64_t panels_size(int64_t cols, int64_t k) { return panels_size(Form::kFloats, cols, k); }
// Where element (k, col) of B lies in its panels, of k rows.
inline int64_t panel_index(Form form, int64_t rows, int64_t k, int64_t col) {
  const int64_t panel = col / kPanel * panels_size(form, kPanel, rows), in_panel = col % kPanel;
  return form == Form::kPairs ? panel + k / 2 * 2 * kPanel + 2 * in_panel + k % 2
                              : panel + k * kPanel + in_panel;
}

// B given as [k, cols]: a copy in which each panel is contiguous, of floats or pairs.
void pack_panels(const Stream& stream, ConstMatrix b, float* panels);
void pack_panels(const Stream& stream, ConstMatrix b, Pair* panels);
// B given as [cols, k], as weights are stored, to any form; what is Bf16 is rounded to it. `panels`
// is aligned to kMemoryAlignment.
void pack_panels_transposed(const Stream& stream, ConstMatrix b_transposed, Form form,
                            void* panels);
// The way back: rows [first, first + n) of B transposed, of the [n, k] that they are read into.
void unpack_panels(const Stream& stream, Form form, const void* panels, int64_t first,
                   Matrix b_transposed);
// From those panels (of B, [k, cols]) the panels of B^T, [cols, k]: what dx = dy W reads of a
// weight that is packed for y = x W^T. Pairs become pairs, all else floats.
void transpose_panels(const Stream& stream, Form form, const void* panels, int64_t cols, int64_t k,
                      void* transposed);

}  // namespace tailrace::inline TR_ISA::gemm
