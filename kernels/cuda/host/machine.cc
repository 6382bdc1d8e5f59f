#include "kernels/cuda/host/machine.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>

#include "kernels/base/check.h"
#include "kernels/base/pulse.h"

namespace tailrace::cuda::emulation {

Machine g_machine;
constinit thread_local bool t_in_kernel = false;

namespace {

constexpr uint64_t kStackEnd = 0x7261696c72616365;

unsigned bit_of(int thread) { return 1u << (static_cast<unsigned>(thread) % kLanes); }

void set_ready(int warp, unsigned lanes) {
  g_machine.warps[static_cast<size_t>(warp)].ready |= lanes;
  if (lanes != 0) g_machine.ready_warps |= 1u << warp;
}

inline void set_waiting(int thread) {
  Warp& warp = g_machine.warps[static_cast<size_t>(thread / kLanes)];
  warp.ready &= ~bit_of(thread);
  if (warp.ready == 0) g_machine.ready_warps &= ~(1u << (thread / kLanes));
}

inline int first_of(unsigned lanes) {
  return g_machine.order == Order::kForward ? std::countr_zero(lanes)
                                            : 31 - std::countl_zero(lanes);
}

// The next thread that can go on, of the running one's warp first; -1: none.
inline int next_ready() {
  const int own = g_machine.current / kLanes;
  if (const unsigned ready = own_warp().ready; ready != 0) return kLanes * own + first_of(ready);
  if (g_machine.ready_warps == 0) return -1;
  const int warp =
      g_machine.order == Order::kForward
          ? own + std::countr_zero(std::rotr(g_machine.ready_warps, own))
          : own - std::countl_zero(std::rotl(g_machine.ready_warps, kMaxWarps - 1 - own));
  const int next = (warp + kMaxWarps) % kMaxWarps;
  return kLanes * next + first_of(g_machine.warps[static_cast<size_t>(next)].ready);
}

void entry();

uint64_t* end_of_stack(int stack) {
  return reinterpret_cast<uint64_t*>(g_machine.stacks + static_cast<size_t>(stack) * kStackStride);
}

void begin_thread(Lane& lane) {
  if (g_machine.free_stacks.empty()) {
    *end_of_stack(g_machine.num_stacks) = kStackEnd;
    g_machine.free_stacks.push_back(g_machine.num_stacks++);
  }
  lane.stack = g_machine.free_stacks.back();
  g_machine.free_stacks.pop_back();
  begin_at(lane.place, reinterpret_cast<std::byte*>(end_of_stack(lane.stack)), kStackBytes, entry);
}

// Not in line: all fibers wait at one place, so that the processor predicts their returns.
[[gnu::noinline]] void go_on(Place& from, int thread) {
  Lane& lane = g_machine.lanes[static_cast<size_t>(thread)];
  g_machine.current = thread;
  threadIdx = lane.index;
  ++g_machine.stats.switches;
  if (lane.stack < 0) begin_thread(lane);
  change(from, lane.place);
}

// The running thread gives way; whether it is ready says whether it waits.
inline void give_way() {
  Place& own = own_lane().place;
  const int next = next_ready();
  if (next == g_machine.current) return;
  if (next < 0)
    change(own, g_machine.scheduler);
  else
    go_on(own, next);
}

void open_barrier_if_all() {
  if (g_machine.num_alive == 0 || g_machine.num_at_barrier < g_machine.num_alive) return;
  g_machine.num_at_barrier = 0;
  g_machine.barrier_time = ++g_machine.now;
  for (int w = 0; w < g_machine.num_warps; ++w)
    set_ready(w, g_machine.warps[static_cast<size_t>(w)].alive);
}

bool all_came(const Warp& warp, const Point& point) {  // those that have ended need not
  return (point.mask & warp.alive & ~point.arrived) == 0;
}

void order_memory(Warp& warp, const Point& point) {
  const uint32_t time = ++g_machine.now;
  if ((warp.lanes & ~point.mask) == 0) {
    warp.sync_time = time;
    return;
  }
  const auto first = static_cast<size_t>(g_machine.current / kLanes * kLanes);
  for (size_t i = 0; i < kLanes; ++i) {
    if ((point.mask >> i & 1) == 0) continue;
    g_machine.lanes[first + i].sync_time = time;
    g_machine.lanes[first + i].sync_mask = point.mask;
  }
}

void open(Warp& warp, Point& point) {
  set_ready(g_machine.current / kLanes, point.arrived & warp.alive);
  point.came[static_cast<size_t>(point.side)] = point.arrived;
  point.arrived = 0;
  point.side ^= 1;
  if (point.exchange == Exchange::kSync) order_memory(warp, point);
}

// The lanes that wait for the one that has ended.
void end_exchange(Warp& warp, Point& point) {
  if (point.arrived == 0 || !all_came(warp, point)) return;
  if (point.exchange == Exchange::kProduct || point.exchange == Exchange::kMatrix)
    stop(nullptr, "a lane ended where the others of its warp load or multiply matrices");
  open(warp, point);
}

void end_thread() {
  Lane& lane = own_lane();
  Warp& warp = own_warp();
  if (!lane.copies.empty()) {
    error(g_machine.launch.kernel, "ended with copies that were not awaited");
    lane.copies.clear();
  }
  lane.open_group = 0;
  set_waiting(g_machine.current);
  warp.alive &= ~bit_of(g_machine.current);
  --g_machine.num_alive;
  end_exchange(warp, warp.all);
  for (auto& point : warp.points) end_exchange(warp, *point);
  open_barrier_if_all();
}

// A fiber runs one thread after the other, as long as the next one has not begun.
void entry() {
  while (true) {
    t_in_kernel = true;
    g_machine.launch.body(g_machine.launch.closure);
    t_in_kernel = false;
    end_thread();
    const int stack = std::exchange(own_lane().stack, -1), next = next_ready();
    Place ended;
    if (next >= 0 && g_machine.lanes[static_cast<size_t>(next)].stack < 0) {
      g_machine.current = next;
      threadIdx = own_lane().index;
      own_lane().stack = stack;
      continue;
    }
    g_machine.free_stacks.push_back(stack);
    if (next < 0)
      change(ended, g_machine.scheduler);
    else
      go_on(ended, next);
  }
}

std::string lanes_that_wait() {
  std::string text;
  const auto add = [&](int w, const Point& point) {
    constexpr const char* kNames[] = {"syncwarp", "shuffle", "vote", "ldmatrix", "mma"};
    if (point.arrived != 0)
      text += fmt::format("; warp {}: lanes {:08x} of mask {:08x} wait in a {}", w, point.arrived,
                          point.mask, kNames[static_cast<size_t>(point.exchange)]);
  };
  for (int w = 0; w < g_machine.num_warps; ++w) {
    const Warp& warp = g_machine.warps[static_cast<size_t>(w)];
    add(w, warp.all);
    for (const auto& point : warp.points) add(w, *point);
  }
  return text;
}

// After a launch that was ended: threads are somewhere.
void abandon_threads() {
  g_machine.free_stacks.clear();
  for (int i = 0; i < g_machine.num_stacks; ++i) g_machine.free_stacks.push_back(i);
  for (int t = 0; t < g_machine.num_threads; ++t) {
    Lane& lane = g_machine.lanes[static_cast<size_t>(t)];
    lane.stack = -1;
    lane.open_group = 0;
    lane.copies.clear();
  }
  for (int w = 0; w < g_machine.num_warps; ++w) {
    Warp& warp = g_machine.warps[static_cast<size_t>(w)];
    warp.ready = 0;
    warp.all.arrived = 0;
    for (auto& point : warp.points) point->arrived = 0;
  }
  g_machine.ready_warps = 0;
  g_machine.stopped = true;
}

void run_block() {
  g_machine.num_alive = g_machine.num_threads;
  g_machine.num_at_barrier = 0;
  g_machine.block_time = g_machine.barrier_time = ++g_machine.now;
  std::memset(g_machine.shared, 0xFF, g_machine.shared_bytes);
  for (int w = 0; w < g_machine.num_warps; ++w) {
    const int lanes = std::min(kLanes, g_machine.num_threads - kLanes * w);
    Warp& warp = g_machine.warps[static_cast<size_t>(w)];
    warp.lanes = warp.alive = lanes == kLanes ? ~0u : (1u << lanes) - 1;
    set_ready(w, warp.alive);
  }
  g_machine.current = g_machine.order == Order::kForward ? 0 : g_machine.num_threads - 1;
  go_on(g_machine.scheduler, g_machine.current);
  if (g_machine.stopped) return abandon_threads();
  if (g_machine.num_alive == 0) return;
  error(g_machine.launch.kernel,
        fmt::format("deadlock: {} of {} threads wait at __syncthreads{}", g_machine.num_at_barrier,
                    g_machine.num_alive, lanes_that_wait()));
  abandon_threads();
}

void run_blocks(const dim3& grid) {
  const int64_t blocks = int64_t{grid.x} * grid.y * grid.z;
  ++g_machine.stats.launches;
  g_machine.stats.blocks += blocks;
  g_machine.stats.threads += blocks * g_machine.num_threads;
  for (int64_t i = 0; i < blocks && !g_machine.stopped; ++i) {
    const auto at = static_cast<unsigned>(g_machine.order == Order::kForward ? i : blocks - 1 - i);
    blockIdx = {at % grid.x, at / grid.x % grid.y, at / grid.x / grid.y};
    run_block();
    beat();  // as who waits for a GPU does
  }
  for (int i = 0; i < g_machine.num_stacks; ++i) {
    if (*end_of_stack(i) == kStackEnd) continue;
    error(g_machine.launch.kernel,
          fmt::format("a thread's stack overflowed {} bytes", kStackBytes));
    *end_of_stack(i) = kStackEnd;
  }
}

void make_memory() {
  if (g_machine.stacks != nullptr) return;
  const auto map = [](size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TR_CHECK(memory != MAP_FAILED, "no memory for the emulation");
    return static_cast<std::byte*>(memory);
  };
  // The memory in front of the first stack is there too, for a stack that overflows.
  g_machine.stacks = map((kMaxThreads + 1) * kStackStride) + kStackStride;
  g_machine.shared = map(kMaxSharedBytes + 2 * kGap) + kGap;
  std::atexit([] {
    const std::vector<std::string> errors = take_errors();
    for (const std::string& e : errors) fmt::print(stderr, "emulated GPU: {}\n", e);
    if (!errors.empty()) std::_Exit(1);
  });
}

// The threads' numbers follow from the block's shape, which most launches share with the last.
void number_threads(const dim3& block) {
  for (int t = 0; t < g_machine.num_threads; ++t) {
    const auto u = static_cast<unsigned>(t);
    g_machine.lanes[static_cast<size_t>(t)].index = {u % block.x, u / block.x % block.y,
                                                     u / (block.x * block.y)};
  }
}

[[gnu::cold, gnu::noinline, noreturn]] void stop_at(const Point& point, const char* what,
                                                    const void* place) {
  stop(place, fmt::format("mask {:08x} {}", point.mask, what));
}

// Whether a GPU takes the launch. It also refuses a grid of nothing.
bool is_valid(const Launch& launch) {
  const auto& [grid, block] = std::pair(launch.grid, launch.block);
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  return threads > 0 && threads <= kMaxThreads && block.z <= 64 &&
         launch.shared_bytes <= kMaxSharedBytes && grid.x > 0 && grid.x <= INT32_MAX &&
         grid.y > 0 && grid.y <= UINT16_MAX && grid.z > 0 && grid.z <= UINT16_MAX;
}

}  // namespace

void run(const Stream& stream, const Launch& launch) {
  TR_CHECK(!t_in_kernel, "a launch in a kernel");
  if (capture_launch(stream, launch)) return;
  const MutexLock lock(g_machine.mutex);
  begin_queued_copies(stream);
  g_machine.launch = launch;
  g_machine.device = stream.device.index;
  if (!is_valid(launch)) {
    const auto& [grid, block] = std::pair(launch.grid, launch.block);
    return error(
        launch.kernel,
        fmt::format("launch of a grid ({}, {}, {}) of blocks ({}, {}, {}) with {} bytes", grid.x,
                    grid.y, grid.z, block.x, block.y, block.z, launch.shared_bytes));
  }
  make_memory();
  order_from_environment();
  g_machine.num_threads = static_cast<int>(launch.block.x * launch.block.y * launch.block.z);
  g_machine.num_warps = (g_machine.num_threads + kLanes - 1) / kLanes;
  if (blockDim.x != launch.block.x || blockDim.y != launch.block.y || blockDim.z != launch.block.z)
    number_threads(launch.block);
  g_machine.shared_bytes = launch.shared_bytes;
  begin_checks_of_launch();
  blockDim = launch.block;
  gridDim = launch.grid;
  g_machine.stopped = false;
  g_machine.running = true;
  run_blocks(launch.grid);
  g_machine.running = false;
}

int lane() { return g_machine.current % kLanes; }
std::byte* shared_memory() { return g_machine.shared; }

void sync_block() {
  const OutOfKernel outside;
  set_waiting(g_machine.current);
  ++g_machine.num_at_barrier;
  open_barrier_if_all();
  give_way();
}

Point& other_point_of(unsigned mask) {
  Warp& warp = own_warp();
  for (auto& point : warp.points)
    if (point->mask == mask) return *point;
  Point& point = *warp.points.emplace_back(std::make_unique<Point>());
  point.mask = mask;
  return point;
}

bool arrive(Warp& warp, Point& point, Exchange exchange, const void* place) {
  const unsigned bit = bit_of(g_machine.current);
  if ((point.mask & bit) == 0) stop_at(point, "lacks the caller", place);
  if (point.arrived == 0)
    point.exchange = exchange;
  else if (point.exchange != exchange)
    stop_at(point, "has lanes in different exchanges", place);
  point.arrived |= bit;
  if (all_came(warp, point)) return open(warp, point), true;
  set_waiting(g_machine.current);
  give_way();
  return false;
}

void stop(const void* place, std::string text) {
  error(place, std::move(text));
  g_machine.stopped = true;
  change(own_lane().place, g_machine.scheduler);
  std::abort();
}

}  // namespace tailrace::cuda::emulation
