// The backward pass of a decoder layer (decoder_layer.h).
#include "core/model/decoder_layer.h"
#include "core/model/layer_parts.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/experts.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/router.h"
#include "kernels/ops/swiglu.h"

namespace tailrace {
namespace {

// A gradient of the pass, which lies where the pass runs.
Tensor on_device(const LayerPass& pass, Matrix gradient) {
  Tensor tensor = gradient;
  tensor.device = pass.placement.device;
  return tensor;
}

struct BackwardHalf {
  Tensor normed, dnormed;

  BackwardHalf(Workspace& workspace, const Placement& placement, const ModelConfig& c,
               int64_t tokens)
      : normed(take_tensor(workspace, placement, tokens, c.hidden_size, placement.operands)),
        dnormed(take_floats(workspace, placement, tokens, c.hidden_size)) {}
};

// f(normed, dy, dnormed) reads dy, the gradient to what its forward pass filled, before it writes
// dnormed.
template <class F>
void backward_half(const LayerPass& pass, const Half& half, std::span<float> dnorm,
                   std::span<float> dpost_norm, Tensor dx, const F& f) {
  const ModelConfig& c = pass.config;
  Workspace::Scope scope(pass.workspace);
  const auto [normed, dnormed] = BackwardHalf(pass.workspace, pass.placement, c, dx.rows);
  // The normalised input is made again rather than kept: it costs one pass over the row, where
  // keeping it would add hidden_size values a token and half to the activations.
  rms_norm(pass.stream, {.x = half.input, .weight = half.norm, .eps = norm_eps(c), .y = normed});
  if (!half.post_norm.empty())
    rms_norm_backward(pass.stream, {.x = half.product,
                                    .weight = half.post_norm,
                                    .inv_rms = half.product_inv_rms,
                                    .dy = dx,
                                    .dx = dnormed,
                                    .accumulate = false,
                                    .dweight = dpost_norm});
  f(normed, half.post_norm.empty() ? dx : dnormed, dnormed);
  // dx already is the gradient of the residual path, which goes past this half unchanged; the
  // half's own is added to it.
  rms_norm_backward(pass.stream, {.x = half.input,
                                  .weight = half.norm,
                                  .inv_rms = half.inv_rms,
                                  .dy = dnormed,
                                  .dx = dx,
                                  .accumulate = true,
                                  .dweight = dnorm});
}

// Gradient of a product to what is trained: dweight += dy^T x, dbias += sum of dy (where there is
// one; frozen weights have neither).
void backward_weight(const LayerPass& pass, ConstTensor dy, ConstTensor x, const Weight& weight,
                     Matrix dweight, std::span<float> dbias) {
  if (dweight.rows > 0)
    linear_grad_weight(
        pass.stream, pass.workspace,
        {.dy = dy, .x = x, .dweight = on_device(pass, dweight), .weight = weight.dtype});
  if (!dbias.empty()) linear_grad_bias(pass.stream, {.dy = dy, .dbias = dbias});
}
// To its input: dx = dy W.
void backward_input(const LayerPass& pass, ConstTensor dy, const Weight& weight, Tensor dx) {
  linear_grad_input(pass.stream, pass.workspace,
                    {.dy = dy, .weight = weight, .dx = dx, .accumulate = false});
}
void backward_linear(const LayerPass& pass, ConstTensor dy, ConstTensor x, const Weight& weight,
                     Matrix dweight, std::span<float> dbias, Tensor dx) {
  backward_weight(pass, dy, x, weight, dweight, dbias);
  backward_input(pass, dy, weight, dx);
}

// One of the products that share x: what is kept of it, and its gradients.
struct LowRankGradient {
  const Weight& b;
  ConstTensor dy;
  Matrix db;
};
struct BackwardLowRank {
  Matrix low, dlow;  // x A^T and its gradient, times alpha / rank both

