// The one forward pass of Tailrace, for prefill, decode and training, and its backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "core/model/activations.h"
#include "core/model/expert_loads.h"
#include "core/model/forward_batch.h"
#include "core/model/kv_cache.h"
#include "core/model/model_config.h"
#include "core/model/packed_weights.h"
#include "core/model/parameters.h"
#include "core/model/placement.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"

namespace tailrace {

struct LayerPass;

// Thread: immutable, may be shared; weights, KV cache, activations and workspace belong to the
// caller.
class Model {
 public:
  // `max_context`: the longest that will come; 0: all of the config's positions. Weights, cache and
  // batches of its passes are those of `placement`. Throws UserError when the sizes do not fit each
  // other.
  explicit Model(ModelConfig config, int64_t max_context = 0, const Placement& placement = {});
  Model(const Model&) = delete;  // Parameters borrow its layout

  const ModelConfig& config() const { return config_; }
  const ParameterLayout& layout() const { return layout_; }
  const ParameterLayout& trained() const { return trained_; }  // of gradients and updates
  const Placement& placement() const { return placement_; }

  // Scratch for forward() and backward() of up to `max_tokens` rows; `num_threads` of the stream.
  size_t workspace_bytes(int64_t max_tokens, int max_context, int num_threads) const {
    return workspace_bytes(config_, max_tokens, max_context, num_threads, placement_);
  }
  static size_t workspace_bytes(const ModelConfig& config, int64_t max_tokens, int max_context,
                                int num_threads, const Placement& placement = {});
  // The bytes of the model itself: the tables of rotary positions.
  static int64_t bytes(const ModelConfig& config, int64_t max_context = 0);
  int64_t max_context() const { return max_context_; }

  // Writes KV of all rows into `kv` and the final-norm hidden state of batch.logit_rows into
  // `hidden` [logit_rows, hidden_size], an operand. Keeps activations in `sink` when it is not
  // null. `chosen` [sparse layers, tokens, k], of the device: the experts of all rows; empty:
  // nobody asks. Allocates nothing. No tokens are allowed.
  void forward(const Stream& stream, Workspace& workspace, const PackedWeights& weights,
               const ForwardBatch& batch, KvCache& kv, Tensor hidden, Activations* sink,
               std::span<int32_t> chosen = {}) const;

  // Adds the gradient of all parameters to `gradients`, or of an adapter's, given dhidden
  // [logit_rows, hidden_size] float32; all of them where the model is. The batch and the weights
  // are those of forward(), every sequence whole, `kv` untouched since. Where weights are rounded
  // (bf16), the gradient is that at the rounded ones, for the master weights; `balance` adds what
  // it says. The head's own gradient comes from linear_logprob_backward.
  void backward(const Stream& stream, Workspace& workspace, const PackedWeights& weights,
                const ForwardBatch& batch, const KvCache& kv, const Activations& activations,
                ConstTensor dhidden, Parameters& gradients, const BalancePass& balance = {}) const;

  std::unique_ptr<Activations> make_activations(int64_t max_tokens, bool recomputes = false) const;
  int64_t activation_bytes(int64_t max_tokens) const;

  // The head as a parameter: "lm_head.weight", or the embeddings when tied.
  std::string_view head_name() const { return tailrace::head_name(config_); }

 private:
  void check_batch(const ForwardBatch& batch, const KvCache& kv) const;
  ConstTensor rope(int64_t layer) const;
  LayerPass pass_of(const Stream& stream, Workspace& workspace, const PackedWeights& weights,
                    const ForwardBatch& batch, const KvCache& kv, int64_t layer,
                    const LayerActivations& kept) const;

  ModelConfig config_;
  ParameterLayout layout_, trained_;
  int64_t max_context_;
  Placement placement_;
  // [1 or 2, max_context, head_dim]; the second of layers with has_local_rope()
  Buffer rope_table_;
};

}  // namespace tailrace
