#include "core/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_file.h"
#include "core/base/nearest.h"
#include "kernels/base/check.h"
#include "kernels/ops/attention.h"

namespace tailrace {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxConfigBytes = 1 << 24;

// A key of config.json that changes the numbers, and its values that are built.
struct Feature {
  const char* key;
  const char* accepted;  // JSON list; empty: only null or no key at all
  bool saved = false;    // write_model_config() gives it, with the first accepted value
};

// Keys that are not listed are passed over: most say how to train or to generate, and change no
// logits.
constexpr Feature kLlamaFeatures[] = {
    {"rope_scaling", "[]", /*saved=*/true},
    {"hidden_act", R"(["silu"])", /*saved=*/true},
    {"attention_bias", "[false]", /*saved=*/true},
    {"mlp_bias", "[false]", /*saved=*/true},
    {"sliding_window", "[]"},
    {"partial_rotary_factor", "[1]"},
};

// The model families that are built.
struct Family {
  const char* architecture;
  const char* model_type;
  std::span<const Feature> features;
};
constexpr Family kFamilies[] = {
    {"LlamaForCausalLM", "llama", kLlamaFeatures},
};

// How any family may be stored.
constexpr Feature kStorageFeatures[] = {
    {"quantization_config", "[]"},
    {"torch_dtype", R"(["float32", "bfloat16", "float16"])"},
    {"dtype", R"(["float32", "bfloat16", "float16"])"},  // its name since transformers 4.56
};

// Reads the keys of one config.json; messages name the file and the key.
class ConfigReader {
 public:
  ConfigReader(std::string path, const Json& json) : path_(std::move(path)), json_(json) {}

  // A key that is absent or null has no value; Hugging Face files use both for "default".
  const Json* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  int64_t integer(const char* key, const int64_t* fallback = nullptr) const {
    const Json* value = find(key);
    if (value == nullptr) {
      if (fallback == nullptr)
        throw UserError("{}: {} is missing; it must be a whole number", path_, key);
      return *fallback;
    }
    if (!value->is_number_integer() ||
        (value->is_number_unsigned() &&
         value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))) {
      throw UserError("{}: {} is {}; it must be a whole number", path_, key, value->dump());
    }
    return value->get<int64_t>();
  }

  double number(const char* key, double fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number())
      throw UserError("{}: {} is {}; it must be a number", path_, key, value->dump());
    return value->get<double>();
  }

  bool boolean(const char* key, bool fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) {
      throw UserError("{}: {} is {}; it must be true or false", path_, key, value->dump());
    }
    return value->get<bool>();
  }

  // One token id, or a list of them; some files write -1 for none.
  std::vector<int64_t> tokens(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    std::vector<int64_t> ids;
    for (const Json& id : value->is_array() ? *value : Json::array({*value})) {
      if (!id.is_number_integer()) {
        throw UserError("{}: {} is {}; it must be a token id", path_, key, id.dump());
      }
      if (id != -1) ids.push_back(id.get<int64_t>());
    }
    return ids;
  }

  void check(const Feature& feature) const {
    const Json* value = find(feature.key);
    if (value == nullptr) return;
    const Json accepted = Json::parse(feature.accepted);
    std::vector<std::string> names;
    for (const Json& known : accepted) {
      if (*value == known) return;
      names.push_back(known.dump());
    }
    throw UserError("{}: {} is {}, which is not supported; accepted: {}", path_, feature.key,
                    value->dump(),
                    names.empty() ? "null" : fmt::format("{}", fmt::join(names, ", ")));
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const Json& json_;
};

std::string join_families(const char* Family::*name, std::string_view separator) {
  std::vector<const char*> names;
  for (const Family& family : kFamilies) names.push_back(family.*name);
  return fmt::format("{}", fmt::join(names, separator));
}

// By `architectures`, or by `model_type` where that is missing.
const Family& find_family(const ConfigReader& reader) {
  if (const Json* names = reader.find("architectures")) {
    if (!names->is_array() || names->size() != 1 || !names->front().is_string()) {
      throw UserError("{}: architectures is {}; it must list one name", reader.path(),
                      names->dump());
    }
    for (const Family& family : kFamilies) {
      if (names->front() == family.architecture) return family;
    }
    throw UserError("{}: the architecture {} is not supported; accepted: {}", reader.path(),
                    names->front().get_ref<const std::string&>(),
                    join_families(&Family::architecture, ", "));
  }
  const Json* type = reader.find("model_type");
  for (const Family& family : kFamilies) {
    if (type != nullptr && *type == family.model_type) return family;
  }
  throw UserError("{}: model_type is {} and architectures is missing; accepted: \"{}\"",
                  reader.path(), type == nullptr ? "missing" : type->dump(),
                  join_families(&Family::model_type, "\", \""));
}

const Family& family_of(const ModelConfig& config) {
  const auto* found = std::ranges::find(kFamilies, config.architecture, &Family::architecture);
  TR_CHECK(found != std::end(kFamilies), "architecture {}", config.architecture);
  return *found;
}

