// A device for tests of what must not be read but by copies.
#pragma once

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>

#include <gtest/gtest.h>

#include "kernels/base/memory.h"

namespace tailrace {

// A device whose memory the host cannot read: what is stored there is stored inverted.
struct InvertedMemory {
  static constexpr Device kDevice{DeviceKind::kCuda, 3};
  static inline std::map<const std::byte*, size_t> owned;  // and their sizes

  static std::byte* allocate(size_t bytes, int index) {
    EXPECT_EQ(index, kDevice.index);
    if (bytes > 1 << 16) return nullptr;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(kMemoryAlignment, bytes));
    std::memset(memory, 0xFF, bytes);
    owned.emplace(memory, bytes);
    return memory;
  }
  static void release(std::byte* memory, int) {
    owned.erase(memory);
    std::free(memory);
  }
  static bool is_own(const std::byte* memory) {
    const auto next = owned.upper_bound(memory);
    if (next == owned.begin()) return false;
    const auto& [begin, bytes] = *std::prev(next);
    return memory < begin + bytes;
  }
  static void copy(const Stream&, std::byte* to, const std::byte* from, size_t bytes) {
    const bool inverts = is_own(to) != is_own(from);
    for (size_t i = 0; i < bytes; ++i) to[i] = inverts ? ~from[i] : from[i];
  }

  // The process has such a device while this lives.
  struct Provided {
    Provided() {
      provide_memory(DeviceKind::kCuda, {.allocate = allocate, .release = release, .copy = copy});
    }
    ~Provided() { provide_memory(DeviceKind::kCuda, {}); }
  };
};

}  // namespace tailrace
