#include "core/base/random.h"

#include <cmath>
#include <numbers>

#include "kernels/base/check.h"

namespace tailrace {

std::array<uint32_t, 4> philox(uint64_t key, std::array<uint32_t, 4> c) {
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    // The multipliers and, below, the steps of the keys are those of the paper (Salmon et al.
    // 2011); its vectors are in the test.
    uint64_t p0 = uint64_t{0xD2511F53u} * c[0], p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

uint64_t mix(std::initializer_list<uint64_t> parts) {
  uint64_t state = 0x243F6A8885A308D3ull;  // any constant; digits of pi
  for (uint64_t part : parts) {
    // SplitMix64 (Steele, Lea & Flood 2014).
    state = (state ^ part) + 0x9E3779B97F4A7C15ull;
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBull;
    state ^= state >> 31;
  }
  return state;
}

double uniform_double(uint32_t high, uint32_t low) {
  uint64_t bits = (uint64_t{high} << 32 | low) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

uint32_t Rng::next_u32() {
  if (used_ == 4) {
    words_ =
        philox(key_, {static_cast<uint32_t>(block_), static_cast<uint32_t>(block_ >> 32), 0, 0});
    ++block_;
    used_ = 0;
  }
  return words_[used_++];
}

double Rng::uniform() {
  uint32_t high = next_u32();
  return uniform_double(high, next_u32());
}

int64_t Rng::below(int64_t bound) {
  TR_CHECK(bound >= 1, "bound {}", bound);
  // Rejects the incomplete last run of multiples of bound, so that every value is equally likely.
  auto range = static_cast<uint64_t>(bound);
  uint64_t limit = ~uint64_t{0} - ~uint64_t{0} % range;
  uint64_t word;
  do {
    uint64_t high = next_u32();
    word = high << 32 | next_u32();
  } while (word >= limit);
  return static_cast<int64_t>(word % range);
}

double Rng::normal() {
  // u in (0, 1]: the logarithm of 0 would be -inf.
  double u = 1.0 - uniform(), v = uniform();
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

}  // namespace tailrace
