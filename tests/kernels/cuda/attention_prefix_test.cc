// Decode of samples that share the blocks of their prompt: each has the bits that it has with
// blocks of its own, and shared keys and values are read once.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/cuda/attention_testing.h"

namespace tailrace {
namespace {

using cuda_testing::attend;
using cuda_testing::expect_same_bits;
using cuda_testing::Heads;
using cuda_testing::Result;
using cuda_testing::Rows;
using cuda_testing::Sequences;

constexpr int kChunk = 256;

// Bytes that attention reads of keys and values; -1 where nobody counts them.
template <class Call>
int64_t bytes_read(const Call& call) {
#ifdef TAILRACE_EMULATED_GPU
  cuda::emulation::reset_stats();
  call();
  return cuda::emulation::stats().copied_bytes;
#else
  call();
  return -1;
#endif
}

// Sequences of a batch, of which the members of a group begin alike.
Sequences<Bf16> sequences_of(const Heads& heads, const std::vector<Rows>& batch) {
  std::vector<int> lengths;
  for (const Rows& rows : batch) lengths.push_back(rows.first + rows.count);
  Sequences<Bf16> all(heads, lengths, 7);
  const int64_t cols = heads.kv_heads * heads.dim;
  for (size_t s = 0; s < batch.size(); ++s) {
    for (size_t first = 0; first < s; ++first) {
      if (batch[s].group < 0 || batch[first].group != batch[s].group) continue;
      const int same = std::min({batch[first].prefix, batch[s].prefix, lengths[first], lengths[s]});
      std::copy_n(all.k[first].begin(), same * cols, all.k[s].begin());
      std::copy_n(all.v[first].begin(), same * cols, all.v[s].begin());
    }
  }
  return all;
}

// A batch in the making. Sequence i is the i-th that was added.
struct Batch {
  std::vector<Rows> rows;