// transformers 5 moved rope_theta into an object together with the scaling.
double read_rope_theta(const ConfigReader& reader) {
  constexpr double kDefault = 10000;
  const Json* rope = reader.find("rope_parameters");
  if (rope == nullptr) return reader.number("rope_theta", kDefault);
  if (!rope->is_object()) {
    throw UserError("{}: rope_parameters is {}; it must be an object", reader.path(), rope->dump());
  }
  const ConfigReader inner(reader.path() + ": rope_parameters", *rope);
  inner.check({"rope_type", R"(["default"])"});
  return inner.number("rope_theta", reader.number("rope_theta", kDefault));
}

void check_size(const std::string& where, const char* key, int64_t value, int64_t max) {
  if (value < 1 || value > max) {
    throw UserError("{}: {} is {}; it must be from 1 to {}", where, key, value, max);
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

std::vector<double> ModelConfig::inv_freq() const {
  std::vector<double> frequencies(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    // theta^(-2i / head_dim) (Su et al. 2021, RoFormer). In double: rope_table() rounds the angle,
    // once.
    frequencies[i] =
        std::pow(rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  }
  return frequencies;
}

ModelConfig read_model_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  if (!std::filesystem::exists(path)) {
    throw UserError(
        "{}: not found{}. A model is a Hugging Face folder with config.json and model.safetensors.",
        path.string(), nearest_path_hint(directory));
  }
  const Json json = read_json_object(path, kMaxConfigBytes);
  const ConfigReader reader(path.string(), json);
  const Family& family = find_family(reader);
  for (const Feature& feature : family.features) reader.check(feature);
  for (const Feature& feature : kStorageFeatures) reader.check(feature);
  ModelConfig config;
  config.architecture = family.architecture;
  config.hidden_size = reader.integer("hidden_size");
  config.intermediate_size = reader.integer("intermediate_size");
  config.num_layers = reader.integer("num_hidden_layers");
  config.num_heads = reader.integer("num_attention_heads");
  // Files from before grouped attention lack the key.
  config.num_kv_heads = reader.integer("num_key_value_heads", &config.num_heads);
  // 0, which validate() refuses, where there is nothing to divide by.
  const int64_t head_dim = config.num_heads > 0 ? config.hidden_size / config.num_heads : 0;
  if (reader.find("head_dim") == nullptr && head_dim * config.num_heads != config.hidden_size) {
    throw UserError(
        "{}: head_dim is missing and hidden_size {} is no multiple of num_attention_heads {}",
        path.string(), config.hidden_size, config.num_heads);
  }
  config.head_dim = reader.integer("head_dim", &head_dim);
  config.vocab_size = reader.integer("vocab_size");
  const int64_t max_positions = 2048;  // transformers' default
  config.max_positions = reader.integer("max_position_embeddings", &max_positions);
  // transformers' defaults, here and below: a file that leaves a key out means them.
  config.rms_norm_eps = reader.number("rms_norm_eps", 1e-6);
  config.rope_theta = read_rope_theta(reader);
  config.tie_embeddings = reader.boolean("tie_word_embeddings", false);
  const std::vector<int64_t> begins = reader.tokens("bos_token_id");
  if (!begins.empty()) config.bos_token = begins.front();
  config.eos_tokens = reader.tokens("eos_token_id");
  add_generation_ends(directory, config);
  validate(config, path.string());
  return config;
}

void write_model_config(const ModelConfig& config, const std::filesystem::path& directory) {
  using Ordered = nlohmann::ordered_json;  // keys stay as written here
  const Family& family = family_of(config);
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
  for (const Feature& feature : family.features) {
    const Ordered accepted = Ordered::parse(feature.accepted);
    if (feature.saved) json[feature.key] = accepted.empty() ? Ordered(nullptr) : accepted.front();
  }
  json["tie_word_embeddings"] = config.tie_embeddings;
  // null and not absent: transformers would fill in the ids of the first Llama.
  json["bos_token_id"] = config.bos_token >= 0 ? Ordered(config.bos_token) : Ordered(nullptr);
  const std::vector<int64_t>& ends = config.eos_tokens;
  json["eos_token_id"] = ends.empty()       ? Ordered(nullptr)
                         : ends.size() == 1 ? Ordered(ends.front())
                                            : Ordered(ends);
  // What save_model() writes beside it.
  json["torch_dtype"] = "float32";

  const auto written = write_file_atomic(directory / "config.json", json.dump(2) + "\n");
  if (!written) throw UserError("{}", written.failure().message);
}

void validate(const ModelConfig& config, const std::string& where) {
  // Upper bounds far above any model keep every product of two sizes within int64_t.
  constexpr int64_t kMaxSize = int64_t{1} << 24;
  check_size(where, "hidden_size", config.hidden_size, kMaxSize);
  check_size(where, "intermediate_size", config.intermediate_size, kMaxSize);
  check_size(where, "num_hidden_layers", config.num_layers, 10000);
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
  if (!(config.rope_theta >= 1 && std::isfinite(config.rope_theta))) {
    throw UserError("{}: rope_theta is {}; it must be a finite number of at least 1", where,
                    config.rope_theta);
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
