// Memory, streams and facts of a GPU, from CUDA's runtime. It is linked statically and finds the
// driver when it is first asked for something.
#include <chrono>
#include <map>
#include <sstream>
#include <string>
#include <thread>

#include "kernels/base/backend.h"
#include "kernels/base/pulse.h"
#include "kernels/base/stream_graph.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/op_table.h"
#include "kernels/cuda/product_table.h"
#include "kernels/cuda/provide.h"

namespace tailrace::cuda {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// The most that a kernel asks for on any shape: multiply_few of 64 tokens in four slices.
constexpr size_t kSharedBytes = 160 * 1024;

int64_t free_memory(int index) {
  size_t free_bytes = 0, total_bytes = 0;
  if (cudaSetDevice(index) == cudaSuccess &&
      cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess)
    return static_cast<int64_t>(free_bytes);
  (void)cudaGetLastError();
  return -1;
}

BackendFacts facts() {
  BackendFacts facts;
  facts.built = true;
  facts.toolkit = version_text(CUDART_VERSION);
  std::istringstream architectures(TAILRACE_CUDA_ARCHITECTURES);
  for (std::string name; architectures >> name;) facts.architectures.push_back(name);
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0)
    facts.driver = version_text(driver);
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    facts.fault = facts.driver.empty()
                      ? "there is no NVIDIA driver"
                      : std::string(cudaGetErrorString(error)) + " (the driver is for CUDA " +
                            facts.driver + ", this build for " + facts.toolkit + ")";
    return facts;
  }
  for (int i = 0; i < count; ++i) {
    // Nothing here makes a device ready for work, which takes its memory and some time.
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    DeviceFacts device;
    device.index = i;
    device.name = properties.name;
    device.architecture =
        "sm_" + std::to_string(properties.major) + std::to_string(properties.minor);
    device.multiprocessors = properties.multiProcessorCount;
    device.total_bytes = static_cast<int64_t>(properties.totalGlobalMem);
    if (properties.major < 8 || properties.sharedMemPerBlockOptin < kSharedBytes) {
      facts.fault = device.name + " (" + device.architecture + ") gives a block " +
                    std::to_string(properties.sharedMemPerBlockOptin / 1024) +
                    " KiB of shared memory; the kernels are for sm_80 or newer with " +
                    std::to_string(kSharedBytes / 1024) + " KiB, as A100, H100 and H200 have";
      continue;
    }
    facts.devices.push_back(device);
  }
  if (!facts.devices.empty()) {
    facts.fault.clear();
  } else if (facts.fault.empty()) {
    facts.fault = "there is no device";
  }
  return facts;
}

cudaEvent_t make_event(int index) {
  cuda_check(cudaSetDevice(index));
  cudaEvent_t event = nullptr;
  cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

// An event of this thread, one for each device.
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  ~Event() {
    for (const auto& [index, event] : events_) (void)cudaEventDestroy(event);
  }
  cudaEvent_t native(int index) {
    cudaEvent_t& event = events_[index];
    if (event == nullptr) event = make_event(index);
    return event;
  }

 private:
  std::map<int, cudaEvent_t> events_;
};

std::byte* allocate(size_t bytes, int index) {
  cuda_check(cudaSetDevice(index));
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // or the next launch would report it
    return nullptr;
  }
  cuda_check(error);
  // By a stream of its own: another thread may be capturing one, and nobody may wait for that. All
  // streams may use the memory from here on.
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cuda_check(cudaMemsetAsync(memory, 0, bytes, stream));
  cuda_check(cudaStreamSynchronize(stream));
  cuda_check(cudaStreamDestroy(stream));
  return static_cast<std::byte*>(memory);
}

void release(std::byte* memory, int index) {
  cuda_check(cudaSetDevice(index));
  cuda_check(cudaFree(memory));  // waits for what still uses it
}

cudaStream_t native(const Stream& stream) { return static_cast<cudaStream_t>(stream.native); }

void copy_in_stream(const Stream& stream, std::byte* to, const std::byte* from, size_t bytes) {
  cuda_check(cudaSetDevice(stream.device.index));
  cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native(stream)));
}

// By an event and not by cudaStreamSynchronize(), which has no deadline. Who waits beats, so that a
// watch upon this thread sees it alive.
constexpr auto kWaitDeadline = std::chrono::seconds(600);

void wait_for(cudaEvent_t event) {
  beat();
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    const cudaError_t state = cudaEventQuery(event);
    if (state != cudaErrorNotReady) return cuda_check(state);
    const auto waited = std::chrono::steady_clock::now() - start;
    TR_CHECK(waited < kWaitDeadline, "the GPU has not finished after ten minutes");
    beat();
    // Decode steps are shorter than a thread's wake-up; only what takes long gives the core away.
    if (waited > std::chrono::milliseconds(5))
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void set_mark(const Stream& stream, void* mark) {
  cuda_check(cudaSetDevice(stream.device.index));
  cuda_check(cudaEventRecord(static_cast<cudaEvent_t>(mark), native(stream)));
}

void wait_for_mark(const Stream& stream, void* mark) {
  cuda_check(cudaSetDevice(stream.device.index));
  wait_for(static_cast<cudaEvent_t>(mark));
}

void wait_for_stream(const Stream& stream) {
  thread_local Event done;
  const cudaEvent_t event = done.native(stream.device.index);
  set_mark(stream, event);
  wait_for(event);
}

void free_mark(void* mark, int index) {
  cuda_check(cudaSetDevice(index));
  cuda_check(cudaEventDestroy(static_cast<cudaEvent_t>(mark)));
}

// Waits, allocations and other calls that a capture forbids are this thread's alone.
void begin_capture(const Stream& stream) {
  cuda_check(cudaSetDevice(stream.device.index));
  cuda_check(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal));
}

void* end_capture(const Stream& stream) {
  cudaGraph_t graph = nullptr;
  cuda_check(cudaStreamEndCapture(native(stream), &graph));
  cudaGraphExec_t ready = nullptr;
  cuda_check(cudaGraphInstantiate(&ready, graph, 0));
  cuda_check(cudaGraphDestroy(graph));
  return ready;
}

void launch_graph(const Stream& stream, void* graph) {
  cuda_check(cudaSetDevice(stream.device.index));
  cuda_check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), native(stream)));
}

void free_graph(void* graph, int index) {
  cuda_check(cudaSetDevice(index));
  cuda_check(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)));
}

std::byte* allocate_pinned(size_t bytes) {
  void* memory = nullptr;
  if (cudaMallocHost(&memory, bytes) != cudaSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  return static_cast<std::byte*>(memory);
}

void release_pinned(std::byte* memory) { cuda_check(cudaFreeHost(memory)); }

void* make_stream(int index) {
  cuda_check(cudaSetDevice(index));
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

void free_stream(void* stream, int index) {
  cuda_check(cudaSetDevice(index));
  cuda_check(cudaStreamDestroy(static_cast<cudaStream_t>(stream)));
}

}  // namespace
}  // namespace tailrace::cuda

namespace tailrace {

void provide_cuda() {
  DeviceMemory memory;
  memory.allocate = cuda::allocate;
  memory.release = cuda::release;
  memory.copy = cuda::copy_in_stream;
  memory.wait = cuda::wait_for_stream;
  memory.allocate_pinned = cuda::allocate_pinned;
  memory.release_pinned = cuda::release_pinned;
  memory.make_mark = [](int index) -> void* { return cuda::make_event(index); };
  memory.free_mark = cuda::free_mark;
  memory.set_mark = cuda::set_mark;
  memory.wait_for_mark = cuda::wait_for_mark;
  Backend backend;
  backend.memory = memory;
  backend.facts = cuda::facts;
  backend.libraries = cuda::load_libraries;
  backend.library_products = cuda::proved_products;
  backend.free_bytes = cuda::free_memory;
  backend.make_stream = cuda::make_stream;
  backend.free_stream = cuda::free_stream;
  provide_backend(DeviceKind::kCuda, backend);
  GraphCalls graphs;
  graphs.begin_capture = cuda::begin_capture;
  graphs.end_capture = cuda::end_capture;
  graphs.launch = cuda::launch_graph;
  graphs.free = cuda::free_graph;
  provide_graphs(DeviceKind::kCuda, graphs);
  provide_ops(DeviceKind::kCuda, cuda::op_table());
  cuda::provide_library(cuda::load_cublaslt);
}

}  // namespace tailrace
