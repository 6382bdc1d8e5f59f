#include "core/weights/delta_codec.h"

#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "core/base/digest_of.h"
#include "core/base/random.h"
#include "core/weights/delta_loops.h"

namespace tailrace {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<Isa> isas_here() {
  std::vector<Isa> found;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16})
    if (is_available(isa)) found.push_back(isa);
  return found;
}

// Elements that are easily taken for others: zeros, infinities, NaNs and their neighbours.
uint32_t special_bits(Rng& rng) {
  constexpr uint32_t kSpecial[] = {0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000,
                                   0xFFC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x00000001,
                                   0x80000001, 0x7FC1FFFF, 0x00010000, 0x80010000, 0x3F800000};
  return kSpecial[rng.below(std::size(kSpecial))];
}

void put_element(Bytes& bytes, int64_t index, int64_t element_bytes, uint32_t bits) {
  // A bf16 is the upper half of an f32.
  if (element_bytes == 2) bits >>= 16;
  std::memcpy(bytes.data() + index * element_bytes, &bits, static_cast<size_t>(element_bytes));
}

struct Pair {
  Bytes base, target;
};

// How elements change: by a unit or a few in the last place, as steps do, or to anything.
enum class Change { kSteps, kSpecial, kAnything };

Pair make_pair(Rng& rng, Dtype dtype, int64_t elements, double rate, Change change) {
  const int64_t element_bytes = size_of(dtype);
  Pair pair{Bytes(static_cast<size_t>(elements * element_bytes)), {}};
  pair.target = pair.base;
  for (int64_t i = 0; i < elements; ++i) {
    const uint32_t unit = element_bytes == 2 ? 0x10000 : 1;
    const uint32_t base = change == Change::kSpecial && rng.chance(0.5)
                              ? special_bits(rng)
                              : rng.next_u32() & 0x83FFFFFF;
    uint32_t target = base;
    if (rng.chance(rate)) {
      const auto steps = static_cast<uint32_t>(1 + rng.below(rng.chance(0.9) ? 1 : 300));
      if (change == Change::kSteps) target += rng.chance(0.5) ? unit * steps : 0 - unit * steps;
      if (change == Change::kSpecial) target = special_bits(rng);
      if (change == Change::kAnything) target = rng.next_u32();
    }
    put_element(pair.base, i, element_bytes, base);
    put_element(pair.target, i, element_bytes, target);
  }
  return pair;
}

int64_t count_different(const Pair& pair, int64_t element_bytes) {
  int64_t different = 0;
  for (size_t at = 0; at < pair.base.size(); at += static_cast<size_t>(element_bytes))
    different += std::memcmp(pair.base.data() + at, pair.target.data() + at,
                             static_cast<size_t>(element_bytes)) != 0;
  return different;
}

std::span<const std::byte> payload_in(const TensorDelta& delta, const Bytes& target) {
  return delta.kind == TensorPayload::kFull ? std::span<const std::byte>(target) : delta.bytes;
}

// What comes out, on memory that holds something else and has a canary on each side.
Bytes applied(DeltaDecoder& decoder, Dtype dtype, TensorPayload kind,
              std::span<const std::byte> delta, std::span<const std::byte> base) {
  constexpr size_t kGuard = 128;
  Bytes memory(base.size() + 2 * kGuard, std::byte{0x5A});
  const auto out = std::span(memory).subspan(kGuard, base.size());
  for (int time = 0; time < 2; ++time) {  // twice is once
    const auto result = decoder.apply(dtype, kind, delta, base, out);
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.failure().message);
  }
  for (size_t i = 0; i < kGuard; ++i) {
    EXPECT_EQ(memory[i], std::byte{0x5A});
    EXPECT_EQ(memory[memory.size() - 1 - i], std::byte{0x5A});
  }
  return {out.begin(), out.end()};
}

// Encodes and applies with every instruction set; gives the one delta that they all make.
TensorDelta round_trip(Dtype dtype, const Pair& pair) {
  TensorDelta first;
  for (const Isa isa : isas_here()) {
    DeltaEncoder encoder({}, isa);
    DeltaDecoder decoder(isa);
    TensorDelta delta = encoder.encode(dtype, pair.base, pair.target);
    EXPECT_EQ(delta.changed, count_different(pair, size_of(dtype)));
    EXPECT_EQ(applied(decoder, dtype, delta.kind, payload_in(delta, pair.target), pair.base),
              pair.target)
        << name_of(isa);
    EXPECT_LT(delta.bytes.size(), pair.base.size() + 1);
    if (isa == isas_here().front()) {
      first = std::move(delta);
      continue;
    }
    EXPECT_EQ(delta.kind, first.kind);
    EXPECT_EQ(delta.bytes, first.bytes) << name_of(isa);
  }
  return first;
}

