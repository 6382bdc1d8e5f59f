// The one forward pass of Tailrace, for prefill, decode and training, and its backward.
//
// Thread: a Model is immutable and may be shared; weights, KV cache and workspace belong to the caller.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/model/model_config.h"
#include "core/model/parameters.h"
#include "kernels/attention.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"
#include "kernels/linear.h"

namespace tailrace {

// The input of every forward pass (design section 4). Arrays are borrowed and live on the device.
struct ForwardBatch {
  std::span<const int32_t> token_ids;   // [tokens], each in [0, vocab)
  AttentionBatch sequences;             // positions, sequence offsets, KV block tables
  std::span<const int32_t> logit_rows;  // rows whose hidden state is wanted, ascending
  int max_context = 0;                  // largest position + 1
};

// Owns the arrays of a ForwardBatch and fills them sequence by sequence.
class BatchBuilder {
 public:
  explicit BatchBuilder(int max_blocks_per_sequence);
  void clear();
  // Appends tokens at positions first_position, first_position + 1, ... of a sequence whose KV lives in
  // `blocks`; wants the logits of the rows listed in `logit_offsets` (indices into `tokens`, ascending).
  void add(std::span<const int32_t> tokens, int32_t first_position, std::span<const int32_t> blocks,
           std::span<const int32_t> logit_offsets);
  int64_t num_tokens() const { return static_cast<int64_t>(token_ids_.size()); }
  int64_t num_sequences() const { return static_cast<int64_t>(seq_offsets_.size()) - 1; }
  ForwardBatch batch() const;  // views into this builder, until the next change

 private:
  int max_blocks_;
  int max_context_ = 0;
  std::vector<int32_t> token_ids_, positions_, seq_offsets_{0}, block_tables_, logit_rows_;
};

// KV of all layers over borrowed memory: [layers][keys of all blocks | values of all blocks].
class KvCache {
 public:
  KvCache(const ModelConfig& config, int num_blocks, int block_tokens);  // owns its Buffer
  KvLayer layer(int index) const;
  int num_blocks() const { return num_blocks_; }
  int block_tokens() const { return block_tokens_; }
  // Copies the first `tokens` positions of a block in every layer (copy-on-write of a shared tail).
  void copy_block(int from, int to, int tokens);
  static int64_t bytes_per_block(const ModelConfig& config, int block_tokens);

 private:
  ModelConfig config_;
  int num_blocks_, block_tokens_;
  mutable Buffer buffer_;
};

// The weights of one version in the form that products read: packed once, after each install or update.
// Keeps its own copy of everything that forward() needs.
class PackedWeights {
 public:
  PackedWeights(const Stream& stream, const ModelConfig& config, const Parameters& parameters);
  void repack(const Stream& stream, const Parameters& parameters);  // same shapes, new values
  struct Layer {
    std::span<const float> input_norm, post_norm;
    PackedWeight q, k, v, o, gate, up, down;
  };
  const std::vector<Layer>& layers() const { return layers_; }
  std::span<const float> final_norm() const { return final_norm_; }
  ConstMatrix embeddings() const { return embeddings_; }
  const PackedWeight& head() const { return head_; }

 private:
  Buffer buffer_;
  std::vector<Layer> layers_;
  std::span<const float> final_norm_;
  ConstMatrix embeddings_;
  PackedWeight head_;
};

// What backward needs of a forward pass: filled by Model::forward when asked for.
class Activations;

class Model {
 public:
  explicit Model(ModelConfig config);
  ~Model();

  const ModelConfig& config() const { return config_; }
  const ParameterLayout& layout() const { return layout_; }

  // Scratch for forward() and backward() of up to `max_tokens` rows; `num_threads` of the stream.
  size_t workspace_bytes(int64_t max_tokens, int max_context, int num_threads) const;

  // Writes KV of all rows into `kv` and the final-norm hidden state of batch.logit_rows into
  // `hidden` [logit_rows, hidden_size]. Keeps activations in `sink` when it is not null.
  void forward(const Stream& stream, Workspace& workspace, const PackedWeights& weights, const ForwardBatch& batch,
               KvCache& kv, Matrix hidden, Activations* sink) const;

  // Adds the gradient of all parameters to `gradients`, given dhidden [logit_rows, hidden_size]. The batch
  // is the one of forward(), every sequence whole, `kv` untouched since. `parameters` are the unpacked
  // weights of the same version. The head's own gradient comes from linear_logprob_backward.
  void backward(const Stream& stream, Workspace& workspace, const Parameters& parameters, const ForwardBatch& batch,
                const KvCache& kv, const Activations& activations, ConstMatrix dhidden, Parameters& gradients) const;

  std::unique_ptr<Activations> make_activations(int64_t max_tokens) const;
  int64_t activation_bytes(int64_t tokens) const;

  // The head as a parameter: "lm_head.weight", or the embeddings when tied.
  std::string_view head_name() const;

 private:
  ModelConfig config_;
  ParameterLayout layout_;
  Buffer rope_table_;
};


}  // namespace tailrace
