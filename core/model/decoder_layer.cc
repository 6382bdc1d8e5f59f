#include "core/model/decoder_layer.h"

#include <algorithm>
#include <cmath>

#include "kernels/ops/embedding.h"
#include "kernels/ops/experts.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/router.h"
#include "kernels/ops/swiglu.h"

namespace tailrace {
namespace {

size_t matrix_bytes(int64_t rows, int64_t cols) {
  return Workspace::aligned(static_cast<size_t>(rows * cols) * sizeof(float));
}

// The columns of a qkv matrix [tokens, qkv_size].
template <class T>
struct Qkv {
  MatrixView<T> q, k, v;
  MatrixView<T> qk;  // q and k together: both turn by the same angles

  Qkv(const ModelConfig& c, MatrixView<T> qkv) {
    const int64_t q_end = c.q_size(), k_end = q_end + c.kv_size();
    q = qkv.slice_cols(0, q_end);
    k = qkv.slice_cols(q_end, k_end);
    v = qkv.slice_cols(k_end, qkv.cols);
    qk = qkv.slice_cols(0, k_end);
  }
};

template <class T>
struct GateUp {
  MatrixView<T> gate, up;
  explicit GateUp(MatrixView<T> both)
      : gate(both.slice_cols(0, both.cols / 2)), up(both.slice_cols(both.cols / 2, both.cols)) {}
};

// Room for normalised queries and keys, where they are.
Matrix take_qk(Workspace& workspace, const ModelConfig& c, int64_t tokens) {
  return take_matrix(workspace, c.qk_norm ? tokens : 0, c.q_size() + c.kv_size());
}
size_t qk_bytes(const ModelConfig& c, int64_t tokens) {
  return c.qk_norm ? matrix_bytes(tokens, c.q_size() + c.kv_size()) : 0;
}

int num_rotated_heads(const ModelConfig& c) {
  return static_cast<int>(c.num_heads + c.num_kv_heads);
}
AttentionHeads attention_heads(const ModelConfig& c, int64_t layer) {
  return {.num_heads = static_cast<int>(c.num_heads),
          .scale = 1.0f / std::sqrt(static_cast<float>(c.attention_scalar > 0 ? c.attention_scalar
                                                                              : c.head_dim)),
          .window = static_cast<int>(c.window(layer))};
}
float norm_eps(const ModelConfig& c) { return static_cast<float>(c.rms_norm_eps); }

// Queries and keys as attention reads them. With qk_norm they are made from the product, which
// backward needs as it is, in `rotated` [tokens, q_size + kv_size]; else in the product's place.
Matrix rotate(const Stream& stream, const LayerPass& pass, std::span<const float> q_norm,
              std::span<const float> k_norm, Matrix product, Matrix rotated,
              std::span<float> inv_rms) {
  const ModelConfig& c = pass.config;
  if (c.qk_norm) {
    const int64_t q = c.q_size();
    const auto q_heads = static_cast<size_t>(inv_rms.empty() ? 0 : product.rows * c.num_heads);
    rms_norm(stream, {.x = product.slice_cols(0, q),
                      .weight = q_norm,
                      .eps = norm_eps(c),
                      .y = rotated.slice_cols(0, q),
                      .inv_rms = inv_rms.first(q_heads)});
    rms_norm(stream, {.x = product.slice_cols(q, product.cols),
                      .weight = k_norm,
                      .eps = norm_eps(c),
                      .y = rotated.slice_cols(q, rotated.cols),
                      .inv_rms = inv_rms.subspan(q_heads)});
  } else {
    rotated = product;
  }
  rope(stream, {.x = rotated,
                .num_heads = num_rotated_heads(c),
                .positions = pass.batch.sequences.positions,
                .table = pass.rope_table,
                .inverse = false});
  return rotated;
}

// One half of a layer, output = input + f(RMSNorm(input)), or input + RMSNorm(f(RMSNorm(input)));
// what is kept of it.
struct Half {
  ConstMatrix input;
  std::span<const float> norm;
  std::span<float> inv_rms;
  Matrix product;                    // of f
  std::span<const float> post_norm;  // empty: there is none
  std::span<float> product_inv_rms;
};
Half attention_half(const PackedWeights::Layer& weights, const LayerActivations& kept) {
  return {kept.input,     weights.input_norm, kept.input_inv_rms,
          kept.o_product, weights.o_norm,     kept.o_inv_rms};
}
Half mlp_half(const PackedWeights::Layer& weights, const LayerActivations& kept) {
  return {kept.middle,       weights.mlp_norm,  kept.mlp_inv_rms,
          kept.down_product, weights.down_norm, kept.down_inv_rms};
}

// f(normed, y) fills y.
template <class F>
void forward_half(const Stream& stream, Workspace& workspace, const ModelConfig& c,
                  const Half& half, Matrix output, const F& f) {
  Workspace::Scope scope(workspace);
  Matrix normed = take_matrix(workspace, half.input.rows, c.hidden_size);
  rms_norm(stream, {.x = half.input,
                    .weight = half.norm,
                    .eps = norm_eps(c),
                    .y = normed,
                    .inv_rms = half.inv_rms});
  // In the output's place where nobody keeps it.
  const Matrix product = half.product.cols > 0 ? half.product : output;
  f(normed, product);
  if (!half.post_norm.empty())
    rms_norm(stream, {.x = product,
                      .weight = half.post_norm,
                      .eps = norm_eps(c),
                      .y = output,
                      .inv_rms = half.product_inv_rms});
  // The residual stream is added to the finished product and is not where its sum starts: one
  // rounding, at the same place in every pass.
  add(stream, {.x = half.input, .y = output});
}

// f(normed, dy, dnormed) reads dy, the gradient to what its forward pass filled, before it writes
// dnormed.
template <class F>
void backward_half(const Stream& stream, Workspace& workspace, const ModelConfig& c,
                   const Half& half, std::span<float> dnorm, std::span<float> dpost_norm, Matrix dx,
                   const F& f) {
  Workspace::Scope scope(workspace);
  Matrix normed = take_matrix(workspace, dx.rows, c.hidden_size);
  Matrix dnormed = take_matrix(workspace, dx.rows, c.hidden_size);
  rms_norm(stream, {.x = half.input, .weight = half.norm, .eps = norm_eps(c), .y = normed});
  if (!half.post_norm.empty())
    rms_norm_backward(stream, {.x = half.product,
                               .weight = half.post_norm,
                               .inv_rms = half.product_inv_rms,
                               .dy = dx,
                               .dx = dnormed,
                               .accumulate = false,
                               .dweight = dpost_norm});
  f(normed, half.post_norm.empty() ? dx : dnormed, dnormed);
  // dx already is the gradient of the residual path, which goes past this half unchanged; the
  // half's own is added to it.
  rms_norm_backward(stream, {.x = half.input,
                             .weight = half.norm,
                             .inv_rms = half.inv_rms,
                             .dy = dnormed,
                             .dx = dx,
                             .accumulate = true,
                             .dweight = dnorm});
}

void forward_attention(const Stream& stream, Workspace& workspace, const LayerPass& pass,
                       int64_t layer, const PackedWeights::Layer& weights, const KvLayer& kv,
                       const LayerActivations& kept, ConstMatrix normed, Matrix y) {
  const ModelConfig& c = pass.config;
  const AttentionBatch& sequences = pass.batch.sequences;
  Workspace::Scope scope(workspace);
  // One product for q, k and v: the rows of the input are read once, and few large products keep
  // threads busier than many small ones.
  linear(stream, {.x = normed, .weight = weights.qkv, .bias = weights.qkv_bias, .y = kept.qkv});
  const Qkv<float> qkv(c, kept.qkv);
  const Matrix qk = rotate(stream, pass, weights.q_norm, weights.k_norm, qkv.qk,
                           take_qk(workspace, c, kept.qkv.rows), {});
  // Attention reads the keys and values of this very pass from the cache too. Prefill, decode and
  // training thus have one path, and the same bits.
  kv_write(stream,
           {.k = qk.slice_cols(c.q_size(), qk.cols), .v = qkv.v, .batch = sequences, .kv = kv});
  attention(stream, workspace,
            {.q = qk.slice_cols(0, c.q_size()),
             .heads = attention_heads(c, layer),
             .batch = sequences,
             .kv = kv,
             .max_context = pass.batch.max_context,
             .out = kept.attended,
             .lse = kept.lse});
  linear(stream, {.x = kept.attended, .weight = weights.o, .bias = weights.o_bias, .y = y});
}

void forward_dense_mlp(const Stream& stream, Workspace& workspace, const LayerPass& pass,
                       const PackedWeights::Layer& weights, const LayerActivations& kept,
                       ConstMatrix normed, Matrix y) {
  const ModelConfig& c = pass.config;
  Workspace::Scope scope(workspace);
  Matrix product = take_matrix(workspace, normed.rows, c.intermediate_size);
  linear(stream,
         {.x = normed, .weight = weights.gate_up, .bias = weights.gate_up_bias, .y = kept.gate_up});
  const GateUp<float> halves(kept.gate_up);
  swiglu(stream, {.gate = halves.gate, .up = halves.up, .y = product, .activation = c.activation});
  linear(stream, {.x = product, .weight = weights.down, .bias = weights.down_bias, .y = y});
}

// The choices of a batch, sorted by expert.
struct Groups {
  std::span<int32_t> offsets, tokens, rows;

