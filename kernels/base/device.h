// Where an op runs and in which order: every op takes a Stream as its first argument.
//
// A Stream is a value that borrows what it names. On the CPU it names a thread pool (none: the
// caller's thread) and ops run before the call returns. On a GPU `native` is the cudaStream_t.
#pragma once

#include <cstdint>

namespace tailrace {

class ThreadPool;

enum class DeviceKind : uint8_t { kCpu, kCuda };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

struct Stream {
  Device device;
  ThreadPool* pool = nullptr;  // borrowed
  void* native = nullptr;      // borrowed; a cudaStream_t on kCuda
};

}  // namespace tailrace
