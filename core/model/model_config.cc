#include "core/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <span>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/join_texts.h"
#include "core/base/json_file.h"
#include "core/base/json_text.h"
#include "core/base/nearest.h"
#include "core/model/config_reader.h"
#include "core/model/model_folder.h"
#include "core/model/reward_names.h"
#include "core/model/tensor_files.h"
#include "kernels/base/check.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/router.h"

namespace tailrace {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;  // keys stay as written

constexpr int64_t kMaxConfigBytes = 1 << 24;
// Far above any model.
constexpr int64_t kMaxLayers = 10000;
// The same, and every product of two sizes is within int64_t.
constexpr int64_t kMaxSize = int64_t{1} << 24;

// Where a family says that layers see a window only.
enum class Windows : uint8_t {
  kNone,    // sliding_window is refused
  kAll,     // sliding_window is that of all layers
  kUpper,   // with use_sliding_window, of layers from max_window_layers on
  kIfUsed,  // with use_sliding_window, of all layers
  kLocal,   // sliding_window is that of layer_types or, without them, of all but each sixth layer
};

// A model family: what it adds to the decoder that all share, by which keys its files say so, and
// transformers' defaults, which a file that leaves a key out means. 0: as all.
struct Family {
  const char* architecture;
  const char* model_type;
  bool qkv_bias = false;            // always
  bool attention_bias_key = false;  // of q, k, v and o
  bool mlp_bias_key = false;
  bool qk_norm = false;
  Windows windows = Windows::kNone;
  int64_t max_positions = 2048;
  int64_t num_kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;      // 0: hidden_size / heads
  bool experts = false;      // layers may be sparse
  bool tied = false;
  bool offset_norms = false, post_norms = false, scaled_embeddings = false;
  GateActivation activation = GateActivation::kSilu;
  int64_t attention_scalar = 0;                     // of query_pre_attn_scalar; 0: no key
  double rope_theta = 10000, local_rope_theta = 0;  // of rope_local_base_freq; 0: no key
};
constexpr Family kFamilies[] = {
    {.architecture = "LlamaForCausalLM",
     .model_type = "llama",
     .attention_bias_key = true,
     .mlp_bias_key = true},
    {.architecture = "MistralForCausalLM",
     .model_type = "mistral",
     .windows = Windows::kAll,
     .max_positions = 131072,
     .num_kv_heads = 8},
    {.architecture = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .qkv_bias = true,
     .windows = Windows::kUpper,
     .max_positions = 32768,
     .num_kv_heads = 32},
    {.architecture = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .attention_bias_key = true,
     .qk_norm = true,
     .windows = Windows::kUpper,
     .max_positions = 32768,
     .num_kv_heads = 32,
     .head_dim = 128},
    {.architecture = "Qwen3MoeForCausalLM",
     .model_type = "qwen3_moe",
     .attention_bias_key = true,
     .qk_norm = true,
     .windows = Windows::kIfUsed,
     .max_positions = 32768,
     .num_kv_heads = 4,
     .experts = true},
    {.architecture = "Gemma3ForCausalLM",
     .model_type = "gemma3_text",
     .attention_bias_key = true,
     .qk_norm = true,
     .windows = Windows::kLocal,
     .max_positions = 131072,
     .num_kv_heads = 4,
     .head_dim = 256,
     .tied = true,
     .offset_norms = true,
     .post_norms = true,
     .scaled_embeddings = true,
     .activation = GateActivation::kGeluTanh,
     .attention_scalar = 256,
     .rope_theta = 1e6,
     .local_rope_theta = 10000},
};

constexpr int64_t kDefaultWindow = 4096, kDefaultFirstWindowLayer = 28, kDefaultPattern = 6;

// The features of all families. Keys that are not listed are passed over: most say how to train or
// to generate, and change no logits. Those of other families that change them are here, since such
// files come under the names of these families too.
constexpr ConfigFeature kFeatures[] = {
    // Which part of a head is rotated, and how.
    {"partial_rotary_factor", "[1]"},
    {"rotary_pct", "[1]"},
    {"rope_pct", "[1]"},
    {"rope_interleave", "[false]"},
    {"rope_interleaved", "[false]"},
    {"position_embedding_type", R"(["rope", "rotary"])"},
    {"alibi", "[false]"},
    {"no_rope_layers", "[[]]"},
    {"no_rope_layer_interval", "[0]"},
    // Factors. Where the field's own 1 is a change (Granite's attention_multiplier stands in the
    // place of 1 / sqrt(head_dim), MiniCPM divides scale_depth by the root of the layers), only
    // null is accepted.
    {"embedding_multiplier", "[1]"},
    {"attention_multiplier", "[]"},
    {"residual_multiplier", "[1]"},
    {"logits_scaling", "[1]"},
    {"logit_scale", "[1]"},
    {"scale_emb", "[1]"},
    {"scale_depth", "[]"},
    {"dim_model_base", "[]"},
    {"scale_embedding", "[false]"},
    {"lm_head_multiplier", "[1]"},
    {"mup_width_multiplier", "[1]"},
    {"mlp_multipliers", "[[1, 1]]"},
    {"lm_head_bias", "[false]"},
    {"use_bias", "[false]"},
    {"key_multiplier", "[1]"},
    {"attention_in_multiplier", "[1]"},
    {"attention_out_multiplier", "[1]"},
    {"embedding_multiplier_scale", "[1]"},
    {"output_multiplier_scale", "[1]"},
    {"attn_output_multiplier", "[]"},
    {"routed_scaling_factor", "[1]"},
    // Other operations on scores, queries, keys and logits.
    {"attn_logit_softcapping", "[]"},
    {"final_logit_softcapping", "[]"},
    {"logits_soft_cap", "[]"},
    {"router_logit_softcapping", "[]"},
    {"attention_sinks", "[false, 0]"},
    {"attn_temperature_tuning", "[false]"},
    {"attention_chunk_size", "[]"},
    {"clip_qkv", "[]"},
    {"swiglu_limit", "[]"},
    {"scoring_func", R"(["softmax"])"},
    {"use_bidirectional_attention", "[false]"},
    // How a layer is joined.
    {"use_parallel_residual", "[false]"},
    {"parallel_attn", "[false]"},
    // How it may be stored.
    {"quantization_config", "[]"},
    {"torch_dtype", R"(["float32", "bfloat16", "float16"])"},
    {"dtype", R"(["float32", "bfloat16", "float16"])"},  // its name since transformers 4.56
};

// For families that have no such norms of their own.
constexpr ConfigFeature kQkNorms[] = {
    {"use_qk_norm", "[false]"}, {"qk_layernorm", "[false]"}, {"qk_norm", "[false]"}};

// How a family's files say GateActivation.
constexpr ConfigFeature kActivations[] = {{"hidden_act", R"(["silu"])"},
                                          {"hidden_activation", R"(["gelu_pytorch_tanh"])"}};
const ConfigFeature& activation_of(const Family& family) {
  return kActivations[static_cast<size_t>(family.activation)];
}

constexpr std::pair<const char*, Dtype> kDtypes[] = {
    {"float32", Dtype::kF32}, {"bfloat16", Dtype::kBF16}, {"float16", Dtype::kF16}};

const char* dtype_name(Dtype dtype) {
  return std::ranges::find(kDtypes, dtype, [](const auto& row) { return row.second; })->first;
}

// Without a key the files are float32, as everywhere at first.
Dtype read_dtype(const ConfigReader& reader) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const nlohmann::json* name = reader.find(key);
    // kFeatures has refused other names.
    for (const auto& [known, dtype] : kDtypes)
      if (name != nullptr && *name == known) return dtype;
  }
  return Dtype::kF32;
}