  Batch& add(int group, int prefix, int length, int count = 1) {
    rows.push_back({static_cast<int>(rows.size()), length - count, count, group, prefix});
    return *this;
  }
  Batch& stranger(int length, int count = 1) { return add(-1, 0, length, count); }
  // Members with other lengths behind the prefix.
  Batch& members(int count, int group, int prefix) {
    for (int i = 0; i < count; ++i) add(group, prefix, prefix + 1 + i * 37 % 90);
    return *this;
  }
};

// Returns the positions whose keys and values were read.
int64_t expect_same_as_own(const Heads& h, const std::vector<Rows>& batch, int block_tokens = 16,
                           int more_context = 0) {
  SCOPED_TRACE(testing::Message() << h.heads << "/" << h.kv_heads << " of " << h.dim << " window "
                                  << h.window << ", " << batch.size() << " sequences, blocks of "
                                  << block_tokens);
  const Sequences<Bf16> all = sequences_of(h, batch);
  std::vector<Rows> own = batch;
  for (Rows& rows : own) rows.group = -1;
  Result shared, apart;
  const int64_t bytes = bytes_read([&] {
    shared = attend<Bf16, float>(
        all, batch, {.block_tokens = block_tokens, .seed = 3, .more_context = more_context});
  });
  apart = attend<Bf16, float>(
      all, own, {.block_tokens = block_tokens, .seed = 4, .more_context = more_context});
  expect_same_bits(apart, shared, "shared");
  return bytes < 0 ? -1 : bytes / (h.kv_heads * h.dim * 2 * 2);
}

// Of rows that see all positions before them, of which `saved` were read for another.
void expect_read(int64_t positions, const std::vector<Rows>& batch, int64_t saved) {
  if (positions < 0) return;
  int64_t all = 0;
  for (const Rows& rows : batch) all += rows.first + 1;
  EXPECT_EQ(positions, all - saved);
}

TEST(CudaSharedPrefix, GroupsOfEverySizeReadItOnce) {
  // Up to 8 members of 8 heads, or 9 of 7, are read for at once.
  for (int count = 2; count <= 20; ++count) {
    const Heads h = count % 2 == 0 ? Heads{7, 1, 16, 0} : Heads{16, 2, 8, 0};
    const int most = count % 2 == 0 ? 9 : 8;
    const auto batch = Batch().members(count, 0, 290).rows;
    expect_read(expect_same_as_own(h, batch), batch, (count - (count + most - 1) / most) * kChunk);
  }
}

TEST(CudaSharedPrefix, HeadsAndDims) {
  const auto batch = Batch().stranger(400).members(5, 0, 2 * kChunk).stranger(300).rows;
  const int64_t saved = 4 * 2 * kChunk;
  for (const Heads& h : {Heads{2, 2, 64, 0}, Heads{4, 1, 64, 0}, Heads{7, 1, 64, 0},
                         Heads{8, 1, 64, 0}, Heads{7, 1, 128, 0}, Heads{4, 1, 128, 0},
                         Heads{1, 1, 128, 0}, Heads{5, 1, 80, 0}, Heads{3, 1, 24, 0}})
    expect_read(expect_same_as_own(h, batch), batch, saved);
  // 32 rows at once: 4 members of 8 heads.
  expect_read(expect_same_as_own({8, 1, 256, 0}, batch), batch, saved - 2 * kChunk);
  expect_read(expect_same_as_own({2, 1, 256, 0}, batch), batch, saved);
}

TEST(CudaSharedPrefix, GroupsOfManyHeads) {
  const auto batch = Batch().members(5, 0, 300).rows;
  // 18 heads take two tiles of rows alone: twice what is behind the prefix. 64 rows are 3 members.
  const int64_t positions = expect_same_as_own({18, 1, 16, 0}, batch);
  int64_t behind = 0;
  for (const Rows& rows : batch) behind += rows.first + 1 - kChunk;
  if (positions >= 0) {
    EXPECT_EQ(positions, 2 * kChunk + 2 * behind);
  }
  expect_same_as_own({40, 1, 16, 0}, batch);
  expect_same_as_own({70, 1, 8, 0}, batch);
}

TEST(CudaSharedPrefix, BlocksOfEverySize) {
  const auto batch = Batch().members(3, 0, 512 + 100).rows;
  for (int block_tokens : {8, 32, 128, 256})
    expect_read(expect_same_as_own({4, 1, 16, 0}, batch, block_tokens), batch, 2 * 2 * kChunk);
  // A block of two chunks.
  expect_read(expect_same_as_own({4, 1, 16, 0}, batch, 512), batch, 2 * 2 * kChunk);
}

TEST(CudaSharedPrefix, PrefixesThatEndInsideOfAChunk) {
  for (int prefix : {40, 255, 256, 257, 511, 512, 515}) {
    const auto batch = Batch().members(4, 0, prefix).rows;
    // Blocks of 8 end where the chunk does.
    expect_read(expect_same_as_own({4, 1, 16, 0}, batch, 8), batch, 3 * (prefix / kChunk) * kChunk);
  }
}

TEST(CudaSharedPrefix, ChunksThatEndWithARow) {
  // The last position of a chunk is there, or is not.
  for (int length : {255, 256, 257}) {
    std::vector<Rows> batch;
    for (int s = 0; s < 3; ++s) batch.push_back({s, length - 1, 1, 0, 1024});
    for (int s = 3; s < 6; ++s) batch.push_back({s, 599, 1, 0, 1024});
    const int64_t positions = expect_same_as_own({4, 1, 16, 0}, batch);
    expect_read(positions, batch, ((length >= kChunk ? 5 : 2) + 2) * kChunk);
  }
}

TEST(CudaSharedPrefix, StrangersDivideAGroup) {
  Batch batch;
  for (int i = 0; i < 8; ++i) {
    batch.add(0, 280, 290 + i);
    if (i == 2 || i == 3) batch.stranger(270 + i);
  }
  // 3, 1 and 4 of them follow each other.
  expect_read(expect_same_as_own({4, 1, 16, 0}, batch.rows), batch.rows, (2 + 0 + 3) * kChunk);
}

TEST(CudaSharedPrefix, GroupsInAnyOrder) {
  Batch batch;
  for (int g = 0; g < 3; ++g) batch.members(6, g, 256 + 60 * g);
  std::mt19937 rng(11);
  for (int i = 0; i < 4; ++i) {
    const int64_t positions = expect_same_as_own({4, 2, 16, 0}, batch.rows);
    int64_t saved = 0;
    for (size_t s = 1; s < batch.rows.size(); ++s)
      saved += batch.rows[s].group == batch.rows[s - 1].group ? kChunk : 0;
    expect_read(positions, batch.rows, saved);
    std::shuffle(batch.rows.begin(), batch.rows.end(), rng);
    for (size_t s = 0; s < batch.rows.size(); ++s) batch.rows[s].sequence = static_cast<int>(s);
  }
}

TEST(CudaSharedPrefix, MembersThatLeaveTheGroupEarly) {
  // Later chunks are shared by fewer, and not by neighbours alone.
  Batch batch;
  for (int prefix : {600, 256, 600, 600, 300, 700, 700})
    batch.add(0, prefix, 720 + static_cast<int>(batch.rows.size()));
  expect_read(expect_same_as_own({4, 1, 16, 0}, batch.rows), batch.rows, (6 + 2) * kChunk);
}

// One block of the chunk differs, in the member between: of blocks of 8, 32; of 128, two.
TEST(CudaSharedPrefix, ABlockThatDiffersDividesAGroup) {
  auto batch = Batch().members(3, 0, 512).rows;
  for (int block : {0, 1, 8, 30, 31}) {
    batch[1].own_block = block;
    expect_read(expect_same_as_own({4, 1, 16, 0}, batch, 8), batch, 2 * kChunk);
  }
  for (int block : {0, 1}) {
    batch[1].own_block = block;
    expect_read(expect_same_as_own({4, 1, 16, 0}, batch, 128), batch, 2 * kChunk);
  }
}

TEST(CudaSharedPrefix, Windows) {
  const auto batch = Batch().members(6, 0, 768).rows;
  for (int window : {100, 300, 400, 640, 2000}) expect_same_as_own({4, 1, 16, window}, batch);
  // Chunk 1 begins before what some of them see.
  const auto some = Batch().add(0, 768, 780).add(0, 768, 781).add(0, 768, 782).rows;
  expect_same_as_own({4, 1, 16, 781 - kChunk}, some);
  expect_same_as_own({4, 1, 16, 780 - kChunk}, some);
}

TEST(CudaSharedPrefix, BesidePrefill) {
  Batch batch;
  batch.members(3, 0, 300).stranger(290, 20).members(4, 0, 300);
  batch.add(0, 256, 360, 50).stranger(400).members(2, 0, 300);
  // Decode has its own order of items: a sequence with more rows divides the group too.
  expect_same_as_own({4, 2, 16, 0}, batch.rows, 16, 1200);
  expect_same_as_own({4, 2, 16, 0}, batch.rows);
}

TEST(CudaSharedPrefix, RowsThatAreNotTheirSequences) {
  // As many rows as sequences, of which some are empty and others have more rows.
  Batch batch;
  batch.members(3, 0, 300).stranger(0, 0).members(2, 0, 300).add(0, 256, 330, 2);
  expect_same_as_own({4, 1, 16, 0}, batch.rows);
}

TEST(CudaSharedPrefix, GroupsLargerThanAWarp) {
  // 64 of one head are read for at once.
  const auto batch = Batch().stranger(270).members(70, 0, 256).rows;
  expect_read(expect_same_as_own({1, 1, 8, 0}, batch), batch, 68 * kChunk);
}

// More pairs of a sequence and a kv head than a GPU needs to be full.
TEST(CudaSharedPrefix, ManySequencesWithLongContexts) {
  const Heads h{64, 64, 8, 0};
  const auto batch = Batch().members(17, 0, kChunk).rows;
  ASSERT_GT(17 * 64, 1024);
  expect_read(expect_same_as_own(h, batch, 16, /*more_context=*/800), batch, 16 * kChunk);
}

}  // namespace
}  // namespace tailrace
