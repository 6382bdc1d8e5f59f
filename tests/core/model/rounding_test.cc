#include "core/model/rounding.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/dtype.h"

namespace tailrace {
namespace {

std::vector<uint16_t> rounded(std::span<const float> values) {
  std::vector<uint16_t> all;
  rounded_to_bf16(values, [&](std::span<const std::byte> bytes) {
    const size_t before = all.size();
    all.resize(before + bytes.size() / sizeof(uint16_t));
    std::memcpy(all.data() + before, bytes.data(), bytes.size());
  });
  return all;
}

// Each value of 16 bits, with what decides below it: nothing, less than a half, a half, more.
// Infinities, NaNs, denormals and -0 are among them.
TEST(Rounding, IsThatOfOneValueForEveryKindOfFloat) {
  std::vector<float> values;
  for (uint32_t high = 0; high < 0x10000; ++high)
    for (const uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
      values.push_back(std::bit_cast<float>(high << 16 | low));
  const std::vector<uint16_t> found = rounded(values);
  ASSERT_EQ(found.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(found[i], to_bf16(values[i]).bits) << std::bit_cast<uint32_t>(values[i]);
}

TEST(Rounding, LeavesNothingOutWhateverTheLength) {
  for (const size_t length : {0u, 1u, 63u, 64u, 65u, 32768u, 32769u, 65537u}) {
    std::vector<float> values(length);
    for (size_t i = 0; i < length; ++i) values[i] = 0.37f * static_cast<float>(i);
    const std::vector<uint16_t> found = rounded(values);
    ASSERT_EQ(found.size(), length);
    for (size_t i = 0; i < length; ++i) ASSERT_EQ(found[i], to_bf16(values[i]).bits) << i;
  }
}

}  // namespace
}  // namespace tailrace