  BackwardLowRank(Workspace& workspace, int64_t tokens, int64_t cols)
      : low(take_matrix(workspace, tokens, cols)), dlow(take_matrix(workspace, tokens, cols)) {}
};
// With s = alpha / rank: db += dy^T (s x A^T), da += (s dy B)^T x, dx += (s dy B) A.
void backward_low_rank(const LayerPass& pass, ConstTensor x, const Weight& a, Matrix da,
                       std::initializer_list<LowRankGradient> products, Tensor dx) {
  if (a.out == 0) return;
  const Lora& lora = pass.config.lora;
  Workspace::Scope scope(pass.workspace);
  const auto [low, dlow] = BackwardLowRank(pass.workspace, x.rows, a.out);
  linear(pass.stream, {.x = x, .weight = a, .y = low});
  scale(pass.stream, {.x = low, .factor = lora.scale()});
  int64_t first = 0;
  for (const LowRankGradient& product : products) {
    if (product.b.out == 0) continue;
    const int64_t end = first + lora.rank;
    linear_grad_weight(pass.stream, pass.workspace,
                       {.dy = product.dy,
                        .x = low.slice_cols(first, end),
                        .dweight = product.db,
                        .weight = product.b.dtype});
    linear_grad_input(pass.stream, pass.workspace,
                      {.dy = product.dy,
                       .weight = product.b,
                       .dx = dlow.slice_cols(first, end),
                       .accumulate = false});
    first = end;
  }
  // Scaled once for all products, behind them: db has taken its factor from `low`, and da and dx
  // take theirs from `dlow`.
  scale(pass.stream, {.x = dlow, .factor = lora.scale()});
  linear_grad_weight(pass.stream, pass.workspace,
                     {.dy = dlow, .x = x, .dweight = da, .weight = a.dtype});
  linear_grad_input(pass.stream, pass.workspace,
                    {.dy = dlow, .weight = a, .dx = dx, .accumulate = true});
}

struct BackwardDense {
  Tensor product, dgate_up;

  BackwardDense(Workspace& workspace, const Placement& placement, const ModelConfig& c,
                int64_t tokens)
      : product(take_tensor(workspace, placement, tokens, c.intermediate_size, placement.operands)),
        dgate_up(take_floats(workspace, placement, tokens, 2 * c.intermediate_size)) {}
};
void backward_dense_mlp(const LayerPass& pass, const LayerGradients& gradients, ConstTensor normed,
                        ConstTensor dy, Tensor dnormed) {
  const ModelConfig& c = pass.config;
  Workspace::Scope scope(pass.workspace);
  // The product is made again rather than kept: it is as wide as gate or up, and one elementwise
  // op. The CPU makes it along the way of that op's backward pass, unless an adapter reads it
  // before.
  const auto [product, dgate_up] = BackwardDense(pass.workspace, pass.placement, c, dy.rows);
  const GateUp halves(pass.kept.gate_up), dhalves(dgate_up);
  const AdapterOf<Weight>& adapter = pass.weights.adapter;
  const bool along = pass.stream.device.kind == DeviceKind::kCpu && adapter.down_a.out == 0;
  if (!along)
    swiglu(pass.stream,
           {.gate = halves.gate, .up = halves.up, .y = product, .activation = c.activation});
  // The gradient to the product lies where the gradient to the gate will be.
  backward_input(pass, dy, pass.weights.down, dhalves.gate);
  backward_low_rank(pass, product, adapter.down_a, gradients.adapter.down_a,
                    {{adapter.down_b, dy, gradients.adapter.down_b}}, dhalves.gate);
  swiglu_backward(pass.stream, {.gate = halves.gate,
                                .up = halves.up,
                                .dy = dhalves.gate,
                                .dgate = dhalves.gate,
                                .dup = dhalves.up,
                                .activation = c.activation,
                                .product = along ? product : Tensor()});
  backward_weight(pass, dy, product, pass.weights.down, gradients.down, gradients.down_bias);
  backward_linear(pass, dgate_up, normed, pass.weights.gate_up, gradients.gate_up,
                  gradients.gate_up_bias, dnormed);
  backward_low_rank(pass, normed, adapter.gate_up_a, gradients.adapter.gate_up_a,
                    {{adapter.gate_b, dhalves.gate, gradients.adapter.gate_b},
                     {adapter.up_b, dhalves.up, gradients.adapter.up_b}},
                    dnormed);
}

struct BackwardExperts {
  Tensor product, dgate_up, wide, in;  // a row for each choice; `in` is an operand
  Tensor dlogits, dweights, dbalance;  // the last by sequence
  Groups groups;