std::string join_families(const char* Family::*name, std::string_view separator) {
  std::vector<std::string_view> names;
  for (const Family& family : kFamilies) names.emplace_back(family.*name);
  return join_texts(names, separator);
}

// The architecture with the same body that gives tokens: itself, or that of a reward model.
std::string_view policy_architecture(std::string_view name) {
  const RewardArchitecture* row = reward_architecture(name);
  return row == nullptr ? name : row->policy;
}

bool gives_score(const ModelConfig& config) {
  return policy_architecture(config.architecture) != config.architecture;
}

// Models of other kinds than a decoder of text, by what their configs have in common.
void refuse_other_kinds(const ConfigReader& reader, const std::string& name) {
  if (reader.boolean("is_encoder_decoder", false))
    throw UserError(
        "{}: {} is a model with an encoder, which is not supported; accepted are decoders of text: "
        "{}",
        reader.path(), name, join_families(&Family::architecture, ", "));
  const char* part = nullptr;
  for (const char* key : {"vision_config", "audio_config", "mm_vision_tower", "text_config"})
    if (part == nullptr && reader.find(key) != nullptr) part = key;
  if (part == nullptr && !name.ends_with("ForConditionalGeneration")) return;
  throw UserError(
      "{}: {} is a multimodal model{}, and only models of text are supported; accepted: {}.\n"
      "       Try a model of its family that is of text alone.",
      reader.path(), name, part == nullptr ? "" : fmt::format(" (it has a {})", part),
      join_families(&Family::architecture, ", "));
}

