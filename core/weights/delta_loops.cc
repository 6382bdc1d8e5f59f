// Portable: plain loops over words of 64 bits. They are what the others mean.
#include "core/weights/delta_loops.h"

#include <algorithm>
#include <cstring>

namespace tailrace {
namespace {

template <class U>
U load_element(const std::byte* bytes, int64_t index) {
  U value;
  std::memcpy(&value, bytes + index * static_cast<int64_t>(sizeof(U)), sizeof(U));
  return value;
}

template <class U>
void store_element(std::byte* bytes, int64_t index, U value) {
  std::memcpy(bytes + index * static_cast<int64_t>(sizeof(U)), &value, sizeof(U));
}

// Writes the k-th symbol.
template <class U>
void put_symbol(const DeltaPlanes& out, int64_t k, U symbol, DeltaCounts& counts) {
  if constexpr (sizeof(U) == 2) {
    out.planes[0][k] = static_cast<uint8_t>(std::min(symbol, kDeltaEscape));
    if (symbol >= kDeltaEscape) out.escapes[counts.escapes++] = symbol;
  } else {
    for (size_t plane = 0; plane < 4; ++plane)
      out.planes[plane][k] = static_cast<uint8_t>(symbol >> (8 * plane));
  }
}

template <class U>
U take_symbol(const DeltaPlanes& in, int64_t k, const uint16_t*& escapes) {
  if constexpr (sizeof(U) == 2) {
    const uint16_t symbol = in.planes[0][k];
    return symbol == kDeltaEscape ? *escapes++ : symbol;
  } else {
    U symbol = 0;
    for (size_t plane = 0; plane < 4; ++plane)
      symbol |= static_cast<U>(in.planes[plane][k]) << (8 * plane);
    return symbol;
  }
}

template <class U>
DeltaCounts scan_all(const std::byte* base, const std::byte* target, int64_t n,
                     const DeltaPlanes& out) {
  DeltaCounts counts;
  for (int64_t i = 0; i < n; ++i) {
    const U symbol = delta_symbol(load_element<U>(base, i), load_element<U>(target, i));
    counts.changed += symbol != 0;
    put_symbol(out, i, symbol, counts);
  }
  return counts;
}

template <class U>
DeltaCounts scan_changed(const std::byte* base, const std::byte* target, int64_t n,
                         const DeltaPlanes& out) {
  constexpr int64_t kInWord = 8 / sizeof(U);
  DeltaCounts counts;
  for (int64_t first = 0; first < n; first += 64) {
    const int64_t end = std::min(n, first + 64);
    uint64_t bits = 0;
    for (int64_t i = first; i < end; i += kInWord) {
      const int64_t stop = std::min(end, i + kInWord);
      if (stop - i == kInWord &&
          load_element<uint64_t>(base, i / kInWord) == load_element<uint64_t>(target, i / kInWord))
        continue;
      for (int64_t j = i; j < stop; ++j) {
        const U symbol = delta_symbol(load_element<U>(base, j), load_element<U>(target, j));
        // Always written, and kept when it counts: a branch here would be guessed wrong too often.
        put_symbol(out, counts.changed, symbol, counts);
        counts.changed += symbol != 0;
        bits |= static_cast<uint64_t>(symbol != 0) << (j - first);
      }
    }
    out.bitmap[first / 64] = bits;
  }
  return counts;
}

template <class U>
DeltaCounts scan(const std::byte* base, const std::byte* target, int64_t n, bool dense,
                 const DeltaPlanes& out) {
  return dense ? scan_all<U>(base, target, n, out) : scan_changed<U>(base, target, n, out);
}

template <class U>
void restore(const std::byte* base, int64_t n, bool dense, const DeltaPlanes& in, std::byte* out) {
  const uint16_t* escapes = in.escapes;
  if (dense) {
    for (int64_t i = 0; i < n; ++i)
      store_element(out, i, delta_target(load_element<U>(base, i), take_symbol<U>(in, i, escapes)));
    return;
  }
  int64_t k = 0;
  for (int64_t first = 0; first < n; first += 64) {
    const auto bytes = static_cast<size_t>(std::min<int64_t>(64, n - first)) * sizeof(U);
    std::memcpy(out + first * static_cast<int64_t>(sizeof(U)),
                base + first * static_cast<int64_t>(sizeof(U)), bytes);
    for (uint64_t bits = in.bitmap[first / 64]; bits != 0; bits &= bits - 1) {
      const int64_t i = first + __builtin_ctzll(bits);
      store_element(out, i,
                    delta_target(load_element<U>(base, i), take_symbol<U>(in, k++, escapes)));
    }
  }
}

}  // namespace

const DeltaLoops& portable_delta_loops() {
  static constexpr DeltaLoops kLoops = {scan<uint16_t>, scan<uint32_t>, restore<uint16_t>,
                                        restore<uint32_t>};
  return kLoops;
}

const DeltaLoops& delta_loops([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return avx512_delta_loops();
#endif
  return portable_delta_loops();
}

}  // namespace tailrace
