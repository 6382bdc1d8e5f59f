#include "tests/scheduler/service/allocation_watch.h"

#include <cstdlib>
#include <new>
#include <utility>

namespace tailrace {
namespace {

thread_local size_t watched_bytes = 0;
thread_local int64_t seen = 0;

}  // namespace

int64_t allocations_of(size_t bytes) {
  watched_bytes = bytes;
  return std::exchange(seen, 0);
}

}  // namespace tailrace

void* operator new(size_t bytes) {
  if (bytes > 0 && bytes == tailrace::watched_bytes) ++tailrace::seen;
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
// With a sanitizer all forms of one pair must be ours.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes > 0 ? bytes : 1);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
