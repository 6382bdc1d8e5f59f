#include "sandbox/launcher/patience.h"

#include <gtest/gtest.h>

namespace tailrace::sandbox {
namespace {

using namespace std::chrono_literals;

TEST(Patience, GivesEachPartOfALifeItsTime) {
  const Patience::Clock::time_point start{};
  Patience patience(7s, start);
  EXPECT_EQ(patience.until(), start + Patience::kSetUp);
  patience.begin(start + 2s);
  EXPECT_EQ(patience.until(), start + 9s);
  EXPECT_FALSE(patience.is_ending());
  patience.end(start + 5s);
  EXPECT_TRUE(patience.is_ending());
  EXPECT_EQ(patience.until(), start + 5s + Patience::kEnd);
}

// A program that was killed for its output, which the kernel does not let die, was killed again
// each time that the wait for it was over.
TEST(Patience, WhoIsKilledAgainHasNoMoreTime) {
  const Patience::Clock::time_point start{};
  Patience patience(7s, start);
  patience.begin(start);
  patience.end(start + 1s);
  patience.end(start + 11s);
  patience.begin(start + 11s);
  EXPECT_EQ(patience.until(), start + 1s + Patience::kEnd);
}

}  // namespace
}  // namespace tailrace::sandbox
