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
  ConstTensor dy;
  Tensor dtable;
  float scale = 1;
};
void embedding_backward(const Stream& stream, const EmbeddingBackward& args);

// y[r] = x[rows[r]];  x [n, dim], y [rows.size(), dim]
// On a GPU x and y are operands or float32 each.
struct GatherRows {
  ConstTensor x;
  std::span<const int32_t> rows;
  Tensor y;
};
void gather_rows(const Stream& stream, const GatherRows& args);

// ids[t] = max(drawn[from[t]], 0) where from[t] >= 0; the others stay. So a pass takes tokens that
// the host has not seen. What sample() could not draw is -1: it becomes an id that can be looked
// up, and who reads the draws refuses it.
struct TakeDrawn {
  std::span<const int32_t> drawn;
  std::span<const int32_t> from;  // [ids.size()], each below drawn.size()
  std::span<int32_t> ids;
};
void take_drawn(const Stream& stream, const TakeDrawn& args);

// y[rows[r]] = x[r]; rows are distinct; all other rows of y are set to 0.
struct ScatterRows {
  ConstTensor x;
  std::span<const int32_t> rows;
  Tensor y;
};
void scatter_rows(const Stream& stream, const ScatterRows& args);

// y[t, i] += x[t, i]
struct Add {
  ConstTensor x;
  Tensor y;
};
void add(const Stream& stream, const Add& args);

// y[i] = x[i] + offset, and x[i] itself, -0 included, where offset is 0; y may be x
struct Shift {
  std::span<const float> x;
  float offset = 0;
  std::span<float> y;
};
void shift(const Stream& stream, const Shift& args);

// x[i] = value
struct Fill {
  std::span<float> x;
  float value = 0;
};
void fill(const Stream& stream, const Fill& args);

// x[t, i] *= factor
struct Scale {
  Tensor x;
  float factor = 1;
};
void scale(const Stream& stream, const Scale& args);

}  // namespace tailrace
