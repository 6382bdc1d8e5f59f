#include "core/model/decoder_layer.h"

#include "core/model/layer_parts.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/experts.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/router.h"
#include "kernels/ops/swiglu.h"

namespace tailrace {
namespace {

// Where f leaves what it gives: in the output's place where nobody keeps it.
Tensor product_of(const Half& half, Tensor output) {
  return half.product.cols > 0 ? half.product : output;
}

// Leaves in `output` the tensor that is added to the half's input.
void finish_product(const LayerPass& pass, const Half& half, Tensor output) {
  if (half.post_norm.empty()) return;
  rms_norm(pass.stream, {.x = product_of(half, output),
                         .weight = half.post_norm,
                         .eps = norm_eps(pass.config),
                         .y = output,
                         .inv_rms = half.product_inv_rms});
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
    // The A matrices of modules that share an input are one product above; each B reads its own
    // `rank` columns of it.
    linear(pass.stream, {.x = low.slice_cols(first, first + lora.rank),
                         .weight = product.b,
                         .y = product.y,
                         .accumulate = true});
    first += lora.rank;
  }
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
  for (const BlockCopy& copy : pass.batch.copies)
    kv_copy(pass.stream, {.kv = pass.kv, .from = copy.from, .to = copy.to, .tokens = copy.tokens});
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

// The choices that the batch gives for a layer.
MatrixView<const int32_t> given_choices(const LayerPass& pass) {
  if (pass.batch.choices.rows == 0) return {};
  const int64_t k = pass.config.experts_per_token, index = pass.config.sparse_index(pass.layer);
  // A row of the batch's choices has k columns for each sparse layer, one layer behind the other.
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
  // The logits lie where the probabilities will be: route() overwrites them, and backward needs
  // only the latter.
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

}  // namespace tailrace
