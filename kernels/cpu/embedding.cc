#include "kernels/ops/embedding.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"

namespace tailrace::cpu::inline TR_ISA {

namespace {

constexpr int64_t kFlatGrain = 32 * 1024;  // elements

int64_t embedding_grain(int64_t dim) {
  return std::max<int64_t>(1, 64 * 1024 / std::max<int64_t>(dim, 1));
}

size_t row_bytes(int64_t dim) { return static_cast<size_t>(dim) * sizeof(float); }

// A row of a weight is a column of a panel.
template <class T>
void scaled_row(const T* panels, gemm::Form form, int64_t dim, int64_t row, float scale,
                float* out) {
  for (int64_t i = 0; i < dim; ++i)
    out[i] = scale * to_float(panels[gemm::panel_index(form, dim, i, row)]);
}

}  // namespace

void embedding(const Stream& stream, const Embedding& args) {
  const auto& [table, ids, target, scale] = args;
  const Matrix y = target.host();
  TR_CHECK(y.rows == std::ssize(ids) && y.cols == table.in, "table [{}, {}], {} ids, y [{}, {}]",
           table.out, table.in, ids.size(), y.rows, y.cols);
  const gemm::Form form = gemm::form_of(table.dtype);
  parallel_for(stream, y.rows, embedding_grain(table.in), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t id = ids[static_cast<size_t>(t)];
      TR_CHECK(id >= 0 && id < table.out, "row {} of {}", id, table.out);
      if (table.dtype == Dtype::kF32) {
        scaled_row(reinterpret_cast<const float*>(table.data), form, table.in, id, scale, y.row(t));
      } else {
        scaled_row(reinterpret_cast<const Bf16*>(table.data), form, table.in, id, scale, y.row(t));
      }
    }
  });
}

void embedding_backward(const Stream& stream, const EmbeddingBackward& args) {
  const std::span<const int32_t> ids = args.ids;
  const ConstMatrix dy = args.dy.host();
  const Matrix dtable = args.dtable.host();
  const float scale = args.scale;
  const auto tokens = static_cast<int64_t>(ids.size());
  TR_CHECK(dy.rows == tokens && dy.cols == dtable.cols, "dy [{}, {}], {} ids, dtable [{}, {}]",
           dy.rows, dy.cols, tokens, dtable.rows, dtable.cols);
  // Columns are divided, not tokens: one token id may come many times, and its row is then one sum
  // in the order of t.
  const int64_t vectors = (dy.cols + kLanes - 1) / kLanes;
  const int64_t grain = std::max<int64_t>(1, 4096 / std::max<int64_t>(tokens, 1));
  parallel_for(stream, vectors, grain, [&](int64_t begin, int64_t end) {
    const int64_t stop = std::min(dy.cols, end * kLanes);
    const Vec16 factor = simd::broadcast(scale);
    for (int64_t t = 0; t < tokens; ++t) {
      float* out = dtable.row(ids[static_cast<size_t>(t)]);
      for (int64_t i = begin * kLanes; i < stop; i += kLanes) {
        const int64_t left = stop - i;
        Vec16 scaled = simd::mul(factor, simd::load(dy.row(t) + i, left));
        Vec16 sum = simd::add(simd::load(out + i, left), scaled);
        simd::store(out + i, sum, left);
      }
    }
  });
}

void gather_rows(const Stream& stream, const GatherRows& args) {
  const ConstMatrix x = args.x.host();
  const std::span<const int32_t> rows = args.rows;
  const Matrix y = args.y.host();
  TR_CHECK(y.rows == static_cast<int64_t>(rows.size()) && y.cols == x.cols,
           "x [{}, {}], {} rows, y [{}, {}]", x.rows, x.cols, rows.size(), y.rows, y.cols);
  parallel_for(stream, y.rows, embedding_grain(x.cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int32_t source = rows[static_cast<size_t>(r)];
      TR_CHECK(source >= 0 && source < x.rows, "row {} of {}", source, x.rows);
      std::memcpy(y.row(r), x.row(source), row_bytes(x.cols));
    }
  });
}

