#include "core/model/rounding.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/isa.h"

namespace tailrace {
namespace {

constexpr size_t kRoundedPiece = 32 * 1024;

// Runs of a fixed length: so the compiler makes vectors of them, as wide as those of the function.
[[gnu::always_inline]] inline void round_runs(std::span<const float> from, Bf16* to) {
  constexpr size_t kRun = 64;
  size_t i = 0;
  for (; i + kRun <= from.size(); i += kRun)
    for (size_t j = 0; j < kRun; ++j) to[i + j] = to_bf16(from[i + j]);
  for (; i < from.size(); ++i) to[i] = to_bf16(from[i]);
}

void round_portably(std::span<const float> from, Bf16* to) { round_runs(from, to); }

}  // namespace

// In the namespace of its instruction set, as all that not every machine has.
namespace avx512 {
#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bw,avx512vl")))
#endif
static void
round_wide(std::span<const float> from, Bf16* to) {
  round_runs(from, to);
}
}  // namespace avx512

void rounded_to_bf16(std::span<const float> values,
                     const std::function<void(std::span<const std::byte>)>& to) {
  // A piece at a time: a model's second form needs no memory of its own.
  const size_t size = std::min(kRoundedPiece, values.size());
  const auto piece = std::make_unique_for_overwrite<Bf16[]>(size);
  const auto round = isa() >= Isa::kAvx512 ? avx512::round_wide : round_portably;
  for (size_t begin = 0; begin < values.size(); begin += size) {
    const auto some = values.subspan(begin, std::min(size, values.size() - begin));
    round(some, piece.get());
    to(std::as_bytes(std::span<const Bf16>(piece.get(), some.size())));
  }
}

float from_f16_bits(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu, mantissa = bits & 0x3FFu;
  // Infinity and NaN: all bits of the exponent are set in both formats.
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | mantissa << 13);
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in float
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  // 112 = 127 - 15, the biases of the two formats.
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t to_f16_bits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return sign | 0x7E00;  // NaN
  const float size = std::bit_cast<float>(magnitude);
  if (size >= kF16Limit) return sign | 0x7C00;
  // Below the normal ones: in units of 2^-24. To the nearest, ties to even, as the machine rounds.
  if (size < 0x1p-14f) return sign | static_cast<uint16_t>(std::nearbyint(size * 0x1p24f));
  // 10 bits of the fraction stay of 23; 112 = 127 - 15, the biases of the two formats.
  // Half of the last place minus one, plus the bit that decides ties.
  const uint32_t rounded = (magnitude + 0xFFF + (magnitude >> 13 & 1)) >> 13;
  return sign | static_cast<uint16_t>(rounded - (112u << 10));
}

void rounded_to_f16(std::span<const float> values,
                    const std::function<void(std::span<const std::byte>)>& to) {
  const size_t size = std::min(kRoundedPiece, values.size());
  std::vector<uint16_t> piece(size);
  for (size_t begin = 0; begin < values.size(); begin += size) {
    const auto some = values.subspan(begin, std::min(size, values.size() - begin));
    std::ranges::transform(some, piece.begin(), to_f16_bits);
    to(std::as_bytes(std::span(piece).first(some.size())));
  }
}

}  // namespace tailrace
