#include "rollout/engine/prefix_cache.h"

#include <numeric>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

constexpr int kBlock = 8;

std::vector<TokenId> counting(int64_t count, TokenId from = 0) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

// A prompt whose KV is in `blocks` of the pool, remembered and then let go by its sequence.
void remember(PrefixCache& cache, BlockPool& pool, const std::vector<TokenId>& prompt) {
  auto lease = *pool.try_take(static_cast<int>((prompt.size() + kBlock - 1) / kBlock));
  cache.insert(prompt, lease);
}

TEST(PrefixCache, FindsFullBlocksAndATailToCopy) {
  BlockPool pool(16);
  PrefixCache cache(kBlock);
  std::vector<TokenId> prompt = counting(20);
  BlockPool::Lease lease = *pool.try_take(3);
  cache.insert(prompt, lease);
  PrefixCache::Match match = cache.find(prompt, /*limit=*/19);
  EXPECT_EQ(match.num_tokens, 19);
  EXPECT_EQ(match.tail_tokens, 3);
  ASSERT_EQ(match.blocks.size(), 2);
  EXPECT_EQ(match.blocks.ids()[1], lease.ids()[1]);
  EXPECT_EQ(match.tail.ids()[0], lease.ids()[2]);
  EXPECT_EQ(cache.find(prompt, 20).num_tokens, 20);
}

TEST(PrefixCache, CopiesTheLastBlockOfAPromptThatFillsIt) {
  BlockPool pool(16);
  PrefixCache cache(kBlock);
  std::vector<TokenId> prompt = counting(16);
  remember(cache, pool, prompt);
  PrefixCache::Match match = cache.find(prompt, /*limit=*/15);
  EXPECT_EQ(match.num_tokens, 15);
  EXPECT_EQ(match.blocks.size(), 1);
  EXPECT_EQ(match.tail_tokens, 7);
}

TEST(PrefixCache, FindsOnlyEqualTokensAtEqualPositions) {
  BlockPool pool(16);
  PrefixCache cache(kBlock);
  remember(cache, pool, counting(16));
  std::vector<TokenId> other = counting(16);
  other[9] = 99;
  EXPECT_EQ(cache.find(other, 15).num_tokens, 8);
  other = counting(16, /*from=*/8);  // the second block's tokens, but first
  EXPECT_EQ(cache.find(other, 15).num_tokens, 0);
}

TEST(PrefixCache, EvictsLeavesThatNobodyHoldsLeastRecentlyUsedFirst) {
  BlockPool pool(16);
  PrefixCache cache(kBlock);
  remember(cache, pool, counting(16, 0));
  remember(cache, pool, counting(16, 100));
  PrefixCache::Match held = cache.find(counting(16, 0), 16);
  EXPECT_EQ(held.num_tokens, 16);
  EXPECT_EQ(cache.evict(1, pool), 1);
  EXPECT_EQ(cache.find(counting(16, 100), 16).num_tokens, 8);  // its leaf went, its root stays
  EXPECT_EQ(cache.evict(10, pool), 1);
  EXPECT_EQ(cache.find(counting(16, 0), 16).num_tokens, 16);
  held = {};
  EXPECT_EQ(cache.evict(10, pool), 2);
  EXPECT_EQ(pool.num_free(), 16);
}

TEST(PrefixCache, ForgetsEverythingWhenTheWeightsChange) {
  BlockPool pool(16);
  PrefixCache cache(kBlock);
  remember(cache, pool, counting(20));
  cache.clear(/*version=*/1);
  EXPECT_EQ(pool.num_free(), 16);
  EXPECT_EQ(cache.find(counting(20), 19).num_tokens, 0);
}

}  // namespace
}  // namespace tailrace
