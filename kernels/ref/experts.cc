#include "kernels/ref/ref.h"

namespace tailrace::ref {
namespace {

// Row by row, so that groups are never seen as such.
int64_t expert_of(std::span<const int32_t> offsets, int64_t row) {
  size_t e = 0;
  while (offsets[e + 1] <= row) ++e;
  return static_cast<int64_t>(e);
}

}  // namespace

void grouped_linear(const GroupedLinear& a, MatrixStack<const float> master) {
  for (int64_t r = 0; r < a.x.rows; ++r)
    linear(a.x.host().slice_rows(r, r + 1), master.at(expert_of(a.offsets, r)), {},
           a.y.host().slice_rows(r, r + 1));
}

void grouped_grad_input(const GroupedGradInput& a, MatrixStack<const float> master) {
  for (int64_t r = 0; r < a.dy.rows; ++r)
    linear_grad_input(a.dy.host().slice_rows(r, r + 1), master.at(expert_of(a.offsets, r)),
                      a.dx.host().slice_rows(r, r + 1), /*accumulate=*/false);
}

void grouped_grad_weight(const GroupedGradWeight& a) {
  for (int64_t e = 0; e < a.dweights.count; ++e) {
    const int64_t begin = a.offsets[static_cast<size_t>(e)];
    const int64_t end = a.offsets[static_cast<size_t>(e) + 1];
    linear_grad_weight(a.dy.host().slice_rows(begin, end), a.x.host().slice_rows(begin, end),
                       a.dweights.at(e));
  }
}

void weighted_sum(const WeightedSum& a) {
  const int64_t k = a.y.rows == 0 ? 0 : a.x.rows / a.y.rows;
  for (int64_t t = 0; t < a.y.rows; ++t) {
    for (int64_t i = 0; i < a.y.cols; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < k; ++j)
        sum += (a.weights.rows > 0 ? double{a.weights.host().row(t)[j]} : 1.0) *
               a.x.host().row(a.rows[static_cast<size_t>(t * k + j)])[i];
      a.y.host().row(t)[i] = static_cast<float>(sum);
    }
  }
}

void weight_backward(const WeightBackward& a) {
  const int64_t k = a.weights.cols;
  for (int64_t t = 0; t < a.weights.rows; ++t) {
    for (int64_t j = 0; j < k; ++j) {
      const int64_t row = a.rows[static_cast<size_t>(t * k + j)];
      const double weight = a.weights.host().row(t)[j];
      double sum = 0;
      for (int64_t i = 0; i < a.h.cols; ++i) {
        // dL/dw = h . dh, taken before both are scaled by the weight in place.
        sum += double{a.h.host().row(row)[i]} * a.dh.host().row(row)[i];
        a.h.host().row(row)[i] = static_cast<float>(a.h.host().row(row)[i] * weight);
        a.dh.host().row(row)[i] = static_cast<float>(a.dh.host().row(row)[i] * weight);
      }
      a.dweights.host().row(t)[j] = static_cast<float>(sum);
    }
  }
}

}  // namespace tailrace::ref
