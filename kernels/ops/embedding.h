// Rows of a table by token id, and sums and multiples element by element.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/view.h"
#include "kernels/ops/linear.h"

namespace tailrace {

// y[t] = scale * table[ids[t]];  table [vocab, dim], y [tokens, dim]
struct Embedding {
  Weight table;
  std::span<const int32_t> ids;
  Tensor y;
  float scale = 1;
};
void embedding(const Stream& stream, const Embedding& args);

// dtable[ids[t]] += scale * dy[t], in ascending order of t for each row (one thread owns a range of
// columns).
struct EmbeddingBackward {
  std::span<const int32_t> ids;
  ConstMatrix dy;
  Matrix dtable;
  float scale = 1;
};
void embedding_backward(const Stream& stream, const EmbeddingBackward& args);

// y[r] = x[rows[r]];  x [n, dim], y [rows.size(), dim]
struct GatherRows {
  ConstTensor x;
  std::span<const int32_t> rows;
  Tensor y;
};
void gather_rows(const Stream& stream, const GatherRows& args);

// y[rows[r]] = x[r]; rows are distinct; all other rows of y are set to 0.
struct ScatterRows {
  ConstMatrix x;
  std::span<const int32_t> rows;
  Matrix y;
};
void scatter_rows(const Stream& stream, const ScatterRows& args);

// y[t, i] += x[t, i]
struct Add {
  ConstTensor x;
  Tensor y;
};
void add(const Stream& stream, const Add& args);

// x[t, i] *= factor
struct Scale {
  Matrix x;
  float factor = 1;
};
void scale(const Stream& stream, const Scale& args);

}  // namespace tailrace
