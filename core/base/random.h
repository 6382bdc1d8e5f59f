// Random numbers without hidden state.
//
// `Philox` (Philox4x32-10, Salmon et al. 2011) maps (key, counter) to 128 random bits: sampling
// asks for "the number of this sequence at this position", whatever else was sampled in between.
// `Rng` is a sequential generator on top of it, seeded explicitly and passed by reference.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

namespace tailrace {

// key, counter -> four 32-bit words.
std::array<uint32_t, 4> philox(uint64_t key, std::array<uint32_t, 4> counter);

// One 64-bit key from several numbers, order-sensitive (SplitMix64 over each in turn).
uint64_t mix(std::initializer_list<uint64_t> parts);

// Uniform in [0, 1) with 53 bits.
double uniform_double(uint32_t high, uint32_t low);

class Rng {
 public:
  explicit Rng(uint64_t seed) : key_(seed) {}

  uint32_t next_u32();
  double uniform();              // [0, 1)
  int64_t below(int64_t bound);  // [0, bound), unbiased; bound >= 1
  double normal();               // mean 0, variance 1 (Box-Muller, in double)
  bool chance(double p) { return uniform() < p; }

 private:
  uint64_t key_;
  uint64_t block_ = 0;
  std::array<uint32_t, 4> words_{};
  int used_ = 4;
};

}  // namespace tailrace
