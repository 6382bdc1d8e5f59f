#include "kernels/base/memory.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "kernels/base/pulse.h"

namespace tailrace {
namespace {

// Pages that are touched for the first time may take seconds a gigabyte.
constexpr size_t kPiece = size_t{64} << 20;

// Facts about the process, as /proc has them, and so one pair for all of it.
std::atomic<int64_t> g_total{0}, g_peak{0};

void count(int64_t bytes) {
  const int64_t total = g_total.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t peak = g_peak.load(std::memory_order_relaxed);
  while (peak < total && !g_peak.compare_exchange_weak(peak, total, std::memory_order_relaxed)) {
  }
}

}  // namespace

Buffer::Buffer(size_t num_bytes, Device device) : size_(num_bytes), device_(device) {
  TR_CHECK(device.kind == DeviceKind::kCpu, "this build has memory of the CPU only");
  if (num_bytes == 0) return;
  size_t padded = Workspace::aligned(num_bytes);
  data_ = static_cast<std::byte*>(std::aligned_alloc(kMemoryAlignment, padded));
  if (data_ == nullptr) throw std::bad_alloc();
  count(static_cast<int64_t>(padded));
  // Also touches every page: memory that the machine does not have is missed here, where a Buffer
  // is made, and not in the middle of an op.
  for (size_t at = 0; at < padded; at += kPiece) {
    beat();
    std::memset(data_ + at, 0, std::min(kPiece, padded - at));
  }
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      device_(other.device_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  // A swap and no free: what this one held goes when `other` dies.
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(device_, other.device_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  count(-static_cast<int64_t>(Workspace::aligned(size_)));
  std::free(data_);
}

int64_t Buffer::total_bytes() { return g_total.load(std::memory_order_relaxed); }
int64_t Buffer::peak_bytes() { return g_peak.load(std::memory_order_relaxed); }
void Buffer::begin_peak() {
  g_peak.store(g_total.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

}  // namespace tailrace
