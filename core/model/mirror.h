// Arrays that a device computes with and the host reads or writes.
#pragma once

#include <cstdint>
#include <span>

#include "core/model/placement.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"

namespace tailrace {

// Where mirrored arrays lie. On the CPU there is one array, in `device`.
struct MirrorMemory {
  Workspace& device;
  Workspace& host;
  Placement placement = {};

  bool is_one() const { return placement.device.kind == DeviceKind::kCpu; }
  Workspace& on_host() const { return is_one() ? device : host; }
};

// An array on both sides. What one side wrote the other has after send() or, once the stream was
// waited for, after fetch(). On the CPU both are the same memory, and these do nothing.
template <class T>
struct Mirror {
  std::span<T> host, device;
  Device where;

  Mirror() = default;
  Mirror(const MirrorMemory& memory, int64_t count)
      : device(memory.device.take<T>(count)), where(memory.placement.device) {
    host = memory.is_one() ? device : memory.host.take<T>(count);
  }

  Mirror slice(int64_t begin, int64_t count) const {
    Mirror part = *this;
    const auto first = static_cast<size_t>(begin), size = static_cast<size_t>(count);
    part.host = host.subspan(first, size);
    part.device = device.subspan(first, size);
    return part;
  }
  void send(const Stream& stream) const {
    if (host.data() != device.data()) copy(stream, on_device(), bytes_of(host));
  }
  void fetch(const Stream& stream) const {
    if (host.data() != device.data()) copy(stream, bytes_of(host), on_device());
  }

 private:
  DeviceBytes on_device() const {
    return {where, reinterpret_cast<std::byte*>(device.data()), device.size_bytes()};
  }
};

// The same of a float32 matrix.
struct MirrorMatrix {
  Matrix host;
  Tensor device;

  MirrorMatrix() = default;
  MirrorMatrix(const MirrorMemory& memory, int64_t rows, int64_t cols)
      : device(take_tensor(memory.device, memory.placement, rows, cols, Dtype::kF32)) {
    host = memory.is_one() ? device.host()
                           : Matrix(memory.host.take<float>(rows * device.stride).data(), rows,
                                    cols, device.stride);
  }

  MirrorMatrix slice_rows(int64_t begin, int64_t end) const {
    MirrorMatrix part = *this;
    part.host = host.slice_rows(begin, end);
    part.device = device.slice_rows(begin, end);
    return part;
  }
  void fetch(const Stream& stream) const {
    if (reinterpret_cast<std::byte*>(host.data) == device.data) return;
    const auto floats = static_cast<size_t>(host.rows * host.stride);
    copy(stream, bytes_of(std::span(host.data, floats)),
         {device.device, device.data, floats * sizeof(float)});
  }
};

}  // namespace tailrace
