// Portable: plain loops over words of 64 bits. They are what the others mean.
#include "core/weights/delta_loops.h"

#include <algorithm>
#include <array>
#include <bit>
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

// Symbols of a word's elements; bit i of the answer: the i-th is not 0. Without branches, so that
// the compiler makes vectors of it.
template <class U>
inline uint64_t symbols_of(const std::byte* base, const std::byte* target, int64_t count,
                           U* symbols) {
  std::array<uint8_t, 64> differs{};
  for (int64_t i = 0; i < count; ++i) {
    symbols[i] = delta_symbol(load_element<U>(base, i), load_element<U>(target, i));
    differs[static_cast<size_t>(i)] = symbols[i] != 0;
  }
  uint64_t bits = 0;
  for (int64_t i = 0; i < 8; ++i) {
    // The lowest bits of eight bytes, gathered in the highest one.
    uint64_t bytes;
    std::memcpy(&bytes, differs.data() + 8 * i, sizeof bytes);
    bits |= (bytes * 0x0102040810204080 >> 56) << (8 * i);
  }
  return bits;
}

// The symbols of `count` elements side by side, from the k-th on. Pointers are copied, because a
// byte that is written could be part of one.
template <class U>
inline void put_symbols(const DeltaPlanes& out, int64_t k, int64_t count, const U* symbols,
                        DeltaCounts& counts) {
  if constexpr (sizeof(U) == 2) {
    uint8_t* plane = out.planes[0] + k;
    uint16_t largest = 0;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, symbols[i]);
    for (int64_t i = 0; i < count; ++i)
      plane[i] = static_cast<uint8_t>(std::min(symbols[i], kDeltaEscape));
    for (int64_t i = 0; largest >= kDeltaEscape && i < count; ++i)
      if (symbols[i] >= kDeltaEscape) out.escapes[counts.escapes++] = symbols[i];
  } else {
    for (size_t p = 0; p < 4; ++p) {
      uint8_t* plane = out.planes[p] + k;
      for (int64_t i = 0; i < count; ++i) plane[i] = static_cast<uint8_t>(symbols[i] >> (8 * p));
    }
  }
}

template <class U>
inline void take_symbols(const DeltaPlanes& in, int64_t k, int64_t count, U* symbols,
                         const uint16_t*& escapes) {
  if constexpr (sizeof(U) == 2) {
    const uint8_t* plane = in.planes[0] + k;
    uint8_t largest = 0;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, plane[i]);
    for (int64_t i = 0; i < count; ++i) symbols[i] = plane[i];
    for (int64_t i = 0; largest == kDeltaEscape && i < count; ++i)
      if (symbols[i] == kDeltaEscape) symbols[i] = *escapes++;
  } else {
    std::fill_n(symbols, count, 0);
    for (size_t p = 0; p < 4; ++p) {
      const uint8_t* plane = in.planes[p] + k;
      for (int64_t i = 0; i < count; ++i) symbols[i] |= static_cast<U>(plane[i]) << (8 * p);
    }
  }
}

template <class U>
inline void restore_word(const std::byte* base, int64_t count, const U* symbols, std::byte* out) {
  for (int64_t i = 0; i < count; ++i)
    store_element(out, i, delta_target(load_element<U>(base, i), symbols[i]));
}

template <class U>
DeltaCounts scan_all(const std::byte* base, const std::byte* target, int64_t n,
                     const DeltaPlanes& out) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(U));
  DeltaCounts counts;
  std::array<U, 64> symbols;
  int64_t first = 0;
  for (; first + 64 <= n; first += 64) {
    counts.changed += std::popcount(
        symbols_of(base + first * kBytes, target + first * kBytes, 64, symbols.data()));
    put_symbols(out, first, 64, symbols.data(), counts);
  }
  counts.changed += std::popcount(
      symbols_of(base + first * kBytes, target + first * kBytes, n - first, symbols.data()));
  put_symbols(out, first, n - first, symbols.data(), counts);
  return counts;
}

template <class U>
void restore_all(const std::byte* base, int64_t n, const DeltaPlanes& in, std::byte* out) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(U));
  const uint16_t* escapes = in.escapes;
  std::array<U, 64> symbols;
  int64_t first = 0;
  for (; first + 64 <= n; first += 64) {
    take_symbols(in, first, 64, symbols.data(), escapes);
    restore_word(base + first * kBytes, 64, symbols.data(), out + first * kBytes);
  }
  take_symbols(in, first, n - first, symbols.data(), escapes);
  restore_word(base + first * kBytes, n - first, symbols.data(), out + first * kBytes);
}

template <class U>
DeltaCounts scan_changed(const std::byte* base, const std::byte* target, int64_t n,
                         const DeltaPlanes& out) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(U));
  DeltaCounts counts;
  std::array<U, 64> symbols;
  for (int64_t first = 0; first < n; first += 64) {
    const int64_t count = std::min<int64_t>(64, n - first);
    const std::byte* from = base + first * kBytes;
    const std::byte* to = target + first * kBytes;
    uint64_t bits = 0;
    // A count that the compiler knows lets it unroll the loops of a whole word.
    // Most words of a sparse delta are equal, which memcmp() sees fastest.
    if (std::memcmp(from, to, static_cast<size_t>(count * kBytes)) != 0)
      bits = count == 64 ? symbols_of(from, to, 64, symbols.data())
                         : symbols_of(from, to, count, symbols.data());
    out.bitmap[first / 64] = bits;
    for (; bits != 0; bits &= bits - 1)
      put_symbol(out, counts.changed++, symbols[static_cast<size_t>(std::countr_zero(bits))],
                 counts);
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
  if (dense) return restore_all<U>(base, n, in, out);
  const uint16_t* escapes = in.escapes;
  int64_t k = 0;
  for (int64_t first = 0; first < n; first += 64) {
    const auto bytes = static_cast<size_t>(std::min<int64_t>(64, n - first)) * sizeof(U);
    std::memcpy(out + first * static_cast<int64_t>(sizeof(U)),
                base + first * static_cast<int64_t>(sizeof(U)), bytes);
    for (uint64_t bits = in.bitmap[first / 64]; bits != 0; bits &= bits - 1) {
      const int64_t i = first + std::countr_zero(bits);
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
  if (isa >= Isa::kAvx512) return avx512_delta_loops();
#endif
  return portable_delta_loops();
}

}  // namespace tailrace
