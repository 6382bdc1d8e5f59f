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
Tensor take_qk(Workspace& workspace, const Placement& placement, const ModelConfig& c,
               int64_t tokens) {
  return take_tensor(workspace, placement, c.qk_norm ? tokens : 0, c.q_size() + c.kv_size(),
                     placement.operands);
}

int num_rotated_heads(const ModelConfig& c) {
  return static_cast<int>(c.num_heads + c.num_kv_heads);
}
AttentionHeads attention_heads(const LayerPass& pass) {
  const ModelConfig& c = pass.config;
  return {.num_heads = static_cast<int>(c.num_heads),
          .scale = 1.0f / std::sqrt(static_cast<float>(c.attention_scalar > 0 ? c.attention_scalar
                                                                              : c.head_dim)),
          .window = static_cast<int>(c.window(pass.layer))};
}
float norm_eps(const ModelConfig& c) { return static_cast<float>(c.rms_norm_eps); }

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
Half attention_half(const LayerPass& pass) {
  return {pass.kept.input,     pass.weights.input_norm, pass.kept.input_inv_rms,
          pass.kept.o_product, pass.weights.o_norm,     pass.kept.o_inv_rms};
}
Half mlp_half(const LayerPass& pass) {
  return {pass.kept.middle,       pass.weights.mlp_norm,  pass.kept.mlp_inv_rms,
          pass.kept.down_product, pass.weights.down_norm, pass.kept.down_inv_rms};
}

// [rows, cols] float32, as the residual stream and all gradients.
Tensor take_floats(Workspace& workspace, const Placement& placement, int64_t rows, int64_t cols) {
  return take_tensor(workspace, placement, rows, cols, Dtype::kF32);
}
// A gradient of the pass, which lies where the pass runs.
Tensor on_device(const LayerPass& pass, Matrix gradient) {
  Tensor tensor = gradient;
  tensor.device = pass.placement.device;
  return tensor;
}

// The operand of a product, [tokens, cols].
Tensor take_operand(const LayerPass& pass, int64_t cols) {
  return take_tensor(pass.workspace, pass.placement, pass.batch.num_tokens(), cols,
                     pass.placement.operands);
}

