#include "core/weights/byte_plane.h"

#include <gtest/gtest.h>

#include "core/base/random.h"

namespace tailrace {
namespace {

using Plane = std::vector<uint8_t>;

std::vector<std::byte> written(const Plane& plane) {
  std::vector<std::byte> bytes;
  PlaneWriter writer;
  writer.begin(bytes);
  writer.put_plane(plane);
  return bytes;
}

// Empty: it does not read back.
std::optional<Plane> read_back(std::span<const std::byte> bytes, size_t room) {
  Plane plane(room, 0xA5);
  PlaneReader reader;
  reader.begin(bytes);
  const auto size = reader.take_plane(plane);
  if (!size || !reader.at_end()) return {};
  plane.resize(*size);
  return plane;
}

// Values below `limit`, but for one in `outliers`.
Plane skewed(Rng& rng, size_t size, int limit, int outliers) {
  Plane plane(size);
  for (uint8_t& value : plane)
    value = static_cast<uint8_t>(rng.below(rng.below(outliers) == 0 ? 256 : limit));
  return plane;
}

TEST(BytePlane, ComesBackInEveryDigit) {
  Rng rng(1);
  for (size_t size = 0; size < 70; ++size) {
    for (const int limit : {1, 2, 3, 4, 15, 16, 256}) {
      const Plane plane = skewed(rng, size, limit, 20);
      EXPECT_EQ(read_back(written(plane), size), plane) << size << " below " << limit;
      EXPECT_EQ(read_back(written(plane), size + 9), plane);
    }
  }
  for (const int limit : {1, 2, 3, 15, 200}) {
    const Plane plane = skewed(rng, 300001, limit, 500);
    EXPECT_EQ(read_back(written(plane), plane.size()), plane);
  }
}

// A code for bytes has a bit each at least; here a value has much less.
TEST(BytePlane, RareValuesCostLessThanABitEach) {
  Rng rng(2);
  Plane plane(1 << 20);
  for (uint8_t& value : plane)
    value = static_cast<uint8_t>(rng.chance(0.01) ? 1 + rng.below(3) : 0);
  // 0.097 bits are the entropy. A byte of eight digits has a bit at least, so 0.125 is the floor.
  EXPECT_LT(static_cast<double>(written(plane).size()),
            0.17 / 8 * static_cast<double>(plane.size()));
}

TEST(BytePlane, RandomBytesAreStoredAsTheyAre) {
  Rng rng(3);
  const Plane plane = skewed(rng, 100000, 256, 2);
  EXPECT_LT(written(plane).size(), plane.size() + 16);
}

TEST(BytePlane, RefusesMoreThanThereIsRoomFor) {
  const auto bytes = written(Plane(100, 1));
  EXPECT_TRUE(read_back(bytes, 100));
  EXPECT_FALSE(read_back(bytes, 99));
}

TEST(BytePlane, SurvivesDamage) {
  Rng rng(4);
  for (const int limit : {1, 3, 15, 256}) {
    for (const size_t size : {5, 64, 300}) {
      const auto good = written(skewed(rng, size, limit, 10));
      for (size_t at = 0; at < good.size(); ++at) {
        EXPECT_FALSE(read_back(std::span(good).first(at), size)) << "cut at " << at;
        auto bytes = good;
        for (int value = 0; value < 256; ++value) {
          bytes[at] = static_cast<std::byte>(value);
          const auto plane = read_back(bytes, size);
          if (plane) {
            EXPECT_LE(plane->size(), size);
          }
        }
      }
    }
  }
}

TEST(BytePlane, RefusesDigitsThatDoNotFit) {
  const auto bytes = [](std::initializer_list<int> values) {
    std::vector<std::byte> made;
    for (const int value : values) made.push_back(static_cast<std::byte>(value));
    return made;
  };
  // Three values of four bits: 1, 2 and 15 with an excess of 4; all stored as they are.
  const auto good = bytes({3, 4, 4, 0x21, 0x0F, 0, 0, 1, 1, 4});
  EXPECT_EQ(read_back(good, 3), (Plane{1, 2, 19}));
  EXPECT_FALSE(read_back(bytes({3, 4, 4, 0x21, 0x0F, 0, 0, 0, 0}), 3)) << "an excess is missing";
  EXPECT_FALSE(read_back(bytes({3, 4, 4, 0x21, 0x0F, 0, 0, 2, 2, 4, 4}), 3)) << "one too many";
  EXPECT_FALSE(read_back(bytes({3, 4, 4, 0x21, 0x1F, 0, 0, 1, 1, 4}), 3)) << "a fourth value";
  EXPECT_FALSE(read_back(bytes({3, 4, 4, 0x21, 0x0F, 0, 0, 1, 1, 241}), 3)) << "more than a byte";
  EXPECT_FALSE(read_back(bytes({3, 3, 4, 0x21, 0x0F, 0, 0, 1, 1, 4}), 3)) << "no such digit";
  EXPECT_FALSE(read_back(bytes({0x83}), 3)) << "a number that goes on";
}

}  // namespace
}  // namespace tailrace