// By `architectures`, or by `model_type` where that is missing.
const Family& find_family(const ConfigReader& reader) {
  if (const Json* names = reader.find("architectures")) {
    if (!names->is_array() || names->size() != 1 || !names->front().is_string()) {
      throw UserError("{}: architectures is {}; it must list one name", reader.path(),
                      json_text(*names));
    }
    for (const Family& family : kFamilies) {
      if (policy_architecture(names->front().get_ref<const std::string&>()) == family.architecture)
        return family;
    }
    refuse_other_kinds(reader, names->front().get<std::string>());
    throw UserError("{}: the architecture {} is not supported; accepted: {}", reader.path(),
                    names->front().get_ref<const std::string&>(),
                    join_families(&Family::architecture, ", "));
  }
  const Json* type = reader.find("model_type");
  for (const Family& family : kFamilies) {
    if (type != nullptr && *type == family.model_type) return family;
  }
  if (type != nullptr && type->is_string()) refuse_other_kinds(reader, type->get<std::string>());
  throw UserError("{}: model_type is {} and architectures is missing; accepted: \"{}\"",
                  reader.path(), type == nullptr ? "missing" : json_text(*type),
                  join_families(&Family::model_type, "\", \""));
}

const Family& family_of(const ModelConfig& config) {
  const auto* found =
      std::ranges::find(kFamilies, policy_architecture(config.architecture), &Family::architecture);
  TR_CHECK(found != std::end(kFamilies), "architecture {}", config.architecture);
  return *found;
}

// transformers gives a model two labels where its config does not say how many.
void check_labels(const ConfigReader& reader) {
  constexpr const char* kAccepted =
      "a reward model has 1 output (num_labels 1), and classifiers are not supported";
  if (reader.find("num_labels") != nullptr) {
    if (const int64_t labels = reader.integer("num_labels"); labels != 1)
      throw UserError("{}: num_labels is {}; {}", reader.path(), labels, kAccepted);
    return;
  }
  const Json* names = reader.find("id2label");
  if (names == nullptr)
    throw UserError("{}: num_labels and id2label are missing, which means 2 labels; {}",
                    reader.path(), kAccepted);
  if (!names->is_object() || names->size() != 1)
    throw UserError("{}: id2label is {}; {}", reader.path(), json_text(*names), kAccepted);
}

void write_labels(const ModelConfig& config, Ordered& json) {
  json["id2label"] = {{"0", "LABEL_0"}};
  json["label2id"] = {{"LABEL_0", 0}};
  const int64_t pad = padding_of(config.bos_token, config.eos_tokens);
  json["pad_token_id"] = pad >= 0 ? Ordered(pad) : Ordered(nullptr);
}

void check_size(const std::string& where, const char* key, int64_t value, int64_t max) {
  if (value < 1 || value > max) {
    throw UserError("{}: {} is {}; it must be from 1 to {}", where, key, value, max);
  }
}

void check_theta(const std::string& where, const char* key, double value) {
  if (!(value >= 1 && std::isfinite(value)))
    throw UserError("{}: {} is {}; it must be a finite number of at least 1", where, key, value);
}

// The scaling that an object names, under either name of its type.
RopeScaling read_scaling(const ConfigReader& reader, int64_t max_positions) {
  using enum RopeScaling::Type;
  const char* key = reader.find("rope_type") != nullptr ? "rope_type" : "type";
  reader.check({key, R"(["default", "linear", "llama3", "yarn"])"});
  const Json* type = reader.find(key);
  RopeScaling scaling;
  if (type == nullptr && reader.find("factor") != nullptr)
    throw UserError(
        "{}: rope_type is missing; accepted: \"default\", \"linear\", \"llama3\", \"yarn\"",
        reader.path());
  // Beside the scaling since transformers 5.
  reader.check({"partial_rotary_factor", "[1]"});
  reader.check({"llama_4_scaling_beta", "[0]"});
  if (type == nullptr || *type == "default") return scaling;
  scaling.type = *type == "linear" ? kLinear : *type == "llama3" ? kLlama3 : kYarn;
  scaling.factor = reader.number("factor");
  if (scaling.type == kLlama3) {
    scaling.original_positions = reader.integer("original_max_position_embeddings");
    scaling.low_freq_factor = reader.number("low_freq_factor");
    scaling.high_freq_factor = reader.number("high_freq_factor");
  }
  if (scaling.type == kYarn) {
    scaling.original_positions = reader.integer("original_max_position_embeddings", max_positions);
    scaling.beta_fast = reader.number("beta_fast", scaling.beta_fast);
    scaling.beta_slow = reader.number("beta_slow", scaling.beta_slow);
    scaling.truncate = reader.boolean("truncate", true);
    // DeepSeek's files give two factors, of which one is applied elsewhere in their models.
    const double mscale = reader.number("mscale", 0), all = reader.number("mscale_all_dim", 0);
    const double derived = mscale != 0 && all != 0 ? yarn_attention_factor(scaling.factor, mscale) /
                                                         yarn_attention_factor(scaling.factor, all)
                                                   : yarn_attention_factor(scaling.factor);
    scaling.attention_factor = reader.number("attention_factor", derived);
  }
  return scaling;
}