// A token a sequence at most: too few to divide.
void take_drawn(const Stream& /*stream*/, const TakeDrawn& args) {
  const auto& [drawn, from, ids] = args;
  TR_CHECK(from.size() == ids.size(), "from [{}], ids [{}]", from.size(), ids.size());
  for (size_t t = 0; t < ids.size(); ++t) {
    if (from[t] < 0) continue;
    TR_CHECK(static_cast<size_t>(from[t]) < drawn.size(), "draw {} of {}", from[t], drawn.size());
    ids[t] = std::max(drawn[static_cast<size_t>(from[t])], 0);
  }
}

void scatter_rows(const Stream& stream, const ScatterRows& args) {
  const ConstMatrix x = args.x.host();
  const std::span<const int32_t> rows = args.rows;
  const Matrix y = args.y.host();
  TR_CHECK(x.rows == static_cast<int64_t>(rows.size()) && y.cols == x.cols,
           "x [{}, {}], {} rows, y [{}, {}]", x.rows, x.cols, rows.size(), y.rows, y.cols);
  parallel_for(stream, y.rows, embedding_grain(x.cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) std::fill_n(y.row(r), y.cols, 0.0f);
  });
  // A second loop: the first returns when all rows are zero, so no zero can overwrite a copied row.
  parallel_for(stream, x.rows, embedding_grain(x.cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int32_t target = rows[static_cast<size_t>(r)];
      TR_CHECK(target >= 0 && target < y.rows, "row {} of {}", target, y.rows);
      std::memcpy(y.row(target), x.row(r), row_bytes(x.cols));
    }
  });
}

void add(const Stream& stream, const Add& args) {
  const ConstMatrix x = args.x.host();
  const Matrix y = args.y.host();
  TR_CHECK(x.rows == y.rows && x.cols == y.cols, "x [{}, {}], y [{}, {}]", x.rows, x.cols, y.rows,
           y.cols);
  parallel_for(stream, y.rows, embedding_grain(x.cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* in = x.row(r);
      float* out = y.row(r);
      for (int64_t i = 0; i < x.cols; i += kLanes) {
        const int64_t left = x.cols - i;
        simd::store(out + i, simd::add(simd::load(out + i, left), simd::load(in + i, left)), left);
      }
    }
  });
}

void shift(const Stream& stream, const Shift& args) {
  TR_CHECK(args.x.size() == args.y.size(), "x [{}], y [{}]", args.x.size(), args.y.size());
  const auto size = static_cast<int64_t>(args.x.size());
  parallel_for(stream, size, kFlatGrain, [&](int64_t begin, int64_t end) {
    const float* x = args.x.data();
    float* y = args.y.data();
    if (args.offset == 0) {
      if (x != y) std::copy(x + begin, x + end, y + begin);
      return;
    }
    for (int64_t i = begin; i < end; ++i) y[i] = x[i] + args.offset;
  });
}

void fill(const Stream& stream, const Fill& args) {
  const auto size = static_cast<int64_t>(args.x.size());
  parallel_for(stream, size, kFlatGrain, [&](int64_t begin, int64_t end) {
    std::fill(args.x.data() + begin, args.x.data() + end, args.value);
  });
}

void scale(const Stream& stream, const Scale& args) {
  const Matrix x = args.x.host();
  const Vec16 by = simd::broadcast(args.factor);
  parallel_for(stream, x.rows, embedding_grain(x.cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* row = x.row(r);
      for (int64_t i = 0; i < x.cols; i += kLanes) {
        const int64_t left = x.cols - i;
        simd::store(row + i, simd::mul(simd::load(row + i, left), by), left);
      }
    }
  });
}

}  // namespace tailrace::cpu::inline TR_ISA
