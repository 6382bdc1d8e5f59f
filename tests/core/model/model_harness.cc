#include "tests/core/model/model_harness.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>

#include "core/base/random.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/log_softmax.h"

namespace tailrace {

std::filesystem::path test_data(const std::string& path) {
  // Tests that run on another machine than that of their build (bench/gpu.sh) bring it along.
  if (const char* folder = std::getenv("TAILRACE_TEST_DATA"))
    return std::filesystem::path(folder) / path;
  return std::filesystem::path(TAILRACE_SOURCE_DIR) / "tests/data" / path;
}

ScratchFolder::ScratchFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "tailrace_test_XXXXXX").string();
  TR_CHECK(::mkdtemp(pattern.data()) != nullptr, "{}", pattern);
  path_ = pattern;
}

ScratchFolder::~ScratchFolder() { std::filesystem::remove_all(path_); }

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

ModelConfig awkward_config(bool tie_embeddings) {
  ModelConfig config;
  config.hidden_size = 40;
  config.intermediate_size = 52;
  config.num_layers = 3;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 10;
  config.vocab_size = 67;
  config.max_positions = 256;
  config.tie_embeddings = tie_embeddings;
  return config;
}

ModelConfig rich_config() {
  ModelConfig config = awkward_config(/*tie_embeddings=*/false);
  config.qkv_bias = config.o_bias = config.mlp_bias = config.qk_norm = true;
  config.windows = {0, 5, 19};
  config.rope_scaling = {.type = RopeScaling::Type::kYarn,
                         .factor = 4,
                         .original_positions = 64,
                         .attention_factor = yarn_attention_factor(4)};
  config.local_rope_theta = 300;
  config.attention_scalar = 7;
  config.offset_norms = config.post_norms = config.scaled_embeddings = true;
  config.activation = GateActivation::kGeluTanh;
  return config;
}

ModelConfig sparse_config() {
  ModelConfig config = awkward_config(/*tie_embeddings=*/false);
  config.architecture = "Qwen3MoeForCausalLM";
  config.qk_norm = true;
  config.sparse = {true, false, true};
  config.num_experts = 7;
  config.experts_per_token = 3;
  config.expert_size = 21;
  config.normalised_experts = true;
  config.choice_bias = true;
  return config;
}

std::vector<Tokens> random_sequences(int count, int longest, int64_t vocab_size, uint64_t seed) {
  Rng rng(seed);
  std::vector<Tokens> sequences(static_cast<size_t>(count));
  for (Tokens& tokens : sequences) {
    tokens.resize(static_cast<size_t>(1 + rng.below(longest)));
    for (int32_t& id : tokens) id = static_cast<int32_t>(rng.below(vocab_size));
  }
  return sequences;
}

namespace {
Device g_rig_device;
}  // namespace

Device rig_device() { return g_rig_device; }
void set_rig_device(Device device) { g_rig_device = device; }

Rig::Rig(const ModelConfig& config, int num_threads, int block_tokens, int max_tokens,
         const Elements& elements)
    : model(config, /*max_context=*/0, Placement::on(rig_device(), elements)),
      parameters(model.layout()),
      kv(config, 2 * max_tokens / block_tokens + 32, block_tokens, /*keeps_choices=*/false,
         model.placement()),
      builder({.tokens = max_tokens,
               .sequences = max_tokens,
               .blocks_per_sequence =
                   static_cast<int>(config.max_positions + block_tokens - 1) / block_tokens,
               .choices_per_token = config.expert_shape().per_token(),
               .vocab = config.vocab_size,
               .blocks = kv.num_blocks()},
              rig_device()),
      pool_(num_threads),
      owned_stream_(rig_device(), &pool_),
      stream_(owned_stream_.get()),
      dtype_(elements.weights),
      activations_(model.make_activations(max_tokens)),
      scratch_(
          model.workspace_bytes(max_tokens, static_cast<int>(config.max_positions), num_threads) +
              linear_logprob_workspace_bytes(max_tokens, config.vocab_size, config.hidden_size,
                                             rig_device()),
          rig_device()),
      operand_memory_(static_cast<size_t>(max_tokens *
                                          row_stride(model.placement(), config.hidden_size,
                                                     model.placement().operands) *
                                          size_of(model.placement().operands)),
                      rig_device()),
      operand_(tensor_at(model.placement(), operand_memory_.bytes().data, max_tokens,
                         config.hidden_size, model.placement().operands)),
      hidden_(static_cast<size_t>(max_tokens * config.hidden_size)) {
  init(/*seed=*/1);
}

