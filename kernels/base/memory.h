// Memory of a device: an owning Buffer, copies between devices, and the Workspace that ops take
// scratch from.
//
// Ops allocate nothing. A caller asks an op (or Model) for its workspace size, owns one Buffer of
// that size, and passes a Workspace over it. Only memory of the CPU can be read and written here;
// that of another device goes through copy().
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <string>

#include "kernels/base/check.h"
#include "kernels/base/device.h"

namespace tailrace {

constexpr size_t kMemoryAlignment = 64;  // bytes; one cache line, one AVX-512 register

// Borrowed bytes of a device.
template <class Byte>
struct DeviceSpan {
  Device device;
  Byte* data = nullptr;
  size_t size = 0;

  operator DeviceSpan<const Byte>() const { return {device, data, size}; }  // NOLINT
  DeviceSpan part(size_t begin, size_t count) const {
    TR_CHECK(begin <= size && count <= size - begin, "{} bytes from {} of {}", count, begin, size);
    return {device, data + begin, count};
  }
};
using DeviceBytes = DeviceSpan<std::byte>;
using ConstDeviceBytes = DeviceSpan<const std::byte>;

template <class T>
DeviceBytes bytes_of(std::span<T> host) {
  return {{}, reinterpret_cast<std::byte*>(host.data()), host.size_bytes()};
}
template <class T>
ConstDeviceBytes bytes_of(std::span<const T> host) {
  return {{}, reinterpret_cast<const std::byte*>(host.data()), host.size_bytes()};
}

// How memory of one kind of device is had.
struct DeviceMemory {
  // Aligned to kMemoryAlignment and zero-filled; null: none is left.
  std::byte* (*allocate)(size_t bytes, int index) = nullptr;
  void (*release)(std::byte* memory, int index) = nullptr;
  // In the order of the stream. Either side may be memory of the CPU, which must then stay as it is
  // until the stream has come so far.
  void (*copy)(const Stream& stream, std::byte* to, const std::byte* from, size_t bytes) = nullptr;
  // Until all that was asked of the stream is done.
  void (*wait)(const Stream& stream) = nullptr;
  // Memory of the CPU that copies reach without a detour, zero-filled or not; null: none is left.
  std::byte* (*allocate_pinned)(size_t bytes) = nullptr;
  void (*release_pinned)(std::byte* memory) = nullptr;
  // A StreamMark's. None: what is asked of a stream is done when the call returns.
  void* (*make_mark)(int index) = nullptr;
  void (*free_mark)(void* mark, int index) = nullptr;
  void (*set_mark)(const Stream& stream, void* mark) = nullptr;
  void (*wait_for_mark)(const Stream& stream, void* mark) = nullptr;
};
// A backend's, before the first Buffer of that kind is made. Without it there is none.
void provide_memory(DeviceKind kind, const DeviceMemory& memory);

// Sizes are equal. Each side is memory of the stream's device or of the CPU.
void copy(const Stream& stream, DeviceBytes to, ConstDeviceBytes from);
// Until the ops and copies of the stream are done. On the CPU they are.
void wait(const Stream& stream);

// A place in the order of a stream, which the host can wait for while more is asked behind it.
// Move-only. Its stream lives longer.
class StreamMark {
 public:
  StreamMark() = default;
  StreamMark(StreamMark&& other) noexcept;
  StreamMark& operator=(StreamMark&& other) noexcept;
  ~StreamMark();

  void set(const Stream& stream);  // behind all that was asked so far; where it was is forgotten
  void wait() const;               // until that is done; at once where it was never set

