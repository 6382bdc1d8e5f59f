// The checker's knowledge of each piece of memory, and the faults that it finds by that:
//   an access out of bounds: of global and dynamic shared memory; also of memory of the host
//   an access that is not aligned to its size
//   two threads of a block, one of which writes, without a barrier between them (__syncthreads, or
//     __syncwarp in one warp), in global or shared memory
//   two blocks of a launch, one of which writes
//   a read of shared memory that this block did not write, or of global memory that was marked as
//     unwritten; a read of a copy that was not awaited
// Sources with -fsanitize=bounds,alignment also name an index past an array inside of shared memory
// or of a struct, and vectors through a misaligned pointer.
//
// Not found: an access to a neighbour in the same allocation.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tailrace::cuda::emulation {

constexpr size_t kGrain = 2;  // bytes of memory for a Cell

// The last access to a grain. Times are stamps of Machine::now. All zero: nobody's.
struct Cell {
  static constexpr uint16_t kAtomic = 0xFFFD, kCopy = 0xFFFE, kUnwritten = 0xFFFF;

  uint32_t wrote = 0, read = 0;
  uint16_t writer = 0;  // a thread of the block, or one of the above
  uint16_t reader : 12 = 0;
  uint16_t lanes : 1 = 0;   // the reader was not the only lane of its warp since its warp's barrier
  uint16_t warps : 1 = 0;   // nor its warp the only one since the block's barrier
  uint16_t blocks : 1 = 0;  // nor its block the only one of the launch
};

enum class Access : uint8_t { kRead, kWrite, kAtomic, kCopyBegins, kCopyEnds };
// By the running thread of a kernel.
void check(const void* address, size_t bytes, Access access, const void* place);

// Set before main() by sources that are checked.
extern bool g_checks;

}  // namespace tailrace::cuda::emulation
