// The results of a forward pass that backward needs.
//
// Normalised inputs and the gated product of the MLP are not kept: one cheap op makes them again. K
// and V stay in the KV cache. A token costs, in elements a layer: 2 hidden + 2 q_size + 2 kv_size +
// 2 intermediate + heads + 2; a sparse one has 2 experts_per_token * (expert_size + 1) + experts in
// place of 2 intermediate, and one with post_norms 2 hidden + 2 more. Where they are computed
// again, a layer keeps its input alone, and the rest of one layer lies where that of all others
// did.
//
// The logits of the head are kept as well where they may be (keeps_logits()): float32 for all
// tokens and ids. Else the head makes them again, which is 1/4 of its work and of a small model
// with many ids some percent of a step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/model/model_config.h"
#include "core/model/placement.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"

namespace tailrace {

inline Matrix take_matrix(Workspace& workspace, int64_t rows, int64_t cols) {
  return {workspace.take<float>(rows * cols).data(), rows, cols};
}

// The results that one decoder layer computes on its way, `tokens` rows each. In a forward pass
// that keeps nothing the views lie in scratch memory, and those that only backward reads are empty.
struct LayerActivations {
  Tensor input;                    // [tokens, hidden] residual stream before the layer
  std::span<float> input_inv_rms;  // [tokens] or empty
  Tensor qkv;                      // [tokens, qkv_size]; q and k rotated, unless qk_norm
  Tensor attended;                 // [tokens, q_size]
  Tensor lse;                      // [tokens, heads] or no data
  Tensor middle;                   // [tokens, hidden] residual stream after attention
  std::span<float> mlp_inv_rms;    // [tokens] or empty
  // [tokens, 2 * intermediate], or of experts [tokens * k, 2 * expert_size], grouped by them
  Tensor gate_up = {};
  // The results of a layer's halves, where they are normalised before they are added.
  Tensor o_product = {}, down_product = {};            // [tokens, hidden] or empty
  std::span<float> o_inv_rms = {}, down_inv_rms = {};  // [tokens] or empty
  // The results of a sparse layer alone.
  Tensor router = {};              // [tokens, experts] probabilities
  Tensor expert_weights = {};      // [tokens, k]
  std::span<int32_t> chosen = {};  // [tokens * k]
};

// Elements a token of what a layer keeps of its MLP, and the cols of a row of each.
struct MlpSizes {
  int64_t gate_up_rows = 0, gate_up = 0;  // rows a token
  int64_t router = 0, choices = 0;

  MlpSizes() = default;
  MlpSizes(const ModelConfig& config, int64_t layer);
};

// Memory for the MLP of one layer, or of all of them in turn.
struct MlpMemory {
  std::span<std::byte> gate_up, router, expert_weights;
  std::span<int32_t> chosen;

  MlpMemory() = default;
  MlpMemory(Workspace& workspace, const ModelConfig& config, int64_t layer, int64_t max_tokens,
            const Placement& placement = {});
  // The memory of the largest sizes.
  static MlpMemory of_all(Workspace& workspace, const ModelConfig& config, int64_t max_tokens,
                          const Placement& placement);
  // As `layer` sees it.
  void view(const ModelConfig& config, int64_t layer, int64_t tokens, const Placement& placement,
            LayerActivations& kept) const;
};

// The most that logits may take. Where they are more, the step has a large micro-batch or a large
// vocabulary, and a buffer of this size would decide how much memory it needs.
constexpr int64_t kMaxKeptLogitBytes = int64_t{512} << 20;
// On the CPU, whose head reads them, when nothing else of a pass is made again to save memory.
bool keeps_logits(const ModelConfig& config, int64_t max_tokens, const Placement& placement,
                  bool recomputes);

// Made once for the largest micro-batch and filled again by each forward pass.
//
// Thread: one pass at a time.
class Activations {
 public:
  // recomputes: see above; Model::backward() does it.
  Activations(const ModelConfig& config, int64_t max_tokens, const Placement& placement = {},
              bool recomputes = false);

  // Says how large the next pass is; every view below has that many rows.
  void begin(int64_t num_tokens, int64_t num_logit_rows);
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_logit_rows() const { return num_logit_rows_; }
  int64_t max_tokens() const { return max_tokens_; }
  bool recomputes() const { return recomputes_; }

  LayerActivations layer(int64_t index) const;
  Tensor final_rows() const;  // [logit_rows, hidden] residual stream before the final norm
  std::span<float> final_inv_rms() const;  // [logit_rows]
  // [logit_rows, ids] for linear_logprob() and its backward pass; no rows: they are not kept.
  Tensor logits() const;

  static int64_t bytes(const ModelConfig& config, int64_t max_tokens,
                       const Placement& placement = {}, bool recomputes = false);

 private:
  // Arrays of max_tokens rows, taken from `memory` in order; from one that measures for bytes().
  struct Arrays {
    struct Layer {
      LayerActivations kept;  // but for its MLP
      MlpMemory mlp;
    };
    std::vector<Layer> layers;
    Tensor final_rows;
    std::span<float> final_inv_rms;
    Tensor logits;

    Arrays() = default;
    Arrays(Workspace& memory, const ModelConfig& config, int64_t max_tokens,
           const Placement& placement, bool recomputes);
  };

  ModelConfig config_;
  Placement placement_;
  bool recomputes_;
  int64_t max_tokens_, num_tokens_ = 0, num_logit_rows_ = 0;
  Buffer buffer_;
  Arrays arrays_;
};

}  // namespace tailrace