// Where f leaves what it gives: in the output's place where nobody keeps it.
Tensor product_of(const Half& half, Tensor output) {
  return half.product.cols > 0 ? half.product : output;
}
// What is added to the half's input, in `output` at the end.
void finish_product(const LayerPass& pass, const Half& half, Tensor output) {
  if (half.post_norm.empty()) return;
  rms_norm(pass.stream, {.x = product_of(half, output),
                         .weight = half.post_norm,
                         .eps = norm_eps(pass.config),
                         .y = output,
                         .inv_rms = half.product_inv_rms});
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

// One of the products of an adapter that share x: y += (alpha / rank) (x A^T) B^T.
struct LowRank {
  const Weight& b;
  Tensor y;
};
void add_low_rank(const LayerPass& pass, ConstTensor x, const Weight& a,
                  std::initializer_list<LowRank> products) {
  if (a.out == 0) return;
  const Lora& lora = pass.config.lora;
  Workspace::Scope scope(pass.workspace);
  const Matrix low = take_matrix(pass.workspace, x.rows, a.out);
  linear(pass.stream, {.x = x, .weight = a, .y = low});
  scale(pass.stream, {.x = low, .factor = lora.scale()});
  int64_t first = 0;
  for (const LowRank& product : products) {
    if (product.b.out == 0) continue;
    linear(pass.stream, {.x = low.slice_cols(first, first + lora.rank),
                         .weight = product.b,
                         .y = product.y,
                         .accumulate = true});
    first += lora.rank;
  }
}

// Columns of `low` at their widest.
int64_t low_rank_cols(const ModelConfig& c) {
  const auto count = [&](std::initializer_list<LoraTarget> targets) {
    return std::ranges::count_if(targets, [&](LoraTarget t) { return c.lora.has(t); });
  };
  using enum LoraTarget;
  return c.lora.rank *
         std::max({count({kQ, kK, kV}), count({kO}), count({kGate, kUp}), count({kDown})});
}

void forward_attention(const LayerPass& pass, ConstTensor normed, Tensor y) {
  const ModelConfig& c = pass.config;
  const AttentionBatch& sequences = pass.batch.sequences;
  Workspace::Scope scope(pass.workspace);
  // One product for q, k and v: the rows of the input are read once, and few large products keep
  // threads busier than many small ones.
  linear(
      pass.stream,
      {.x = normed, .weight = pass.weights.qkv, .bias = pass.weights.qkv_bias, .y = pass.kept.qkv});
  const AdapterOf<Weight>& adapter = pass.weights.adapter;
  const int64_t q_end = c.q_size(), k_end = q_end + c.kv_size();
  add_low_rank(pass, normed, adapter.qkv_a,
               {{adapter.q_b, pass.kept.qkv.slice_cols(0, q_end)},
                {adapter.k_b, pass.kept.qkv.slice_cols(q_end, k_end)},
                {adapter.v_b, pass.kept.qkv.slice_cols(k_end, pass.kept.qkv.cols)}});
  // With norms backward needs the product as it is; else queries and keys turn in its place.
  Tensor qk = pass.kept.qkv.slice_cols(0, c.q_size() + c.kv_size());
  if (c.qk_norm) qk = take_qk(pass.workspace, pass.placement, c, normed.rows);
  // Attention reads the keys and values of this very pass from the cache too. Prefill, decode and
  // training thus have one path, and the same bits.
  cache_qkv(pass.stream, {.qkv = pass.kept.qkv,
                          .num_heads = static_cast<int>(c.num_heads),
                          .q_norm = pass.weights.q_norm,
                          .k_norm = pass.weights.k_norm,
                          .eps = norm_eps(c),
                          .table = pass.rope_table,
                          .batch = sequences,
                          .kv = pass.kv,
                          .qk = qk});
  attention(pass.stream, pass.workspace,
            {.q = qk.slice_cols(0, c.q_size()),
             .heads = attention_heads(pass),
             .batch = sequences,
             .kv = pass.kv,
             .max_context = pass.batch.max_context,
             .out = pass.kept.attended,
             .lse = pass.kept.lse});
  linear(pass.stream,
         {.x = pass.kept.attended, .weight = pass.weights.o, .bias = pass.weights.o_bias, .y = y});
  add_low_rank(pass, pass.kept.attended, adapter.o_a, {{adapter.o_b, y}});
}

void forward_dense_mlp(const LayerPass& pass, ConstTensor normed, Tensor y) {
  const ModelConfig& c = pass.config;
  Workspace::Scope scope(pass.workspace);
  const Tensor product = take_operand(pass, c.intermediate_size);
  linear(pass.stream, {.x = normed,
                       .weight = pass.weights.gate_up,
                       .bias = pass.weights.gate_up_bias,
                       .y = pass.kept.gate_up});
  const GateUp halves(pass.kept.gate_up);
  const AdapterOf<Weight>& adapter = pass.weights.adapter;
  add_low_rank(pass, normed, adapter.gate_up_a,
               {{adapter.gate_b, halves.gate}, {adapter.up_b, halves.up}});
  swiglu(pass.stream,
         {.gate = halves.gate, .up = halves.up, .y = product, .activation = c.activation});
  linear(pass.stream,
         {.x = product, .weight = pass.weights.down, .bias = pass.weights.down_bias, .y = y});
  add_low_rank(pass, product, adapter.down_a, {{adapter.down_b, y}});
}

// The choices of a batch, sorted by expert.
struct Groups {
  std::span<int32_t> offsets, tokens, rows;

  Groups(Workspace& workspace, const ModelConfig& c, int64_t max_tokens)
      : offsets(workspace.take<int32_t>(c.num_experts + 1)),
        tokens(workspace.take<int32_t>(max_tokens * c.experts_per_token)),
        rows(workspace.take<int32_t>(max_tokens * c.experts_per_token)) {}
};
void group(const LayerPass& pass, const Groups& groups) {
  group_by_expert(pass.stream, {.chosen = pass.kept.chosen,
                                .experts_per_token = pass.config.experts_per_token,
                                .offsets = groups.offsets,
                                .tokens = groups.tokens,
                                .rows = groups.rows});
}

// What the batch says of a layer's choices.
MatrixView<const int32_t> given_choices(const LayerPass& pass) {
  if (pass.batch.choices.rows == 0) return {};
  const int64_t k = pass.config.experts_per_token, index = pass.config.sparse_index(pass.layer);
  return pass.batch.choices.slice_cols(index * k, (index + 1) * k);
}

// A row for each choice. What goes into the experts is an operand, what comes out float32.
struct ForwardExperts {
  Tensor in, product, out;
  Groups groups;

  ForwardExperts(Workspace& workspace, const Placement& placement, const ModelConfig& c,
                 int64_t tokens)
      : in(take_tensor(workspace, placement, tokens * c.experts_per_token, c.hidden_size,
                       placement.operands)),
        product(take_tensor(workspace, placement, tokens * c.experts_per_token, c.expert_size,
                            placement.operands)),
        // Where nobody reads what went in any more, if it fits there.
        out(placement.operands == Dtype::kF32
                ? in
                : take_floats(workspace, placement, tokens * c.experts_per_token, c.hidden_size)),
        groups(workspace, c, tokens) {}
};
void forward_experts(const LayerPass& pass, ConstTensor normed, Tensor y) {
  const ModelConfig& c = pass.config;
  Workspace::Scope scope(pass.workspace);
  const auto [in, product, out, groups] =
      ForwardExperts(pass.workspace, pass.placement, c, normed.rows);
  linear(pass.stream, {.x = normed, .weight = pass.weights.router, .y = pass.kept.router});
  route(pass.stream, {.logits = pass.kept.router,
                      .choice_bias = pass.weights.choice_bias,
                      .given = given_choices(pass),
                      .normalised = c.normalised_experts,
                      .probabilities = pass.kept.router,
                      .chosen = pass.kept.chosen,
                      .weights = pass.kept.expert_weights});
  group(pass, groups);
  gather_rows(pass.stream, {.x = normed, .rows = groups.tokens, .y = in});
  grouped_linear(pass.stream, {.x = in,
                               .weights = pass.weights.expert_gate_up,
                               .offsets = groups.offsets,
                               .y = pass.kept.gate_up});
  const GateUp halves(pass.kept.gate_up);
  swiglu(pass.stream,
         {.gate = halves.gate, .up = halves.up, .y = product, .activation = c.activation});
  grouped_linear(
      pass.stream,
      {.x = product, .weights = pass.weights.expert_down, .offsets = groups.offsets, .y = out});
  weighted_sum(pass.stream,
               {.x = out, .rows = groups.rows, .weights = pass.kept.expert_weights, .y = y});
}

// Gradient of a product: dweight += dy^T x, dbias += sum of dy (where there is one; frozen weights
// have neither), dx = dy W.
void backward_linear(const LayerPass& pass, ConstTensor dy, ConstTensor x, const Weight& weight,
                     Matrix dweight, std::span<float> dbias, Tensor dx) {
  if (dweight.rows > 0)
    linear_grad_weight(pass.stream, pass.workspace,
                       {.dy = dy, .x = x, .dweight = on_device(pass, dweight)});
  if (!dbias.empty()) linear_grad_bias(pass.stream, {.dy = dy, .dbias = dbias});
  linear_grad_input(pass.stream, pass.workspace,
                    {.dy = dy, .weight = weight, .dx = dx, .accumulate = false});
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
                       {.dy = product.dy, .x = low.slice_cols(first, end), .dweight = product.db});
    linear_grad_input(pass.stream, pass.workspace,
                      {.dy = product.dy,
                       .weight = product.b,
                       .dx = dlow.slice_cols(first, end),
                       .accumulate = false});
    first = end;
  }
  scale(pass.stream, {.x = dlow, .factor = lora.scale()});
  linear_grad_weight(pass.stream, pass.workspace, {.dy = dlow, .x = x, .dweight = da});
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
  // op.
  const auto [product, dgate_up] = BackwardDense(pass.workspace, pass.placement, c, dy.rows);
  const GateUp halves(pass.kept.gate_up), dhalves(dgate_up);
  swiglu(pass.stream,
         {.gate = halves.gate, .up = halves.up, .y = product, .activation = c.activation});
  // The gradient to the product lies where the gradient to the gate will be.
  backward_linear(pass, dy, product, pass.weights.down, gradients.down, gradients.down_bias,
                  dhalves.gate);
  const AdapterOf<Weight>& adapter = pass.weights.adapter;
  backward_low_rank(pass, product, adapter.down_a, gradients.adapter.down_a,
                    {{adapter.down_b, dy, gradients.adapter.down_b}}, dhalves.gate);
  swiglu_backward(pass.stream, {.gate = halves.gate,
                                .up = halves.up,
                                .dy = dhalves.gate,
                                .dgate = dhalves.gate,
                                .dup = dhalves.up,
                                .activation = c.activation});
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
  grouped_grad_weight(
      pass.stream, pass.workspace,
      {.dy = wide, .x = product, .offsets = groups.offsets, .dweights = gradients.expert_down});
  swiglu_backward(pass.stream, {.gate = halves.gate,
                                .up = halves.up,
                                .dy = dhalves.gate,
                                .dgate = dhalves.gate,
                                .dup = dhalves.up,
                                .activation = c.activation});

  gather_rows(pass.stream, {.x = normed, .rows = groups.tokens, .y = in});
  grouped_grad_weight(
      pass.stream, pass.workspace,
      {.dy = dgate_up, .x = in, .offsets = groups.offsets, .dweights = gradients.expert_gate_up});
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
                     {.dy = dlogits, .x = normed, .dweight = on_device(pass, gradients.router)});
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

