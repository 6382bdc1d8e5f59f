// How much may be on its way: chunks of a transfer, and frames of a worker.
#include "core/gate/fetch_window.h"

#include <gtest/gtest.h>

#include "core/gate/in_flight.h"

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

TEST(InFlight, HoldsNoMoreThanAFewWindows) {
  InFlight bytes;
  const int64_t frame = wire::kPieceBytes;
  uint64_t sequence = 0;
  while (bytes.pass(++sequence, frame)) {
  }
  EXPECT_EQ(static_cast<int64_t>(sequence - 1) * frame, InFlight::kMaxBytes);
  bytes.arrived(2);
  EXPECT_TRUE(bytes.pass(sequence, frame));
  EXPECT_TRUE(bytes.pass(sequence, frame));
  EXPECT_FALSE(bytes.pass(sequence, frame));
  bytes.clear();
  EXPECT_TRUE(bytes.pass(1, InFlight::kMaxBytes));
}

TEST(InFlight, PassesSmallFramesWithoutANumberAndNoLargeOnes) {
  InFlight bytes;
  for (int i = 0; i < 100000; ++i) ASSERT_TRUE(bytes.pass(0, 200));
  EXPECT_FALSE(bytes.pass(0, wire::kPieceBytes));
}

}  // namespace
}  // namespace tailrace
