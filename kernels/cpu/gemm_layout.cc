#include "kernels/cpu/gemm_layout.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/base/isa.h"
#include "kernels/base/memory.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/gemm_copies.h"

namespace tailrace::inline TR_ISA::gemm {

Form form_of(Dtype weight) {
  if (weight == Dtype::kF32) return Form::kFloats;
  TR_CHECK(weight == Dtype::kBF16, "weights are of float32 or bfloat16");
#ifdef TR_HAS_PAIRS
  if (isa() == Isa::kAvx512Bf16) return Form::kPairs;
#endif
  return Form::kBf16;
}

namespace {

// Fewest panels of `each` elements that a thread is worth. A copied float costs more than a
// multiply-add on one that is in a register, so these are fewer than in a product; and a thread
// that had nothing to do for so long would sleep when the product comes.
int64_t copy_grain(int64_t each) {
  return std::max<int64_t>(1, kGrain / 16 / std::max<int64_t>(each, 1));
}

template <int64_t kWidth, class Element>
void pack_all(const Stream& stream, ConstMatrix b, Element* out) {
  const int64_t each = (std::is_same_v<Element, Pair> ? (b.rows + 1) / 2 : b.rows) * kWidth;
  const int64_t count = (b.cols + kWidth - 1) / kWidth;
  // Side by side, because a row of one panel is two lines, and rows are far apart.
  constexpr int64_t kAtOnce = 16;
  parallel_for(stream, count, copy_grain(each), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kAtOnce)
      pack_columns<kWidth>(b, i, std::min(i + kAtOnce, end), each, out);
  });
}

}  // namespace

void pack_panels(const Stream& stream, ConstMatrix b, float* panels) {
  pack_all<kPanel>(stream, b, panels);
}
void pack_panels(const Stream& stream, ConstMatrix b, Pair* panels) {
  pack_all<kPanel>(stream, b, panels);
}

namespace {

// Columns [first, first + 32) of B for k in [begin, begin + 16), as [16][kPanel]; zeros where B,
// which is given as [cols, k], ends.
void transpose_square(ConstMatrix b, int64_t first, int64_t begin, float* square) {
  for (int64_t half = 0; half < kPanel; half += kLanes) {
    // Whole 16 x 16 squares only, because transpose16() reads and writes all of one.
    if (first + half + kLanes <= b.rows && begin + kLanes <= b.cols) {
      simd::transpose16(b.row(first + half) + begin, b.stride, square + half, kPanel);
      continue;
    }
    for (int64_t i = 0; i < kLanes; ++i) {
      for (int64_t c = 0; c < kLanes; ++c) {
        const int64_t row = first + half + c, k = begin + i;
        square[i * kPanel + half + c] = row < b.rows && k < b.cols ? b.row(row)[k] : 0.0f;
      }
    }
  }
}

// `rows` rows of kPanel floats, as they stand in a panel of this form, which is not of pairs.
void copy_to(Form form, const float* square, int64_t rows, void* panel) {
  if (form == Form::kFloats) {
    std::copy_n(square, rows * kPanel, static_cast<float*>(panel));
  } else {
    std::transform(square, square + rows * kPanel, static_cast<Bf16*>(panel), to_bf16);
  }
}
// The way back.
void copy_from(Form form, const void* panel, int64_t rows, float* square) {
  if (form == Form::kFloats) {
    std::copy_n(static_cast<const float*>(panel), rows * kPanel, square);
  } else if (form == Form::kBf16) {
    const auto* in = static_cast<const Bf16*>(panel);
    for (int64_t i = 0; i < rows * kPanel; ++i) square[i] = to_float(in[i]);
  } else {
    const auto* in = static_cast<const Pair*>(panel);
    for (int64_t r = 0; r < rows; r += 2, square += 2 * kPanel, in += kPanel)
      for (int64_t c = 0; c < kPanel; ++c) {
        square[c] = std::bit_cast<float>(in[c] << 16);
        square[kPanel + c] = std::bit_cast<float>(in[c] & 0xffff0000u);
      }
  }
}
int64_t element_size(Form form) { return form == Form::kFloats ? sizeof(float) : sizeof(Bf16); }

// Panel `panel` of pairs. Its rows of B are read one after the other, as they lie in memory, into
// the near caches and turned there; the lines go to memory whole and past the caches, because a
// model's weights are more than these hold.
void pack_panel_of_pairs([[maybe_unused]] ConstMatrix b, [[maybe_unused]] int64_t panel,
                         [[maybe_unused]] Pair* out) {
#ifdef TR_HAS_PAIRS
  // A line more than it takes: rows a power of two apart would share a set of the cache.
  constexpr int64_t kTerms = 2048, kStride = kTerms / 2 + kLanes;
  alignas(kMemoryAlignment) Pair rows[kLanes * kStride], turned[kLanes * kLanes];
  for (int64_t begin = 0; begin < b.cols; begin += kTerms) {
    const int64_t terms = std::min(kTerms, b.cols - begin), pairs = (terms + 1) / 2;
    for (int64_t half = 0; half < kPanel; half += kLanes) {
      for (int64_t r = 0; r < kLanes; ++r) {
        const int64_t row = panel * kPanel + half + r;
        // A row that does not exist is zeros: no lane of the last one is read for it.
        const int64_t count = row < b.rows ? terms : 0;
        const float* in = b.row(std::min(row, b.rows - 1)) + begin;
        for (int64_t i = 0; i < terms; i += 2 * kLanes)
          _mm512_store_si512(
              rows + r * kStride + i / 2,
              round_neighbours_exactly(simd::load(in + i, count - i),
                                       simd::load(in + i + kLanes, count - i - kLanes)));
      }
      for (int64_t i = 0; i < pairs; i += kLanes) {
        simd::transpose16(reinterpret_cast<const float*>(rows + i), kStride,
                          reinterpret_cast<float*>(turned), kLanes);
        Pair* to = out + (begin / 2 + i) * kPanel + half;
        for (int64_t j = 0; j < std::min(kLanes, pairs - i); ++j)
          _mm512_stream_si512(reinterpret_cast<__m512i*>(to + j * kPanel),
                              _mm512_load_si512(turned + j * kLanes));
      }
    }
  }
  // The caller's other threads see them once this one says that it is done.
  _mm_sfence();
#else
  TR_CHECK(false, "this instruction set has no pairs");
#endif
}

}  // namespace

