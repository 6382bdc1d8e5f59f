// Borrowed row-major matrices: what ops take and return.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"

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

  constexpr T* row(int64_t r) const { return data + r * stride; }
  MatrixView slice_rows(int64_t begin, int64_t end) const {
    return {row(begin), end - begin, cols, stride};
  }
  MatrixView slice_cols(int64_t begin, int64_t end) const {
    return {data + begin, rows, end - begin, stride};
  }
};

using Matrix = MatrixView<float>;
using ConstMatrix = MatrixView<const float>;

// A matrix of some dtype in the memory of some device: what the ops of a forward pass take, which
// run on more than the CPU. A Matrix is one too. The way back is asked for, and fails a check where
// it would read memory of another device or elements of another dtype.
//
// On a GPU rows begin at multiples of 16 bytes.
template <class Byte>  // std::byte or const std::byte
struct BasicTensor {
  template <class T>
  using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;

  Byte* data = nullptr;
  int64_t rows = 0, cols = 0, stride = 0;  // the stride in elements
  Dtype dtype = Dtype::kF32;
  Device device;

  BasicTensor() = default;
  BasicTensor(Byte* d, int64_t r, int64_t c, Dtype type, Device where)
      : data(d), rows(r), cols(c), stride(c), dtype(type), device(where) {}
  BasicTensor(Matrix m)  // NOLINT
      : data(reinterpret_cast<Byte*>(m.data)), rows(m.rows), cols(m.cols), stride(m.stride) {}
  template <class T>
  requires(std::is_const_v<Byte>&& std::is_same_v<T, const float>)
      BasicTensor(MatrixView<T> m)  // NOLINT
      : data(reinterpret_cast<Byte*>(m.data)), rows(m.rows), cols(m.cols), stride(m.stride) {}
  template <class Other>
  requires(std::is_const_v<Byte> && !std::is_const_v<Other>)
      BasicTensor(const BasicTensor<Other>& t)  // NOLINT
      : data(t.data),
        rows(t.rows),
        cols(t.cols),
        stride(t.stride),
        dtype(t.dtype),
        device(t.device) {}

  BasicTensor slice_rows(int64_t begin, int64_t end) const {
    BasicTensor slice = *this;
    slice.data += begin * stride * size_of(dtype);
    slice.rows = end - begin;
    return slice;
  }
  BasicTensor slice_cols(int64_t begin, int64_t end) const {
    BasicTensor slice = *this;
    slice.data += begin * size_of(dtype);
    slice.cols = end - begin;
    return slice;
  }

  // For code that runs on `where`.
  template <class T>
  MatrixView<Element<T>> on(Device where) const {
    TR_CHECK(device == where, "a matrix of device {} read on device {}", device.index, where.index);
    TR_CHECK(dtype == dtype_of<T>(), "a matrix of dtype {}", static_cast<int>(dtype));
    return {reinterpret_cast<Element<T>*>(data), rows, cols, stride};
  }
  MatrixView<Element<float>> host() const { return on<float>(Device{}); }
};
using Tensor = BasicTensor<std::byte>;
using ConstTensor = BasicTensor<const std::byte>;

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
