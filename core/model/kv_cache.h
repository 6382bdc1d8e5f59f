// The paged cache of keys and values of all layers.
#pragma once

#include <cstdint>

#include "core/model/model_config.h"
#include "kernels/base/memory.h"
#include "kernels/ops/attention.h"

namespace tailrace {

// One Buffer: [layers][keys of all blocks | values of all blocks]. It knows nothing of who owns a
// block.
//
// Thread: blocks of different sequences may be written at once; a block by one pass at a time.
class KvCache {
 public:
  // block_tokens: a power of two from 8 to 128.
  KvCache(const ModelConfig& config, int num_blocks, int block_tokens);
  KvLayer layer(int64_t index) const;
  int num_blocks() const { return num_blocks_; }
  int block_tokens() const { return block_tokens_; }
  // Copies the first `tokens` positions of a block in every layer (copy-on-write of a shared tail).
  void copy_block(int from, int to, int tokens);
  static int64_t bytes(const ModelConfig& config, int64_t num_blocks, int block_tokens);
  static int64_t bytes_per_block(const ModelConfig& config, int block_tokens);

 private:
  int64_t block_floats() const;  // keys of one block of one layer; as many values

  ModelConfig config_;
  int num_blocks_, block_tokens_;
  mutable Buffer buffer_;  // a KvLayer is a writable view that also readers use
};

}  // namespace tailrace
