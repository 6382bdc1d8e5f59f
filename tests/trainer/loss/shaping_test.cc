#include "trainer/loss/shaping.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/loss/tokens.h"

namespace tailrace {
namespace {

using namespace testing;  // NOLINT: the columns of a loss call

TEST(Shaping, SoftOverlongMatchesGoldenDapo1) {
  const LengthOptions options = {
      .penalty = LengthPenalty::kSoftOverlong, .factor = 1, .limit = 20480, .buffer = 4096};
  const std::vector<int64_t> lengths = {16000, 16384, 18432, 20480, 21000};
  const std::vector<uint8_t> success(5, 1);
  const std::vector<int32_t> groups = {0, 5};
  expect_numbers(length_penalties(options, lengths, success, groups), {0, 0, -.5, -1, -1});
}

TEST(Shaping, KimisLengthPenaltyMatchesItsGolden) {
  const std::vector<int64_t> lengths = {100, 300, 500, 100, 300, 500, 7, 7};
  const std::vector<uint8_t> success = {1, 1, 1, 0, 0, 0, 1, 0};
  const std::vector<int32_t> groups = {0, 3, 6, 8};
  expect_numbers(length_penalties({.penalty = LengthPenalty::kKimi}, lengths, success, groups),
                 {.5, 0, -.5, 0, 0, -.5, 0, 0});
}

}  // namespace
}  // namespace tailrace
