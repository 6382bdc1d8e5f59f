// Borrowed row-major matrices: what ops take and return.
#pragma once

#include <cstdint>

namespace tailrace {

// [rows, cols], element (r, c) at data[r * stride + c]; stride >= cols, in elements.
template <class T>
struct MatrixView {
  T* data = nullptr;
  int64_t rows = 0, cols = 0, stride = 0;

  MatrixView() = default;
  MatrixView(T* d, int64_t r, int64_t c) : data(d), rows(r), cols(c), stride(c) {}
  MatrixView(T* d, int64_t r, int64_t c, int64_t s) : data(d), rows(r), cols(c), stride(s) {}
  operator MatrixView<const T>() const { return {data, rows, cols, stride}; }  // NOLINT

  T* row(int64_t r) const { return data + r * stride; }
  MatrixView slice_rows(int64_t begin, int64_t end) const {
    return {row(begin), end - begin, cols, stride};
  }
  MatrixView slice_cols(int64_t begin, int64_t end) const {
    return {data + begin, rows, end - begin, stride};
  }
};

using Matrix = MatrixView<float>;
using ConstMatrix = MatrixView<const float>;

// `count` matrices of one shape, one behind the other without a gap: [count, rows, cols].
template <class T>
struct MatrixStack {
  T* data = nullptr;
  int64_t count = 0, rows = 0, cols = 0;

  MatrixStack() = default;
  MatrixStack(T* d, int64_t n, int64_t r, int64_t c) : data(d), count(n), rows(r), cols(c) {}
  operator MatrixStack<const T>() const { return {data, count, rows, cols}; }  // NOLINT

  MatrixView<T> at(int64_t index) const { return {data + index * rows * cols, rows, cols}; }
};

}  // namespace tailrace
