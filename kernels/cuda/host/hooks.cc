// The functions that -fsanitize=thread, bounds and alignment of g++ and clang call, in place of
// their libraries, which are not linked. A build whose all is compiled with -fsanitize=thread has
// libtsan; it cannot have these hooks and thus not this emulation.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/check.h"
#include "kernels/cuda/host/machine.h"

#ifdef __SANITIZE_THREAD__
#error "the emulation stands in for libtsan: leave it out of this build"
#endif

namespace tailrace::cuda::emulation {
namespace {

void check_from_kernel(const void* address, size_t bytes, Access access, const void* place) {
  if (!t_in_kernel || bytes == 0) return;
  const OutOfKernel outside;
  check(address, bytes, access, place);
}

// Types have their size as alignment where these hooks are called, and a GPU needs that.
void check_aligned(const void* address, size_t bytes, Access access, const void* place) {
  if (!t_in_kernel) return;
  const OutOfKernel outside;
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0)
    stop(place, fmt::format("{} {} bytes at an address that is not aligned to them",
                            access == Access::kRead ? "reads" : "writes", bytes));
  check(address, bytes, access, place);
}

}  // namespace

// The names and their signatures are the compiler's.
// NOLINTBEGIN
extern "C" {

#define TR_HOOK(name, function, size, access)                     \
  void __tsan_##name##size(void* address) {                       \
    function(address, size, access, __builtin_return_address(0)); \
  }
#define TR_HOOKS(size)                                                     \
  TR_HOOK(read, check_aligned, size, Access::kRead)                        \
  TR_HOOK(write, check_aligned, size, Access::kWrite)                      \
  TR_HOOK(volatile_read, check_aligned, size, Access::kRead)               \
  TR_HOOK(volatile_write, check_aligned, size, Access::kWrite)             \
  TR_HOOK(unaligned_read, check_from_kernel, size, Access::kRead)          \
  TR_HOOK(unaligned_write, check_from_kernel, size, Access::kWrite)        \
  TR_HOOK(unaligned_volatile_read, check_from_kernel, size, Access::kRead) \
  TR_HOOK(unaligned_volatile_write, check_from_kernel, size, Access::kWrite)
TR_HOOKS(1)
TR_HOOKS(2)
TR_HOOKS(4)
TR_HOOKS(8)
TR_HOOKS(16)

void __tsan_read_range(void* address, size_t bytes) {
  check_from_kernel(address, bytes, Access::kRead, __builtin_return_address(0));
}
void __tsan_write_range(void* address, size_t bytes) {
  check_from_kernel(address, bytes, Access::kWrite, __builtin_return_address(0));
}

// clang calls these for memcpy() and its like, g++ the functions themselves.
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  check_from_kernel(from, bytes, Access::kRead, __builtin_return_address(0));
  check_from_kernel(to, bytes, Access::kWrite, __builtin_return_address(0));
  return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  check_from_kernel(from, bytes, Access::kRead, __builtin_return_address(0));
  check_from_kernel(to, bytes, Access::kWrite, __builtin_return_address(0));
  return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
  check_from_kernel(to, bytes, Access::kWrite, __builtin_return_address(0));
  return std::memset(to, value, bytes);
}

void __tsan_init() { g_checks = true; }
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void*) {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

// Atomics of host code in checked sources (tests): just done.
#define TR_ATOMICS(bits, T)                                                                 \
  T __tsan_atomic##bits##_load(const volatile T* a, int) {                                  \
    return __atomic_load_n(a, __ATOMIC_SEQ_CST);                                            \
  }                                                                                         \
  void __tsan_atomic##bits##_store(volatile T* a, T v, int) {                               \
    __atomic_store_n(a, v, __ATOMIC_SEQ_CST);                                               \
  }                                                                                         \
  T __tsan_atomic##bits##_exchange(volatile T* a, T v, int) {                               \
    return __atomic_exchange_n(a, v, __ATOMIC_SEQ_CST);                                     \
  }                                                                                         \
  T __tsan_atomic##bits##_fetch_add(volatile T* a, T v, int) {                              \
    return __atomic_fetch_add(a, v, __ATOMIC_SEQ_CST);                                      \
  }                                                                                         \
  T __tsan_atomic##bits##_fetch_sub(volatile T* a, T v, int) {                              \
    return __atomic_fetch_sub(a, v, __ATOMIC_SEQ_CST);                                      \
  }                                                                                         \
  T __tsan_atomic##bits##_fetch_and(volatile T* a, T v, int) {                              \
    return __atomic_fetch_and(a, v, __ATOMIC_SEQ_CST);                                      \
  }                                                                                         \
  T __tsan_atomic##bits##_fetch_or(volatile T* a, T v, int) {                               \
    return __atomic_fetch_or(a, v, __ATOMIC_SEQ_CST);                                       \
  }                                                                                         \
  T __tsan_atomic##bits##_fetch_xor(volatile T* a, T v, int) {                              \
    return __atomic_fetch_xor(a, v, __ATOMIC_SEQ_CST);                                      \
  }                                                                                         \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* a, T* e, T v, int, int) {   \
    return __atomic_compare_exchange_n(a, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }                                                                                         \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile T* a, T* e, T v, int, int) {     \
    return __atomic_compare_exchange_n(a, e, v, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);  \
  }
TR_ATOMICS(8, uint8_t)
TR_ATOMICS(16, uint16_t)
TR_ATOMICS(32, uint32_t)
TR_ATOMICS(64, uint64_t)
void __tsan_atomic_thread_fence(int) { std::atomic_thread_fence(std::memory_order_seq_cst); }
void __tsan_atomic_signal_fence(int) {}

#ifndef __SANITIZE_ADDRESS__  // whose library may come with that of undefined behaviour

struct UbsanPlace {
  const char* file;
  uint32_t line, column;
};

// Ends the launch, or, in host code of a checked source, the process.
void tailrace_ubsan_failed(const UbsanPlace& at, const char* what, intptr_t value) {
  const bool in_kernel = std::exchange(t_in_kernel, false);
  const std::string text = fmt::format("{}: {:#x}, {}:{}", what, value, at.file, at.line);
  if (in_kernel) stop(nullptr, text);
  check_failed(at.file, static_cast<int>(at.line), "no undefined behaviour", text);
}
void __ubsan_handle_out_of_bounds(const UbsanPlace* at, intptr_t index) {
  tailrace_ubsan_failed(*at, "index out of bounds of its array", index);
}
void __ubsan_handle_type_mismatch_v1(const UbsanPlace* at, intptr_t address) {
  tailrace_ubsan_failed(*at, "address that is not aligned to its type", address);
}

#endif
}  // extern "C"
// NOLINTEND

}  // namespace tailrace::cuda::emulation
