// Parts that both passes of a decoder layer share: how they see its matrices, and
// the scratch that both take. For decoder_layer.cc and decoder_layer_backward.cc alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "core/model/layer_pass.h"
#include "kernels/ops/router.h"

namespace tailrace {

// The columns of a qkv matrix [tokens, qkv_size].
struct Qkv {
  Tensor q, k, v;
  Tensor qk;  // q and k together: both turn by the same angles

  Qkv(const ModelConfig& c, Tensor qkv) {
    const int64_t q_end = c.q_size(), k_end = q_end + c.kv_size();
    q = qkv.slice_cols(0, q_end);
    k = qkv.slice_cols(q_end, k_end);
    v = qkv.slice_cols(k_end, qkv.cols);
    qk = qkv.slice_cols(0, k_end);
  }
};

struct GateUp {
  Tensor gate, up;
  explicit GateUp(Tensor both)
      : gate(both.slice_cols(0, both.cols / 2)), up(both.slice_cols(both.cols / 2, both.cols)) {}
};

// Room for normalised queries and keys, where they are.
inline Tensor take_qk(Workspace& workspace, const Placement& placement, const ModelConfig& c,
                      int64_t tokens) {
  return take_tensor(workspace, placement, c.qk_norm ? tokens : 0, c.q_size() + c.kv_size(),
                     placement.operands);
}

inline int num_rotated_heads(const ModelConfig& c) {
  return static_cast<int>(c.num_heads + c.num_kv_heads);
}

inline AttentionHeads attention_heads(const LayerPass& pass) {
  const ModelConfig& c = pass.config;
  return {.num_heads = static_cast<int>(c.num_heads),
          .scale = 1.0f / std::sqrt(static_cast<float>(c.attention_scalar > 0 ? c.attention_scalar
                                                                              : c.head_dim)),
          .window = static_cast<int>(c.window(pass.layer))};
}

inline float norm_eps(const ModelConfig& c) { return static_cast<float>(c.rms_norm_eps); }

// One half of a layer, output = input + f(RMSNorm(input)), or input + RMSNorm(f(RMSNorm(input)));
// what is kept of it.
struct Half {
  ConstTensor input;
  std::span<const float> norm;
  std::span<float> inv_rms;
  Tensor product;                    // of f
  std::span<const float> post_norm;  // empty: there is none
  std::span<float> product_inv_rms;
};

inline Half attention_half(const LayerPass& pass) {
  return {pass.kept.input,     pass.weights.input_norm, pass.kept.input_inv_rms,
          pass.kept.o_product, pass.weights.o_norm,     pass.kept.o_inv_rms};
}

inline Half mlp_half(const LayerPass& pass) {
  return {pass.kept.middle,       pass.weights.mlp_norm,  pass.kept.mlp_inv_rms,
          pass.kept.down_product, pass.weights.down_norm, pass.kept.down_inv_rms};
}

// [rows, cols] float32, as the residual stream and all gradients.
inline Tensor take_floats(Workspace& workspace, const Placement& placement, int64_t rows,
                          int64_t cols) {
  return take_tensor(workspace, placement, rows, cols, Dtype::kF32);
}

// The operand of a product, [tokens, cols].
inline Tensor take_operand(const LayerPass& pass, int64_t cols) {
  return take_tensor(pass.workspace, pass.placement, pass.batch.num_tokens(), cols,
                     pass.placement.operands);
}

// Columns of `low` at their widest.
inline int64_t low_rank_cols(const ModelConfig& c) {
  const auto count = [&](std::initializer_list<LoraTarget> targets) {
    return std::ranges::count_if(targets, [&](LoraTarget t) { return c.lora.has(t); });
  };
  using enum LoraTarget;
  return c.lora.rank *
         std::max({count({kQ, kK, kV}), count({kO}), count({kGate, kUp}), count({kDown})});
}

// The choices of a batch, sorted by expert.
struct Groups {
  std::span<int32_t> offsets, tokens, rows;

  Groups(Workspace& workspace, const ModelConfig& c, int64_t max_tokens)
      : offsets(workspace.take<int32_t>(c.num_experts + 1)),
        tokens(workspace.take<int32_t>(max_tokens * c.experts_per_token)),
        rows(workspace.take<int32_t>(max_tokens * c.experts_per_token)) {}
};

inline void group(const LayerPass& pass, const Groups& groups) {
  group_by_expert(pass.stream, {.chosen = pass.kept.chosen,
                                .experts_per_token = pass.config.experts_per_token,
                                .offsets = groups.offsets,
                                .tokens = groups.tokens,
                                .rows = groups.rows});
}

inline size_t attention_bytes(const ModelConfig& c, const PassRoom& room) {
  return attention_workspace_bytes(room.num_threads, static_cast<int>(c.num_heads),
                                   static_cast<int>(c.num_kv_heads), static_cast<int>(c.head_dim),
                                   room.context, room.tokens, room.placement.device);
}

// The scratch that an op takes for itself.
inline void leave_room(Workspace& memory, size_t bytes) {
  Workspace::Scope scope(memory);
  memory.take<std::byte>(static_cast<int64_t>(bytes));
}

}  // namespace tailrace
