// The knowledge of a process of devices besides the CPU: a backend says so when the process starts
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
  int index = 0;             // Device::index
  std::string name;          // "NVIDIA H100 80GB HBM3"
  std::string architecture;  // "sm_90"
  int multiprocessors = 0;
  int64_t total_bytes = 0;
};

// A library that a backend loads where it is found.
struct LibraryFacts {
  std::string name;     // "cublasLt"
  std::string path;     // empty: not found
  std::string version;  // as it says itself; empty: not known
  std::string fault;    // why it could not be loaded; empty: it could, or was not found
};

struct BackendFacts {
  bool built = false;                      // this binary has the backend
  std::string driver, toolkit;             // versions; a driver's is empty where there is none
  std::vector<std::string> architectures;  // of the code in this binary: "sm_90a", "compute_80"
  std::vector<DeviceFacts> devices;        // those that can be used
  std::string fault;                       // why there are none; empty where there are some
};

struct Backend {
  DeviceMemory memory;
  BackendFacts (*facts)() = nullptr;
  std::vector<LibraryFacts> (*libraries)() = nullptr;    // null: there are none
  std::string (*library_products)(int index) = nullptr;  // null: there are none
  int64_t (*free_bytes)(int index) = nullptr;
  void* (*make_stream)(int index) = nullptr;
  void (*free_stream)(void* native, int index) = nullptr;
};
// Its memory becomes that of its kind of device. The ops come by provide_ops() (kernels/ops).
void provide_backend(DeviceKind kind, const Backend& backend);

// Asks the driver at the first call, and remembers. Without a backend nothing is built.
const BackendFacts& backend_facts(DeviceKind kind);
// The free bytes of the device; -1: it does not say, as one that others keep for themselves. Makes
// ready for work whichever device is asked.
int64_t free_bytes(Device device);
// Looks for the libraries and loads each, which may take a second.
std::vector<LibraryFacts> backend_libraries(DeviceKind kind);
// Names the table of forward products that a library makes on a device (prove_products()); empty:
// it makes none.
std::string library_products(Device device);

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