constexpr Dtype kDtypes[] = {Dtype::kBF16, Dtype::kF16, Dtype::kF32};

TEST(DeltaCodec, SymbolsAreExactForEveryPairOfHalves) {
  // All bases against all targets is 4 billion; all pairs of a stride that is odd meet every value.
  for (uint32_t base = 0; base < 0x10000; base += 7) {
    for (uint32_t target = base % 31; target < 0x10000; target += 31) {
      const auto symbol = delta_symbol(static_cast<uint16_t>(base), static_cast<uint16_t>(target));
      ASSERT_EQ(symbol == 0, base == target);
      ASSERT_EQ(delta_target(static_cast<uint16_t>(base), symbol), target) << base;
    }
  }
}

TEST(DeltaCodec, OneUnitInTheLastPlaceIsASmallSymbol) {
  for (const uint16_t sign : {0, 0x8000}) {
    const auto base = static_cast<uint16_t>(0x3C00 | sign);
    EXPECT_EQ(delta_symbol(base, static_cast<uint16_t>(base + 1)), 2);
    EXPECT_EQ(delta_symbol(base, static_cast<uint16_t>(base - 1)), 1);
  }
  // Over zero: from the smallest positive one to -0.0 is two steps down, +0.0 being between.
  EXPECT_EQ(delta_symbol<uint16_t>(0x0001, 0x8000), 3);
}

TEST(DeltaCodec, ComesBackToTheBitForAllSizesAndRates) {
  Rng rng(1);
  for (const Dtype dtype : kDtypes) {
    for (int64_t elements = 0; elements <= 70; ++elements)
      for (const Change change : {Change::kSteps, Change::kSpecial, Change::kAnything})
        round_trip(dtype, make_pair(rng, dtype, elements, rng.uniform(), change));
    for (const double rate : {0.0, 0.0001, 0.001, 0.004, 0.02, 0.08, 0.3, 0.6, 0.95, 1.0})
      for (const Change change : {Change::kSteps, Change::kSpecial, Change::kAnything})
        round_trip(dtype, make_pair(rng, dtype, 1 + rng.below(30000), rate, change));
  }
}

TEST(DeltaCodec, ChunksBeginAndEndAnywhere) {
  Rng rng(2);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32})
    for (const int64_t beside : {-1, 0, 1, 63, 65})
      round_trip(dtype, make_pair(rng, dtype, kDeltaChunk + beside, 0.01, Change::kSteps));
  // Chunks of every form in one tensor.
  Pair all;
  for (const double rate : {0.0, 0.001, 0.01, 0.2, 1.0}) {
    const Pair chunk = make_pair(rng, Dtype::kBF16, kDeltaChunk, rate, Change::kSteps);
    all.base.insert(all.base.end(), chunk.base.begin(), chunk.base.end());
    all.target.insert(all.target.end(), chunk.target.begin(), chunk.target.end());
  }
  EXPECT_EQ(round_trip(Dtype::kBF16, all).kind, TensorPayload::kDelta);
}

TEST(DeltaCodec, TakesUnalignedMemory) {
  Rng rng(3);
  for (const Dtype dtype : kDtypes) {
    const Pair pair = make_pair(rng, dtype, 1000, 0.1, Change::kSteps);
    for (const size_t shift : {1, 3, 7}) {
      Bytes base(shift), target(shift), out(pair.base.size() + shift);
      base.insert(base.end(), pair.base.begin(), pair.base.end());
      target.insert(target.end(), pair.target.begin(), pair.target.end());
      for (const Isa isa : isas_here()) {
        const TensorDelta delta = DeltaEncoder({}, isa).encode(
            dtype, std::span(base).subspan(shift), std::span(target).subspan(shift));
        ASSERT_EQ(delta.kind, TensorPayload::kDelta);
        const auto to = std::span(out).subspan(shift);
        ASSERT_TRUE(DeltaDecoder(isa).apply(dtype, delta.kind, delta.bytes,
                                            std::span(base).subspan(shift), to));
        EXPECT_TRUE(std::equal(to.begin(), to.end(), pair.target.begin()));
      }
    }
  }
}