  BackwardExperts(Workspace& workspace, const Placement& placement, const ModelConfig& c,
                  int64_t tokens, int64_t sequences)
      : product(take_tensor(workspace, placement, tokens * c.experts_per_token, c.expert_size,
                            placement.operands)),
        dgate_up(
            take_floats(workspace, placement, tokens * c.experts_per_token, 2 * c.expert_size)),
        wide(take_floats(workspace, placement, tokens * c.experts_per_token, c.hidden_size)),
        in(placement.operands == Dtype::kF32
               ? wide
               : take_tensor(workspace, placement, tokens * c.experts_per_token, c.hidden_size,
                             placement.operands)),
        dlogits(take_floats(workspace, placement, tokens, c.num_experts)),
        dweights(take_floats(workspace, placement, tokens, c.experts_per_token)),
        dbalance(take_floats(workspace, placement, sequences, c.num_experts)),
        groups(workspace, c, tokens) {}
};
void backward_experts(const LayerPass& pass, const LayerBalance& balance,
                      const LayerGradients& gradients, ConstTensor normed, ConstTensor dy,
                      Tensor dnormed) {
  const ModelConfig& c = pass.config;
  const std::span<const int32_t> sequences = pass.batch.sequences.seq_offsets;
  Workspace::Scope scope(pass.workspace);
  const auto [product, dgate_up, wide, in, dlogits, dweights, dbalance, groups] =
      BackwardExperts(pass.workspace, pass.placement, c, dy.rows,
                      balance.scale != 0 ? std::ssize(sequences) - 1 : 0);
  group(pass, groups);
  if (!balance.choices.empty())
    expert_balance(pass.stream, {.probabilities = pass.kept.router,
                                 .chosen = pass.kept.chosen,
                                 .sequence_offsets = sequences,
                                 .scale = balance.scale,
                                 .gradient = dbalance,
                                 .choices = balance.choices,
                                 .losses = balance.losses});

  const GateUp halves(pass.kept.gate_up), dhalves(dgate_up);
  swiglu(pass.stream,
         {.gate = halves.gate, .up = halves.up, .y = product, .activation = c.activation});
  // Every choice of a token gets the token's gradient, and its weight comes in where products are
  // narrow: (w dy) W = w (dy W).
  gather_rows(pass.stream, {.x = dy, .rows = groups.tokens, .y = wide});
  grouped_grad_input(pass.stream, pass.workspace,
                     {.dy = wide,
                      .weights = pass.weights.expert_down,
                      .offsets = groups.offsets,
                      .dx = dhalves.gate});
  weight_backward(pass.stream, {.h = product,
                                .dh = dhalves.gate,
                                .rows = groups.rows,
                                .weights = pass.kept.expert_weights,
                                .dweights = dweights});
  grouped_grad_weight(pass.stream, pass.workspace,
                      {.dy = wide,
                       .x = product,
                       .offsets = groups.offsets,
                       .dweights = gradients.expert_down,
                       .weight = pass.weights.expert_down.first.dtype});
  swiglu_backward(pass.stream, {.gate = halves.gate,
                                .up = halves.up,
                                .dy = dhalves.gate,
                                .dgate = dhalves.gate,
                                .dup = dhalves.up,
                                .activation = c.activation});

  gather_rows(pass.stream, {.x = normed, .rows = groups.tokens, .y = in});
  grouped_grad_weight(pass.stream, pass.workspace,
                      {.dy = dgate_up,
                       .x = in,
                       .offsets = groups.offsets,
                       .dweights = gradients.expert_gate_up,
                       .weight = pass.weights.expert_gate_up.first.dtype});
  grouped_grad_input(pass.stream, pass.workspace,
                     {.dy = dgate_up,
                      .weights = pass.weights.expert_gate_up,
                      .offsets = groups.offsets,
                      .dx = wide});
  weighted_sum(pass.stream, {.x = wide, .rows = groups.rows, .y = dnormed});
  route_backward(pass.stream, {.probabilities = pass.kept.router,
                               .chosen = pass.kept.chosen,
                               .dweights = dweights,
                               .normalised = c.normalised_experts,
                               .balance = dbalance,
                               .sequence_offsets = sequences,
                               .dlogits = dlogits});
  linear_grad_weight(pass.stream, pass.workspace,
                     {.dy = dlogits,
                      .x = normed,
                      .dweight = on_device(pass, gradients.router),
                      .weight = pass.weights.router.dtype});
  linear_grad_input(
      pass.stream, pass.workspace,
      {.dy = dlogits, .weight = pass.weights.router, .dx = dnormed, .accumulate = true});
}

struct BackwardAttention {
  Tensor dqkv, qk;              // the second as take_qk() has it
  std::span<float> qk_inv_rms;  // with qk_norm