// transformers 5 moved rope_theta into an object together with the scaling, or into one for each
// kind of layer.
void read_rope(const ConfigReader& reader, const Family& family, ModelConfig& config) {
  config.rope_theta = reader.number("rope_theta", family.rope_theta);
  // Families with a local base have two sets of angles: layers with a window take this one, without
  // any scaling.
  const bool local = family.local_rope_theta > 0;
  if (local)
    config.local_rope_theta = reader.number("rope_local_base_freq", family.local_rope_theta);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (reader.find(key) == nullptr) continue;
    const ConfigReader both = reader.inner(key);
    const bool apart = local && both.find("full_attention") != nullptr;
    const ConfigReader inner = apart ? both.inner("full_attention") : both;
    if (apart) {
      const ConfigReader sliding = both.inner("sliding_attention");
      sliding.check({"rope_type", R"(["default"])"});
      config.local_rope_theta = sliding.number("rope_theta", config.local_rope_theta);
    }
    config.rope_theta = inner.number("rope_theta", config.rope_theta);
    config.rope_scaling = read_scaling(inner, config.max_positions);
  }
  // 0 would mean the angles of the other layers.
  if (local) check_theta(reader.path(), "rope_local_base_freq", config.local_rope_theta);
}

Ordered scaling_json(const RopeScaling& scaling) {
  using enum RopeScaling::Type;
  switch (scaling.type) {
    case kNone:
      return nullptr;
    case kLinear:
      return {{"rope_type", "linear"}, {"factor", scaling.factor}};
    case kLlama3:
      return {{"rope_type", "llama3"},
              {"factor", scaling.factor},
              {"low_freq_factor", scaling.low_freq_factor},
              {"high_freq_factor", scaling.high_freq_factor},
              {"original_max_position_embeddings", scaling.original_positions}};
    case kYarn:
      break;
  }
  return {{"rope_type", "yarn"},
          {"factor", scaling.factor},
          {"original_max_position_embeddings", scaling.original_positions},
          {"beta_fast", scaling.beta_fast},
          {"beta_slow", scaling.beta_slow},
          {"truncate", scaling.truncate},
          {"attention_factor", scaling.attention_factor}};
}

std::vector<int64_t> read_windows(const ConfigReader& reader, const Family& family,
                                  int64_t num_layers) {
  if (family.windows == Windows::kNone) {
    reader.check({"sliding_window", "[]"});
    return {};
  }
  const bool upper = family.windows == Windows::kUpper;
  const bool may_be_off = upper || family.windows == Windows::kIfUsed;
  // null is none, and no key the default.
  const int64_t window = may_be_off && !reader.boolean("use_sliding_window", false) ? 0
                         : reader.is_null("sliding_window")
                             ? 0
                             : reader.integer("sliding_window", kDefaultWindow);
  const bool local = family.windows == Windows::kLocal;
  if (window == 0 && !local) return {};
  check_size(reader.path(), "num_hidden_layers", num_layers, kMaxLayers);  // which it lists
  int64_t first = upper ? reader.integer("max_window_layers", kDefaultFirstWindowLayer) : 0;
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < num_layers; ++i) windows.push_back(i >= first ? window : 0);
  if (local) {
    // A layer without a window would have the positions of the others.
    check_size(reader.path(), "sliding_window", window, kMaxSize);
    const char* key = reader.find("sliding_window_pattern") != nullptr ? "sliding_window_pattern"
                                                                       : "_sliding_window_pattern";
    const int64_t pattern = reader.integer(key, kDefaultPattern);
    check_size(reader.path(), key, pattern, kMaxSize);
    // Each pattern-th layer sees all tokens, counted from 1: layers 5, 11, ... with a pattern of 6.
    for (int64_t i = pattern - 1; i < num_layers; i += pattern) windows[static_cast<size_t>(i)] = 0;
  }
  // Newer files say it layer by layer.
  if (const Json* types = reader.find("layer_types")) {
    if (!types->is_array() || std::ssize(*types) != num_layers)
      throw UserError("{}: layer_types is {}; it must list the {} layers", reader.path(),
                      json_text(*types), num_layers);
    for (size_t i = 0; i < types->size(); ++i) {
      const Json& type = (*types)[i];
      if (type != "full_attention" && type != "sliding_attention")
        throw UserError(
            "{}: layer_types[{}] is {}, which is not supported; accepted: \"full_attention\", "
            "\"sliding_attention\"",
            reader.path(), i, json_text(type));
      windows[i] = type == "sliding_attention" ? window : 0;
    }
  }
  if (std::ranges::count(windows, 0) == num_layers) return {};
  return windows;
}