TEST(DeltaCodec, EqualStatesHaveNoBytes) {
  Rng rng(4);
  const Pair pair = make_pair(rng, Dtype::kF32, 5000, 0, Change::kSpecial);
  const TensorDelta delta = DeltaEncoder().encode(Dtype::kF32, pair.base, pair.target);
  EXPECT_EQ(delta.kind, TensorPayload::kSame);
  EXPECT_TRUE(delta.bytes.empty());
  // -0.0 is not 0.0, though they are equal.
  const float zero = 0.0f, minus = -0.0f;
  const auto bytes = [](const float& value) { return std::as_bytes(std::span(&value, 1)); };
  EXPECT_NE(DeltaEncoder().encode(Dtype::kF32, bytes(zero), bytes(minus)).kind,
            TensorPayload::kSame);
}

TEST(DeltaCodec, EqualBytesGiveEqualDeltas) {
  Rng rng(5);
  const Pair one = make_pair(rng, Dtype::kBF16, 50000, 0.02, Change::kSteps);
  const Pair other = make_pair(rng, Dtype::kBF16, 70000, 0.5, Change::kAnything);
  DeltaEncoder encoder;
  const Bytes first = encoder.encode(Dtype::kBF16, one.base, one.target).bytes;
  (void)encoder.encode(Dtype::kBF16, other.base, other.target);  // leaves no trace
  EXPECT_EQ(encoder.encode(Dtype::kBF16, one.base, one.target).bytes, first);
}

// The floor: the entropy of where, and of a step up or down.
TEST(DeltaCodec, IsCloseToTheEntropyOfWhatHasChanged) {
  Rng rng(6);
  constexpr int64_t kElements = kDeltaChunk;
  for (const double rate : {0.002, 0.02, 0.1, 0.25}) {
    Pair pair = make_pair(rng, Dtype::kBF16, kElements, 0, Change::kSteps);
    for (int64_t i = 0; i < kElements; ++i)
      if (rng.chance(rate)) pair.target[static_cast<size_t>(2 * i)] ^= std::byte{1};
    const double bits = -rate * std::log2(rate) - (1 - rate) * std::log2(1 - rate) + rate;
    const double floor = bits / 8 * static_cast<double>(kElements);
    const auto bytes = static_cast<double>(round_trip(Dtype::kBF16, pair).bytes.size());
    EXPECT_LT(bytes, 1.15 * floor) << rate;
    EXPECT_GT(bytes, 0.97 * floor) << rate;
  }
}

// Rows of an embedding that no sample has named do not change.
TEST(DeltaCodec, RowsThatDoNotChangeCostNothing) {
  Rng rng(11);
  Pair pair = make_pair(rng, Dtype::kBF16, kDeltaChunk, 0, Change::kSteps);
  constexpr int64_t kRow = 1024;
  int64_t changed = 0;
  for (int64_t i = 0; i < kDeltaChunk; ++i) {
    if (i / kRow % 100 != 7 || rng.chance(0.5)) continue;
    pair.target[static_cast<size_t>(2 * i)] ^= std::byte{1};
    ++changed;
  }
  // Two bits are the entropy: where within its row, and up or down.
  const auto bytes = static_cast<double>(round_trip(Dtype::kBF16, pair).bytes.size());
  EXPECT_LT(bytes, 4.0 / 8 * static_cast<double>(changed));
}

TEST(DeltaCodec, WhatDoesNotPayGoesWhole) {
  Rng rng(7);
  const Pair noise = make_pair(rng, Dtype::kF32, 100000, 1, Change::kAnything);
  EXPECT_EQ(DeltaEncoder().encode(Dtype::kF32, noise.base, noise.target).kind,
            TensorPayload::kFull);
  // The cheaper one in time: 1 % of a slow link is less than the whole, and 1 % of one that takes
  // no time is less than nothing.
  const Pair steps = make_pair(rng, Dtype::kBF16, 200000, 0.01, Change::kSteps);
  EXPECT_EQ(
      DeltaEncoder({.link_bytes_per_s = 1e3}).encode(Dtype::kBF16, steps.base, steps.target).kind,
      TensorPayload::kDelta);
  const TensorDelta fast =
      DeltaEncoder({.link_bytes_per_s = 1e18}).encode(Dtype::kBF16, steps.base, steps.target);
  EXPECT_EQ(fast.kind, TensorPayload::kFull);
  EXPECT_EQ(fast.changed, count_different(steps, 2));
}

