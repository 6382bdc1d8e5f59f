#include "core/model/model.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "core/model/decoder_layer.h"
#include "kernels/base/check.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope.h"

namespace tailrace {
namespace {

// Rows of the residual stream.
Tensor take_stream(Workspace& workspace, const Placement& placement, const ModelConfig& c,
                   int64_t rows) {
  return take_tensor(workspace, placement, rows, c.hidden_size, Dtype::kF32);
}

// Scratch for a pass that keeps nothing: all layers use the same memory, and the residual stream
// goes back and forth between two pieces of it.
struct ScratchLayer {
  LayerActivations kept;
  MlpMemory mlp;

  ScratchLayer(Workspace& workspace, const Placement& placement, const ModelConfig& c,
               int64_t tokens)
      : kept{.input = take_stream(workspace, placement, c, tokens),
             .input_inv_rms = {},
             .qkv = take_tensor(workspace, placement, tokens, c.qkv_size(), placement.operands),
             .attended = take_tensor(workspace, placement, tokens, c.q_size(), placement.operands),
             .lse = {},
             .middle = take_stream(workspace, placement, c, tokens),
             .mlp_inv_rms = {}},
        mlp(MlpMemory::of_all(workspace, c, tokens, placement)) {}
};

// To the beginning of `to`.
template <class T>
void copy_on_device(const Stream& stream, std::span<const T> from, std::span<T> to) {
  ConstDeviceBytes source = bytes_of(from);
  DeviceBytes place = bytes_of(to.first(from.size()));
  source.device = place.device = stream.device;
  copy(stream, place, source);
}

// A copy of memory of the device. Waits for the stream.
template <class T>
std::vector<T> fetched(const Stream& stream, std::span<const T> values) {
  std::vector<T> host(values.size());
  ConstDeviceBytes from = bytes_of(values);
  from.device = stream.device;
  copy(stream, bytes_of(std::span(host)), from);
  wait(stream);
  return host;
}

// The counters of a backward pass for balance, where it runs: in `loads` on the CPU, else where the
// caller wants it, or in scratch memory until the pass has ended.
class PassLoads {
 public:
  PassLoads(Workspace& workspace, const ModelConfig& c)
      : choices_(workspace.take<int64_t>(c.num_sparse_layers() * c.num_experts)),
        losses_(workspace.take<double>(c.num_sparse_layers() * c.num_experts)) {}
  PassLoads(const Stream& stream, Workspace& workspace, const ModelConfig& c,
            const BalancePass& balance)
      : num_experts_(static_cast<size_t>(c.num_experts)) {
    ExpertLoads& loads = *balance.loads;
    if (loads.choices.empty()) return;  // a dense model
    if (!balance.device_choices.empty()) {
      choices_ = balance.device_choices;
      losses_ = balance.device_losses;
      return;
    }
    if (stream.device.kind == DeviceKind::kCpu) {
      choices_ = loads.choices;
      losses_ = loads.losses;
      return;
    }
    *this = PassLoads(workspace, c);
    num_experts_ = static_cast<size_t>(c.num_experts);
    is_scratch_ = true;
    const ExpertLoads zeros(c);
    send(stream, std::span(zeros.choices), choices_);
    send(stream, std::span(zeros.losses), losses_);
    wait(stream);
  }
  void finish(const Stream& stream, ExpertLoads& loads) const {
    if (!is_scratch_ || choices_.empty()) return;
    const auto choices = fetched(stream, std::span<const int64_t>(choices_));
    const auto losses = fetched(stream, std::span<const double>(losses_));
    for (size_t i = 0; i < choices.size(); ++i) {
      loads.choices[i] += choices[i];
      loads.losses[i] += losses[i];
    }
  }
  std::span<int64_t> choices_of(int64_t sparse_layer) const { return part(choices_, sparse_layer); }
  std::span<double> losses_of(int64_t sparse_layer) const { return part(losses_, sparse_layer); }

 private:
  template <class T>
  std::span<T> part(std::span<T> all, int64_t sparse_layer) const {
    return all.subspan(static_cast<size_t>(sparse_layer) * num_experts_, num_experts_);
  }
  template <class T>
  static void send(const Stream& stream, std::span<const T> from, std::span<T> to) {
    DeviceBytes bytes = bytes_of(to);
    bytes.device = stream.device;
    copy(stream, bytes, bytes_of(from));
  }

