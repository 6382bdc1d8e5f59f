#include <cstddef>

#include "kernels/ref/ref.h"

namespace tailrace::ref {

void embedding(ConstMatrix table, std::span<const int32_t> ids, Matrix y, float scale) {
  for (int64_t t = 0; t < y.rows; ++t) {
    for (int64_t i = 0; i < y.cols; ++i)
      y.row(t)[i] = scale * table.row(ids[static_cast<size_t>(t)])[i];
  }
}

void embedding_backward(std::span<const int32_t> ids, ConstMatrix dy, Matrix dtable, float scale) {
  // By rows of the table and in vocab * tokens steps, so that it shares no loop, and no mistake,
  // with the fast version.
  for (int64_t r = 0; r < dtable.rows; ++r) {
    for (int64_t i = 0; i < dtable.cols; ++i) {
      double sum = dtable.row(r)[i];
      for (int64_t t = 0; t < dy.rows; ++t) {
        if (ids[static_cast<size_t>(t)] == r) sum += double{scale} * dy.row(t)[i];
      }
      dtable.row(r)[i] = static_cast<float>(sum);
    }
  }
}

}  // namespace tailrace::ref
