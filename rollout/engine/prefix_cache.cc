#include "rollout/engine/prefix_cache.h"

#include <algorithm>

#include "core/base/random.h"
#include "kernels/base/check.h"

namespace tailrace {

uint64_t PrefixCache::key_of(uint64_t parent, std::span<const TokenId> tokens) const {
  uint64_t key = mix({static_cast<uint64_t>(version_), parent, tokens.size()});
  for (TokenId token : tokens) key = mix({key, static_cast<uint64_t>(token)});
  return key;
}

PrefixCache::Order::iterator PrefixCache::lookup(uint64_t parent, std::span<const TokenId> tokens) {
  auto found = by_key_.find(key_of(parent, tokens));
  if (found == by_key_.end()) return nodes_.end();
  auto node = found->second;
  // The hash finds, the tokens decide: a collision costs a computation and never gives another
  // prompt's KV.
  if (node->parent != parent || !std::ranges::equal(node->tokens, tokens)) return nodes_.end();
  nodes_.splice(nodes_.begin(), nodes_, node);
  return node;
}

PrefixCache::Match PrefixCache::find(std::span<const TokenId> prompt, int64_t limit) {
  Match match;
  uint64_t parent = 0;
  std::vector<Order::iterator> path;
  auto length = static_cast<int64_t>(prompt.size());
  while (match.num_tokens < std::min(length, limit)) {
    int64_t count = std::min<int64_t>(block_tokens_, length - match.num_tokens);
    auto node = lookup(
        parent, prompt.subspan(static_cast<size_t>(match.num_tokens), static_cast<size_t>(count)));
    if (node == nodes_.end()) break;
    path.push_back(node);
    // Shared blocks are never written again. A block that reaches beyond `limit` will be: the
    // caller computes its last position itself. So it is copied, like the tail.
    if (count == block_tokens_ && match.num_tokens + count <= limit) {
      match.blocks.append(node->block.share(0, 1));
      match.num_tokens += count;
      parent = node->id;
      continue;
    }
    match.tail = node->block.share(0, 1);
    match.tail_tokens = static_cast<int>(std::min(count, limit - match.num_tokens));
    match.num_tokens += match.tail_tokens;
    break;
  }
  // Parents before children in the order of use: eviction walks from the other end.
  for (auto node = path.rbegin(); node != path.rend(); ++node)
    nodes_.splice(nodes_.begin(), nodes_, *node);
  return match;
}

void PrefixCache::insert(std::span<const TokenId> prompt, const BlockPool::Lease& blocks) {
  uint64_t parent = 0;
  int index = 0;
  std::vector<Order::iterator> path;
  for (size_t at = 0; at < prompt.size(); at += static_cast<size_t>(block_tokens_), ++index) {
    auto tokens =
        prompt.subspan(at, std::min(prompt.size() - at, static_cast<size_t>(block_tokens_)));
    auto node = lookup(parent, tokens);
    if (node == nodes_.end()) {
      uint64_t key = key_of(parent, tokens);
      if (by_key_.contains(key)) break;  // another prefix has this hash: leave it alone
      nodes_.push_front(Node{.id = next_id_++,
                             .parent = parent,
                             .key = key,
                             .tokens = {tokens.begin(), tokens.end()},
                             .block = blocks.share(index, 1),
                             .children = 0});
      node = nodes_.begin();
      by_key_.emplace(key, node);
      by_id_.emplace(node->id, node);
      if (parent != 0) ++by_id_.at(parent)->children;
    }
    path.push_back(node);
    parent = node->id;
  }
  // As in find(): a parent must be younger than its children.
  for (auto node = path.rbegin(); node != path.rend(); ++node)
    nodes_.splice(nodes_.begin(), nodes_, *node);
}

int PrefixCache::evict(int num_blocks, const BlockPool& pool) {
  int given_back = 0;
  auto at = nodes_.end();
  while (given_back < num_blocks && at != nodes_.begin()) {
    auto node = std::prev(at);
    // A node with children is what they are found through; a block that somebody else holds would
    // not become free.
    if (node->children > 0 || pool.num_leases(node->block.ids()[0]) > 1) {
      at = node;
      continue;
    }
    if (node->parent != 0) --by_id_.at(node->parent)->children;
    by_key_.erase(node->key);
    by_id_.erase(node->id);
    // Its parent lies nearer to the front and is met later in this same walk: a whole branch can
    // go.
    at = nodes_.erase(node);
    ++given_back;
  }
  return given_back;
}

void PrefixCache::clear(int64_t version) {
  by_key_.clear();
  by_id_.clear();
  nodes_.clear();
  version_ = version;
}

}  // namespace tailrace