void write_windows(const ModelConfig& config, const Family& family, Ordered& json) {
  const auto first = std::ranges::find_if(config.windows, [](int64_t w) { return w > 0; });
  const bool any = first != config.windows.end();
  const bool local = family.windows == Windows::kLocal;
  json["sliding_window"] = any     ? Ordered(*first)
                           : local ? Ordered(kDefaultWindow)
                                   : Ordered(nullptr);
  if (family.windows == Windows::kUpper || family.windows == Windows::kIfUsed)
    json["use_sliding_window"] = any;
  if (family.windows == Windows::kUpper) {
    json["max_window_layers"] = any ? first - config.windows.begin() : config.num_layers;
  }
  if (!any && !local) return;
  // Layer by layer, which transformers takes before the older keys.
  for (int64_t i = 0; i < config.num_layers; ++i)
    json["layer_types"].push_back(config.window(i) > 0 ? "sliding_attention" : "full_attention");
}

// Layers of experts, and their sizes. Leaves `config` as it is where no layer is sparse.
void read_experts(const ConfigReader& reader, ModelConfig& config) {
  // transformers 5 also knows the first by its name in other families.
  const char* key =
      reader.find("num_local_experts") != nullptr ? "num_local_experts" : "num_experts";
  const int64_t experts = reader.integer(key, 128);
  if (experts == 0) return;
  check_size(reader.path(), key, experts, kMaxExperts);
  check_size(reader.path(), "num_hidden_layers", config.num_layers, kMaxLayers);
  const int64_t step = reader.integer("decoder_sparse_step", 1);
  check_size(reader.path(), "decoder_sparse_step", step, kMaxLayers);
  std::vector<bool> sparse;
  // As transformers counts: with a step of 2 the layers 1, 3, 5, ... are sparse.
  for (int64_t i = 0; i < config.num_layers; ++i) sparse.push_back((i + 1) % step == 0);
  if (const Json* dense = reader.find("mlp_only_layers")) {
    const bool is_list = dense->is_array() && std::ranges::all_of(*dense, [&](const Json& layer) {
                           return layer.is_number_integer();
                         });
    if (!is_list)
      throw UserError("{}: mlp_only_layers is {}; it must list layers by their numbers, from 0",
                      reader.path(), json_text(*dense));
    // One that is not there is passed over, as by transformers: configs of cut models name some.
    for (const Json& layer : *dense)
      if (layer >= 0 && layer < config.num_layers) sparse[layer.get<size_t>()] = false;
  }
  if (std::ranges::count(sparse, true) == 0) return;
  config.sparse = std::move(sparse);
  config.num_experts = experts;
  config.experts_per_token = reader.integer("num_experts_per_tok", 8);
  config.expert_size = reader.integer("moe_intermediate_size", 768);
  config.normalised_experts = reader.boolean("norm_topk_prob", false);
  config.balance_coef = reader.number("router_aux_loss_coef", 0.001);
}

void write_experts(const ModelConfig& config, Ordered& json) {
  json["num_experts"] = config.num_experts;
  if (config.num_experts == 0) return;
  json["num_experts_per_tok"] = config.experts_per_token;
  json["moe_intermediate_size"] = config.expert_size;
  json["norm_topk_prob"] = config.normalised_experts;
  json["router_aux_loss_coef"] = config.balance_coef;
  // The list below says all, so the step is 1.
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = Ordered::array();
  for (int64_t i = 0; i < config.num_layers; ++i)
    if (!config.is_sparse(i)) json["mlp_only_layers"].push_back(i);
}

// Reads facts that the config does not say, but the files of the weights do.
void read_weight_files(const std::filesystem::path& directory, ModelConfig& config) {
  if (!TensorFiles::exist(directory)) return;
  const TensorFiles files(directory);
  config.shard_bytes = files.shard_bytes();
  if (config.num_experts == 0) return;
  for (const auto& [name, file] : files.places()) {
    if (name.ends_with(kFusedExpertsName)) config.fused_experts = true;
    if (name.ends_with(kChoiceBiasName)) config.choice_bias = true;
  }
}

