#include "core/model/forward_batch.h"

#include <gtest/gtest.h>

#include "tests/kernels/base/inverted_memory.h"

namespace tailrace {
namespace {

template <class T>
std::vector<int32_t> list(const T& values) {
  return {values.begin(), values.end()};
}

constexpr BatchRoom kRoom = {.tokens = 8,
                             .sequences = 3,
                             .blocks_per_sequence = 3,
                             .choices_per_token = 2,
                             .vocab = 10,
                             .blocks = 9};

TEST(BatchBuilder, PlacesSequencesOneAfterAnother) {
  BatchBuilder builder(kRoom);
  const std::vector<int32_t> first = {7, 8, 9}, second = {4, 4}, blocks = {2, 0}, other = {5, 1, 6};
  builder.add(first, 0, blocks, std::vector<int32_t>{1, 2});
  builder.add(second, 30, other, std::vector<int32_t>{1});
  const ForwardBatch batch = builder.batch();
  EXPECT_EQ(list(batch.token_ids), (std::vector<int32_t>{7, 8, 9, 4, 4}));
  EXPECT_EQ(list(batch.sequences.positions), (std::vector<int32_t>{0, 1, 2, 30, 31}));
  EXPECT_EQ(list(batch.sequences.seq_offsets), (std::vector<int32_t>{0, 3, 5}));
  EXPECT_EQ(list(batch.sequences.block_tables), (std::vector<int32_t>{2, 0, -1, 5, 1, 6}));
  EXPECT_EQ(list(batch.logit_rows), (std::vector<int32_t>{1, 2, 4}));
  EXPECT_EQ(batch.max_context, 32);
  EXPECT_EQ(builder.num_tokens(), 5);
  EXPECT_EQ(builder.num_sequences(), 2);
}

TEST(BatchBuilder, KnowsWhatNeighboursHaveInCommon) {
  BatchBuilder builder(kRoom);
  const std::vector<int32_t> token = {7}, first = {2, 0, 3}, second = {2, 0, 4}, third = {-1, 0, 4};
  for (const auto& blocks : {first, second, third}) builder.add(token, 40, blocks, {});
  EXPECT_EQ(list(builder.batch().sequences.common_blocks), (std::vector<int32_t>{0, 2, 0}));
  builder.clear();
  // No block is one that both have.
  for (int i = 0; i < 2; ++i) builder.add(token, 40, third, {});
  builder.add(token, 40, std::span(third).subspan(1), {});
  EXPECT_EQ(list(builder.batch().sequences.common_blocks), (std::vector<int32_t>{0, 0, 0}));
  const InvertedMemory::Provided provided;
  BatchBuilder there(kRoom, InvertedMemory::kDevice);
  for (int i = 0; i < 2; ++i) there.add(token, 40, first, {});
  EXPECT_TRUE(there.batch({.device = InvertedMemory::kDevice}).sequences.common_blocks.empty());
}

TEST(BatchBuilder, TakesTokensThatTheHostDoesNotKnow) {
  BatchRoom room = kRoom;
  room.takes_draws = true;
  BatchBuilder builder(room);
  const std::vector<int32_t> tokens = {7, 8}, blocks = {2, 0}, drawn = {3, 4, 5};
  builder.add_drawn(2, 12, blocks);
  builder.add(tokens, 0, blocks, std::vector<int32_t>{1});
  builder.add_drawn(0, 9, blocks);
  for (int time = 0; time < 2; ++time) {
    const ForwardBatch batch = builder.batch({}, drawn);
    EXPECT_EQ(list(batch.token_ids), (std::vector<int32_t>{5, 7, 8, 3}));
    EXPECT_EQ(list(batch.sequences.positions), (std::vector<int32_t>{12, 0, 1, 9}));
    EXPECT_EQ(list(batch.logit_rows), (std::vector<int32_t>{0, 2, 3}));
  }
  builder.clear();
  builder.add(tokens, 0, blocks, {});
  EXPECT_EQ(list(builder.batch().token_ids), tokens);
}

TEST(BatchBuilder, OnlyThoseThatAreGivenChoicesHaveThem) {
  BatchBuilder builder(kRoom);
  const std::vector<int32_t> tokens = {1, 2}, blocks = {0}, ids = {5, 6, 7, 8};
  builder.add(tokens, 0, blocks, {});
  EXPECT_EQ(builder.batch().choices.rows, 0);
  builder.add(tokens, 0, blocks, {}, {ids.data(), 2, 2});
  builder.add(std::span(tokens).first(1), 0, blocks, {});
  const MatrixView<const int32_t> choices = builder.batch().choices;
  ASSERT_EQ(choices.rows, 5);
  EXPECT_EQ(list(std::span(choices.data, 10)),
            (std::vector<int32_t>{-1, -1, -1, -1, 5, 6, 7, 8, -1, -1}));
  builder.clear();
  builder.add(tokens, 0, blocks, {});
  EXPECT_EQ(builder.batch().choices.rows, 0);
}

TEST(BatchBuilder, StartsAgainAfterClear) {
  BatchBuilder builder(kRoom);
  const std::vector<int32_t> tokens = {1, 2}, blocks = {0};
  builder.add(tokens, 5, blocks, {});
  builder.clear();
  EXPECT_EQ(builder.num_tokens(), 0);
  EXPECT_EQ(builder.num_sequences(), 0);
  EXPECT_EQ(builder.batch().max_context, 0);
  builder.add(tokens, 0, blocks, {});
  EXPECT_EQ(list(builder.batch().sequences.block_tables), (std::vector<int32_t>{0, -1, -1}));
  EXPECT_TRUE(builder.batch().logit_rows.empty());
}

TEST(BatchBuilder, CopiesItsArraysToItsDevice) {
  const InvertedMemory::Provided provided;
  const Device device = InvertedMemory::kDevice;
  const Stream stream{.device = device};
  BatchBuilder there(kRoom, device), here(kRoom);
  const auto read = [&](std::span<const int32_t> values) {
    std::vector<int32_t> back(values.size());
    copy(stream, bytes_of(std::span(back)),
         {device, reinterpret_cast<const std::byte*>(values.data()), values.size_bytes()});
    return back;
  };
  const std::vector<int32_t> tokens = {7, 8, 9}, blocks = {2, 0}, rows = {0, 2};
  const std::vector<int32_t> ids = {5, 6, 7, 8, 1, 2};
  for (const size_t count : {3, 1}) {
    for (BatchBuilder* builder : {&there, &here}) {
      builder->clear();
      builder->add(std::span(tokens).first(count), 4, blocks,
                   std::span(rows).first((count + 1) / 2),
                   {ids.data(), static_cast<int64_t>(count), 2});
      builder->add(tokens, 0, blocks, {});
    }
    const ForwardBatch got = there.batch(stream), expected = here.batch();
    EXPECT_EQ(read(got.token_ids), list(expected.token_ids));
    EXPECT_EQ(read(got.sequences.positions), list(expected.sequences.positions));
    EXPECT_EQ(read(got.sequences.seq_offsets), list(expected.sequences.seq_offsets));
    EXPECT_EQ(read(got.sequences.block_tables), list(expected.sequences.block_tables));
    EXPECT_EQ(read(got.logit_rows), list(expected.logit_rows));
    const auto num_choices = static_cast<size_t>(expected.choices.rows * expected.choices.cols);
    EXPECT_EQ(num_choices, 2 * (count + 3));
    EXPECT_EQ(read({got.choices.data, num_choices}),
              list(std::span(expected.choices.data, num_choices)));
    EXPECT_EQ(got.max_context, expected.max_context);
  }
}

TEST(BatchBuilderDeathTest, RefusesLogitOffsetsThatDoNotAscend) {
  BatchBuilder builder(kRoom);
  const std::vector<int32_t> tokens = {1, 2}, blocks = {0}, offsets = {1, 0};
  EXPECT_DEATH(builder.add(tokens, 0, blocks, offsets), "ascend");
}

TEST(BatchBuilderDeathTest, RefusesWhatDoesNotFit) {
  BatchBuilder builder(kRoom);
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5}, blocks = {0}, none = {10}, far = {9};
  builder.add(tokens, 0, blocks, {});
  EXPECT_DEATH(builder.add(tokens, 0, blocks, {}), "5 tokens behind 5 in 1 sequences, room for 8");
  EXPECT_DEATH(builder.add(none, 0, blocks, {}), "token 10 of a vocabulary of 10");
  EXPECT_DEATH(builder.add(blocks, 0, far, {}), "block 9 of 9");
  EXPECT_DEATH(builder.add(blocks, 0, tokens, {}), "5 blocks, room for 3");
  EXPECT_DEATH(builder.add(blocks, 0, blocks, {}, {tokens.data(), 1, 3}), "choices .1, 3.");
  builder.add(blocks, 0, blocks, {});
  builder.add(blocks, 0, blocks, {});
  EXPECT_DEATH(builder.add(blocks, 0, blocks, {}), "in 3 sequences, room for 8 in 3");
}

}  // namespace
}  // namespace tailrace