TEST(DeltaCodec, AWrongBaseGivesAnotherStateWhichItsDigestTells) {
  Rng rng(8);
  const Pair pair = make_pair(rng, Dtype::kBF16, 20000, 0.05, Change::kSteps);
  const TensorDelta delta = DeltaEncoder().encode(Dtype::kBF16, pair.base, pair.target);
  Bytes wrong = pair.base;
  wrong[1000] ^= std::byte{1};
  DeltaDecoder decoder;
  const Bytes out = applied(decoder, Dtype::kBF16, delta.kind, delta.bytes, wrong);
  EXPECT_NE(digest_of(out), digest_of(pair.target));
  // Another size is refused.
  EXPECT_FALSE(decoder.apply(Dtype::kBF16, delta.kind, delta.bytes,
                             std::span(wrong).first(wrong.size() - 2), wrong));
}

// Each byte set to others, each prefix, and more behind: refused, or other values, and never a
// touch of memory that is not its own (the sanitizers look, and so do the canaries).
TEST(DeltaCodec, SurvivesDamage) {
  Rng rng(9);
  int64_t refused = 0, harmless = 0;
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32}) {
    for (const double rate : {0.002, 0.03, 0.3, 0.9}) {
      for (const Change change : {Change::kSteps, Change::kAnything}) {
        const Pair pair = make_pair(rng, dtype, 700, rate, change);
        const TensorDelta delta = DeltaEncoder().encode(dtype, pair.base, pair.target);
        if (delta.kind != TensorPayload::kDelta) continue;
        for (const Isa isa : isas_here()) {
          DeltaDecoder decoder(isa);
          Bytes out(pair.base.size() + 128, std::byte{0x5A});
          const auto check = [&](std::span<const std::byte> damaged) {
            const bool ok = decoder
                                .apply(dtype, delta.kind, damaged, pair.base,
                                       std::span(out).first(pair.base.size()))
                                .ok();
            (ok ? harmless : refused) += 1;
            ASSERT_EQ(out[pair.base.size()], std::byte{0x5A});
            return;
          };
          for (size_t at = 0; at < delta.bytes.size(); ++at) {
            Bytes damaged = delta.bytes;
            for (const uint8_t mask : {0x01, 0x80, 0xFF, 0x10}) {
              damaged[at] = delta.bytes[at] ^ std::byte{mask};
              check(damaged);
            }
            EXPECT_FALSE(decoder.apply(dtype, delta.kind, std::span(delta.bytes).first(at),
                                       pair.base, std::span(out).first(pair.base.size())))
                << "cut at " << at;
          }
          Bytes longer = delta.bytes;
          longer.push_back(std::byte{0});
          const auto more = decoder.apply(dtype, delta.kind, longer, pair.base,
                                          std::span(out).first(pair.base.size()));
          ASSERT_FALSE(more);
          EXPECT_EQ(more.failure().message, "its delta goes on behind its last chunk");
        }
      }
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(harmless, 10);
}

TEST(DeltaCodec, RandomBytesAreNoDelta) {
  Rng rng(10);
  const Bytes base(5000);
  Bytes out(5000);
  DeltaDecoder decoder;
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    Bytes delta(static_cast<size_t>(rng.below(60)));
    for (std::byte& byte : delta) byte = static_cast<std::byte>(rng.next_u32() >> rng.below(32));
    accepted += decoder.apply(Dtype::kBF16, TensorPayload::kDelta, delta, base, out).ok();
  }
  EXPECT_LT(accepted, 200);
}

TEST(DeltaCodec, SaysWhatDoesNotFit) {
  Bytes base(8), out(8);
  DeltaDecoder decoder;
  const auto message = [&](TensorPayload kind, const Bytes& delta) {
    const auto applied_to = decoder.apply(Dtype::kBF16, kind, delta, base, out);
    return applied_to.ok() ? std::string() : applied_to.failure().message;
  };
  EXPECT_EQ(message(TensorPayload::kFull, Bytes(7)), "a full tensor of 8 bytes has 7");
  EXPECT_EQ(message(TensorPayload::kSame, Bytes(1)), "a tensor that is the same has bytes");
  EXPECT_EQ(message(TensorPayload::kDelta, Bytes()), "chunk 0 of its delta is damaged");
  EXPECT_EQ(message(TensorPayload::kSame, Bytes()), "");
}

}  // namespace
}  // namespace tailrace