// Chat models end a turn by a token that their generation_config.json alone names.
void add_generation_ends(const std::filesystem::path& directory, ModelConfig& config) {
  const std::filesystem::path path = directory / "generation_config.json";
  if (!std::filesystem::exists(path)) return;
  const Json json = read_json_object(path, kMaxConfigBytes);
  for (const int64_t id : ConfigReader(path.string(), json).tokens("eos_token_id")) {
    if (id < 0 || id >= config.vocab_size)
      throw UserError("{}: eos_token_id is {}; the vocabulary has {} tokens", path.string(), id,
                      config.vocab_size);
    std::vector<int64_t>& ends = config.eos_tokens;
    if (std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
  }
}

}  // namespace

ModelConfig read_model_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  if (!std::filesystem::exists(path)) {
    throw UserError(
        "{}: not found{}. A model is a Hugging Face folder with config.json and "
        "model.safetensors.{}",
        path.string(), nearest_path_hint(directory), folder_hint(directory));
  }
  refuse_adapter(directory);
  const Json json = read_json_object(path, kMaxConfigBytes);
  const ConfigReader reader(path.string(), json);
  const Family& family = find_family(reader);
  for (const ConfigFeature& feature : kFeatures) reader.check(feature);
  if (!family.qk_norm)
    for (const ConfigFeature& feature : kQkNorms) reader.check(feature);
  if (family.attention_scalar == 0) reader.check({"query_pre_attn_scalar", "[]"});
  reader.check(activation_of(family));
  ModelConfig config;
  config.architecture = family.architecture;
  if (const Json* names = reader.find("architectures"))
    config.architecture = names->front().get<std::string>();
  if (gives_score(config)) check_labels(reader);
  config.hidden_size = reader.integer("hidden_size");
  config.intermediate_size = reader.integer("intermediate_size");
  config.num_layers = reader.integer("num_hidden_layers");
  config.num_heads = reader.integer("num_attention_heads");
  // Files from before grouped attention lack the key.
  config.num_kv_heads = reader.integer(
      "num_key_value_heads", family.num_kv_heads > 0 ? family.num_kv_heads : config.num_heads);
  // 0, which validate() refuses, where there is nothing to divide by.
  const int64_t divided = config.num_heads > 0 ? config.hidden_size / config.num_heads : 0;
  const int64_t head_dim = family.head_dim > 0 ? family.head_dim : divided;
  if (reader.find("head_dim") == nullptr && family.head_dim == 0 &&
      divided * config.num_heads != config.hidden_size) {
    throw UserError(
        "{}: head_dim is missing and hidden_size {} is no multiple of num_attention_heads {}",
        path.string(), config.hidden_size, config.num_heads);
  }
  config.head_dim = reader.integer("head_dim", head_dim);
  config.vocab_size = reader.integer("vocab_size");
  config.max_positions = reader.integer("max_position_embeddings", family.max_positions);
  // transformers' defaults, here and below: a file that leaves a key out means them.
  config.rms_norm_eps = reader.number("rms_norm_eps", 1e-6);
  read_rope(reader, family, config);
  config.o_bias = family.attention_bias_key && reader.boolean("attention_bias", false);
  config.qkv_bias = family.qkv_bias || config.o_bias;
  config.mlp_bias = family.mlp_bias_key && reader.boolean("mlp_bias", false);
  config.qk_norm = family.qk_norm;
  config.offset_norms = family.offset_norms;
  config.post_norms = family.post_norms;
  config.scaled_embeddings = family.scaled_embeddings;
  config.activation = family.activation;
  if (family.attention_scalar > 0) {
    config.attention_scalar = reader.integer("query_pre_attn_scalar", family.attention_scalar);
    check_size(path.string(), "query_pre_attn_scalar", config.attention_scalar, kMaxSize);
  }
  config.windows = read_windows(reader, family, config.num_layers);
  if (family.experts) read_experts(reader, config);
  config.tie_embeddings = reader.boolean("tie_word_embeddings", family.tied);
  const std::vector<int64_t> begins = reader.tokens("bos_token_id");
  if (!begins.empty()) config.bos_token = begins.front();
  config.eos_tokens = reader.tokens("eos_token_id");
  config.dtype = read_dtype(reader);
  add_generation_ends(directory, config);
  validate(config, path.string());
  read_weight_files(directory, config);
  config.padded_ids = num_padded_ids(directory, config);
  return config;
}

