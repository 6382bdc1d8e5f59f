// The product that all linear ops of the CPU share: C = A * B with B in panels of 32 columns.
//
// An output element is one accumulator over k ascending, one fused multiply-add a term. Tiles,
// threads and the number of rows only decide *when* an element is computed. When k is cut, the
// unfinished float goes through memory, which changes no bit.
//
// In pairs (Isa::kAvx512Bf16, bfloat16 weights) a term of the sum is that of two neighbours in k,
// A is rounded to bfloat16, and where k is odd the last pair ends in zeros. The instruction adds
// the product of the second, then that of the first, each rounded once, and takes subnormals for
// zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/cpu/gemm_layout.h"
#include "kernels/cpu/simd.h"

namespace tailrace::inline TR_ISA::gemm {

struct Product {
  Layout layout = Layout::kRows;
  const float* a = nullptr;
  int64_t a_stride = 0;
  const void* panels = nullptr;
  Form form = Form::kFloats;
  bool from_memory = false;  // as of a Weight
  int64_t panel_stride = 0;  // elements from one panel to the next; 0: they are contiguous
  int64_t rows = 0, cols = 0, k = 0;
  const float* start = nullptr;  // unfinished sums to go on from; null: start at 0
  int64_t start_stride = 0;
  const float* bias = nullptr;  // added to the finished sum; may be null
  bool add_to_c = false;        // c += the finished sum, otherwise c = it
  float* c = nullptr;
  int64_t c_stride = 0;
};

// Divides the outputs among the threads of the stream.
void multiply(const Stream& stream, const Product& product);
// Products of one shape side by side: rows offsets[i] to below offsets[i + 1] of A and C are those
// of group i, whose B lies i * panels_bytes further. kRows only.
void multiply_groups(const Stream& stream, const Product& product, std::span<const int32_t> offsets,
                     size_t panels_bytes);

}  // namespace tailrace::inline TR_ISA::gemm