 private:
  Stream stream_;
  void* native_ = nullptr;
};

// A device has not so much memory left; what() says how much was wanted. On the CPU it is a plain
// bad_alloc.
class OutOfDeviceMemory final : public std::bad_alloc {
 public:
  explicit OutOfDeviceMemory(size_t wanted);
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

// Aligned zero-filled bytes (but see ArenaScope). Move-only. 0 bytes are allowed. Throws bad_alloc.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t num_bytes, Device device = {});
  // A Buffer on the CPU, for copies from and to `device`.
  static Buffer pinned(size_t num_bytes, Device device);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  size_t size() const { return size_; }
  DeviceBytes bytes() { return {device_, data_, size_}; }
  ConstDeviceBytes bytes() const { return {device_, data_, size_}; }

  // Pointers into a Buffer on the CPU alone.
  std::byte* data() { return check_host(), data_; }
  const std::byte* data() const { return check_host(), data_; }
  template <class T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(data()), size_ / sizeof(T)};
  }
  template <class T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(data()), size_ / sizeof(T)};
  }

  // Sums over all Buffers of this process: the bytes that they hold, padding included, and the most
  // that they held at once since begin_peak(); the last, of those of another device than the CPU
  // alone. Plans of memory are proved by it; nothing is decided by it. Thread: any.
  static int64_t total_bytes();
  static int64_t peak_bytes();
  static void begin_peak();
  static int64_t device_peak_bytes();

 private:
  void check_host() const {
    TR_CHECK(device_.kind == DeviceKind::kCpu, "memory of a device is read by copy()");
  }

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  Device device_;
  DeviceKind pinned_for_ = DeviceKind::kCpu;
  bool is_part_ = false;  // of an arena, which gives it back
};

// While it lives, the Buffers of the memory's device that this thread makes are cut from it, one
// behind the other; their bytes are what was there before. The memory outlives them. So roles that
// take turns on a device have one piece of memory. Scopes do not nest.
class ArenaScope {
 public:
  explicit ArenaScope(DeviceBytes memory);
  ~ArenaScope();
  ArenaScope(const ArenaScope&) = delete;
};

// A stack of scratch memory over borrowed bytes. take() never fails softly: a workspace that is too
// small is our own bug, because its size came from a ..._workspace_bytes() function. One that
// measures has no memory: it gives spans without data, and its peak() is the size that is needed.
// So the code that takes scratch says its size too.
//
// Thread: one at a time; ops divide what they took among their threads.
class Workspace {
 public:
  explicit Workspace(std::span<std::byte> memory, Device device = {})
      : memory_(memory), device_(device) {}
  explicit Workspace(Buffer& buffer) : Workspace(buffer.bytes()) {}
  explicit Workspace(DeviceBytes bytes) : Workspace({bytes.data, bytes.size}, bytes.device) {}
  static Workspace measuring() {
    Workspace workspace(std::span<std::byte>{});
    workspace.measures_ = true;
    return workspace;
  }
  Device device() const { return device_; }

  // Uninitialised, aligned to kMemoryAlignment.
  template <class T>
  std::span<T> take(int64_t count) {
    size_t bytes = aligned(static_cast<size_t>(count) * sizeof(T));
    TR_CHECK(measures_ || used_ + bytes <= memory_.size(),
             "workspace of {} bytes: {} used, {} wanted", memory_.size(), used_, bytes);
    auto* start = measures_ ? nullptr : reinterpret_cast<T*>(memory_.data() + used_);
    used_ += bytes;
    if (used_ > peak_) peak_ = used_;
    return {start, static_cast<size_t>(count)};
  }

  // Gives back, when it dies, all that was taken since it was made.
  class Scope {
   public:
    explicit Scope(Workspace& workspace) : workspace_(workspace), used_(workspace.used_) {}
    ~Scope() { workspace_.used_ = used_; }
    Scope(const Scope&) = delete;

   private:
    Workspace& workspace_;
    size_t used_;
  };

  static constexpr size_t aligned(size_t bytes) {
    return (bytes + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment;
  }
  size_t used() const { return used_; }
  size_t peak() const { return peak_; }

 private:
  std::span<std::byte> memory_;
  Device device_;
  size_t used_ = 0, peak_ = 0;
  bool measures_ = false;
};

}  // namespace tailrace
