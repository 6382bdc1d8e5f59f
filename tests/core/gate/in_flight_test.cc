// What a worker may have on its way to a scheduler that takes nothing.
#include "core/gate/in_flight.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

TEST(InFlight, HoldsNoMoreThanAFewWindows) {
  InFlight frames;
  const int64_t bytes = wire::kPieceBytes;
  uint64_t sequence = 1;
  for (; frames.has_room(sequence, bytes); ++sequence) frames.note_sent(sequence, bytes);
  EXPECT_EQ(static_cast<int64_t>(sequence - 1) * bytes, InFlight::kMaxBytes);
  frames.arrived(2);
  frames.note_sent(sequence, bytes);
  EXPECT_TRUE(frames.has_room(sequence + 1, bytes));
  frames.note_sent(sequence + 1, bytes);
  EXPECT_FALSE(frames.has_room(sequence + 2, bytes));
  frames.clear();
  EXPECT_TRUE(frames.has_room(1, InFlight::kMaxBytes));
}

TEST(InFlight, WhatIsSentAgainCountsOnce) {
  InFlight frames;
  frames.note_sent(1, InFlight::kMaxBytes);
  EXPECT_FALSE(frames.has_room(2, 1));
  EXPECT_TRUE(frames.has_room(1, InFlight::kMaxBytes));
  for (int i = 0; i < 5; ++i) frames.note_sent(1, InFlight::kMaxBytes);
  frames.arrived(1);
  EXPECT_TRUE(frames.has_room(2, InFlight::kMaxBytes));
}

TEST(InFlight, FramesWithoutANumberAreSmall) {
  const InFlight frames;
  EXPECT_TRUE(frames.has_room(0, 200));
  EXPECT_FALSE(frames.has_room(0, wire::kPieceBytes));
}

}  // namespace
}  // namespace tailrace
