// Rows of a table by token id, and the two additions of the residual stream.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/view.h"
#include "kernels/ops/linear.h"

namespace tailrace {

// y[t] = table[ids[t]];  table [vocab, dim], y [tokens, dim]
void embedding(const Stream& stream, const Weight& table, std::span<const int32_t> ids, Matrix y);

// dtable[ids[t]] += dy[t], in ascending order of t for each row (one thread owns a range of
// columns).
void embedding_backward(const Stream& stream, std::span<const int32_t> ids, ConstMatrix dy,
                        Matrix dtable);

// y[r] = x[rows[r]];  x [n, dim], y [rows.size(), dim]
void gather_rows(const Stream& stream, ConstMatrix x, std::span<const int32_t> rows, Matrix y);
// y[rows[r]] = x[r]; rows are distinct; all other rows of y are set to 0.
void scatter_rows(const Stream& stream, ConstMatrix x, std::span<const int32_t> rows, Matrix y);

// y[t, i] += x[t, i]
void add(const Stream& stream, ConstMatrix x, Matrix y);

}  // namespace tailrace