  std::span<int64_t> choices_;
  std::span<double> losses_;
  size_t num_experts_ = 0;
  bool is_scratch_ = false;
};

// How many choices that were given to a pass its router would not have made.
void compare_choices(const Stream& stream, ConstTensor router, std::span<const float> bias,
                     MatrixView<const int32_t> chosen, ExpertLoads& loads) {
  if (stream.device.kind == DeviceKind::kCpu) return loads.compare(router.host(), bias, chosen);
  const auto floats = [&](const std::byte* data, int64_t count) {
    return fetched(stream,
                   std::span(reinterpret_cast<const float*>(data), static_cast<size_t>(count)));
  };
  const auto own_router = floats(router.data, router.rows * router.stride);
  const auto own_bias = fetched(stream, bias);
  const auto own_chosen = fetched(
      stream,
      std::span(chosen.data, static_cast<size_t>((chosen.rows - 1) * chosen.stride + chosen.cols)));
  loads.compare({own_router.data(), router.rows, router.cols, router.stride}, own_bias,
                {own_chosen.data(), chosen.rows, chosen.cols, chosen.stride});
}

LayerGradients layer_gradients(const ModelConfig& config, Parameters& gradients, int64_t layer) {
  if (config.lora) return {{}, adapter_tensors(config, gradients, layer)};
  return {layer_tensors(config, gradients, layer), {}};
}

ModelConfig validated(ModelConfig config) {
  validate(config, "model config");
  return config;
}

// Far fewer than a model's positions, as a rule: a million of them are half a gigabyte of table.
int64_t context_of(const ModelConfig& config, int64_t max_context) {
  return max_context > 0 ? std::min(max_context, config.max_positions) : config.max_positions;
}

}  // namespace

Model::Model(ModelConfig config, int64_t max_context, const Placement& placement)
    : config_(validated(std::move(config))),
      layout_(config_),
      trained_(ParameterLayout::trained(config_)),
      max_context_(context_of(config_, max_context)),
      placement_(placement),
      rope_table_(static_cast<size_t>(bytes(config_, max_context))) {
  // For all positions at once, so that a token's angle is a table row whatever batch it comes in.
  const std::span<float> tables = rope_table_.as<float>();
  rope_table(Stream{}, {.inv_freq = config_.inv_freq(),
                        .scale = config_.rope_scaling.attention_factor,
                        .table = {tables.data(), max_context_, config_.head_dim}});
  if (config_.local_rope_theta != 0) {
    float* local = tables.data() + max_context_ * config_.head_dim;
    // Layers with a local base (Gemma 3) have the second table, without the scaling of the first.
    rope_table(Stream{}, {.inv_freq = config_.local_inv_freq(),
                          .table = {local, max_context_, config_.head_dim}});
  }
  if (placement_.device == Device{}) return;
  // Angles are computed on the CPU, in double.
  const Stream stream{.device = placement_.device};
  Buffer on_device(rope_table_.size(), placement_.device);
  copy(stream, on_device.bytes(), rope_table_.bytes());
  wait(stream);
  rope_table_ = std::move(on_device);
}

int64_t Model::bytes(const ModelConfig& config, int64_t max_context) {
  const int64_t tables = config.local_rope_theta > 0 ? 2 : 1;
  const int64_t floats = tables * context_of(config, max_context) * config.head_dim;
  return static_cast<int64_t>(Workspace::aligned(static_cast<size_t>(floats) * sizeof(float)));
}

ConstTensor Model::rope(int64_t layer) const {
  const ConstTensor tables(rope_table_.bytes().data, 2 * max_context_, config_.head_dim,
                           Dtype::kF32, placement_.device);
  const int64_t begin = config_.has_local_rope(layer) ? max_context_ : 0;
  return tables.slice_rows(begin, begin + max_context_);
}

size_t Model::workspace_bytes(const ModelConfig& c, int64_t max_tokens, int max_context,
                              int num_threads, const Placement& placement) {
  const PassRoom room{max_tokens, max_context, num_threads, placement};
  Workspace forward = Workspace::measuring(), backward = Workspace::measuring();
  ScratchLayer(forward, placement, c, max_tokens);
  forward.take<std::byte>(static_cast<int64_t>(forward_layer_workspace_bytes(c, room)));
  // The gradient to the residual stream; that to the final rows lies where the layers' scratch is.
  take_stream(backward, placement, c, max_tokens);
  PassLoads(backward, c);
  {
    Workspace::Scope again(backward);  // a layer that is computed again
    take_stream(backward, placement, c, max_tokens);
    backward.take<std::byte>(static_cast<int64_t>(forward_layer_workspace_bytes(c, room)));
  }
  backward.take<std::byte>(static_cast<int64_t>(backward_layer_workspace_bytes(c, room)));
  return std::max(forward.peak(), backward.peak());
}

void Model::check_batch(const ForwardBatch& batch, const KvCache& kv) const {
  const AttentionBatch& sequences = batch.sequences;
  TR_CHECK(sequences.num_tokens() == batch.num_tokens(), "{} positions for {} tokens",
           sequences.num_tokens(), batch.num_tokens());
  // A longer context would read behind the rotary table.
  TR_CHECK(batch.max_context <= max_context_, "context {} of a model for {}", batch.max_context,
           max_context_);
  // Its builder has looked at each id; a larger one would be read behind a table.
  TR_CHECK(batch.vocab <= config_.vocab_size && batch.blocks <= kv.num_blocks(),
           "a batch for {} tokens and {} blocks, a model of {}, a cache of {}", batch.vocab,
           batch.blocks, config_.vocab_size, kv.num_blocks());
  TR_CHECK(batch.choices.rows == 0 ||
               (batch.choices.rows == batch.num_tokens() &&
                batch.choices.cols == config_.num_sparse_layers() * config_.experts_per_token),
           "choices [{}, {}] for {} tokens, {} sparse layers", batch.choices.rows,
           batch.choices.cols, batch.num_tokens(), config_.num_sparse_layers());
}

LayerPass Model::pass_of(const Stream& stream, Workspace& workspace, const PackedWeights& weights,
                         const ForwardBatch& batch, const KvCache& kv, int64_t layer,
                         const LayerActivations& kept) const {
  return {.stream = stream,
          .workspace = workspace,
          .config = config_,
          .placement = placement_,
          .batch = batch,
          .rope_table = rope(layer),
          .layer = layer,
          .weights = weights.layers()[static_cast<size_t>(layer)],
          .kv = kv.layer(layer),
          .kept = kept};
}

void Model::forward(const Stream& stream, Workspace& workspace, const PackedWeights& weights,
                    const ForwardBatch& batch, KvCache& kv, Tensor hidden, Activations* sink,
                    std::span<int32_t> chosen) const {
  check_batch(batch, kv);
  const int64_t choices = batch.num_tokens() * config_.experts_per_token;  // of a layer
  TR_CHECK(chosen.empty() || std::ssize(chosen) == config_.num_sparse_layers() * choices,
           "{} choices of {} sparse layers with {} each", chosen.size(),
           config_.num_sparse_layers(), choices);
  TR_CHECK(hidden.rows == batch.num_logit_rows() && hidden.cols == config_.hidden_size,
           "hidden [{}, {}] for {} logit rows", hidden.rows, hidden.cols, batch.num_logit_rows());
  const int64_t tokens = batch.num_tokens();
  if (tokens == 0) return;
  Workspace::Scope scope(workspace);
  LayerActivations kept;
  MlpMemory mlp;
  if (sink == nullptr) {
    const ScratchLayer scratch(workspace, placement_, config_, tokens);
    kept = scratch.kept;
    mlp = scratch.mlp;
  } else {
    sink->begin(tokens, batch.num_logit_rows());
    kept = sink->layer(0);
  }

  embedding(stream, {.table = weights.embeddings(),
                     .ids = batch.token_ids,
                     .y = kept.input,
                     .scale = weights.embedding_scale()});
  // Without a sink a layer writes over its own input, which forward_layer() has read by then.
  Tensor output = kept.input;
  ConstTensor residual;
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    if (sink != nullptr) {
      kept = sink->layer(i);
      // The last layer has no successor to write into; only its wanted rows are kept, below.
      output = i + 1 < config_.num_layers ? sink->layer(i + 1).input
                                          : take_stream(workspace, placement_, config_, tokens);
    } else {
      mlp.view(config_, i, tokens, placement_, kept);
    }
    LayerPass pass = pass_of(stream, workspace, weights, batch, kv, i, kept);
    pass.residual = residual;
    forward_layer(pass, output);
    // The next layer's first norm adds the two: the sum of the stream is a part of that kernel,
    // which saves one pass over the rows.
    residual = kept.middle;
    if (config_.is_sparse(i) && !chosen.empty())
      copy_on_device(stream,
                     std::span<const int32_t>(kept.chosen).first(static_cast<size_t>(choices)),
                     chosen.subspan(static_cast<size_t>(config_.sparse_index(i) * choices)));
  }

