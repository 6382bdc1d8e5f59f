#include "core/model/forward_batch.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

template <class T>
std::vector<int32_t> list(const T& values) {
  return {values.begin(), values.end()};
}

TEST(BatchBuilder, PlacesSequencesOneAfterAnother) {
  BatchBuilder builder(/*max_blocks_per_sequence=*/3);
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

TEST(BatchBuilder, OnlyThoseThatAreGivenChoicesHaveThem) {
  BatchBuilder builder(1);
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
  BatchBuilder builder(2);
  const std::vector<int32_t> tokens = {1, 2}, blocks = {0};
  builder.add(tokens, 5, blocks, {});
  builder.clear();
  EXPECT_EQ(builder.num_tokens(), 0);
  EXPECT_EQ(builder.num_sequences(), 0);
  EXPECT_EQ(builder.batch().max_context, 0);
  builder.add(tokens, 0, blocks, {});
  EXPECT_EQ(list(builder.batch().sequences.block_tables), (std::vector<int32_t>{0, -1}));
  EXPECT_TRUE(builder.batch().logit_rows.empty());
}

TEST(BatchBuilderDeathTest, RefusesLogitOffsetsThatDoNotAscend) {
  BatchBuilder builder(2);
  const std::vector<int32_t> tokens = {1, 2}, blocks = {0}, offsets = {1, 0};
  EXPECT_DEATH(builder.add(tokens, 0, blocks, offsets), "ascend");
}

}  // namespace
}  // namespace tailrace