void pack_panels_transposed(const Stream& stream, ConstMatrix b, Form form, void* panels) {
  const int64_t k = b.cols;
  const int64_t panel_bytes = panels_size(form, kPanel, k) * element_size(form);
  parallel_for(stream, num_panels(b.rows), copy_grain(k * kPanel), [&](int64_t begin, int64_t end) {
    alignas(kMemoryAlignment) float square[kLanes * kPanel];
    for (int64_t panel = begin; panel < end; ++panel) {
      auto* out = static_cast<std::byte*>(panels) + panel * panel_bytes;
      if (form == Form::kPairs) {
        TR_CHECK(reinterpret_cast<uintptr_t>(out) % kMemoryAlignment == 0, "panels at {}", panels);
        pack_panel_of_pairs(b, panel, reinterpret_cast<Pair*>(out));
        continue;
      }
      for (int64_t i = 0; i < k; i += kLanes) {
        transpose_square(b, panel * kPanel, i, square);
        copy_to(form, square, std::min(kLanes, k - i), out + i * kPanel * element_size(form));
      }
    }
  });
}

void unpack_panels(const Stream& stream, Form form, const void* panels, int64_t first, Matrix b) {
  const int64_t k = b.cols, last = first + b.rows;
  const int64_t first_panel = first / kPanel;
  const int64_t panel_bytes = panels_size(form, kPanel, k) * element_size(form);
  const int64_t count = num_panels(last) - first_panel;
  parallel_for(stream, count, copy_grain(k * kPanel), [&](int64_t begin, int64_t end) {
    // Some lines of each row at once: rows may be a power of two apart, and then the lines of all
    // of them are in one set of the cache.
    constexpr int64_t kBlock = 8 * kLanes;
    alignas(kMemoryAlignment) float block[kBlock * kPanel] = {}, turned[kPanel * kBlock];
    for (int64_t panel = first_panel + begin; panel < first_panel + end; ++panel) {
      const int64_t panel_row = panel * kPanel;
      const int64_t row_begin = std::max(first, panel_row),
                    row_end = std::min(last, panel_row + kPanel);
      const auto* in = static_cast<const std::byte*>(panels) + panel * panel_bytes;
      for (int64_t i = 0; i < k; i += kBlock) {
        const int64_t some = std::min(kBlock, k - i);
        copy_from(form, in + i * kPanel * element_size(form), some, block);
        for (int64_t j = 0; j < some; j += kLanes) {
          for (int64_t c = 0; c < kPanel; c += kLanes)
            simd::transpose16(block + j * kPanel + c, kPanel, turned + c * kBlock + j, kBlock);
        }
        for (int64_t row = row_begin; row < row_end; ++row)
          std::copy_n(turned + (row - panel_row) * kBlock, some, b.row(row - first) + i);
      }
    }
  });
}

