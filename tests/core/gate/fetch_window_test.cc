// How many chunks of a transfer may be on their way.
#include "core/gate/fetch_window.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

using namespace std::chrono_literals;

TEST(FetchWindow, GrowsOnAFastLinkUpToItsBytes) {
  FetchWindow window(int64_t{8} << 20, int64_t{256} << 10);
  for (int i = 0; i < 100; ++i) window.on_chunk(20ms);
  EXPECT_EQ(window.chunks(), 32);
}

TEST(FetchWindow, ShrinksOnASlowOneAndIsNeverEmpty) {
  FetchWindow window(int64_t{8} << 20, int64_t{256} << 10);
  for (int i = 0; i < 100; ++i) window.on_chunk(8s);
  EXPECT_EQ(window.chunks(), 2);
  window.on_chunk(1500ms);
  EXPECT_EQ(window.chunks(), 2);
}

TEST(FetchWindow, HasRoomForTwoOfTheLargestChunks) {
  EXPECT_EQ(FetchWindow(1, int64_t{4} << 20).chunks(), 2);
}

}  // namespace
}  // namespace tailrace