void Rig::init(uint64_t seed) {
  init_parameters(model.config(), seed, parameters);
  if (!weights_) {
    weights_ = std::make_shared<PackedWeights>(stream_, model.config(), parameters, dtype_);
  } else {
    repack();
  }
}

void Rig::adapt(const Parameters& adapter) {
  if (!base_) base_ = weights_;
  weights_ = std::make_shared<PackedWeights>(stream_, base_, model.config(), adapter);
}

void Rig::forward_whole(const std::vector<Tokens>& sequences, Rows rows, bool keep) {
  builder.clear();
  int32_t next_block = 0;
  const int64_t per_token = model.config().num_sparse_layers() * model.config().experts_per_token;
  for (const Tokens& tokens : sequences) {
    std::vector<int32_t> blocks((tokens.size() + static_cast<size_t>(kv.block_tokens()) - 1) /
                                static_cast<size_t>(kv.block_tokens()));
    std::iota(blocks.begin(), blocks.end(), next_block);
    // Sequences share no block, as without a prefix cache.
    next_block += static_cast<int32_t>(blocks.size());
    std::vector<int32_t> wanted(tokens.size() - (rows == Rows::kAll ? 0 : 1));
    std::iota(wanted.begin(), wanted.end(), 0);
    MatrixView<const int32_t> choices;
    if (!given.empty())
      choices = {given.data() + builder.num_tokens() * per_token, std::ssize(tokens), per_token};
    builder.add(tokens, 0, blocks, wanted, choices);
  }
  forward(builder, keep);
}

namespace {

// Rows of the device, as floats of the host.
std::vector<float> fetch_rows(const Stream& stream, const Tensor& rows) {
  const auto bytes = static_cast<size_t>(rows.rows * rows.stride * size_of(rows.dtype));
  std::vector<std::byte> all(bytes);
  copy(stream, bytes_of(std::span(all)), {rows.device, rows.data, bytes});
  wait(stream);
  std::vector<float> out;
  for (int64_t r = 0; r < rows.rows; ++r)
    for (int64_t c = 0; c < rows.cols; ++c) {
      const auto at = static_cast<size_t>(r * rows.stride + c);
      out.push_back(rows.dtype == Dtype::kF32
                        ? reinterpret_cast<const float*>(all.data())[at]
                        : to_float(reinterpret_cast<const Bf16*>(all.data())[at]));
    }
  return out;
}

// A copy of memory of the device.
template <class T>
std::vector<T> fetched(const Stream& stream, std::span<T> values) {
  std::vector<T> out(values.size());
  DeviceBytes from = bytes_of(values);
  from.device = rig_device();
  copy(stream, bytes_of(std::span(out)), from);
  wait(stream);
  return out;
}

// An array of the device.
template <class T>
struct OnDevice {
  Buffer memory;
  size_t size;

  explicit OnDevice(size_t count) : memory(count * sizeof(T), rig_device()), size(count) {}
  OnDevice(const Stream& stream, std::span<const T> from) : OnDevice(from.size()) {
    copy(stream, memory.bytes(), bytes_of(from));
    wait(stream);
  }
  std::span<T> span() { return {reinterpret_cast<T*>(memory.bytes().data), size}; }
  std::vector<T> fetch(const Stream& stream) const {
    std::vector<T> out(size);
    copy(stream, bytes_of(std::span(out)), memory.bytes());
    wait(stream);
    return out;
  }
};

}  // namespace

std::vector<int32_t> Rig::choices() const {
  const ModelConfig& config = model.config();
  std::vector<int32_t> out;
  const auto k = static_cast<size_t>(config.experts_per_token);
  std::vector<std::vector<int32_t>> chosen;
  for (int64_t i = 0; i < config.num_layers; ++i)
    if (config.is_sparse(i)) chosen.push_back(fetched(stream_, activations_->layer(i).chosen));
  for (size_t t = 0; t < static_cast<size_t>(activations_->num_tokens()); ++t) {
    for (const std::vector<int32_t>& ids : chosen)
      out.insert(out.end(), ids.begin() + static_cast<int64_t>(t * k),
                 ids.begin() + static_cast<int64_t>((t + 1) * k));
  }
  return out;
}

void Rig::forward(const BatchBuilder& from, bool keep) {
  const ForwardBatch batch = from.batch(stream_);
  num_rows_ = batch.num_logit_rows();
  Workspace memory = workspace();
  const Tensor rows = operand_.slice_rows(0, num_rows_);
  model.forward(stream_, memory, *weights_, batch, kv, rows, keep ? activations_.get() : nullptr);
  std::ranges::copy(fetch_rows(stream_, rows), hidden_.begin());
}