namespace {

// The columns [first, first + 32) of B^T for all k, which is `cols` of B, as one panel of floats.
void transpose_to_floats(Form form, const std::byte* panels, int64_t panel_bytes, int64_t first,
                         int64_t count, int64_t cols, float* out) {
  alignas(kMemoryAlignment) float block[kPanel * kPanel], turned[kPanel * kPanel];
  for (int64_t col = 0; col < cols; col += kPanel, out += kPanel * kPanel) {
    const auto* in = panels + col / kPanel * panel_bytes + first * kPanel * element_size(form);
    copy_from(form, in, count, block);
    // Values of k that do not exist become zeros.
    std::fill(block + count * kPanel, block + kPanel * kPanel, 0.0f);
    for (int64_t r = 0; r < kPanel; r += kLanes) {
      for (int64_t c = 0; c < kPanel; c += kLanes)
        simd::transpose16(block + r * kPanel + c, kPanel, turned + c * kPanel + r, kPanel);
    }
    std::copy_n(turned, std::min(kPanel, cols - col) * kPanel, out);
  }
}

// The same, from pairs to pairs.
void transpose_to_pairs([[maybe_unused]] const std::byte* panels,
                        [[maybe_unused]] int64_t panel_bytes, [[maybe_unused]] int64_t first,
                        [[maybe_unused]] int64_t count, [[maybe_unused]] int64_t cols,
                        [[maybe_unused]] Pair* out) {
#ifdef TR_HAS_PAIRS
  constexpr int64_t kHalf = kPanel / 2;
  alignas(kMemoryAlignment) Pair block[kHalf * kPanel] = {}, turned[kHalf * kPanel];
  const int64_t pairs = (count + 1) / 2;
  for (int64_t col = 0; col < cols; col += kPanel, out += kHalf * kPanel) {
    const Pair* in =
        reinterpret_cast<const Pair*>(panels + col / kPanel * panel_bytes) + first / 2 * kPanel;
    const Pair* whole = in;
    if (pairs < kHalf) whole = block, std::copy_n(in, pairs * kPanel, block);
    const int64_t rows = (std::min(kPanel, cols - col) + 1) / 2;
    turn_pairs(whole, kPanel, rows == kHalf ? out : turned, kPanel);
    if (rows < kHalf) std::copy_n(turned, rows * kPanel, out);
  }
#endif
}

}  // namespace

void transpose_panels(const Stream& stream, Form form, const void* panels, int64_t cols, int64_t k,
                      void* transposed) {
  // A panel of the result holds 32 values of k for each column.
  const auto* all = static_cast<const std::byte*>(panels);
  const int64_t panel_bytes = panels_size(form, kPanel, k) * element_size(form);
  parallel_for(stream, num_panels(k), copy_grain(cols * kPanel), [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t first = panel * kPanel, count = std::min(kPanel, k - first);
      if (form == Form::kPairs) {
        transpose_to_pairs(all, panel_bytes, first, count, cols,
                           static_cast<Pair*>(transposed) + panel * ((cols + 1) / 2) * kPanel);
      } else {
        transpose_to_floats(form, all, panel_bytes, first, count, cols,
                            static_cast<float*>(transposed) + panel * cols * kPanel);
      }
    }
  });
}

}  // namespace tailrace::inline TR_ISA::gemm
