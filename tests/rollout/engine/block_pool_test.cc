#include "rollout/engine/block_pool.h"

#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/random.h"

namespace tailrace {
namespace {

TEST(BlockPool, GivesAllOrNothing) {
  BlockPool pool(4);
  auto three = pool.try_take(3);
  ASSERT_TRUE(three);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_FALSE(pool.try_take(2));
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_TRUE(pool.try_take(0));
}

TEST(BlockPool, LeaseGivesItsBlocksBackWhenItDies) {
  BlockPool pool(4);
  { auto lease = pool.try_take(4); }
  EXPECT_EQ(pool.num_free(), 4);
  EXPECT_EQ(pool.peak_used(), 4);
}

TEST(BlockPool, ASharedBlockIsFreeWhenItsLastLeaseIsGone) {
  BlockPool pool(4);
  BlockPool::Lease first = *pool.try_take(3);
  BlockPool::Lease second = first.share(/*begin=*/1, /*count=*/2);
  EXPECT_EQ(pool.num_leases(first.ids()[1]), 2);
  EXPECT_EQ(pool.num_free(), 1);
  first.clear();
  EXPECT_EQ(pool.num_free(), 2);
  BlockPool::Lease moved = std::move(second);
  EXPECT_EQ(second.size(), 0);  // NOLINT(bugprone-use-after-move)
  moved = BlockPool::Lease();
  EXPECT_EQ(pool.num_free(), 4);
}

TEST(BlockPool, EveryBlockIsFreeOrLeasedUnderRandomUse) {
  BlockPool pool(32);
  Rng rng(1);
  std::vector<BlockPool::Lease> leases;
  for (int i = 0; i < 5000; ++i) {
    double kind = rng.uniform();
    if (kind < 0.4) {
      if (auto lease = pool.try_take(static_cast<int>(rng.below(6))))
        leases.push_back(std::move(*lease));
    } else if (kind < 0.6 && !leases.empty()) {
      const auto& from =
          leases[static_cast<size_t>(rng.below(static_cast<int64_t>(leases.size())))];
      int count = static_cast<int>(rng.below(from.size() + 1));
      leases.push_back(from.share(from.size() - count, count));
    } else if (kind < 0.7 && leases.size() > 1) {
      BlockPool::Lease last = std::move(leases.back());
      leases.pop_back();
      leases.back().append(std::move(last));
    } else if (!leases.empty()) {
      leases.erase(leases.begin() + rng.below(static_cast<int64_t>(leases.size())));
    }
    std::vector<int> counts(32);
    for (const auto& lease : leases)
      for (int32_t id : lease.ids()) ++counts[static_cast<size_t>(id)];
    int num_free = 0;
    for (int32_t id = 0; id < 32; ++id) {
      ASSERT_EQ(pool.num_leases(id), counts[static_cast<size_t>(id)]);
      num_free += counts[static_cast<size_t>(id)] == 0;
    }
    ASSERT_EQ(pool.num_free(), num_free);
  }
}

TEST(BlockPoolDeathTest, APoolMustOutliveItsLeases) {
  EXPECT_DEATH(
      {
        BlockPool::Lease lease;
        BlockPool pool(2);
        lease = *pool.try_take(1);
      },
      "1 of 2 blocks are still leased");
}

}  // namespace
}  // namespace tailrace
