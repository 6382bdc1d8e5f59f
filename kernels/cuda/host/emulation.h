// A GPU on the host: a kernel's own source is compiled by g++ as C++ and runs here, one block after
// the other, its threads as fibers that give way where CUDA threads wait for each other.
//
// Threads run warp by warp, each up to its next barrier or exchange of its warp, in ascending or
// descending order (emulation_control.h). What a GPU leaves undefined is an error here: a mask
// without its caller, a lane that never comes, a shuffle from outside the mask, a copy that is read
// before it was awaited. Sources that are compiled with -fsanitize=thread (and linked without) are
// checked further, access by access: checker.h says what is found.
//
// This header is what device.cuh and cuda_names.h are made of; kernels use the names of those two.
//
// Thread: any; launches of one process run one after the other. Fibers run on the thread that
// launches. All other functions of this header belong to a running kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/base/device.h"

struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Inside a kernel alone.
inline constinit uint3 threadIdx{}, blockIdx{};
inline constinit dim3 blockDim{}, gridDim{};

namespace tailrace::cuda::emulation {

struct Launch {
  dim3 grid, block;
  size_t shared_bytes = 0;
  const void* kernel = nullptr;  // names it in messages
  const void* closure = nullptr;
  size_t closure_bytes = 0;
  void (*body)(const void* closure) = nullptr;  // of each thread
};
// Copies that were queued on the stream before it happen first (device_memory.cc).
void run(const Stream& stream, const Launch& launch);

// 0 .. 31
int lane();
// The dynamic shared memory of the running block; full of NaN when the block starts.
std::byte* shared_memory();

void sync_block();
// Orders memory among the lanes of `mask`, which no other exchange does.
void sync_warp(unsigned mask);

enum class ShuffleFrom : uint8_t { kLane, kXor, kDown, kUp };
uint64_t shuffle(unsigned mask, uint64_t own, ShuffleFrom rule, int argument, int width);
template <class T>
T shuffle(unsigned mask, T own, ShuffleFrom rule, int argument, int width) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &own, sizeof(T));
  bits = shuffle(mask, bits, rule, argument, width);
  std::memcpy(&own, &bits, sizeof(T));
  return own;
}
unsigned ballot(unsigned mask, bool own);

// Copies the first `from_bytes` of 16 bytes, the others are 0. It happens when it is awaited, which
// is as late as it may; until then the place is full of NaN.
void copy_async16(void* to, const void* from, int from_bytes);
void commit_copies();
void await_copies(int pending_groups);

// `count` (2 or 4) matrices of 8 x 8 elements of 16 bits: ldmatrix, with or without .trans.
void load_matrices(uint32_t* out, int count, bool transposed, const void* row);
// d += a b, mma.m16n8k16 of bfloat16. The 16 products are summed in double and rounded once with d:
// a tensor core truncates, in an order of its own, so tests of its sums have a tolerance.
void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

// The caller, which is not checked itself, changes *address in one piece.
void touch_atomically(void* address, size_t bytes);

}  // namespace tailrace::cuda::emulation
