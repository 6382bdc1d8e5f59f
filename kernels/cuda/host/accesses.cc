#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <link.h>

#include "kernels/base/check.h"
#include "kernels/cuda/host/checker.h"
#include "kernels/cuda/host/machine.h"

namespace tailrace::cuda::emulation {

constinit bool g_checks = false;

namespace {

struct Range {
  const std::byte* begin = nullptr;
  size_t bytes = 0;
  bool holds(const void* address, size_t count) const {
    const auto offset = static_cast<size_t>(static_cast<const std::byte*>(address) - begin);
    return offset < bytes && count <= bytes - offset;
  }
};

// The constant memory of a GPU: the part of the program's own memory that cannot be written.
std::vector<Range> read_only_ranges() {
  std::vector<Range> ranges;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& part = info->dlpi_phdr[i];
          if ((part.p_type == PT_LOAD && (part.p_flags & PF_W) == 0) || part.p_type == PT_GNU_RELRO)
            static_cast<std::vector<Range>*>(out)->push_back(
                {reinterpret_cast<const std::byte*>(info->dlpi_addr + part.p_vaddr), part.p_memsz});
        }
        return 1;  // the program itself comes first
      },
      &ranges);
  return ranges;
}

// The launching thread's __shared__ variables are in its block of thread-local memory.
Range thread_local_range() {
  static thread_local Range range;
  if (range.begin != nullptr) return range;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        for (int i = 0; i < info->dlpi_phnum; ++i)
          if (info->dlpi_phdr[i].p_type == PT_TLS && info->dlpi_tls_data != nullptr)
            *static_cast<Range*>(out) = {static_cast<const std::byte*>(info->dlpi_tls_data),
                                         info->dlpi_phdr[i].p_memsz};
        return 1;
      },
      &range);
  return range;
}

// The thread that accesses, and when; copied, as what is written to cells could else be part of it.
struct Accessor {
  uint32_t now, launch_time, block_time, barrier_time, sync_time;
  int thread;
  bool shared;
};

// Whether an access of another thread of this launch at that time came before all that the running
// thread does now.
inline bool is_before(const Accessor& own, uint32_t time, int other) {
  if (time < own.launch_time) return true;
  if (time < own.block_time) return own.shared;  // nothing orders blocks
  if (time < own.barrier_time || other == own.thread) return true;
  if (other / kLanes != own.thread / kLanes) return false;
  if (time < own.sync_time) return true;
  const Lane& lane = own_lane();
  return time < lane.sync_time && (lane.sync_mask >> (other % kLanes) & 1) != 0;
}

inline const char* fault_of_read(const Accessor& own, const Cell& c) {
  const bool written = own.shared ? c.wrote >= own.block_time : c.writer != Cell::kUnwritten;
  if (!written) return "reads what nobody wrote";
  if (c.writer == Cell::kCopy && c.wrote >= own.launch_time)
    return "reads a copy that was not awaited";
  return is_before(own, c.wrote, c.writer) ? nullptr : "reads what another writes";
}

constexpr const char* kWritesRead = "writes what another reads";
inline const char* fault_of_write(const Accessor& own, const Cell& c, Access access) {
  const bool both_atomic = access == Access::kAtomic && c.writer == Cell::kAtomic;
  if (c.writer != Cell::kUnwritten && !both_atomic) {
    if (c.writer == Cell::kCopy && c.wrote >= (own.shared ? own.block_time : own.launch_time))
      return "writes where a copy is under way";
    if (!is_before(own, c.wrote, c.writer)) return "writes what another writes";
  }
  const bool other_warps = c.warps != 0 && c.read >= own.barrier_time;
  const bool other_blocks = c.blocks != 0 && c.read >= own.launch_time && !own.shared;
  // The reader's time is the last of its warp's lanes.
  const int reader = c.lanes != 0 && c.reader == own.thread ? c.reader ^ 1 : c.reader;
  if (other_warps || other_blocks || !is_before(own, c.read, reader)) return kWritesRead;
  return nullptr;
}

inline void note_read(const Accessor& own, Cell& c) {
  const bool same_phase = c.read >= own.barrier_time;
  const bool other_warp = c.reader / kLanes != own.thread / kLanes;
  const bool same_sync = same_phase && !other_warp && c.read >= own.sync_time;
  c.blocks = c.read >= own.launch_time && (c.blocks != 0 || c.read < own.block_time);
  c.warps = same_phase && (c.warps != 0 || other_warp);
  c.lanes = same_sync && (c.lanes != 0 || c.reader != own.thread);
  c.read = own.now;
  c.reader = static_cast<uint16_t>(own.thread);
}

inline void note_write(const Accessor& own, Cell& c, Access access) {
  c.wrote = own.now;
  c.writer = access == Access::kAtomic       ? Cell::kAtomic
             : access == Access::kCopyBegins ? Cell::kCopy
                                             : static_cast<uint16_t>(own.thread);
}

