#include "tests/rollout/engine/engine_harness.h"

#include <filesystem>

#include "core/base/random.h"
#include "core/model/parameter_files.h"

namespace tailrace {
namespace {

std::filesystem::path data_folder(const std::string& name) {
  return std::filesystem::path(TAILRACE_SOURCE_DIR) / "tests/data" / name;
}

}  // namespace

ModelConfig tiny_config() {
  ModelConfig config;
  // Small enough to run thousands of passes, with grouped heads and a vocabulary that is not a
  // multiple of 16 lanes.
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  config.vocab_size = 61;
  config.max_positions = 128;
  return config;
}

ModelConfig sparse_config() {
  ModelConfig config = tiny_config();
  config.sparse = {true, true};
  config.num_experts = 6;
  config.experts_per_token = 2;
  config.expert_size = 20;
  config.normalised_experts = true;
  return config;
}

ModelConfig gemma_config() {
  ModelConfig config = tiny_config();
  config.qk_norm = config.offset_norms = config.post_norms = config.scaled_embeddings = true;
  config.activation = GateActivation::kGeluTanh;
  config.attention_scalar = 5;
  config.windows = {7, 0};
  config.local_rope_theta = 100;
  config.tie_embeddings = true;
  return config;
}

ModelConfig wide_config() {
  ModelConfig config = tiny_config();
  config.hidden_size = 256;
  config.intermediate_size = 520;
  config.num_heads = 14;
  config.num_kv_heads = 2;
  config.head_dim = 128;
  config.vocab_size = 4099;
  config.max_positions = 1024;
  return config;
}

ModelConfig smol_config() {
  ModelConfig config;
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.num_layers = 2;
  config.num_heads = 9;
  config.num_kv_heads = 3;
  config.head_dim = 64;
  config.vocab_size = 700;
  config.max_positions = 1024;
  return config;
}

TestModel::TestModel(const ModelConfig& config, uint64_t seed, const Elements& of)
    : elements(of),
      model(config, /*max_context=*/0, Placement::on(Device{}, of)),
      parameters(model.layout()) {
  init_parameters(config, seed, parameters);
}

TestModel::TestModel(const std::string& directory)
    : model(read_model_config(data_folder(directory))), parameters(model.layout()) {
  load_parameters(data_folder(directory), model.config(), parameters);
}

std::shared_ptr<const PackedWeights> TestModel::pack() const {
  return std::make_shared<PackedWeights>(Stream{}, model.config(), parameters, elements.weights);
}

namespace {

struct TeacherForced {
  std::vector<float> logprobs;
  std::unique_ptr<Activations> activations;
};

TeacherForced training_pass(const TestModel& model, const std::vector<TokenId>& tokens,
                            float inv_temperature, KeptSets kept) {
  constexpr int kBlockTokens = 64;  // not the engine's
  const ModelConfig& config = model.model.config();
  auto length = static_cast<int64_t>(tokens.size());
  auto num_blocks = static_cast<int>((length + kBlockTokens - 1) / kBlockTokens);
  KvCache kv(config, num_blocks, kBlockTokens, /*keeps_choices=*/false, model.model.placement());
  std::vector<int32_t> blocks, rows;
  // Backwards, so that a place in memory is not a position.
  for (int i = num_blocks - 1; i >= 0; --i) blocks.push_back(i);
  for (int32_t row = 0; row + 1 < length; ++row) rows.push_back(row);
  BatchBuilder builder({.tokens = length,
                        .sequences = 1,
                        .blocks_per_sequence = num_blocks,
                        .vocab = config.vocab_size,
                        .blocks = num_blocks});
  builder.add(tokens, /*first_position=*/0, blocks, rows);
  Buffer memory(model.model.workspace_bytes(length, static_cast<int>(length), /*num_threads=*/1) +
                linear_logprob_workspace_bytes(length, config.vocab_size, config.hidden_size));
  Workspace workspace(memory);
  std::vector<float> hidden(static_cast<size_t>(length * config.hidden_size));
  Matrix view(hidden.data(), length - 1, config.hidden_size);
  auto weights = model.pack();
  // As the trainer's forward does, which keeps them.
  auto sink = model.model.make_activations(length);
  model.model.forward({}, workspace, *weights, builder.batch(), kv, view, sink.get());
  std::vector<float> logprobs(static_cast<size_t>(length - 1)), lse(logprobs.size());
  linear_logprob({}, workspace,
                 {.head = {.hidden = view,
                           .weight = weights->head(),
                           .targets = std::span(tokens).subspan(1),
                           .inv_temperature = inv_temperature,
                           .kept = kept},
                  .out = {.logprob = logprobs, .lse = lse, .entropy = {}}});
  return {std::move(logprobs), std::move(sink)};
}

}  // namespace

std::vector<float> teacher_forced(const TestModel& model, const std::vector<TokenId>& tokens,
                                  float inv_temperature, KeptSets kept) {
  return training_pass(model, tokens, inv_temperature, kept).logprobs;
}

std::vector<uint16_t> teacher_choices(const TestModel& model, const std::vector<TokenId>& tokens) {
  const ModelConfig& config = model.model.config();
  const TeacherForced pass = training_pass(model, tokens, /*inv_temperature=*/1, {});
  const auto k = static_cast<size_t>(config.experts_per_token);
  std::vector<uint16_t> choices;
  for (size_t t = 0; t < tokens.size(); ++t) {
    for (int64_t i = 0; i < config.num_layers; ++i) {
      if (!config.is_sparse(i)) continue;
      const auto chosen = pass.activations->layer(i).chosen.subspan(t * k, k);
      for (const int32_t id : chosen) choices.push_back(static_cast<uint16_t>(id));
    }
  }
  return choices;
}

EngineOptions engine_options(const EngineSetup& setup) {
  EngineOptions options;
  options.max_context_tokens = setup.max_context_tokens;
  options.block_tokens = setup.block_tokens;
  options.max_batch_tokens = setup.max_batch_tokens;
  options.max_sequences = setup.max_sequences;
  options.kv_cache_blocks = setup.kv_blocks;
  options.keep_choices = setup.keep_choices;
  options.overlaps = setup.overlaps;
  return options;
}

TestEngine::TestEngine(const TestModel& model, const EngineSetup& setup,
                       const text::Tokenizer* tokenizer)
    : pool_(setup.num_threads) {
  Stream stream{.device = {}, .pool = &pool_, .native = nullptr};
  engine_ = std::make_unique<Engine>(model.model, tokenizer, engine_options(setup), stream, clock_);
  engine_->install(model.pack(), /*version=*/0);
}

std::map<SessionId, Generation> TestEngine::finish() {
  std::map<SessionId, Generation> answers;
  for (int step = 0; !engine_->idle(); ++step) {
    TR_CHECK(step < 100000, "the engine stands still");
    for (Generation& answer : engine_->step()) answers[answer.session] = std::move(answer);
  }
  return answers;
}

std::vector<TokenId> random_tokens(int64_t count, int64_t vocab, uint64_t seed) {
  Rng rng(seed);
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  for (TokenId& token : tokens) token = static_cast<TokenId>(rng.below(vocab));
  return tokens;
}

GenerateRequest request_of(SessionId session, std::vector<TokenId> tokens, int64_t max_new_tokens,
                           double temperature) {
  GenerateRequest request;
  request.session = session;
  request.new_tokens = std::move(tokens);
  request.sampling.max_new_tokens = max_new_tokens;
  request.sampling.temperature = temperature;
  // By session, so that a test may submit in any order.
  request.key = {mix({static_cast<uint64_t>(session), 77})};
  return request;
}

}  // namespace tailrace