  BackwardAttention(Workspace& workspace, const Placement& placement, const ModelConfig& c,
                    int64_t tokens)
      : dqkv(take_floats(workspace, placement, tokens, c.qkv_size())),
        qk(take_qk(workspace, placement, c, tokens)),
        qk_inv_rms(workspace.take<float>(c.qk_norm ? tokens * num_rotated_heads(c) : 0)) {}
};
// Queries as attention read them, in `rotated` [tokens, q_size + kv_size]. With qk_norm they are
// made again rather than kept, as normalised inputs are.
Tensor queries(const LayerPass& pass, const Qkv& product, Tensor rotated,
               std::span<float> inv_rms) {
  const ModelConfig& c = pass.config;
  if (!c.qk_norm) return product.q;
  const int64_t q = c.q_size();
  const auto q_heads = static_cast<size_t>(product.q.rows * c.num_heads);
  rms_norm(pass.stream, {.x = product.q,
                         .weight = pass.weights.q_norm,
                         .eps = norm_eps(c),
                         .y = rotated.slice_cols(0, q),
                         .inv_rms = inv_rms.first(q_heads)});
  rms_norm(pass.stream, {.x = product.k,
                         .weight = pass.weights.k_norm,
                         .eps = norm_eps(c),
                         .y = rotated.slice_cols(q, rotated.cols),
                         .inv_rms = inv_rms.subspan(q_heads)});
  rope(pass.stream, {.x = rotated,
                     .num_heads = num_rotated_heads(c),
                     .positions = pass.batch.sequences.positions,
                     .table = pass.rope_table,
                     .inverse = false});
  return rotated.slice_cols(0, q);
}

void backward_attention(const LayerPass& pass, const LayerGradients& gradients, ConstTensor normed,
                        ConstTensor dy, Tensor dnormed) {
  const ModelConfig& c = pass.config;
  const AttentionBatch& sequences = pass.batch.sequences;
  Workspace::Scope scope(pass.workspace);
  const auto [dqkv, qk, inv_rms] = BackwardAttention(pass.workspace, pass.placement, c, dy.rows);

  // Without norms the kept product holds queries and keys as they were turned, since forward turned
  // them in place; with norms it holds them as the product gave them.
  const Qkv qkv(c, pass.kept.qkv), gradient(c, dqkv);
  const Tensor q = queries(pass, qkv, qk, inv_rms);
  // The gradient to what attention returned lies where the gradient to q will be.
  backward_linear(pass, dy, pass.kept.attended, pass.weights.o, gradients.o, gradients.o_bias,
                  gradient.q);
  const AdapterOf<Weight>& adapter = pass.weights.adapter;
  backward_low_rank(pass, pass.kept.attended, adapter.o_a, gradients.adapter.o_a,
                    {{adapter.o_b, dy, gradients.adapter.o_b}}, gradient.q);
  attention_backward(pass.stream, pass.workspace,
                     {.q = q,
                      .out = pass.kept.attended,
                      .lse = pass.kept.lse,
                      .dout = gradient.q,
                      .heads = attention_heads(pass),
                      .batch = sequences,
                      .kv = pass.kv,
                      .max_context = pass.batch.max_context,
                      .dq = gradient.q,
                      .dk = gradient.k,
                      .dv = gradient.v});
  // A rotation is orthogonal, so its backward pass is the rotation by the negative angle.
  rope(pass.stream, {.x = gradient.qk,
                     .num_heads = num_rotated_heads(c),
                     .positions = sequences.positions,
                     .table = pass.rope_table,
                     .inverse = true});
  if (c.qk_norm) {
    const auto q_heads = static_cast<size_t>(dy.rows * c.num_heads);
    rms_norm_backward(pass.stream, {.x = qkv.q,
                                    .weight = pass.weights.q_norm,
                                    .inv_rms = inv_rms.first(q_heads),
                                    .dy = gradient.q,
                                    .dx = gradient.q,
                                    .accumulate = false,
                                    .dweight = gradients.q_norm});
    rms_norm_backward(pass.stream, {.x = qkv.k,
                                    .weight = pass.weights.k_norm,
                                    .inv_rms = inv_rms.subspan(q_heads),
                                    .dy = gradient.k,
                                    .dx = gradient.k,
                                    .accumulate = false,
                                    .dweight = gradients.k_norm});
  }
  backward_linear(pass, dqkv, normed, pass.weights.qkv, gradients.qkv, gradients.qkv_bias, dnormed);
  backward_low_rank(pass, normed, adapter.qkv_a, gradients.adapter.qkv_a,
                    {{adapter.q_b, gradient.q, gradients.adapter.q_b},
                     {adapter.k_b, gradient.k, gradients.adapter.k_b},
                     {adapter.v_b, gradient.v, gradients.adapter.v_b}},
                    dnormed);
}

}  // namespace

void backward_layer(const LayerPass& pass, const LayerBalance& balance,
                    const LayerGradients& gradients, Tensor dx) {
  const ModelConfig& c = pass.config;
  // From the end of the layer to its beginning. Both halves add to dx, which goes on to the layer
  // below.
  backward_half(pass, mlp_half(pass), gradients.mlp_norm, gradients.down_norm, dx,
                [&](ConstTensor normed, ConstTensor dy, Tensor dnormed) {
                  if (c.is_sparse(pass.layer)) {
                    backward_experts(pass, balance, gradients, normed, dy, dnormed);
                  } else {
                    backward_dense_mlp(pass, gradients, normed, dy, dnormed);
                  }
                });
  backward_half(pass, attention_half(pass), gradients.input_norm, gradients.o_norm, dx,
                [&](ConstTensor normed, ConstTensor dy, Tensor dnormed) {
                  backward_attention(pass, gradients, normed, dy, dnormed);
                });
}

size_t backward_layer_workspace_bytes(const ModelConfig& config, const PassRoom& room) {
  Workspace memory = Workspace::measuring();
  const int64_t max_tokens = room.tokens;
  const auto leave_room_for_gradients = [&](int64_t out, int64_t in) {
    leave_room(memory, linear_grad_workspace_bytes(max_tokens, out, in, room.placement.device));
  };
  const int64_t hidden = config.hidden_size;
  const auto leave_room_for_low_rank = [&] {
    if (!config.lora) return;
    Workspace::Scope scope(memory);
    const int64_t cols = low_rank_cols(config);
    BackwardLowRank(memory, max_tokens, cols);
    for (const int64_t wide : {hidden, config.q_size(), config.intermediate_size}) {
      leave_room_for_gradients(wide, config.lora.rank);
      leave_room_for_gradients(cols, wide);
    }
  };
  BackwardHalf(memory, room.placement, config, max_tokens);
  {
    Workspace::Scope scope(memory);
    BackwardDense(memory, room.placement, config, max_tokens);
    leave_room_for_gradients(hidden, config.intermediate_size);
    leave_room_for_gradients(2 * config.intermediate_size, hidden);
    leave_room_for_low_rank();
  }
  if (config.num_experts > 0) {
    Workspace::Scope scope(memory);
    // A batch of one token each has as many sequences as tokens.
    BackwardExperts(memory, room.placement, config, max_tokens, /*sequences=*/max_tokens);
    leave_room_for_gradients(hidden, config.expert_size);
    leave_room_for_gradients(2 * config.expert_size, hidden);
    leave_room_for_gradients(config.num_experts, hidden);
  }
  Workspace::Scope scope(memory);
  BackwardAttention(memory, room.placement, config, max_tokens);
  leave_room_for_gradients(hidden, config.q_size());
  leave_room_for_gradients(config.qkv_size(), hidden);
  leave_room_for_low_rank();
  leave_room(memory, attention_bytes(config, room));
  return memory.peak();
}

}  // namespace tailrace
