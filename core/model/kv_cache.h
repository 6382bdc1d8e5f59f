// The paged cache of keys and values of all layers.
#pragma once

#include <cstdint>
#include <span>

#include "core/model/model_config.h"
#include "core/model/placement.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/ops/attention.h"

namespace tailrace {

// One Buffer: [layers][keys of all blocks | values of all blocks]. It knows nothing of who owns a
// block. Where it keeps choices, the experts of a position lie beside its KV, in memory of the
// host, so that whoever shares a block has them too: who runs a pass writes them, and copy_block()
// copies.
//
// Thread: blocks of different sequences may be written at once; a block by one pass at a time.
class KvCache {
 public:
  // block_tokens: a power of two from 8 to 128.
  KvCache(const ModelConfig& config, int num_blocks, int block_tokens, bool keeps_choices = false,
          const Placement& placement = {});
  KvLayer layer(int64_t index) const;
  int num_blocks() const { return num_blocks_; }
  int block_tokens() const { return block_tokens_; }
  // Copies the first `tokens` positions of a block in every layer (copy-on-write of a shared tail).
  void copy_block(const Stream& stream, int from, int to, int tokens);
  bool keeps_choices() const { return keeps_choices_; }
  // The choices of one position, [sparse layers * k].
  std::span<uint16_t> choices(int block, int position);
  // The bytes of keys and values, where the cache is; with choices, those on the host too.
  static int64_t bytes(const ModelConfig& config, int64_t num_blocks, int block_tokens,
                       bool keeps_choices = false, const Placement& placement = {});
  static int64_t bytes_per_block(const ModelConfig& config, int block_tokens,
                                 bool keeps_choices = false, const Placement& placement = {});

 private:
  int64_t block_bytes() const;  // keys of one block of one layer; as many values

  ModelConfig config_;
  int num_blocks_, block_tokens_;
  bool keeps_choices_;
  Placement placement_;
  mutable Buffer buffer_;  // a KvLayer is a writable view that also readers use
  Buffer choices_;
};

}  // namespace tailrace
