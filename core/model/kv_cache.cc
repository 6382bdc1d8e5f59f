#include "core/model/kv_cache.h"

#include <algorithm>
#include <bit>

#include "kernels/base/check.h"

namespace tailrace {

namespace {

int64_t choices_per_token(const ModelConfig& config) {
  return config.num_sparse_layers() * config.experts_per_token;
}

}  // namespace

KvCache::KvCache(const ModelConfig& config, int num_blocks, int block_tokens, bool keeps_choices,
                 const Placement& placement)
    : config_(config),
      num_blocks_(num_blocks),
      block_tokens_(block_tokens),
      keeps_choices_(keeps_choices),
      placement_(placement) {
  TR_CHECK(num_blocks >= 1, "{} blocks", num_blocks);
  TR_CHECK(block_tokens >= 8 && block_tokens <= 128 &&
               std::has_single_bit(static_cast<unsigned>(block_tokens)),
           "block_tokens {} is no power of two from 8 to 128", block_tokens);
  const int64_t own = bytes(config, num_blocks, block_tokens, false, placement);
  buffer_ = Buffer(static_cast<size_t>(own), placement.device);
  // On the host, wherever the cache lies: choices go out with trajectories and come in with
  // batches.
  choices_ = Buffer(
      static_cast<size_t>(bytes(config, num_blocks, block_tokens, keeps_choices, placement) - own));
}

int64_t KvCache::bytes(const ModelConfig& config, int64_t num_blocks, int block_tokens,
                       bool keeps_choices, const Placement& placement) {
  return num_blocks * bytes_per_block(config, block_tokens, keeps_choices, placement);
}

int64_t KvCache::bytes_per_block(const ModelConfig& config, int block_tokens, bool keeps_choices,
                                 const Placement& placement) {
  // Keys and values, hence 2.
  const int64_t kv = 2 * config.num_layers * config.kv_size() * size_of(placement.kv_cache);
  const int64_t choices = choices_per_token(config) * static_cast<int64_t>(sizeof(uint16_t));
  return block_tokens * (kv + (keeps_choices ? choices : 0));
}

std::span<uint16_t> KvCache::choices(int block, int position) {
  TR_CHECK(keeps_choices_ && block >= 0 && block < num_blocks_ && position >= 0 &&
               position < block_tokens_,
           "position {} of block {} of {}", position, block, num_blocks_);
  const int64_t size = choices_per_token(config_);
  const int64_t token = static_cast<int64_t>(block) * block_tokens_ + position;
  return choices_.as<uint16_t>().subspan(static_cast<size_t>(token * size),
                                         static_cast<size_t>(size));
}

int64_t KvCache::block_bytes() const {
  return config_.kv_size() * block_tokens_ * size_of(placement_.kv_cache);
}

KvLayer KvCache::layer(int64_t index) const {
  TR_CHECK(index >= 0 && index < config_.num_layers, "layer {} of {}", index, config_.num_layers);
  // A layer's keys of all blocks, then its values: attention walks one layer at a time.
  const int64_t part = num_blocks_ * block_bytes();
  std::byte* keys = buffer_.bytes().data + 2 * index * part;
  return {.keys = keys,
          .values = keys + part,
          .block_tokens = block_tokens_,
          .num_kv_heads = static_cast<int>(config_.num_kv_heads),
          .head_dim = static_cast<int>(config_.head_dim),
          .dtype = placement_.kv_cache,
          .device = placement_.device};
}

void KvCache::copy_block(const Stream& stream, int from, int to, int tokens) {
  TR_CHECK(from >= 0 && from < num_blocks_ && to >= 0 && to < num_blocks_,
           "from {} to {} of {} blocks", from, to, num_blocks_);
  TR_CHECK(tokens >= 0 && tokens <= block_tokens_, "{} tokens of a block of {}", tokens,
           block_tokens_);
  // The choices of a token go along with its keys and values: a trajectory may ask for them later.
  for (int position = 0; keeps_choices_ && position < tokens; ++position)
    std::ranges::copy(choices(from, position), choices(to, position).begin());
  for (int64_t index = 0; index < config_.num_layers; ++index)
    kv_copy(stream, {.kv = layer(index), .from = from, .to = to, .tokens = tokens});
}

}  // namespace tailrace
