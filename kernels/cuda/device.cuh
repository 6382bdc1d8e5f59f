// The language of the kernels: CUDA C++ where nvcc compiles, the emulation of kernels/cuda/host
// where g++ does. Whatever is not plain C++ on both sides (inline assembly, launches, dynamic
// shared memory) has a name here, and one meaning in both forms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>

#ifdef __CUDACC__
#include <map>
#include <mutex>

#include <cuda_runtime.h>
#else
#include "kernels/cuda/host/cuda_names.h"
#endif

#include "kernels/base/check.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"

namespace tailrace::cuda {

#ifdef __CUDACC__

inline void cuda_check(cudaError_t result, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  if (result != cudaSuccess) check_failed(file, line, "a CUDA call", cudaGetErrorString(result));
}

// Without this a kernel may have 48 KiB of dynamic shared memory. Asked of a device once.
inline void allow_shared(const void* function, size_t bytes, int device) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, size_t> allowed;
  const std::lock_guard lock(mutex);
  size_t& most = allowed[{function, device}];
  if (bytes <= most) return;
  cuda_check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)));
  most = bytes;
}

// In the order of the stream. Arguments are converted to the kernel's parameters.
template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, const Stream& stream,
            A&&... args) {
  const auto* function = reinterpret_cast<const void*>(kernel);
  cuda_check(cudaSetDevice(stream.device.index));
  if (shared_bytes > 48 * 1024) allow_shared(function, shared_bytes, stream.device.index);
  std::tuple<P...> values(std::forward<A>(args)...);
  std::apply(
      [&](P&... parameters) {
        void* pointers[] = {&parameters..., nullptr};
        cuda_check(cudaLaunchKernel(function, grid, block, pointers, shared_bytes,
                                    static_cast<cudaStream_t>(stream.native)));
      },
      values);
}

// Aligned to 128 bytes. Its content is undefined when a block starts.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char tailrace_dynamic_shared[];
  return reinterpret_cast<T*>(tailrace_dynamic_shared);
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// cp.async: 16 bytes from global to shared memory, of which the first `from_bytes` are copied and
// the others are 0. Both sides are aligned to 16 bytes.
__device__ __forceinline__ void copy_async16(void* to, const void* from, int from_bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(from_bytes)
               : "memory");
}
// Ends a group of this thread's copies.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until at most kPending groups of this thread are under way. Copies of other threads need a
// barrier behind it.
template <int kPending>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Matrices of 8 x 8 elements of 16 bits: lane 8 i + r names row r of matrix i, 16 aligned bytes of
// shared memory. Lane l gets elements 2 (l % 4) and the next of row l / 4 of matrix i in r[i]; with
// _trans, of column l / 4. All lanes of the warp take part.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
// Lanes 16 to 31 name no rows.
__device__ __forceinline__ void ldmatrix_x2(uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}

// d[16, 8] += a[16, 16] b[16, 8], of bfloat16 with float32 sums. Lane l has, with g = l / 4 and
// c = 2 (l % 4), in pairs of neighbours along k (a, b) or along a row (d):
//   a  (g, c), (g + 8, c), (g, c + 8), (g + 8, c + 8)
//   b  (c, g), (c + 8, g)
//   d  (g, c), (g, c + 1), (g + 8, c), (g + 8, c + 1)
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4],
                                         const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Both rounded to bfloat16, as to_bf16() does but for which NaN a NaN becomes; `low`, the first of
// two neighbours in memory, in the lower half.
__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
// 2^x to 2 units in the last place; 0 for -infinity and where the result would be denormal.
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#else  // the same on the host; contracts above

template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, const Stream& stream,
            A&&... args) {
  struct Call {
    void (*kernel)(P...);
    std::tuple<P...> values;
  } call{kernel, std::tuple<P...>(std::forward<A>(args)...)};
  emulation::run(stream, {.grid = grid,
                          .block = block,
                          .shared_bytes = shared_bytes,
                          .kernel = reinterpret_cast<const void*>(kernel),
                          .closure = &call,
                          .closure_bytes = sizeof(call),
                          .body = [](const void* closure) {
                            const auto* own = static_cast<const Call*>(closure);
                            std::apply(own->kernel, own->values);
                          }});
}
template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(emulation::shared_memory());
}
inline void copy_async16(void* to, const void* from, int from_bytes = 16) {
  emulation::copy_async16(to, from, from_bytes);
}
inline void commit_copies() { emulation::commit_copies(); }
template <int kPending>
void await_copies() {
  emulation::await_copies(kPending);
}
__forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  emulation::load_matrices(r, 4, false, row);
}
__forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  emulation::load_matrices(r, 4, true, row);
}
__forceinline__ void ldmatrix_x2(uint32_t (&r)[2], const void* row) {
  emulation::load_matrices(r, 2, false, row);
}
__forceinline__ void ldmatrix_x2_trans(uint32_t (&r)[2], const void* row) {
  emulation::load_matrices(r, 2, true, row);
}
__forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emulation::multiply(d, a, b);
}
inline uint32_t bf16_pair(float low, float high) {
  return uint32_t{to_bf16(low).bits} | uint32_t{to_bf16(high).bits} << 16;
}
inline float fast_exp2(float x) { return std::exp2(x); }

#endif

constexpr int kWarp = 32;
__device__ __forceinline__ int this_lane() { return static_cast<int>(threadIdx.x) % kWarp; }

}  // namespace tailrace::cuda