// Embeddings are often padded to a round number of rows. The ids past the tokenizer's own stand for
// no text, so they are never sampled.
int64_t num_padded_ids(const std::filesystem::path& tokenizer, const ModelConfig& config) {
  int64_t num_ids = num_tokenizer_ids(tokenizer);
  if (num_ids == 0) return 0;
  // An end token may lie behind the tokenizer's ids, and must stay possible to sample.
  for (const int64_t id : config.eos_tokens) num_ids = std::max(num_ids, id + 1);
  return std::max<int64_t>(config.vocab_size - num_ids, 0);
}

void write_model_config(const ModelConfig& config, const std::filesystem::path& directory) {
  const Family& family = family_of(config);
  TR_CHECK(config.qk_norm == family.qk_norm && config.offset_norms == family.offset_norms &&
               config.post_norms == family.post_norms &&
               config.scaled_embeddings == family.scaled_embeddings &&
               config.activation == family.activation &&
               (config.attention_scalar > 0) == (family.attention_scalar > 0) &&
               (config.local_rope_theta > 0) == (family.local_rope_theta > 0) &&
               config.qkv_bias == (family.qkv_bias || config.o_bias) &&
               (family.attention_bias_key || !config.o_bias) &&
               (family.mlp_bias_key || !config.mlp_bias) &&
               (family.windows != Windows::kNone || config.windows.empty()) &&
               (family.experts || config.num_experts == 0),
           "no {} is like that", config.architecture);
  Ordered json;
  json["architectures"] = Ordered::array({config.architecture});
  json["model_type"] = family.model_type;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_layers;
  json["num_attention_heads"] = config.num_heads;
  json["num_key_value_heads"] = config.num_kv_heads;
  json["head_dim"] = config.head_dim;
  json["vocab_size"] = config.vocab_size;
  json["max_position_embeddings"] = config.max_positions;
  json["rms_norm_eps"] = config.rms_norm_eps;
  json["rope_theta"] = config.rope_theta;
  // Said out loud, so that a reader with other defaults computes the same.
  json["rope_scaling"] = scaling_json(config.rope_scaling);
  if (family.local_rope_theta > 0) json["rope_local_base_freq"] = config.local_rope_theta;
  if (family.attention_scalar > 0) json["query_pre_attn_scalar"] = config.attention_scalar;
  json[activation_of(family).key] = Ordered::parse(activation_of(family).accepted).front();
  if (family.attention_bias_key) json["attention_bias"] = config.o_bias;
  if (family.mlp_bias_key) json["mlp_bias"] = config.mlp_bias;
  if (family.windows != Windows::kNone) write_windows(config, family, json);
  if (family.experts) write_experts(config, json);
  json["tie_word_embeddings"] = config.tie_embeddings;
  // null and not absent: transformers would fill in the ids of the first Llama.
  json["bos_token_id"] = config.bos_token >= 0 ? Ordered(config.bos_token) : Ordered(nullptr);
  const std::vector<int64_t>& ends = config.eos_tokens;
  json["eos_token_id"] = ends.empty()       ? Ordered(nullptr)
                         : ends.size() == 1 ? Ordered(ends.front())
                                            : Ordered(ends);
  if (gives_score(config)) write_labels(config, json);
  json["torch_dtype"] = dtype_name(config.dtype);

  const auto written = write_file_atomic(directory / "config.json", json_text(json, 2) + "\n");
  if (!written) throw UserError("{}", written.failure().message);
}