std::vector<float> Rig::logits() {
  const int64_t vocab = model.config().num_ids();
  const int64_t stride = row_stride(model.placement(), vocab, Dtype::kF32);
  Buffer memory(static_cast<size_t>(num_rows_ * stride) * sizeof(float), rig_device());
  const Tensor logits =
      tensor_at(model.placement(), memory.bytes().data, num_rows_, vocab, Dtype::kF32);
  linear(stream_,
         {.x = operand_.slice_rows(0, num_rows_), .weight = weights_->head(), .y = logits});
  return fetch_rows(stream_, logits);
}

HeadRows Rig::head_rows(std::span<const int32_t> targets, float inv_temperature, bool keep) {
  OnDevice<int32_t> wanted(stream_, targets);
  OnDevice<float> logprobs(targets.size()), lse(targets.size()), entropies(targets.size());
  Workspace memory = workspace();
  linear_logprob(stream_, memory,
                 {.head = {.hidden = operand_.slice_rows(0, num_rows_),
                           .weight = weights_->head(),
                           .targets = wanted.span(),
                           .inv_temperature = inv_temperature},
                  .out = {.logprob = logprobs.span(),
                          .lse = lse.span(),
                          .entropy = entropies.span(),
                          .logits = keep ? activations_->logits() : Tensor()}});
  return {logprobs.fetch(stream_), lse.fetch(stream_), entropies.fetch(stream_)};
}

CrossEntropy cross_entropy(Rig& rig, const std::vector<Tokens>& sequences,
                           const std::vector<std::vector<int>>& masks, Parameters* gradients,
                           const BalancePass& balance) {
  rig.forward_whole(sequences, Rig::Rows::kPredicting, /*keep=*/gradients != nullptr);
  std::vector<int32_t> targets;
  std::vector<float> counted;
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (size_t j = 0; j + 1 < sequences[i].size(); ++j) {
      targets.push_back(sequences[i][j + 1]);
      counted.push_back(masks.empty() || masks[i][j] != 0 ? 1.0f : 0.0f);
    }
  }
  const size_t rows = targets.size();
  const HeadRows said =
      rig.head_rows(targets, /*inv_temperature=*/1, /*keep=*/gradients != nullptr);
  CrossEntropy result{.logprobs = said.logprobs, .entropies = said.entropies};
  const double count = std::accumulate(counted.begin(), counted.end(), 0.0);
  // In double and in order of rows: the loss is compared to 1e-5.
  for (size_t i = 0; i < rows; ++i)
    result.loss -= counted[i] * static_cast<double>(result.logprobs[i]) / count;
  if (gradients == nullptr) return result;

  std::vector<float> dlogprob(rows);
  for (size_t i = 0; i < rows; ++i) dlogprob[i] = static_cast<float>(-counted[i] / count);
  const Stream& stream = rig.stream();
  const Placement& placement = rig.model.placement();
  const int64_t hidden = rig.model.config().hidden_size;
  OnDevice<int32_t> wanted(stream, targets);
  OnDevice<float> lse(stream, said.lse), dl(stream, dlogprob);
  OnDevice<float> dhidden_memory(rows *
                                 static_cast<size_t>(row_stride(placement, hidden, Dtype::kF32)));
  const Tensor dhidden =
      tensor_at(placement, reinterpret_cast<std::byte*>(dhidden_memory.span().data()),
                static_cast<int64_t>(rows), hidden, Dtype::kF32);
  // On another device they begin at 0, and are added to what is there.
  std::optional<Parameters> on_device;
  if (stream.device.kind != DeviceKind::kCpu) on_device.emplace(gradients->layout(), stream.device);
  Parameters& to = on_device ? *on_device : *gradients;
  Workspace workspace = rig.workspace();
  linear_logprob_backward(
      stream, workspace,
      {.head = {.hidden = rig.operand(), .weight = rig.weights().head(), .targets = wanted.span()},
       .gradient = {
           .lse = lse.span(),
           .entropy = {},
           .dlogprob = dl.span(),
           .dentropy = {},
           .dhidden = dhidden,
           .dweight =
               rig.model.config().lora
                   ? Tensor()
                   : to.tensor(rig.model.head_name()).slice_rows(0, rig.model.config().num_ids()),
           .logits = rig.activations().logits()}});
  rig.model.backward(stream, workspace, rig.weights(), rig.builder.batch(stream), rig.kv,
                     rig.activations(), dhidden, to, balance);
  if (!on_device) return result;
  const std::vector<float> added = fetched(stream, to.values());
  for (size_t i = 0; i < added.size(); ++i) gradients->flat()[i] += added[i];
  return result;
}

}  // namespace tailrace