size_t attention_bytes(const ModelConfig& c, const PassRoom& room) {
  return attention_workspace_bytes(room.num_threads, static_cast<int>(c.num_heads),
                                   static_cast<int>(c.num_kv_heads), static_cast<int>(c.head_dim),
                                   room.context, room.tokens, room.placement.device);
}

// The scratch that an op takes for itself.
void leave_room(Workspace& memory, size_t bytes) {
  Workspace::Scope scope(memory);
  memory.take<std::byte>(static_cast<int64_t>(bytes));
}

}  // namespace

void forward_layer(const LayerPass& pass, Tensor output) {
  const ModelConfig& c = pass.config;
  const Half attention = attention_half(pass), mlp = mlp_half(pass);
  const Tensor middle = pass.kept.middle;
  Workspace::Scope scope(pass.workspace);
  const Tensor normed = take_operand(pass, c.hidden_size);
  rms_norm(pass.stream, {.x = attention.input,
                         .weight = attention.norm,
                         .eps = norm_eps(c),
                         .y = normed,
                         .inv_rms = attention.inv_rms,
                         .residual = pass.residual,
                         .sum = pass.kept.input});
  forward_attention(pass, normed, product_of(attention, middle));
  finish_product(pass, attention, middle);
  // The residual stream is added to the finished product and is not where its sum starts: one
  // rounding, at the same place in every pass.
  rms_norm(pass.stream, {.x = middle,
                         .weight = mlp.norm,
                         .eps = norm_eps(c),
                         .y = normed,
                         .inv_rms = mlp.inv_rms,
                         .residual = attention.input,
                         .sum = middle});
  if (c.is_sparse(pass.layer)) {
    forward_experts(pass, normed, product_of(mlp, output));
  } else {
    forward_dense_mlp(pass, normed, product_of(mlp, output));
  }
  finish_product(pass, mlp, output);
}

void backward_layer(const LayerPass& pass, const LayerBalance& balance,
                    const LayerGradients& gradients, Tensor dx) {
  const ModelConfig& c = pass.config;
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

size_t forward_layer_workspace_bytes(const ModelConfig& config, const PassRoom& room) {
  Workspace memory = Workspace::measuring();
  const auto take = [&](int64_t cols) {
    take_tensor(memory, room.placement, room.tokens, cols, room.placement.operands);
  };
  take(config.hidden_size);  // the normalised input of a half
  {
    Workspace::Scope scope(memory);
    take_qk(memory, room.placement, config, room.tokens);
    leave_room(memory, attention_bytes(config, room));
  }
  {
    Workspace::Scope scope(memory);
    take(config.intermediate_size);
    take_matrix(memory, room.tokens, low_rank_cols(config));
  }
  if (config.num_experts > 0) {
    Workspace::Scope scope(memory);
    ForwardExperts(memory, room.placement, config, room.tokens);
  }
  return memory.peak();
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