  // The last layer has no next norm over all rows, so its sum is made here.
  add(stream, {.x = residual, .y = output});
  // Before the final norm: a piece of a long prompt wants no row at all, a decode step one a
  // sequence.
  const int64_t num_rows = batch.num_logit_rows();
  const Tensor rows =
      sink != nullptr ? sink->final_rows() : take_stream(workspace, placement_, config_, num_rows);
  gather_rows(stream, {.x = output, .rows = batch.logit_rows, .y = rows});
  rms_norm(stream, {.x = rows,
                    .weight = weights.final_norm(),
                    .eps = static_cast<float>(config_.rms_norm_eps),
                    .y = hidden,
                    .inv_rms = sink != nullptr ? sink->final_inv_rms() : std::span<float>()});
}

void Model::backward(const Stream& stream, Workspace& workspace, const PackedWeights& weights,
                     const ForwardBatch& batch, const KvCache& kv, const Activations& activations,
                     ConstTensor dhidden, Parameters& gradients, const BalancePass& balance) const {
  const int64_t tokens = batch.num_tokens(), rows = batch.num_logit_rows();
  TR_CHECK(activations.num_tokens() == tokens && activations.num_logit_rows() == rows,
           "activations of {} tokens and {} rows, batch of {} and {}", activations.num_tokens(),
           activations.num_logit_rows(), tokens, rows);
  TR_CHECK(dhidden.rows == rows && dhidden.cols == config_.hidden_size,
           "dhidden [{}, {}] for {} rows", dhidden.rows, dhidden.cols, rows);
  if (tokens == 0) return;
  Workspace::Scope scope(workspace);
  const Tensor dx = take_stream(workspace, placement_, config_, tokens);
  {
    Workspace::Scope rows_scope(workspace);
    const Tensor dfinal = take_stream(workspace, placement_, config_, rows);
    rms_norm_backward(
        stream, {.x = activations.final_rows(),
                 .weight = weights.final_norm(),
                 .inv_rms = activations.final_inv_rms(),
                 .dy = dhidden,
                 .dx = dfinal,
                 .accumulate = false,
                 .dweight = config_.lora ? std::span<float>() : gradients.values(kFinalNormName)});
    // Rows whose logits nobody wanted get gradients through attention only.
    scatter_rows(stream, {.x = dfinal, .rows = batch.logit_rows, .y = dx});
  }
  int64_t sparse_layer = config_.num_sparse_layers();
  std::optional<PassLoads> loads;
  if (balance.loads != nullptr) {
    balance.loads->tokens += tokens;
    loads.emplace(stream, workspace, config_, balance);
  }
  for (int64_t i = config_.num_layers - 1; i >= 0; --i) {
    const LayerPass pass = pass_of(stream, workspace, weights, batch, kv, i, activations.layer(i));
    // The bits of the forward pass, by rule 3, and those of keys and values once more.
    if (activations.recomputes() && i + 1 < config_.num_layers) {
      Workspace::Scope again(workspace);
      forward_layer(pass, take_stream(workspace, placement_, config_, tokens));
    }
    LayerBalance layer_balance;
    if (config_.is_sparse(i) && loads) {
      --sparse_layer;
      layer_balance = {.scale = static_cast<float>(
                           balance.weight / static_cast<double>(balance.loads->num_layers())),
                       .choices = loads->choices_of(sparse_layer),
                       .losses = loads->losses_of(sparse_layer)};
      if (batch.choices.rows > 0) {
        const int64_t k = config_.experts_per_token;
        compare_choices(stream, activations.layer(i).router,
                        weights.layers()[static_cast<size_t>(i)].choice_bias,
                        batch.choices.slice_cols(sparse_layer * k, (sparse_layer + 1) * k),
                        *balance.loads);
      }
    }
    backward_layer(pass, layer_balance, layer_gradients(config_, gradients, i), dx);
  }
  if (loads) loads->finish(stream, *balance.loads);
  if (config_.lora) return;
  // Added: with tied embeddings the head's gradient is in the same matrix already.
  embedding_backward(stream, {.ids = batch.token_ids,
                              .dy = dx,
                              .dtable = gradients.tensor(kEmbeddingName),
                              .scale = weights.embedding_scale()});
}

std::unique_ptr<Activations> Model::make_activations(int64_t max_tokens, bool recomputes) const {
  return std::make_unique<Activations>(config_, max_tokens, placement_, recomputes);
}

int64_t Model::activation_bytes(int64_t max_tokens) const {
  return Activations::bytes(config_, max_tokens, placement_);
}

}  // namespace tailrace
