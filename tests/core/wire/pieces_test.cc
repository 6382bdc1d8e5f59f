#include "core/wire/pieces.h"

#include <gtest/gtest.h>

#include "tests/core/wire/samples.h"

namespace tailrace::wire {
namespace {

TrajectoryResult result_in_pieces(int64_t bytes) {
  TrajectoryResult result{std::vector<std::byte>(static_cast<size_t>(bytes))};
  for (size_t i = 0; i < result.body.size(); ++i)
    result.body[i] = static_cast<std::byte>(i * i % 251);
  return result;
}

std::vector<std::byte> body_in(const std::optional<Result<Message>>& taken) {
  return std::get<TrajectoryResult>(taken.value().value()).body;
}

bool is_refused(const std::optional<Result<Message>>& taken) { return taken && !*taken; }

TEST(Pieces, SmallMessagesGoWhole) {
  Assembly assembly;
  for (const Message& message : test::one_of_each()) {
    const auto frames = encode_frames(message);
    ASSERT_EQ(frames.size(), 1u);
    EXPECT_EQ(frames[0], encode({}, message));
    const auto taken = assembly.take(frames[0]);
    ASSERT_TRUE(taken && *taken) << describe(message);
    EXPECT_EQ(describe(taken->value()), describe(message));
    EXPECT_EQ(assembly.num_frames(), 1);
  }
  const Payload payload{1, std::vector<std::byte>(4 << 20)};
  EXPECT_EQ(encode_frames(payload).size(), 1u) << "what the inbox gives at once";
}

TEST(Pieces, ALargeMessageIsPutTogether) {
  Assembly assembly;
  for (const int64_t bytes : {kMaxFrameBytes, 2 * kPieceBytes, 2 * kPieceBytes + 12345}) {
    const TrajectoryResult result = result_in_pieces(bytes);
    const auto frames = encode_frames(result);
    ASSERT_EQ(std::ssize(frames), bytes / kPieceBytes + 1);
    for (const auto& frame : frames) {
      EXPECT_LE(std::ssize(frame), kMaxFrameBytes);
      EXPECT_TRUE(decode_header(frame));
      const auto taken = assembly.take(frame);
      ASSERT_EQ(taken.has_value(), &frame == &frames.back());
      EXPECT_TRUE(!taken || body_in(taken) == result.body);
    }
    EXPECT_EQ(assembly.num_frames(), std::ssize(frames));
  }
}

TEST(Pieces, WhatDoesNotFitIsRefusedAndTheNextIsTaken) {
  const auto frames = encode_frames(result_in_pieces(3 * kPieceBytes));
  const auto others = encode_frames(result_in_pieces(4 * kPieceBytes));
  const auto small = encode({}, TrainerWants{0, 1});
  ASSERT_EQ(frames.size(), 4u);
  const std::vector<std::byte> bytes(static_cast<size_t>(kPieceBytes));
  const auto piece = [&](int64_t offset, int64_t total, int64_t size) {
    return encode(Piece{offset, total, std::span(bytes).first(static_cast<size_t>(size))});
  };
  const std::vector<std::vector<std::vector<std::byte>>> bad = {
      {frames[1]},                       // it has no beginning
      {frames[0], frames[0]},            // twice
      {frames[0], frames[2]},            // one is missing
      {frames[0], others[1]},            // of another message
      {frames[0], small},                // that goes on with another message
      {piece(0, 2 * kPieceBytes, 100)},  // many small ones would be many
      {piece(0, 0, 0)},
      {piece(0, kPieceBytes, kPieceBytes)},
      {piece(0, kMaxMessageBytes + 1, kPieceBytes)},
      {piece(-1, 2 * kPieceBytes, kPieceBytes)},
      {frames[0], piece(kPieceBytes, 1, kPieceBytes)},
  };
  Assembly assembly;
  for (size_t i = 0; i < bad.size(); ++i) {
    SCOPED_TRACE(i);
    for (const auto& frame : bad[i])
      EXPECT_EQ(is_refused(assembly.take(frame)), &frame == &bad[i].back());
    EXPECT_EQ(assembly.num_frames(), std::ssize(bad[i]));
    for (const auto& frame : frames) {
      const auto taken = assembly.take(frame);
      ASSERT_EQ(taken.has_value(), &frame == &frames.back());
      EXPECT_FALSE(is_refused(taken));
    }
  }
}

// Its pieces are sound, and what they make up is not.
TEST(Pieces, AMalformedWholeIsRefused) {
  std::vector<std::byte> garbage(static_cast<size_t>(kPieceBytes + 1));
  Assembly assembly;
  EXPECT_FALSE(
      assembly.take(encode(Piece{0, kPieceBytes + 1, std::span(garbage).first(kPieceBytes)})));
  EXPECT_TRUE(is_refused(
      assembly.take(encode(Piece{kPieceBytes, kPieceBytes + 1, std::span(garbage).last(1)}))));
  EXPECT_EQ(assembly.num_frames(), 2);
}

TEST(Pieces, MutatedOnesAreRefusedOrSound) {
  Rng rng(7);
  const std::vector<std::byte> bytes(100);
  const auto frame = encode(Piece{0, 1000, bytes});
  int64_t found = 0;
  for (int i = 0; i < 20'000; ++i) {
    auto mutated = frame;
    const auto at = static_cast<size_t>(rng.below(std::ssize(mutated)));
    mutated[at] = static_cast<std::byte>(rng.below(256));
    std::vector<std::byte> storage;
    const auto piece = piece_in(mutated, storage);
    found += piece && std::ssize(piece->bytes) <= std::ssize(frame);
    EXPECT_LE(piece ? std::ssize(piece->bytes) : 0, std::ssize(frame));
  }
  EXPECT_GT(found, 1000);
}

}  // namespace
}  // namespace tailrace::wire
