#include "kernels/base/memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include <sys/mman.h>

#include "kernels/base/pulse.h"

namespace tailrace {
namespace {

// Pages that are touched for the first time may take seconds a gigabyte.
constexpr size_t kPiece = size_t{64} << 20;

// Facts about the process, as /proc has them, and so one for all of it.
struct Held {
  std::atomic<int64_t> total{0}, peak{0};

  void count(int64_t bytes) {
    const int64_t now = total.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t most = peak.load(std::memory_order_relaxed);
    while (most < now && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
    }
  }
};
constinit Held g_all, g_on_devices;

void count(int64_t bytes, DeviceKind kind) {
  g_all.count(bytes);
  if (kind != DeviceKind::kCpu) g_on_devices.count(bytes);
}

// The memory of the ArenaScope of this thread.
struct Arena {
  DeviceBytes memory;
  size_t used = 0;
};
thread_local std::optional<Arena> t_arena;

// Weights and caches are read from one end to the other: in pages of 4 KiB a processor looks up
// each of them, and what it fetches ahead ends with each.
constexpr size_t kLargePage = size_t{2} << 20;

std::byte* allocate_on_cpu(size_t bytes, int /*index*/) {
  const bool large = bytes >= 2 * kLargePage;
  auto* memory = static_cast<std::byte*>(
      large ? std::aligned_alloc(kLargePage, (bytes + kLargePage - 1) / kLargePage * kLargePage)
            : std::aligned_alloc(kMemoryAlignment, bytes));
  // A wish: where the system has none, small ones serve. Whole pages alone, so that no more memory
  // is taken than was asked for.
  if (large && memory != nullptr) ::madvise(memory, bytes / kLargePage * kLargePage, MADV_HUGEPAGE);
  // Also touches every page: memory that the machine does not have is missed here, where a Buffer
  // is made, and not in the middle of an op.
  for (size_t at = 0; memory != nullptr && at < bytes; at += kPiece) {
    beat();
    std::memset(memory + at, 0, std::min(kPiece, bytes - at));
  }
  return memory;
}

// By kind.
constinit std::array<DeviceMemory, 2> g_memory = {
    DeviceMemory{.allocate = allocate_on_cpu,
                 .release = [](std::byte* memory, int) { std::free(memory); },
                 .copy = [](const Stream&, std::byte* to, const std::byte* from,
                            size_t bytes) { std::memcpy(to, from, bytes); },
                 .wait = [](const Stream&) {}},
    DeviceMemory{}};

const DeviceMemory& memory_of(DeviceKind kind) {
  const DeviceMemory& memory = g_memory[static_cast<size_t>(kind)];
  TR_CHECK(memory.allocate != nullptr, "this build has memory of the CPU only");
  return memory;
}

}  // namespace

void provide_memory(DeviceKind kind, const DeviceMemory& memory) {
  g_memory[static_cast<size_t>(kind)] = memory;
}

void copy(const Stream& stream, DeviceBytes to, ConstDeviceBytes from) {
  TR_CHECK(to.size == from.size, "{} bytes to a place for {}", from.size, to.size);
  for (const Device device : {to.device, from.device})
    TR_CHECK(device.kind == DeviceKind::kCpu || device == stream.device,
             "memory of device {} in a stream of device {}", device.index, stream.device.index);
  if (to.size == 0) return;
  memory_of(stream.device.kind).copy(stream, to.data, from.data, to.size);
}

void wait(const Stream& stream) { memory_of(stream.device.kind).wait(stream); }

StreamMark::StreamMark(StreamMark&& other) noexcept
    : stream_(other.stream_), native_(std::exchange(other.native_, nullptr)) {}

StreamMark& StreamMark::operator=(StreamMark&& other) noexcept {
  // As a Buffer's.
  std::swap(stream_, other.stream_);
  std::swap(native_, other.native_);
  return *this;
}

StreamMark::~StreamMark() {
  if (native_ != nullptr) memory_of(stream_.device.kind).free_mark(native_, stream_.device.index);
}

void StreamMark::set(const Stream& stream) {
  const DeviceMemory& memory = memory_of(stream.device.kind);
  if (memory.make_mark == nullptr) return;
  TR_CHECK(native_ == nullptr || stream.device == stream_.device, "a mark of another device");
  stream_ = stream;
  if (native_ == nullptr) native_ = memory.make_mark(stream.device.index);
  memory.set_mark(stream, native_);
}

void StreamMark::wait() const {
  if (native_ != nullptr) memory_of(stream_.device.kind).wait_for_mark(stream_, native_);
}

OutOfDeviceMemory::OutOfDeviceMemory(size_t wanted)
    : text_("the GPU has no " + std::to_string((wanted + (1 << 20) - 1) >> 20) +
            " MiB of memory left") {}

Buffer::Buffer(size_t num_bytes, Device device) : size_(num_bytes), device_(device) {
  const DeviceMemory& memory = memory_of(device.kind);
  if (num_bytes == 0) return;
  const size_t padded = Workspace::aligned(num_bytes);
  if (t_arena && t_arena->memory.device == device) {
    data_ = t_arena->memory.part(t_arena->used, padded).data;
    t_arena->used += padded;
    is_part_ = true;
    return;
  }
  data_ = memory.allocate(padded, device.index);
  if (data_ == nullptr && device.kind != DeviceKind::kCpu) throw OutOfDeviceMemory(padded);
  if (data_ == nullptr) throw std::bad_alloc();
  count(static_cast<int64_t>(padded), device.kind);
}

Buffer Buffer::pinned(size_t num_bytes, Device device) {
  const DeviceMemory& memory = memory_of(device.kind);
  if (memory.allocate_pinned == nullptr || num_bytes == 0) return Buffer(num_bytes);
  const size_t padded = Workspace::aligned(num_bytes);
  Buffer buffer;
  buffer.data_ = memory.allocate_pinned(padded);
  if (buffer.data_ == nullptr) throw std::bad_alloc();
  std::memset(buffer.data_, 0, padded);
  buffer.size_ = num_bytes;
  buffer.pinned_for_ = device.kind;
  count(static_cast<int64_t>(padded), DeviceKind::kCpu);
  return buffer;
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      device_(other.device_),
      pinned_for_(other.pinned_for_),
      is_part_(other.is_part_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  // A swap and no free: what this one held goes when `other` dies.
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(device_, other.device_);
  std::swap(pinned_for_, other.pinned_for_);
  std::swap(is_part_, other.is_part_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ == nullptr || is_part_) return;
  count(-static_cast<int64_t>(Workspace::aligned(size_)), device_.kind);
  if (pinned_for_ != DeviceKind::kCpu) {
    memory_of(pinned_for_).release_pinned(data_);
  } else {
    memory_of(device_.kind).release(data_, device_.index);
  }
}

ArenaScope::ArenaScope(DeviceBytes memory) {
  TR_CHECK(!t_arena, "two arenas at once");
  t_arena.emplace(Arena{memory});
}

ArenaScope::~ArenaScope() { t_arena.reset(); }

int64_t Buffer::total_bytes() { return g_all.total.load(std::memory_order_relaxed); }
int64_t Buffer::peak_bytes() { return g_all.peak.load(std::memory_order_relaxed); }
void Buffer::begin_peak() {
  for (Held* held : {&g_all, &g_on_devices})
    held->peak.store(held->total.load(std::memory_order_relaxed), std::memory_order_relaxed);
}
int64_t Buffer::device_peak_bytes() { return g_on_devices.peak.load(std::memory_order_relaxed); }

}  // namespace tailrace
