// Memory of the emulated device, and copies in the order of a stream.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/mman.h>

#include "kernels/base/check.h"
#include "kernels/cuda/host/machine.h"
#include "kernels/cuda/host/waits.h"

namespace tailrace::cuda::emulation {
namespace {

// The bytes of a gap next to the allocation that are filled, and looked at for writes.
constexpr size_t kGuard = 1024;
constexpr size_t kPage = 4096;
constexpr size_t kAlignment = 256;  // cudaMalloc's

struct Transfer {
  std::byte* to;
  const std::byte* from;
  size_t bytes;
  int64_t number;  // in its stream
};
// A copy that has left the device and not yet reached the host.
struct Delivery {
  std::byte* to;
  std::vector<std::byte> data;
  int64_t number;
};
struct Queue {
  std::vector<Transfer> waiting;
  std::vector<Delivery> deliveries;
  int64_t num_copies = 0;  // that were asked of the stream
  int64_t num_launches = 0;
  int64_t awaited = 0;  // copies and launches that were asked when somebody waited for all
};
// The numbers of copies and launches that were asked of a stream before it.
struct Mark {
  int64_t copies = 0, launches = 0;
};
HostWaits g_waits;  // under the machine's mutex
constexpr int64_t kAllCopies = std::numeric_limits<int64_t>::max();
using StreamKey = std::pair<int, void*>;
std::map<StreamKey, Queue> g_queues;  // under the machine's mutex

Queue& queue_of(const Stream& stream) { return g_queues[{stream.device.index, stream.native}]; }

bool overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

// Delivers the first `count` copies of the stream.
void deliver(Queue& queue, int64_t count = kAllCopies) {
  const auto end =
      std::ranges::find_if(queue.deliveries, [&](const Delivery& d) { return d.number >= count; });
  for (auto d = queue.deliveries.begin(); d != end; ++d)
    std::memcpy(d->to, d->data.data(), d->data.size());
  queue.deliveries.erase(queue.deliveries.begin(), end);
}

// The cells of a part of a region.
std::pair<Cell*, Cell*> cells_of(const Region& region, const void* part, size_t bytes) {
  if (region.cells == nullptr || bytes == 0) return {};
  const auto offset = static_cast<size_t>(static_cast<const std::byte*>(part) - region.begin);
  return {region.cells + offset / kGrain, region.cells + (offset + bytes - 1) / kGrain + 1};
}

void begin_copies(Queue& queue, int64_t count = kAllCopies) {
  const auto later =
      std::ranges::find_if(queue.waiting, [&](const Transfer& t) { return t.number >= count; });
  const std::vector<Transfer> due(queue.waiting.begin(), later);
  queue.waiting.erase(queue.waiting.begin(), later);
  for (const Transfer& t : due) {
    if (region_of(t.from, t.bytes) == nullptr)
      for (const Delivery& d : queue.deliveries)
        if (overlap(t.from, t.bytes, d.to, d.data.size())) {
          deliver(queue);
          break;
        }
    const Region* to = region_of(t.to, t.bytes);
    if (to == nullptr) {
      queue.deliveries.push_back({t.to, {t.from, t.from + t.bytes}, t.number});
      continue;
    }
    std::memmove(t.to, t.from, t.bytes);
    const auto [begin, end] = cells_of(*to, t.to, t.bytes);
    std::fill(begin, end, Cell{});
  }
}

// One side is the device's; a side that begins or ends in some gap is a mistake.
bool is_valid(const Stream& stream, const std::byte* to, const std::byte* from, size_t bytes) {
  bool any = false;
  for (const std::byte* side : {to, from}) {
    const Region* region = region_of(side, bytes);
    any |= region != nullptr;
    const bool is_host = region == nullptr && neighbour_of(side) == nullptr &&
                         neighbour_of(side + bytes - 1) == nullptr;
    const bool is_here = region != nullptr && region->device == stream.device.index;
    if (!is_host && !is_here) return false;
  }
  return any;
}

std::byte* map_region(size_t bytes, int device, unsigned char fill) {
  static size_t count = 0;
  const size_t shift = count++ % 8 * kAlignment;  // else all would begin in the same cache sets
  const size_t all = (bytes + 2 * kGap + shift + kPage - 1) / kPage * kPage;
  void* mapping = mmap(nullptr, all, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  Region region{.begin = static_cast<std::byte*>(mapping) + kGap + shift,
                .bytes = bytes,
                .device = device,
                .cells = nullptr,
                .mapping = mapping,
                .mapping_bytes = all};
  if (g_checks)  // not touched before it is used
    region.cells = static_cast<Cell*>(std::calloc(bytes / kGrain + 1, sizeof(Cell)));
  std::memset(region.begin - kGuard, 0xFF, kGuard);
  std::memset(region.begin + bytes, 0xFF, kGuard);
  if (fill != 0) std::memset(region.begin, fill, bytes);
  g_machine.regions[region.begin] = region;
  forget_recent_regions();
  return region.begin;
}

void check_gap(const Region& region) {
  const auto is_full = [](const std::byte* from) {
    return std::all_of(from, from + kGuard, [](std::byte b) { return b == std::byte{0xFF}; });
  };
  const bool before = is_full(region.begin - kGuard), behind = is_full(region.begin + region.bytes);
  if (before && behind) return;
  error(nullptr, fmt::format("somebody wrote out of bounds, {} an allocation of {} bytes",
                             before ? "behind" : "before", region.bytes));
  std::memset(region.begin - kGuard, 0xFF, kGuard);
  std::memset(region.begin + region.bytes, 0xFF, kGuard);
}

void unmap_region(std::byte* memory) {
  const auto found = g_machine.regions.find(memory);
  TR_CHECK(found != g_machine.regions.end(), "released twice, or never allocated");
  // As cudaFree, which waits for the device.
  for (auto& [key, queue] : g_queues) begin_copies(queue);
  const Region region = found->second;
  check_gap(region);
  g_machine.regions.erase(found);
  forget_recent_regions();
  std::free(region.cells);
  munmap(region.mapping, region.mapping_bytes);
}

std::map<std::byte*, size_t> g_pinned;  // sizes; under the machine's mutex

std::byte* allocate_pinned(size_t bytes) {
  (void)refuse_in_capture("pinned memory is taken");
  auto* memory = static_cast<std::byte*>(
      std::aligned_alloc(kMemoryAlignment, Workspace::aligned(std::max<size_t>(bytes, 1))));
  if (memory == nullptr) return nullptr;
  std::memset(memory, 0xFF, bytes);
  const MutexLock lock(g_machine.mutex);
  g_pinned[memory] = bytes;
  return memory;
}

void release_pinned(std::byte* memory) {
  (void)refuse_in_capture("pinned memory is released");
  const MutexLock lock(g_machine.mutex);
  const auto found = g_pinned.find(memory);
  TR_CHECK(found != g_pinned.end(), "released twice, or never allocated");
  const size_t bytes = found->second;
  for (auto& [key, queue] : g_queues) {
    const auto is_used = [&](const Transfer& t) {
      return overlap(memory, bytes, t.from, t.bytes) || overlap(memory, bytes, t.to, t.bytes);
    };
    const auto is_awaited = [&](const Delivery& d) {
      return overlap(memory, bytes, d.to, d.data.size());
    };
    const size_t waiting = std::erase_if(queue.waiting, is_used);
    if (waiting + std::erase_if(queue.deliveries, is_awaited) == 0) continue;
    error(nullptr, fmt::format("{} pinned bytes were released while a copy needs them", bytes));
  }
  g_pinned.erase(found);
  std::free(memory);
}

std::array<const Region*, 4> g_recent{};
size_t g_next_recent = 0;

}  // namespace

void forget_recent_regions() { g_recent = {}; }

const Region* region_of(const void* address, size_t bytes) {
  const auto* at = static_cast<const std::byte*>(address);
  const auto holds = [&](const Region& region) {
    const auto offset = static_cast<size_t>(at - region.begin);
    return offset < region.bytes && bytes <= region.bytes - offset;
  };
  for (const Region* region : g_recent)
    if (region != nullptr && holds(*region)) return region;
  const auto next = g_machine.regions.upper_bound(at);
  if (next == g_machine.regions.begin() || !holds(std::prev(next)->second)) return nullptr;
  const Region* region = &std::prev(next)->second;
  g_recent[g_next_recent++ % g_recent.size()] = region;
  return region;
}

const Region* neighbour_of(const void* address) {
  const auto* at = static_cast<const std::byte*>(address);
  for (const auto& [begin, region] : g_machine.regions)
    if (at >= begin - kGap && at < begin + region.bytes + kGap) return &region;
  return nullptr;
}

void copy_in_stream(const Stream& stream, std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes == 0) return;
  const MutexLock lock(g_machine.mutex);
  if (!is_valid(stream, to, from, bytes))
    return error(nullptr, fmt::format("a copy of {} bytes from {} to {} on device {} is out of "
                                      "bounds, or of another device, or of the host alone",
                                      bytes, static_cast<const void*>(from),
                                      static_cast<const void*>(to), stream.device.index));
  // It is done when the graph is; until then the place on the host is full of 0xFF, too.
  const bool is_captured = capture_copy(stream, to, from, bytes);
  Queue& own = queue_of(stream);
  if (!is_captured) own.waiting.push_back({to, from, bytes, own.num_copies++});
  if (region_of(to, bytes) != nullptr) return;
  // Whoever reads too early finds no values of an earlier step.
  for (const auto& [key, queue] : g_queues)
    for (const Transfer& t : queue.waiting)
      if (overlap(to, bytes, t.from, t.bytes)) return;
  std::memset(to, 0xFF, bytes);
}

void begin_queued_copies(const Stream& stream) {
  Queue& queue = queue_of(stream);
  ++queue.num_launches;
  begin_copies(queue);
}

namespace {

void wait_for_copies(const Stream& stream, int64_t count) {
  if (refuse_in_capture("the host waits")) return;
  const MutexLock lock(g_machine.mutex);
  Queue& queue = queue_of(stream);
  begin_copies(queue, count);
  deliver(queue, count);
  for (const auto& [begin, region] : g_machine.regions) check_gap(region);
  if (g_machine.errors.empty()) return;
  std::string text;
  for (const std::string& e : take_errors_locked()) text += "\n  " + e;
  check_failed(__FILE__, __LINE__, "the emulated GPU found no error", text);
}

void set_mark(const Stream& stream, void* mark) {
  if (refuse_in_capture("a mark is set")) return;
  const MutexLock lock(g_machine.mutex);
  const Queue& queue = queue_of(stream);
  *static_cast<Mark*>(mark) = {queue.num_copies, queue.num_launches};
}

void count_wait(const Stream& stream, const Mark& mark) {
  const MutexLock lock(g_machine.mutex);
  Queue& queue = queue_of(stream);
  if (mark.copies + mark.launches <= queue.awaited) return;
  if (mark.launches < queue.num_launches) {
    ++g_waits.busy;
    return;
  }
  ++g_waits.idle;
  queue.awaited = mark.copies + mark.launches;
}

void wait_for_mark(const Stream& stream, void* mark) {
  const Mark own = *static_cast<const Mark*>(mark);
  count_wait(stream, own);
  wait_for_copies(stream, own.copies);
}

}  // namespace

void wait(const Stream& stream) {
  if (refuse_in_capture("the host waits")) return;
  Mark now;
  set_mark(stream, &now);
  count_wait(stream, now);
  wait_for_copies(stream, kAllCopies);
}

HostWaits host_waits() {
  const MutexLock lock(g_machine.mutex);
  return g_waits;
}

DeviceMemory emulated_memory() {
  return {.allocate =
              [](size_t bytes, int index) {
                (void)refuse_in_capture("memory is taken");
                const MutexLock lock(g_machine.mutex);
                return map_region(bytes, index, 0);
              },
          .release =
              [](std::byte* memory, int) {
                (void)refuse_in_capture("memory is released");
                const MutexLock lock(g_machine.mutex);
                unmap_region(memory);
              },
          .copy = copy_in_stream,
          .wait = wait,
          .allocate_pinned = allocate_pinned,
          .release_pinned = release_pinned,
          .make_mark = [](int) -> void* { return std::make_unique<Mark>().release(); },
          .free_mark = [](void* mark, int) { delete static_cast<Mark*>(mark); },
          .set_mark = set_mark,
          .wait_for_mark = wait_for_mark};
}

// Their names. A stream that is freed does first what was queued.
void* make_stream(int /*index*/) { return std::make_unique<std::byte>().release(); }

void free_stream(void* native, int index) {
  const MutexLock lock(g_machine.mutex);
  if (const auto found = g_queues.find({index, native}); found != g_queues.end()) {
    begin_copies(found->second);
    deliver(found->second);
    g_queues.erase(found);
  }
  delete static_cast<std::byte*>(native);
}

void mark_unwritten(void* memory, size_t bytes) {
  if (bytes == 0) return;
  const MutexLock lock(g_machine.mutex);
  const Region* region = region_of(memory, bytes);
  TR_CHECK(region != nullptr, "{} bytes that are not the device's", bytes);
  std::memset(memory, 0xFF, bytes);
  const auto [begin, end] = cells_of(*region, memory, bytes);
  std::fill(begin, end, Cell{.writer = Cell::kUnwritten});
}

void* allocate(size_t bytes) {
  const MutexLock lock(g_machine.mutex);
  return map_region(bytes, 0, 0xFF);
}

void release(void* memory) {
  if (memory == nullptr) return;
  const MutexLock lock(g_machine.mutex);
  unmap_region(static_cast<std::byte*>(memory));
}

}  // namespace tailrace::cuda::emulation
