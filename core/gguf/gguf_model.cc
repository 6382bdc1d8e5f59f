#include "core/gguf/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>
#include <numbers>
#include <optional>
#include <set>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/model/rope_scaling.h"
#include "kernels/base/check.h"

namespace tailrace {

// A family as the converter of llama.cpp writes it, with what its loader takes for granted.
struct GgufArchitecture {
  std::string_view name;  // general.architecture
  const char* hf_name;
  bool pairs_rows = false;  // of queries and keys
  bool qkv_bias = false;
  bool bias_by_tensors = false;
  bool qk_norm = false;
  bool is_gemma = false;  // norms, activation, embeddings, windows
};

namespace {

using Architecture = GgufArchitecture;
constexpr Architecture kArchitectures[] = {
    {.name = "llama", .hf_name = "LlamaForCausalLM", .pairs_rows = true, .bias_by_tensors = true},
    {.name = "qwen2", .hf_name = "Qwen2ForCausalLM", .qkv_bias = true},
    {.name = "qwen3", .hf_name = "Qwen3ForCausalLM", .qk_norm = true},
    {.name = "gemma3", .hf_name = "Gemma3ForCausalLM", .qk_norm = true, .is_gemma = true},
};

// Names in a layer: behind "model.layers.N.", and behind "blk.N.".
constexpr std::pair<std::string_view, std::string_view> kLayerNames[] = {
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
};
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
};
constexpr const char* kHead = "output.weight";
// Factors of the frequencies of rotation, which a Hugging Face config says by its scaling.
constexpr const char* kFrequencyFactors = "rope_freqs.weight";

constexpr int64_t kGemmaPattern = 6, kGemma27bLayers = 62;
constexpr double kGemmaLocalTheta = 10000;

std::string gguf_name(std::string_view name, bool post_norms) {
  for (const auto& [ours, theirs] : kOtherNames)
    if (name == ours) return std::string(theirs);
  constexpr std::string_view kLayers = "model.layers.";
  TR_CHECK(name.starts_with(kLayers), "parameter {}", name);
  name.remove_prefix(kLayers.size());
  const size_t dot = name.find('.'), end = name.rfind('.');
  const std::string_view layer = name.substr(0, dot), kind = name.substr(end);
  const std::string_view what = name.substr(dot + 1, end - dot - 1);
  const auto named = [&](std::string_view theirs) {
    return fmt::format("blk.{}.{}{}", layer, theirs, kind);
  };
  // Stands before the MLP, or behind the attention where halves are normalised twice.
  if (what == "post_attention_layernorm")
    return named(post_norms ? "post_attention_norm" : "ffn_norm");
  for (const auto& [ours, theirs] : kLayerNames)
    if (what == ours) return named(theirs);
  TR_CHECK(false, "parameter {}", name);
  return "";
}

// Keys of an architecture that nobody reads and that change nothing of what a model computes.
constexpr std::string_view kWithoutEffect[] = {
    "vocab_size",              // the embeddings say it
    "tensor_data_layout",      // rows are in the order of the architecture
    "rope.scaling.finetuned",  // tells of the training
    // They mean something under yarn alone, where they are read.
    "rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "pooling_type",  // makes one vector of a text, behind what a decoder computes
};

// Numbers that are 0, false, empty texts, and arrays of these: such a key turns nothing on.
bool is_zero(const GgufValue& value) {
  if (const auto* text = std::get_if<std::string_view>(&value)) return text->empty();
  if (const auto* array = std::get_if<GgufArray>(&value))
    return std::visit(
        [](const auto& values) {
          using Values = std::decay_t<decltype(values)>;
          return std::ranges::all_of(
              values, [](const auto& one) { return one == typename Values::value_type{}; });
        },
        *array);
  if (const auto* whole = std::get_if<int64_t>(&value)) return *whole == 0;
  if (const auto* number = std::get_if<double>(&value)) return *number == 0;
  return !std::get<bool>(value);
}

// The keys of one architecture.
class MetadataReader {
 public:
  MetadataReader(const GgufFile& file, const Architecture& architecture)
      : file_(file), its_(architecture) {}