void validate(const ModelConfig& config, const std::string& where) {
  check_size(where, "hidden_size", config.hidden_size, kMaxSize);
  check_size(where, "intermediate_size", config.intermediate_size, kMaxSize);
  check_size(where, "num_hidden_layers", config.num_layers, kMaxLayers);
  check_size(where, "num_attention_heads", config.num_heads, 65536);
  check_size(where, "num_key_value_heads", config.num_kv_heads, 65536);
  check_size(where, "head_dim", config.head_dim, kMaxHeadDim);
  check_size(where, "vocab_size", config.vocab_size, kMaxSize);
  check_size(where, "max_position_embeddings", config.max_positions, kMaxSize);
  if (config.num_heads % config.num_kv_heads != 0) {
    throw UserError(
        "{}: num_attention_heads is {} and num_key_value_heads is {}; the first must be a "
        "multiple of the second",
        where, config.num_heads, config.num_kv_heads);
  }
  if (config.head_dim % 2 != 0) {
    throw UserError("{}: head_dim is {}; rotary positions need an even number", where,
                    config.head_dim);
  }
  if (!(config.rms_norm_eps > 0 && config.rms_norm_eps < 1)) {
    throw UserError("{}: rms_norm_eps is {}; it must be between 0 and 1", where,
                    config.rms_norm_eps);
  }
  if (config.lora && config.num_experts > 0)
    throw UserError(
        "{}: an adapter (LoRA) beside experts is not built; it goes beside dense models", where);
  check_theta(where, "rope_theta", config.rope_theta);
  const RopeScaling& scaling = config.rope_scaling;
  if (!(scaling.factor >= 1 && scaling.factor <= 1e6)) {
    throw UserError("{}: the factor of rope_scaling is {}; it must be from 1 to 1e6", where,
                    scaling.factor);
  }
  if (scaling.type == RopeScaling::Type::kLlama3 || scaling.type == RopeScaling::Type::kYarn)
    check_size(where, "original_max_position_embeddings", scaling.original_positions, kMaxSize);
  if (!(scaling.low_freq_factor > 0 && scaling.low_freq_factor < scaling.high_freq_factor &&
        std::isfinite(scaling.high_freq_factor))) {
    throw UserError(
        "{}: low_freq_factor is {} and high_freq_factor {}; the first must be above 0 and below "
        "the second",
        where, scaling.low_freq_factor, scaling.high_freq_factor);
  }
  if (!(scaling.beta_slow > 0 && scaling.beta_slow < scaling.beta_fast &&
        std::isfinite(scaling.beta_fast))) {
    throw UserError(
        "{}: beta_slow is {} and beta_fast {}; the first must be above 0 and below the "
        "second",
        where, scaling.beta_slow, scaling.beta_fast);
  }
  if (!(scaling.attention_factor > 0 && scaling.attention_factor <= 1e6)) {
    throw UserError("{}: attention_factor is {}; it must be above 0, at most 1e6", where,
                    scaling.attention_factor);
  }
  // YarnRamp divides by log(theta).
  if (scaling.type == RopeScaling::Type::kYarn && config.rope_theta == 1)
    throw UserError("{}: rope_theta is 1; yarn needs more", where);
  TR_CHECK(config.windows.empty() || std::ssize(config.windows) == config.num_layers,
           "{} windows of {} layers", config.windows.size(), config.num_layers);
  for (const int64_t window : config.windows) {
    if (window != 0) check_size(where, "sliding_window", window, kMaxSize);
  }
  TR_CHECK(config.sparse.empty() == (config.num_experts == 0) &&
               (config.sparse.empty() || std::ssize(config.sparse) == config.num_layers),
           "{} of {} layers, {} experts", config.sparse.size(), config.num_layers,
           config.num_experts);
  if (config.num_experts > 0) {
    check_size(where, "num_experts", config.num_experts, kMaxExperts);
    check_size(where, "num_experts_per_tok", config.experts_per_token, config.num_experts);
    check_size(where, "moe_intermediate_size", config.expert_size, kMaxSize);
    // Each has tensors by name: the largest models of today have 30,000, and more cost minutes.
    constexpr int64_t kMaxAllExperts = int64_t{1} << 17;
    if (config.num_layers * config.num_experts > kMaxAllExperts)
      throw UserError(
          "{}: num_hidden_layers is {} and num_experts {}; together they are {}, and at most {} "
          "are "
          "supported",
          where, config.num_layers, config.num_experts, config.num_layers * config.num_experts,
          kMaxAllExperts);
    // A layer's experts in float32 stay far from what an int64 holds.
    constexpr int64_t kMaxLayerSize = int64_t{1} << 42;
    if (config.num_experts * config.expert_size > kMaxLayerSize / config.hidden_size)
      throw UserError(
          "{}: num_experts is {}, moe_intermediate_size {} and hidden_size {}; a layer of experts "
          "that large is not supported",
          where, config.num_experts, config.expert_size, config.hidden_size);
    if (!(config.balance_coef >= 0 && config.balance_coef <= 1000))
      throw UserError("{}: router_aux_loss_coef is {}; it must be from 0 to 1000", where,
                      config.balance_coef);
  }
  auto check_token = [&](const char* key, int64_t id) {
    if (id >= 0 && id < config.vocab_size) return;
    throw UserError("{}: {} is {}; the vocabulary has {} tokens", where, key, id,
                    config.vocab_size);
  };
  // Ends need no such question: tokens() has left out every -1.
  if (config.bos_token != -1) check_token("bos_token_id", config.bos_token);
  for (const int64_t id : config.eos_tokens) check_token("eos_token_id", id);
}

}  // namespace tailrace