[[gnu::cold, gnu::noinline]] void report(const Accessor& own, const Cell& c, const char* fault,
                                         size_t offset, size_t bytes, const void* place) {
  const int other = fault == kWritesRead ? int{c.reader} : int{c.writer};
  error(place,
        fmt::format("{}: {} byte {}, {} bytes{}", fault, own.shared ? "shared" : "global", offset,
                    bytes, other < kMaxThreads ? fmt::format(", thread {}", other) : ""));
}

void touch(Cell* cells, size_t offset, size_t bytes, bool shared, Access access,
           const void* place) {
  const Accessor own{.now = g_machine.now,
                     .launch_time = g_machine.launch_time,
                     .block_time = g_machine.block_time,
                     .barrier_time = g_machine.barrier_time,
                     .sync_time = own_warp().sync_time,
                     .thread = g_machine.current,
                     .shared = shared};
  const size_t begin = offset / kGrain, end = (offset + bytes - 1) / kGrain + 1;
  for (size_t i = begin; i < end; ++i) {
    Cell& c = cells[i];
    // The end of a copy is its write at last; that it may be was looked at when it began.
    const char* fault = access == Access::kRead       ? fault_of_read(own, c)
                        : access == Access::kCopyEnds ? nullptr
                                                      : fault_of_write(own, c, access);
    if (fault != nullptr) return report(own, c, fault, i * kGrain, bytes, place);
    if (access == Access::kRead)
      note_read(own, c);
    else
      note_write(own, c, access);
  }
}

[[noreturn]] void stop_out_of_bounds(const void* address, size_t bytes, bool reads,
                                     const void* place) {
  const char* verb = reads ? "reads" : "writes";
  const auto* at = static_cast<const std::byte*>(address);
  if (const Region* near = neighbour_of(address))
    stop(place, fmt::format("{} {} bytes out of bounds: byte {} of an allocation of {}", verb,
                            bytes, at - near->begin, near->bytes));
  if (Range{g_machine.shared - kGap, kMaxSharedBytes + 2 * kGap}.holds(at, 1))
    stop(place, fmt::format("{} {} bytes out of bounds: byte {} of {} of shared memory", verb,
                            bytes, at - g_machine.shared, g_machine.shared_bytes));
  stop(place, fmt::format("{} {} bytes out of bounds: memory of the host at {}", verb, bytes,
                          static_cast<const void*>(at)));
}

bool is_built_in(const void* address) {
  const auto holds = [&](const auto& variable) {
    return Range{reinterpret_cast<const std::byte*>(&variable), sizeof(variable)}.holds(address, 1);
  };
  return holds(threadIdx) || holds(blockIdx) || holds(blockDim) || holds(gridDim);
}

}  // namespace

void begin_checks_of_launch() {
  g_machine.launch_time = ++g_machine.now;
  TR_CHECK(g_machine.now < UINT32_MAX / 2, "too many barriers for one process");
  if (!g_checks) return;
  g_machine.shared_cells.resize(
      std::max(g_machine.shared_cells.size(), g_machine.shared_bytes / kGrain + 1));
  const Range range = thread_local_range();
  g_machine.statics = range.begin;
  g_machine.statics_bytes = range.bytes;
  g_machine.static_cells.resize(range.bytes / kGrain + 1);
}

void check(const void* address, size_t bytes, Access access, const void* place) {
  ++g_machine.stats.accesses;
  const auto* at = static_cast<const std::byte*>(address);
  const bool reads = access == Access::kRead;
  if (Range{g_machine.stacks, kMaxThreads * kStackStride}.holds(at, bytes)) return;
  if (reads && is_built_in(at)) return;
  if (Range{g_machine.shared, g_machine.shared_bytes}.holds(at, bytes))
    return touch(g_machine.shared_cells.data(), static_cast<size_t>(at - g_machine.shared), bytes,
                 true, access, place);
  if (const Region* region = region_of(at, bytes)) {
    if (region->device != g_machine.device)
      stop(place, fmt::format("memory of device {} in a kernel on device {}", region->device,
                              g_machine.device));
    if (region->cells == nullptr) return;
    return touch(region->cells, static_cast<size_t>(at - region->begin), bytes, false, access,
                 place);
  }
  if (Range{g_machine.statics, g_machine.statics_bytes}.holds(at, bytes))
    return touch(g_machine.static_cells.data(), static_cast<size_t>(at - g_machine.statics), bytes,
                 true, access, place);
  if (reads) {
    if (Range{static_cast<const std::byte*>(g_machine.launch.closure),
              g_machine.launch.closure_bytes}
            .holds(at, bytes))
      return;
    static const std::vector<Range> constants = read_only_ranges();
    for (const Range& range : constants)
      if (range.holds(at, bytes)) return;
  }
  stop_out_of_bounds(at, bytes, reads, place);
}

}  // namespace tailrace::cuda::emulation