  ModelConfig read() {
    refuse_features();
    ModelConfig config;
    config.architecture = its_.hf_name;
    config.hidden_size = file_.integer(key("embedding_length"));
    config.intermediate_size = file_.integer(key("feed_forward_length"));
    config.num_layers = file_.integer(key("block_count"));
    config.num_heads = file_.integer(key("attention.head_count"));
    config.num_kv_heads = file_.integer(key("attention.head_count_kv"), config.num_heads);
    // Zeros are told by validate(), and are not divided by.
    const int64_t usual_head = config.num_heads > 0 ? config.hidden_size / config.num_heads : 0;
    config.head_dim = file_.integer(key("attention.key_length"), usual_head);
    refuse_unless(key("attention.value_length"), config.head_dim, "the length of keys");
    for (const char* name : {"rope.dimension_count", "attention.key_length_swa",
                             "attention.value_length_swa", "rope.dimension_count_swa"})
      refuse_unless(key(name), config.head_dim, "the length of keys");
    config.max_positions = file_.integer(key("context_length"));
    const auto embedding = file_.tensors().find("token_embd.weight");
    if (embedding == file_.tensors().end() || embedding->second.shape.size() != 2)
      throw UserError("{}: it has no matrix token_embd.weight", where());
    config.vocab_size = embedding->second.shape.front();
    config.rms_norm_eps = file_.number(key("attention.layer_norm_rms_epsilon"), 1e-5);
    config.rope_theta = file_.number(key("rope.freq_base"), 10000);
    config.tie_embeddings = !file_.tensors().contains(kHead);
    config.qk_norm = its_.qk_norm;
    read_biases(config);
    if (its_.is_gemma) read_gemma(config);
    read_scaling(config);
    config.bos_token = file_.integer("tokenizer.ggml.bos_token_id", -1);
    for (const char* end : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"})
      if (const int64_t id = file_.integer(end, -1);
          id >= 0 && std::ranges::find(config.eos_tokens, id) == config.eos_tokens.end())
        config.eos_tokens.push_back(id);
    validate(config, where());
    read_frequencies(config);
    refuse_unread();
    return config;
  }

 private:
  std::string where() const { return file_.path().string(); }
  // Every key of the architecture that is read has its name from here.
  std::string key(std::string_view name) {
    return *read_.insert(fmt::format("{}.{}", its_.name, name)).first;
  }

  void refuse_unless(const std::string& name, int64_t wanted, std::string_view what) const {
    if (const int64_t value = file_.integer(name, wanted); value != wanted)
      throw UserError("{}: {} is {}, which is not read; it must be {}, {}", where(), name, value,
                      wanted, what);
  }

  // The first value is that of a key that is not there.
  void refuse_unless_neutral(std::string_view name, std::initializer_list<double> neutral) {
    const double value = file_.number(key(name), *neutral.begin());
    if (std::ranges::find(neutral, value) == neutral.end())
      throw UserError("{}: {} is {}, which is not read", where(), key(name), value);
  }

  // A key that nobody has asked for may change what the model computes.
  void refuse_unread() const {
    const std::string prefix = fmt::format("{}.", its_.name);
    const auto& metadata = file_.metadata();
    for (auto at = metadata.lower_bound(prefix);
         at != metadata.end() && at->first.starts_with(prefix); ++at) {
      const std::string_view name = std::string_view(at->first).substr(prefix.size());
      if (read_.contains(at->first) || is_zero(at->second) ||
          std::ranges::find(kWithoutEffect, name) != std::end(kWithoutEffect))
        continue;
      throw UserError(
          "{}: {} is not understood; leaving it out could change what the model computes", where(),
          shown_name(at->first));
    }
  }

  // Refuses all that changes the numbers and is not read.
  void refuse_features() {
    for (const char* name : {"expert_count", "expert_shared_count", "nextn_predict_layers"})
      if (const int64_t value = file_.integer(key(name), 0); value != 0)
        throw UserError("{}: {} is {}; models of experts, or of more than one head, are not read",
                        where(), key(name), value);
    if (!file_.flag(key("attention.causal"), true))
      throw UserError("{}: {} is false; only decoders are read", where(), key("attention.causal"));
    for (const char* name : {"attention.scale", "logit_scale", "embedding_scale", "residual_scale",
                             "attention.clamp_kqv", "attn_logit_softcapping",
                             "final_logit_softcapping", "rope.scaling.yarn_log_multiplier"})
      refuse_unless_neutral(name, {0});
    for (const char* name : {"rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"})
      refuse_unless_neutral(name, {1});
    if (const int64_t window = file_.integer(key("attention.sliding_window"), 0);
        window != 0 && !its_.is_gemma)
      throw UserError("{}: {} is {}; windows are read of gemma3 alone", where(),
                      key("attention.sliding_window"), window);
  }

  void read_biases(ModelConfig& config) const {
    const auto has = [&](const char* name) { return file_.tensors().contains(name); };
    config.qkv_bias = its_.qkv_bias || (its_.bias_by_tensors && has("blk.0.attn_q.bias"));
    config.o_bias = its_.bias_by_tensors && has("blk.0.attn_output.bias");
    config.mlp_bias = its_.bias_by_tensors && has("blk.0.ffn_gate.bias");
    if (its_.bias_by_tensors && config.qkv_bias != config.o_bias)
      throw UserError(
          "{}: biases of queries and of the output of the attention belong together, "
          "and it has one of them",
          where());
  }

  void read_gemma(ModelConfig& config) {
    config.offset_norms = config.post_norms = config.scaled_embeddings = true;
    config.activation = GateActivation::kGeluTanh;
    // The files do not say query_pre_attn_scalar. It is head_dim but for the 27B model, as
    // llama.cpp has it.
    config.attention_scalar = config.num_layers == kGemma27bLayers && config.num_heads > 0
                                  ? config.hidden_size / config.num_heads
                                  : config.head_dim;
    config.local_rope_theta = file_.number(key("rope.freq_base_swa"), kGemmaLocalTheta);
    if (config.local_rope_theta < 1)
      throw UserError("{}: {} is {}; it must be at least 1", where(), key("rope.freq_base_swa"),
                      config.local_rope_theta);
    config.rope_theta = file_.number(key("rope.freq_base"), 1e6);
    const int64_t window = file_.integer(key("attention.sliding_window"));
    if (window < 1)
      throw UserError("{}: {} is {}; it must be at least 1", where(),
                      key("attention.sliding_window"), window);
    const std::string pattern_key = key("attention.sliding_window_pattern");
    if (const GgufValue* value = file_.find(pattern_key);
        value != nullptr && std::holds_alternative<GgufArray>(*value)) {
      const auto& is_local = *file_.array<bool>(pattern_key);
      if (std::ssize(is_local) != config.num_layers)
        throw UserError("{}: {} has {} entries for {} layers", where(), pattern_key,
                        is_local.size(), config.num_layers);
      for (const bool local : is_local) config.windows.push_back(local ? window : 0);
      return;
    }
    const int64_t pattern = file_.integer(pattern_key, kGemmaPattern);
    constexpr int64_t kMostLayers = 10000;  // validate() tells of the number
    if (pattern < 1)
      throw UserError("{}: {} is {}; it must be at least 1", where(), pattern_key, pattern);
    for (int64_t layer = 0; layer < std::clamp<int64_t>(config.num_layers, 0, kMostLayers); ++layer)
      config.windows.push_back((layer + 1) % pattern == 0 ? 0 : window);
    if (config.num_layers > kMostLayers) config.windows.clear();
  }

  void read_scaling(ModelConfig& config) {
    RopeScaling& scaling = config.rope_scaling;
    // Older files have another name for the factor. Both may stand alone: the scaling is linear.
    double factor =
        file_.number(key("rope.scaling.factor"), file_.number(key("rope.scale_linear"), 1));
    if (factor == 0) factor = 1;
    const GgufValue* type = file_.find(key("rope.scaling.type"));
    const std::string_view name = type != nullptr ? file_.text(key("rope.scaling.type"))
                                  : factor != 1   ? "linear"
                                                  : "none";
    if (name == "yarn")
      refuse_unless_neutral("rope.scaling.yarn_ext_factor", {-1, 1});
    else
      refuse_unless_neutral("rope.scaling.yarn_ext_factor", {-1, 0});
    if (name == "none") return;
    if (name != "linear" && name != "yarn")
      throw UserError("{}: {} is {}, which is not read; accepted: none, linear, yarn", where(),
                      key("rope.scaling.type"), shown_name(name));
    scaling.type = name == "linear" ? RopeScaling::Type::kLinear : RopeScaling::Type::kYarn;
    scaling.factor = factor;
    if (name == "linear") {
      if (scaling.factor == 1) scaling.type = RopeScaling::Type::kNone;
      return;
    }
    scaling.original_positions =
        file_.integer(key("rope.scaling.original_context_length"), config.max_positions);
    scaling.beta_fast = file_.number(key("rope.scaling.yarn_beta_fast"), scaling.beta_fast);
    scaling.beta_slow = file_.number(key("rope.scaling.yarn_beta_slow"), scaling.beta_slow);
    scaling.attention_factor = yarn_attention_factor(scaling.factor);
  }

  // Positions of pre-training by which the ramp of Llama 3's scaling goes through `factors`, and
  // the published ones, for where no pair is on the ramp.
  static std::vector<int64_t> likely_positions(std::span<const double> inv_freq,
                                               std::span<const float> factors) {
    std::vector<int64_t> likely;
    const RopeScaling usual;
    const double factor = std::ranges::max(factors);
    for (size_t i = 0; i < factors.size() && likely.empty(); ++i) {
      if (factors[i] == 1 || factors[i] == factor) continue;
      // The inverse of llama3_share(): a pair on the ramp tells how often it turns over the
      // original context, and with its frequency the length of that context.
      const double share = (1 / factors[i] - 1 / factor) / (1 - 1 / factor);
      const double turns =
          usual.low_freq_factor + share * (usual.high_freq_factor - usual.low_freq_factor);
      likely.push_back(std::llround(turns * 2 * std::numbers::pi / inv_freq[i]));
    }
    likely.insert(likely.end(), {8192, 4096, 2048});
    return likely;
  }

  // Llama 3's scaling is in a file as its result.
  void read_frequencies(ModelConfig& config) const {
    const auto found = file_.tensors().find(kFrequencyFactors);
    if (found == file_.tensors().end()) return;
    const GgufTensor& tensor = found->second;
    if (tensor.type != GgmlType::kF32 || tensor.num_elements() != config.head_dim / 2)
      throw UserError("{}: tensor '{}' must have {} values in F32", where(), kFrequencyFactors,
                      config.head_dim / 2);
    std::vector<float> factors(static_cast<size_t>(config.head_dim / 2));
    dequantize(tensor.type, tensor.data, factors);
    const std::vector<double> plain = rope_inv_freq(config.rope_theta, config.head_dim, {});
    const auto agrees = [&](const RopeScaling& scaling) {
      const auto scaled = rope_inv_freq(config.rope_theta, config.head_dim, scaling);
      for (size_t i = 0; i < factors.size(); ++i)
        if (!(std::abs(plain[i] / scaled[i] - factors[i]) <= 1e-5 * factors[i])) return false;
      return true;
    };
    if (std::ranges::all_of(factors, [](float factor) { return factor == 1; })) return;
    if (config.rope_scaling.type != RopeScaling::Type::kNone)
      throw UserError(
          "{}: positions are scaled twice, by '{}' and by the {} scaling of {}.rope.scaling; a "
          "config.json has one scaling, and this file cannot be imported",
          where(), kFrequencyFactors,
          config.rope_scaling.type == RopeScaling::Type::kYarn ? "yarn" : "linear", its_.name);
    for (const int64_t positions : likely_positions(plain, factors)) {
      const RopeScaling scaling{.type = RopeScaling::Type::kLlama3,
                                .factor = std::ranges::max(factors),
                                .original_positions = positions};
      if (positions < 1 || !agrees(scaling)) continue;
      config.rope_scaling = scaling;
      validate(config, where());
      return;
    }
    throw UserError("{}: the factors in '{}' are those of no scaling of Llama 3", where(),
                    kFrequencyFactors);
  }

  const GgufFile& file_;
  const Architecture& its_;
  std::set<std::string> read_;
};

void refuse_other_files(const GgufFile& file) {
  const std::string type =
      file.find("general.type") == nullptr ? "model" : shown_name(file.text("general.type"));
  if (type != "model")
    throw UserError("{}: general.type is {}; only a model is read", file.path().string(), type);
  if (const int64_t count = file.integer("split.count", 0); count > 1)
    throw UserError(
        "{}: the file is one of {} parts of a model (split.count); parts are not read. Merge them "
        "with llama-gguf-split --merge.",
        file.path().string(), count);
}

const Architecture& architecture_of(const GgufFile& file) {
  refuse_other_files(file);
  const std::string_view name = file.text("general.architecture");
  const auto* found = std::ranges::find(kArchitectures, name, &Architecture::name);
  if (found == std::end(kArchitectures))
    throw UserError("{}: the architecture {} is not read; accepted: {}.", file.path().string(),
                    shown_name(name), all_gguf_architectures());
  return *found;
}

}  // namespace

std::string all_gguf_architectures() {
  std::string names;
  for (const Architecture& one : kArchitectures)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", one.name);
  return names;
}

int64_t GgufSource::source_row(int64_t row) const {
  if (paired_heads == 0) return row;
  // llama.cpp rotates neighbouring rows, and Hugging Face rows half a head apart: its converter
  // permutes the rows of q and k for this architecture, and this is the way back.
  const int64_t head_dim = tensor->shape.front() / paired_heads, half = head_dim / 2;
  const int64_t head = row / head_dim, within = row % head_dim;
  return head * head_dim + 2 * (within % half) + within / half;
}

int64_t GgufSource::row_size() const {
  return paired_heads != 0 && tensor->shape.size() == 1 ? 1 : tensor->row_size();
}

GgufModel::GgufModel(const GgufFile& file)
    : file_(file),
      its_(architecture_of(file)),
      config_(MetadataReader(file, its_).read()),
      layout_(config_) {
  check_tensors();
}

GgufSource GgufModel::source(const ParameterInfo& parameter) const {
  const auto found = file_.tensors().find(gguf_name(parameter.name, config_.post_norms));
  TR_CHECK(found != file_.tensors().end(), "{} was checked", parameter.name);
  GgufSource source{.tensor = &found->second};
  if (its_.pairs_rows && parameter.name.find(".self_attn.q_proj.") != std::string::npos)
    source.paired_heads = config_.num_heads;
  if (its_.pairs_rows && parameter.name.find(".self_attn.k_proj.") != std::string::npos)
    source.paired_heads = config_.num_kv_heads;
  // The converter adds the 1 of Gemma's norms, (1 + w) x, to the weights.
  if (its_.is_gemma && parameter.kind == ParameterKind::kNorm) source.offset = 1;
  return source;
}

void GgufModel::check_tensors() const {
  std::map<std::string, const ParameterInfo*, std::less<>> known;
  for (const ParameterInfo& info : layout_.entries())
    known.emplace(gguf_name(info.name, config_.post_norms), &info);
  for (const auto& [name, tensor] : file_.tensors()) {
    const auto found = known.find(name);
    if (name == kFrequencyFactors) continue;
    if (found == known.end())
      throw UserError(
          "{}: tensor '{}' is unknown to a {} of this metadata ({} layers); leaving it out would "
          "change the numbers",
          file_.path().string(), shown_name(name), config_.architecture, config_.num_layers);
    if (tensor.shape != found->second->shape)
      throw UserError("{}: tensor '{}' has the shape [{}]; the metadata asks for [{}]",
                      file_.path().string(), name, fmt::join(tensor.shape, ", "),
                      fmt::join(found->second->shape, ", "));
    // Biases of queries and keys are put in order value by value.
    if (tensor.shape.size() == 1 && block_shape(tensor.type).values > 1)
      throw UserError(
          "{}: tensor '{}' is a vector of the type {}; vectors are read as floats alone",
          file_.path().string(), name, name_of(tensor.type));
    known.erase(found);
  }
  if (!known.empty())
    throw UserError("{}: tensor '{}' is missing{}", file_.path().string(), known.begin()->first,
                    known.size() > 1 ? fmt::format(", and {} more", known.size() - 1) : "");
}

void GgufModel::read_rows(const GgufSource& source, int64_t first, std::span<float> values) {
  const GgufTensor& tensor = *source.tensor;
  const auto row_size = static_cast<size_t>(source.row_size());
  const auto [block_values, block_bytes] = block_shape(tensor.type);
  const auto row_bytes = static_cast<size_t>(source.row_size() / block_values * block_bytes);
  const size_t num_rows = values.size() / row_size;
  for (size_t i = 0; i < num_rows; ++i) {
    const auto row = static_cast<size_t>(source.source_row(first + static_cast<int64_t>(i)));
    dequantize(tensor.type, tensor.data.subspan(row * row_bytes, row_bytes),
               values.subspan(i * row_size, row_size));
  }
  if (source.offset != 0)
    for (float& value : values) value -= source.offset;
}

}  // namespace tailrace
