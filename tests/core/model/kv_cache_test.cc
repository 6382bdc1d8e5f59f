#include "core/model/kv_cache.h"

#include <gtest/gtest.h>

#include "tests/core/model/model_harness.h"

namespace tailrace {
namespace {

TEST(KvCache, LayersDoNotOverlapAndFillTheBuffer) {
  const ModelConfig config = awkward_config(true);
  const KvCache kv(config, /*num_blocks=*/3, /*block_tokens=*/8);
  EXPECT_EQ(KvCache::bytes_per_block(config, 8), 4 * 2 * 3 * 2 * 10 * 8);
  const int64_t part = 3 * 2 * 10 * 8;  // blocks * kv_heads * head_dim * block_tokens
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(kv.layer(i).host_keys() - kv.layer(0).host_keys(), 2 * i * part);
    EXPECT_EQ(kv.layer(i).host_values() - kv.layer(i).host_keys(), part);
  }
}

TEST(KvCache, CopyBlockCopiesTheWantedPositionsInEveryLayer) {
  const ModelConfig config = awkward_config(true);
  KvCache kv(config, /*num_blocks=*/3, /*block_tokens=*/8);
  const int heads = 2, dim = 10, block = 8, block_floats = heads * dim * block;
  float next = 1;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    for (int j = 0; j < 3 * block_floats; ++j) kv.layer(i).host_keys()[j] = next++;
    for (int j = 0; j < 3 * block_floats; ++j) kv.layer(i).host_values()[j] = next++;
  }
  const KvCache before = [&] {
    KvCache copy(config, 3, block);
    for (int64_t i = 0; i < config.num_layers; ++i) {
      std::copy_n(kv.layer(i).host_keys(), 3 * block_floats, copy.layer(i).host_keys());
      std::copy_n(kv.layer(i).host_values(), 3 * block_floats, copy.layer(i).host_values());
    }
    return copy;
  }();

  kv.copy_block(Stream{}, /*from=*/2, /*to=*/0, /*tokens=*/5);

  for (int64_t i = 0; i < config.num_layers; ++i) {
    const KvLayer got = kv.layer(i), old = before.layer(i);
    for (int b = 0; b < 3; ++b) {
      for (int h = 0; h < heads; ++h) {
        for (int d = 0; d < dim; ++d) {
          for (int p = 0; p < block; ++p) {
            const int from = b == 0 && p < 5 ? 2 : b;
            EXPECT_EQ(got.host_keys()[((b * heads + h) * dim + d) * block + p],
                      old.host_keys()[((from * heads + h) * dim + d) * block + p]);
            EXPECT_EQ(got.host_values()[((b * heads + h) * block + p) * dim + d],
                      old.host_values()[((from * heads + h) * block + p) * dim + d]);
          }
        }
      }
    }
  }
}

TEST(KvCache, CopyBlockTakesChoicesAlong) {
  const ModelConfig config = sparse_config();
  // Two sparse layers of three experts a token, two bytes each.
  EXPECT_EQ(KvCache::bytes_per_block(config, 8, true) - KvCache::bytes_per_block(config, 8),
            8 * 2 * 3 * 2);
  KvCache kv(config, /*num_blocks=*/2, /*block_tokens=*/8, /*keeps_choices=*/true);
  uint16_t next = 0;
  for (int block = 0; block < 2; ++block)
    for (int p = 0; p < 8; ++p)
      for (uint16_t& id : kv.choices(block, p)) id = next++;
  kv.copy_block(Stream{}, /*from=*/1, /*to=*/0, /*tokens=*/5);
  for (int p = 0; p < 8; ++p) EXPECT_EQ(kv.choices(0, p)[2], (p < 5 ? 8 + p : p) * 6 + 2) << p;
}

TEST(KvCacheDeathTest, RefusesABlockThatIsNoPowerOfTwo) {
  EXPECT_DEATH(KvCache(awkward_config(true), 1, 12), "power of two");
}

}  // namespace
}  // namespace tailrace