  Groups(const Stream& stream, Workspace& workspace, const ModelConfig& c,
         std::span<const int32_t> chosen)
      : offsets(workspace.take<int32_t>(c.num_experts + 1)),
        tokens(workspace.take<int32_t>(std::ssize(chosen))),
        rows(workspace.take<int32_t>(std::ssize(chosen))) {
    group_by_expert(stream, {.chosen = chosen,
                             .experts_per_token = c.experts_per_token,
                             .offsets = offsets,
                             .tokens = tokens,
                             .rows = rows});
  }
  static size_t bytes(const ModelConfig& c, int64_t max_tokens) {
    return matrix_bytes(1, c.num_experts + 1) + 2 * matrix_bytes(max_tokens, c.experts_per_token);
  }
};

// What the batch says of a layer's choices.
MatrixView<const int32_t> given_choices(const LayerPass& pass, int64_t layer) {
  if (pass.batch.choices.rows == 0) return {};
  const int64_t k = pass.config.experts_per_token, index = pass.config.sparse_index(layer);
  return pass.batch.choices.slice_cols(index * k, (index + 1) * k);
}

void forward_experts(const Stream& stream, Workspace& workspace, const LayerPass& pass,
                     int64_t layer, const PackedWeights::Layer& weights,
                     const LayerActivations& kept, ConstMatrix normed, Matrix y) {
  const ModelConfig& c = pass.config;
  const int64_t choices = normed.rows * c.experts_per_token;
  Workspace::Scope scope(workspace);
  Matrix wide = take_matrix(workspace, choices, c.hidden_size);  // a row for each choice
  Matrix product = take_matrix(workspace, choices, c.expert_size);
  linear(stream, {.x = normed, .weight = weights.router, .y = kept.router});
  route(stream, {.logits = kept.router,
                 .choice_bias = weights.choice_bias,
                 .given = given_choices(pass, layer),
                 .normalised = c.normalised_experts,
                 .probabilities = kept.router,
                 .chosen = kept.chosen,
                 .weights = kept.expert_weights});
  const Groups groups(stream, workspace, c, kept.chosen);
  gather_rows(stream, {.x = normed, .rows = groups.tokens, .y = wide});
  grouped_linear(
      stream,
      {.x = wide, .weights = weights.expert_gate_up, .offsets = groups.offsets, .y = kept.gate_up});
  const GateUp<float> halves(kept.gate_up);
  swiglu(stream, {.gate = halves.gate, .up = halves.up, .y = product, .activation = c.activation});
  grouped_linear(
      stream, {.x = product, .weights = weights.expert_down, .offsets = groups.offsets, .y = wide});
  weighted_sum(stream, {.x = wide, .rows = groups.rows, .weights = kept.expert_weights, .y = y});
}

// Gradient of a product: dweight += dy^T x, dbias += sum of dy (where there is one), dx = dy W.
void backward_linear(const Stream& stream, Workspace& workspace, ConstMatrix dy, ConstMatrix x,
                     const Weight& weight, Matrix dweight, std::span<float> dbias, Matrix dx) {
  linear_grad_weight(stream, workspace, {.dy = dy, .x = x, .dweight = dweight});
  if (!dbias.empty()) linear_grad_bias(stream, {.dy = dy, .dbias = dbias});
  linear_grad_input(stream, workspace, {.dy = dy, .weight = weight, .dx = dx, .accumulate = false});
}

void backward_dense_mlp(const Stream& stream, Workspace& workspace, const LayerPass& pass,
                        const PackedWeights::Layer& weights, const LayerActivations& kept,
                        const LayerTensors<float>& gradients, ConstMatrix normed, ConstMatrix dy,
                        Matrix dnormed) {
  const ModelConfig& c = pass.config;
  Workspace::Scope scope(workspace);
  // Made again rather than kept: it is as wide as gate or up, and one elementwise op.
  Matrix product = take_matrix(workspace, dy.rows, c.intermediate_size);
  Matrix dgate_up = take_matrix(workspace, dy.rows, 2 * c.intermediate_size);

  const GateUp<float> halves(kept.gate_up), dhalves(dgate_up);
  swiglu(stream, {.gate = halves.gate, .up = halves.up, .y = product, .activation = c.activation});
  // The gradient to the product lies where the gradient to the gate will be.
  backward_linear(stream, workspace, dy, product, weights.down, gradients.down, gradients.down_bias,
                  dhalves.gate);
  swiglu_backward(stream, {.gate = halves.gate,
                           .up = halves.up,
                           .dy = dhalves.gate,
                           .dgate = dhalves.gate,
                           .dup = dhalves.up,
                           .activation = c.activation});
  backward_linear(stream, workspace, dgate_up, normed, weights.gate_up, gradients.gate_up,
                  gradients.gate_up_bias, dnormed);
}

void backward_experts(const Stream& stream, Workspace& workspace, const LayerPass& pass,
                      const PackedWeights::Layer& weights, const LayerActivations& kept,
                      const LayerBalance& balance, const LayerTensors<float>& gradients,
                      ConstMatrix normed, ConstMatrix dy, Matrix dnormed) {
  const ModelConfig& c = pass.config;
  const std::span<const int32_t> sequences = pass.batch.sequences.seq_offsets;
  const int64_t tokens = dy.rows, choices = tokens * c.experts_per_token;
  Workspace::Scope scope(workspace);
  Matrix product = take_matrix(workspace, choices, c.expert_size);
  Matrix dgate_up = take_matrix(workspace, choices, 2 * c.expert_size);
  Matrix wide = take_matrix(workspace, choices, c.hidden_size);
  Matrix dlogits = take_matrix(workspace, tokens, c.num_experts);
  Matrix dweights = take_matrix(workspace, tokens, c.experts_per_token);
  Matrix dbalance =
      take_matrix(workspace, balance.scale != 0 ? std::ssize(sequences) - 1 : 0, c.num_experts);
  const Groups groups(stream, workspace, c, kept.chosen);
  if (!balance.choices.empty())
    expert_balance(stream, {.probabilities = kept.router,
                            .chosen = kept.chosen,
                            .sequence_offsets = sequences,
                            .scale = balance.scale,
                            .gradient = dbalance,
                            .choices = balance.choices,
                            .losses = balance.losses});

  const GateUp<float> halves(kept.gate_up), dhalves(dgate_up);
  swiglu(stream, {.gate = halves.gate, .up = halves.up, .y = product, .activation = c.activation});
  // Every choice of a token gets the token's gradient, and its weight comes in where products are
  // narrow: (w dy) W = w (dy W).
  gather_rows(stream, {.x = dy, .rows = groups.tokens, .y = wide});
  grouped_grad_input(
      stream, workspace,
      {.dy = wide, .weights = weights.expert_down, .offsets = groups.offsets, .dx = dhalves.gate});
  weight_backward(stream, {.h = product,
                           .dh = dhalves.gate,
                           .rows = groups.rows,
                           .weights = kept.expert_weights,
                           .dweights = dweights});
  grouped_grad_weight(
      stream, workspace,
      {.dy = wide, .x = product, .offsets = groups.offsets, .dweights = gradients.expert_down});
  swiglu_backward(stream, {.gate = halves.gate,
                           .up = halves.up,
                           .dy = dhalves.gate,
                           .dgate = dhalves.gate,
                           .dup = dhalves.up,
                           .activation = c.activation});

  gather_rows(stream, {.x = normed, .rows = groups.tokens, .y = wide});
  grouped_grad_weight(
      stream, workspace,
      {.dy = dgate_up, .x = wide, .offsets = groups.offsets, .dweights = gradients.expert_gate_up});
  grouped_grad_input(
      stream, workspace,
      {.dy = dgate_up, .weights = weights.expert_gate_up, .offsets = groups.offsets, .dx = wide});
  weighted_sum(stream, {.x = wide, .rows = groups.rows, .y = dnormed});
  route_backward(stream, {.probabilities = kept.router,
                          .chosen = kept.chosen,
                          .dweights = dweights,
                          .normalised = c.normalised_experts,
                          .balance = dbalance,
                          .sequence_offsets = sequences,
                          .dlogits = dlogits});
  linear_grad_weight(stream, workspace, {.dy = dlogits, .x = normed, .dweight = gradients.router});
  linear_grad_input(stream, workspace,
                    {.dy = dlogits, .weight = weights.router, .dx = dnormed, .accumulate = true});
}

void backward_attention(const Stream& stream, Workspace& workspace, const LayerPass& pass,
                        int64_t layer, const PackedWeights::Layer& weights, const KvLayer& kv,
                        const LayerActivations& kept, const LayerTensors<float>& gradients,
                        ConstMatrix normed, ConstMatrix dy, Matrix dnormed) {
  const ModelConfig& c = pass.config;
  const AttentionBatch& sequences = pass.batch.sequences;
  Workspace::Scope scope(workspace);
  Matrix dqkv = take_matrix(workspace, dy.rows, kept.qkv.cols);

  const Qkv<float> qkv(c, kept.qkv), gradient(c, dqkv);
  Matrix q = qkv.q;
  std::span<float> inv_rms;
  if (c.qk_norm) {
    // Made again rather than kept, as normalised inputs are.
    inv_rms = workspace.take<float>(dy.rows * num_rotated_heads(c));
    q = rotate(stream, pass, weights.q_norm, weights.k_norm, qkv.qk, take_qk(workspace, c, dy.rows),
               inv_rms)
            .slice_cols(0, c.q_size());
  }
  // The gradient to what attention returned lies where the gradient to q will be.
  backward_linear(stream, workspace, dy, kept.attended, weights.o, gradients.o, gradients.o_bias,
                  gradient.q);
  attention_backward(stream, workspace,
                     {.q = q,
                      .out = kept.attended,
                      .lse = kept.lse,
                      .dout = gradient.q,
                      .heads = attention_heads(c, layer),
                      .batch = sequences,
                      .kv = kv,
                      .max_context = pass.batch.max_context,
                      .dq = gradient.q,
                      .dk = gradient.k,
                      .dv = gradient.v});
  rope(stream, {.x = gradient.qk,
                .num_heads = num_rotated_heads(c),
                .positions = sequences.positions,
                .table = pass.rope_table,
                .inverse = true});
  if (c.qk_norm) {
    const auto q_heads = static_cast<size_t>(dy.rows * c.num_heads);
    rms_norm_backward(stream, {.x = qkv.q,
                               .weight = weights.q_norm,
                               .inv_rms = inv_rms.first(q_heads),
                               .dy = gradient.q,
                               .dx = gradient.q,
                               .accumulate = false,
                               .dweight = gradients.q_norm});
    rms_norm_backward(stream, {.x = qkv.k,
                               .weight = weights.k_norm,
                               .inv_rms = inv_rms.subspan(q_heads),
                               .dy = gradient.k,
                               .dx = gradient.k,
                               .accumulate = false,
                               .dweight = gradients.k_norm});
  }
  backward_linear(stream, workspace, dqkv, normed, weights.qkv, gradients.qkv, gradients.qkv_bias,
                  dnormed);
}

size_t attention_bytes(const ModelConfig& c, int max_context, int num_threads) {
  return attention_workspace_bytes(num_threads, static_cast<int>(c.num_heads),
                                   static_cast<int>(c.num_kv_heads), static_cast<int>(c.head_dim),
                                   max_context);
}

}  // namespace

void forward_layer(const Stream& stream, Workspace& workspace, const LayerPass& pass, int64_t layer,
                   const PackedWeights::Layer& weights, const KvLayer& kv,
                   const LayerActivations& kept, Matrix output) {
  const ModelConfig& c = pass.config;
  forward_half(stream, workspace, c, attention_half(weights, kept), kept.middle,
               [&](ConstMatrix normed, Matrix y) {
                 forward_attention(stream, workspace, pass, layer, weights, kv, kept, normed, y);
               });
  forward_half(stream, workspace, c, mlp_half(weights, kept), output,
               [&](ConstMatrix normed, Matrix y) {
                 if (c.is_sparse(layer)) {
                   forward_experts(stream, workspace, pass, layer, weights, kept, normed, y);
                 } else {
                   forward_dense_mlp(stream, workspace, pass, weights, kept, normed, y);
                 }
               });
}

void backward_layer(const Stream& stream, Workspace& workspace, const LayerPass& pass,
                    int64_t layer, const PackedWeights::Layer& weights, const KvLayer& kv,
                    const LayerActivations& kept, const LayerBalance& balance,
                    const LayerTensors<float>& gradients, Matrix dx) {
  const ModelConfig& c = pass.config;
  backward_half(stream, workspace, c, mlp_half(weights, kept), gradients.mlp_norm,
                gradients.down_norm, dx, [&](ConstMatrix normed, ConstMatrix dy, Matrix dnormed) {
                  if (c.is_sparse(layer)) {
                    backward_experts(stream, workspace, pass, weights, kept, balance, gradients,
                                     normed, dy, dnormed);
                  } else {
                    backward_dense_mlp(stream, workspace, pass, weights, kept, gradients, normed,
                                       dy, dnormed);
                  }
                });
  backward_half(stream, workspace, c, attention_half(weights, kept), gradients.input_norm,
                gradients.o_norm, dx, [&](ConstMatrix normed, ConstMatrix dy, Matrix dnormed) {
                  backward_attention(stream, workspace, pass, layer, weights, kv, kept, gradients,
                                     normed, dy, dnormed);
                });
}

size_t forward_layer_workspace_bytes(const ModelConfig& config, int64_t max_tokens, int max_context,
                                     int num_threads) {
  const int64_t choices = max_tokens * config.experts_per_token;
  // All but the normalised input.
  const size_t experts = config.num_experts == 0 ? 0
                                                 : matrix_bytes(choices, config.hidden_size) +
                                                       matrix_bytes(choices, config.expert_size) +
                                                       Groups::bytes(config, max_tokens);
  // The halves of a layer run one after the other, each beside its normalised input.
  const size_t normed = matrix_bytes(max_tokens, config.hidden_size);
  return normed +
         std::max({qk_bytes(config, max_tokens) + attention_bytes(config, max_context, num_threads),
                   matrix_bytes(max_tokens, config.intermediate_size), experts});
}

size_t backward_layer_workspace_bytes(const ModelConfig& config, int64_t max_tokens,
                                      int max_context, int num_threads) {
  const int64_t hidden = config.hidden_size, ffn = config.intermediate_size;
  const int64_t q = config.q_size(), qkv = config.qkv_size();
  const size_t norms = 2 * matrix_bytes(max_tokens, hidden);
  const size_t mlp = matrix_bytes(max_tokens, ffn) + matrix_bytes(max_tokens, 2 * ffn) +
                     std::max(linear_grad_workspace_bytes(max_tokens, hidden, ffn),
                              linear_grad_workspace_bytes(max_tokens, 2 * ffn, hidden));
  const int64_t choices = max_tokens * config.experts_per_token, size = config.expert_size;
  const size_t experts =
      config.num_experts == 0
          ? 0
          : matrix_bytes(choices, size) + matrix_bytes(choices, 2 * size) +
                // The gradients to the router's probabilities: of tokens, and of sequences, which
                // have at least one.
                matrix_bytes(choices, hidden) + 2 * matrix_bytes(max_tokens, config.num_experts) +
                matrix_bytes(max_tokens, config.experts_per_token) +
                Groups::bytes(config, max_tokens) +
                std::max({linear_grad_workspace_bytes(max_tokens, hidden, size),
                          linear_grad_workspace_bytes(max_tokens, 2 * size, hidden),
                          linear_grad_workspace_bytes(max_tokens, config.num_experts, hidden)});
  const size_t qk_norms = config.qk_norm ? qk_bytes(config, max_tokens) +
                                               matrix_bytes(max_tokens, num_rotated_heads(config))
                                         : 0;
  const size_t attention = matrix_bytes(max_tokens, qkv) + qk_norms +
                           std::max({linear_grad_workspace_bytes(max_tokens, hidden, q),
                                     linear_grad_workspace_bytes(max_tokens, qkv, hidden),
                                     attention_bytes(config, max_context, num_threads)});
  return norms + std::max({mlp, experts, attention});
}

}  // namespace tailrace
