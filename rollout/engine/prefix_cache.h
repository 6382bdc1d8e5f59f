// KV of prompts, kept so that the members of a group (and any later prompt with the same beginning)
// compute it once.
//
// Full blocks form a tree: a node is (parent, tokens of the block) and is found by a hash, but only
// believed when its tokens are equal. The last, partly filled block of a prompt is a leaf that is
// never shared: who finds it copies its first positions. The sequence that computed it may go on
// writing behind them.
//
// Thread: the decode engine's thread only. The pool outlives the cache.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/generate.h"
#include "rollout/engine/block_pool.h"

namespace tailrace {

class PrefixCache {
 public:
  explicit PrefixCache(int block_tokens) : block_tokens_(block_tokens) {}

  struct Match {
    BlockPool::Lease blocks;  // full blocks, shared
    BlockPool::Lease tail;  // at most one block, whose first tail_tokens positions are to be copied
    int tail_tokens = 0;
    int64_t num_tokens = 0;  // positions covered by both
  };

  // The longest known beginning of `prompt`, at most `limit` positions. (At least one token of a
  // sequence must be computed to know what follows, so callers pass its length - 1.)
  Match find(std::span<const TokenId> prompt, int64_t limit);

  // Remembers the KV of `prompt`, which `blocks` holds from position 0. What is known already is
  // kept.
  void insert(std::span<const TokenId> prompt, const BlockPool::Lease& blocks);

  // Forgets least recently used leaves that nobody else holds, until `num_blocks` were given back
  // or none is left; returns how many.
  int evict(int num_blocks, const BlockPool& pool);

  // Forgets everything: the KV belongs to weights that are gone. `version` is part of every hash.
  void clear(int64_t version);

  int num_blocks() const { return static_cast<int>(nodes_.size()); }

 private:
  struct Node {
    uint64_t id = 0;      // never used again, so that (parent id, tokens) names one prefix
    uint64_t parent = 0;  // 0: root
    uint64_t key = 0;     // hash of (version, parent, tokens)
    std::vector<TokenId> tokens;
    BlockPool::Lease block;
    int children = 0;
  };
  using Order = std::list<Node>;  // most recently used first

  uint64_t key_of(uint64_t parent, std::span<const TokenId> tokens) const;
  // Moves what it finds to the front. Order::end(): unknown.
  Order::iterator lookup(uint64_t parent, std::span<const TokenId> tokens);

  int block_tokens_;
  int64_t version_ = -1;
  uint64_t next_id_ = 1;
  Order nodes_;
  std::unordered_map<uint64_t, Order::iterator> by_key_;
  std::unordered_map<uint64_t, Order::iterator> by_id_;
};

}  // namespace tailrace
