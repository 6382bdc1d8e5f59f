// The loops of the delta codec over the elements of one chunk, for each instruction set.
//
// An element of the base and one of the target make a symbol: the difference of their magnitudes,
// zig-zag (0, -1, 1, -2, ... are 0, 1, 2, 3, ...). The sign of the base is taken out of both first,
// and magnitudes below 0 stand for the other sign. So a step of one unit in the last place is 1 or
// 2 for either sign, a step over 0 is small as well, and with the base every symbol leads to one
// target: -0.0 and the payloads of NaNs are elements like others. 0 means unchanged.
//
// Thread: any; one at a time for each DeltaPlanes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/base/isa.h"

namespace tailrace {

// Elements of a chunk: chunks are coded alone, which bounds memory.
constexpr int64_t kDeltaChunk = int64_t{1} << 20;
// Bytes that a loop may read or write behind the last symbol of a plane.
constexpr int64_t kDeltaSlack = 64;

// Symbols of 4 bytes lie in four planes, lowest byte first. A symbol of 2 bytes is one byte of the
// first plane; 255 stands for one of 255 or more, which is the next of `escapes`.
struct DeltaPlanes {
  uint64_t* bitmap = nullptr;           // [ceil(n / 64)]: bit i of word w: element 64 w + i
  std::array<uint8_t*, 4> planes = {};  // [symbols + kDeltaSlack]
  uint16_t* escapes = nullptr;          // [symbols]
};

struct DeltaCounts {
  int64_t changed = 0, escapes = 0;
};

// Borrowed arrays may be unaligned. `n` elements of `base` and `target`, or `out`.
struct DeltaLoops {
  // `dense`: symbols of all elements, and no bitmap; else of those that differ, and a bitmap whose
  // bits behind the n-th are 0.
  DeltaCounts (*scan2)(const std::byte* base, const std::byte* target, int64_t n, bool dense,
                       const DeltaPlanes& out);
  DeltaCounts (*scan4)(const std::byte* base, const std::byte* target, int64_t n, bool dense,
                       const DeltaPlanes& out);
  // The way back. The caller has checked that there are as many symbols as bits, and as many
  // escapes as symbols of 255.
  void (*restore2)(const std::byte* base, int64_t n, bool dense, const DeltaPlanes& in,
                   std::byte* out);
  void (*restore4)(const std::byte* base, int64_t n, bool dense, const DeltaPlanes& in,
                   std::byte* out);
};

// The loops of the widest instruction set no wider than `isa`. All give the same bytes.
const DeltaLoops& delta_loops(Isa isa);
const DeltaLoops& portable_delta_loops();
#if defined(__x86_64__)
const DeltaLoops& avx512_delta_loops();
#endif

constexpr uint16_t kDeltaEscape = 255;

template <class U>
constexpr U delta_symbol(U base, U target) {
  using Signed = std::make_signed_t<U>;
  constexpr int kSign = sizeof(U) * 8 - 1;
  constexpr U kMagnitude = static_cast<U>(~U{0}) >> 1;
  const U flipped = target ^ (base & static_cast<U>(~kMagnitude));
  const U level = flipped ^ (static_cast<U>(static_cast<Signed>(flipped) >> kSign) & kMagnitude);
  const U step = static_cast<U>(level - (base & kMagnitude));
  return static_cast<U>(step << 1) ^ static_cast<U>(static_cast<Signed>(step) >> kSign);
}

template <class U>
constexpr U delta_target(U base, U symbol) {
  using Signed = std::make_signed_t<U>;
  constexpr int kSign = sizeof(U) * 8 - 1;
  constexpr U kMagnitude = static_cast<U>(~U{0}) >> 1;
  const U step = static_cast<U>(symbol >> 1) ^ static_cast<U>(U{0} - (symbol & 1));
  const U level = static_cast<U>((base & kMagnitude) + step);
  const U flipped = level ^ (static_cast<U>(static_cast<Signed>(level) >> kSign) & kMagnitude);
  return flipped ^ (base & static_cast<U>(~kMagnitude));
}

}  // namespace tailrace
