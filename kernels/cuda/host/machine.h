// The state of the emulated GPU, for the sources of this folder. There is one, as CUDA's names
// (threadIdx, ...) are global: launches take turns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/mutex.h"
#include "kernels/cuda/host/checker.h"
#include "kernels/cuda/host/emulation.h"
#include "kernels/cuda/host/emulation_control.h"
#include "kernels/cuda/host/switch.h"

namespace tailrace::cuda::emulation {

constexpr size_t kStackBytes = 64 << 10;
// Further than that, so that the tops of stacks do not all lie in the same sets of the cache.
constexpr size_t kStackStride = kStackBytes + 13 * 64;
constexpr size_t kMaxSharedBytes = 227 << 10;  // a block's, of sm_90
// On either side of an allocation, so that an access far behind one does not meet the next.
constexpr size_t kGap = 256 << 10;
constexpr int kLanes = 32, kMaxThreads = 1024, kMaxWarps = kMaxThreads / kLanes;

// Copies of cp.async that a thread has not awaited.
struct Copy {
  void* to;
  const void* from;
  int from_bytes, group;
};

struct Lane {
  Place place;
  uint3 index;
  int stack = -1;          // none: the thread has not begun, or has ended
  int open_group = 0;      // of copies
  uint32_t sync_time = 0;  // of its last __syncwarp with a mask of some lanes, which were
  unsigned sync_mask = 0;
  std::vector<Copy> copies;
};

enum class Exchange : uint8_t { kSync, kShuffle, kVote, kMatrix, kProduct };

// Where the lanes of one mask meet. Two sides: whoever is first comes again before the last one has
// read.
struct Point {
  unsigned mask = ~0u, arrived = 0;
  Exchange exchange = Exchange::kSync;
  int side = 0;
  std::array<unsigned, 2> came{};  // who brought something to this side
  std::array<std::array<uint64_t, kLanes>, 2> values;
};

// Operands and result of an mma, by k in the order in which lanes have it.
struct Product {
  std::array<std::array<float, 16>, 16> a;
  std::array<std::array<float, 8>, 16> b;
  std::array<std::array<double, 8>, 16> d;
};

struct Warp {
  unsigned ready = 0, alive = 0, lanes = 0;    // of the last, some may have ended
  uint32_t sync_time = 0;                      // of its last __syncwarp
  Point all;                                   // of the mask of all lanes
  std::vector<std::unique_ptr<Point>> points;  // of other masks
  Product product;
};

// An allocation.
struct Region {
  std::byte* begin = nullptr;
  size_t bytes = 0;
  int device = 0;
  Cell* cells = nullptr;  // none: nothing is checked
  void* mapping = nullptr;
  size_t mapping_bytes = 0;
};

struct Machine {
  Mutex mutex;  // of all below; held by a launch from its begin to its end

  // Fibers.
  std::byte* stacks = nullptr;
  int num_stacks = 0;            // that were ever used
  std::vector<int> free_stacks;  // of those
  std::array<Lane, kMaxThreads> lanes;
  std::array<Warp, kMaxWarps> warps;
  uint32_t ready_warps = 0;
  int num_threads = 0, num_warps = 0, current = 0, num_alive = 0, num_at_barrier = 0;
  Place scheduler;
  Order order = Order::kForward;
  bool order_is_set = false;

  // The launch.
  Launch launch;
  int device = 0;
  bool running = false, stopped = false;
  std::byte* shared = nullptr;  // with a gap on either side
  size_t shared_bytes = 0;

  // The checker's. Times of one launch, of one block and of its last barrier.
  uint32_t now = 1, launch_time = 1, block_time = 1, barrier_time = 1;
  std::vector<Cell> shared_cells, static_cells;
  const std::byte* statics = nullptr;  // __shared__ variables and others that are thread-local
  size_t statics_bytes = 0;

  std::map<const std::byte*, Region> regions;  // by their begin

  struct Error {
    std::string text;
    const void* place;
  };
  std::vector<Error> errors;
  Stats stats;
};
extern Machine g_machine;
// Whether a kernel's own code runs on this OS thread, whose accesses are checked. What the
// emulation does is not: functions of the standard library may be those that a checked source
// compiled.
extern constinit thread_local bool t_in_kernel;
// From a call out of a kernel to the return into it.
struct OutOfKernel {
  OutOfKernel() { t_in_kernel = false; }
  ~OutOfKernel() { t_in_kernel = true; }
  OutOfKernel(const OutOfKernel&) = delete;
};

// `place`: an address in the code, or none.
void error(const void* place, std::string text);
// Ends the launch.
[[noreturn]] void stop(const void* place, std::string text);
// "file:line" if it can be found.
std::string name_of(const void* place);
std::vector<std::string> take_errors_locked();

inline Warp& own_warp() {
  return g_machine.warps[static_cast<unsigned>(g_machine.current) / kLanes];
}
inline Lane& own_lane() { return g_machine.lanes[static_cast<size_t>(g_machine.current)]; }

// The point of the mask in the running warp.
Point& other_point_of(unsigned mask);
inline Point& point_of(unsigned mask) {
  return mask == ~0u ? own_warp().all : other_point_of(mask);
}
// The running lane comes and stays until all others of the mask have come. True: it was the last
// one, and no other lane has run since.
bool arrive(Warp& warp, Point& point, Exchange exchange, const void* place);

// The region that holds the whole of it; null: none.
const Region* region_of(const void* address, size_t bytes);
// The region whose gap this is, for a message.
const Region* neighbour_of(const void* address);
void forget_recent_regions();
void begin_queued_copies(const Stream& stream);

// Captures (captures.cc). These note what was asked of a stream that is captured; false: it is not.
bool capture_launch(const Stream& stream, const Launch& launch);
bool capture_copy(const Stream& stream, std::byte* to, const std::byte* from, size_t bytes);
// Whether the thread captures, and may therefore not do this; that is an error.
bool refuse_in_capture(const char* what);
// In the order of the stream.
void copy_in_stream(const Stream& stream, std::byte* to, const std::byte* from, size_t bytes);
void begin_checks_of_launch();
void order_from_environment();

}  // namespace tailrace::cuda::emulation
