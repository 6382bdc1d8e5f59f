// What a process knows of devices besides the CPU: a backend says so when the process starts
// (kernels/cuda/provide.h), and the rest asks here. Nothing above links a backend.
//
// Thread: provide_backend() comes before all others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/memory.h"

namespace tailrace {

struct DeviceFacts {
  std::string name;          // "NVIDIA H100 80GB HBM3"
  std::string architecture;  // "sm_90"
  int multiprocessors = 0;
  int64_t total_bytes = 0, free_bytes = 0;
};

// A library that is loaded where it is found.
struct LibraryFacts {
  std::string name;     // "cublasLt"
  std::string path;     // empty: not found
  std::string version;  // empty: not known
};

struct BackendFacts {
  bool built = false;                      // this binary has the backend
  std::string driver, toolkit;             // versions; a driver's is empty where there is none
  std::vector<std::string> architectures;  // of the code in this binary: "sm_90a", "compute_80"
  std::vector<DeviceFacts> devices;        // those that can be used
  std::string fault;                       // why there are none; empty where there are some
  std::vector<LibraryFacts> libraries;
};

struct Backend {
  DeviceMemory memory;
  BackendFacts (*facts)() = nullptr;
  void* (*make_stream)(int index) = nullptr;
  void (*free_stream)(void* native, int index) = nullptr;
};
// Its memory becomes that of its kind of device. The ops come by provide_ops() (kernels/ops).
void provide_backend(DeviceKind kind, const Backend& backend);

// Asks the driver at the first call, and remembers. Without a backend nothing is built.
const BackendFacts& backend_facts(DeviceKind kind);

// A stream of one device. On the CPU it names `pool`, which it borrows.
//
// Thread: one at a time.
class OwnedStream {
 public:
  explicit OwnedStream(Device device, ThreadPool* pool = nullptr);
  ~OwnedStream();
  OwnedStream(const OwnedStream&) = delete;
  const Stream& get() const { return stream_; }

 private:
  Stream stream_;
};

}  // namespace tailrace
