// CUDA's own names for g++: qualifiers, types of vectors, functions of warps, mathematics: what
// kernels and the emulation's own tests use. Included by device.cuh alone.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/host/emulation.h"

// Below the standard headers, which use some of these names for attributes of their own.
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)
// Thread-local, so that the checker can tell it from other variables: its addresses are those of
// the launching thread's block of thread-local memory.
#define __shared__ static thread_local
// A function whose accesses the checker does not see.
#define TR_UNCHECKED __attribute__((no_sanitize("thread")))

constexpr int warpSize = 32;

#define TR_VECTORS(T, name)                                  \
  struct alignas(2 * sizeof(T)) name##2 {                    \
    T x, y;                                                  \
  };                                                         \
  struct alignas(4 * sizeof(T)) name##4 {                    \
    T x, y, z, w;                                            \
  };                                                         \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
TR_VECTORS(float, float)
TR_VECTORS(int, int)
TR_VECTORS(unsigned, uint)
#undef TR_VECTORS

inline void __syncthreads() { tailrace::cuda::emulation::sync_block(); }
inline void __syncwarp(unsigned mask = ~0u) { tailrace::cuda::emulation::sync_warp(mask); }

#define TR_SHUFFLE(name, rule)                                                                \
  template <class T>                                                                          \
  T name(unsigned mask, T own, int argument, int width = 32) {                                \
    using tailrace::cuda::emulation::ShuffleFrom;                                             \
    return tailrace::cuda::emulation::shuffle(mask, own, ShuffleFrom::rule, argument, width); \
  }
TR_SHUFFLE(__shfl_sync, kLane)
TR_SHUFFLE(__shfl_xor_sync, kXor)
TR_SHUFFLE(__shfl_down_sync, kDown)
TR_SHUFFLE(__shfl_up_sync, kUp)
#undef TR_SHUFFLE
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return tailrace::cuda::emulation::ballot(mask, predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

// Atomics of integers alone: sums of floats have an order here (design rule 3).
#define TR_ATOMIC(name, expression)                                                                \
  template <class T>                                                                               \
  requires(std::is_integral_v<T>) TR_UNCHECKED T name(T* address, std::type_identity_t<T> value) { \
    tailrace::cuda::emulation::touch_atomically(address, sizeof(T));                               \
    const T old = *address;                                                                        \
    *address = expression;                                                                         \
    return old;                                                                                    \
  }
TR_ATOMIC(atomicAdd, static_cast<T>(old + value))
TR_ATOMIC(atomicMax, old < value ? value : old)
#undef TR_ATOMIC

inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }

inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }

inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }

// As CUDA's: of int and unsigned the unsigned one, of floats the one that is not NaN.
#define TR_LESSER(T)                                  \
  constexpr T min(T a, T b) { return b < a ? b : a; } \
  constexpr T max(T a, T b) { return a < b ? b : a; }
TR_LESSER(int)
TR_LESSER(unsigned)
TR_LESSER(long)
TR_LESSER(unsigned long)
TR_LESSER(long long)
TR_LESSER(unsigned long long)
#undef TR_LESSER
constexpr unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
constexpr unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
constexpr unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
constexpr unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }
