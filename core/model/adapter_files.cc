#include "core/model/adapter_files.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/join_texts.h"
#include "core/base/json_file.h"
#include "core/base/json_text.h"
#include "core/model/config_reader.h"
#include "core/model/module_pattern.h"
#include "core/model/parameter_files.h"
#include "core/model/reward_head.h"
#include "core/model/safetensors.h"
#include "kernels/base/check.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Other keys of adapter_config.json that change the numbers, with what is built of them.
// init_lora_weights: PiSSA, OLoRA and LoftQ change the base too.
constexpr ConfigFeature kAdapterFeatures[] = {
    {"peft_type", R"(["LORA"])"},
    {"bias", R"(["none"])"},
    {"use_dora", "[false]"},
    {"use_rslora", "[false]"},
    {"lora_bias", "[false]"},
    {"fan_in_fan_out", "[false]"},
    {"rank_pattern", "[{}]"},
    {"alpha_pattern", "[{}]"},
    {"modules_to_save", "[[]]"},
    {"exclude_modules", R"([[], ""])"},
    {"layers_to_transform", "[[]]"},
    {"layers_pattern", R"([[], ""])"},
    {"layer_replication", "[[]]"},
    {"target_parameters", "[[]]"},
    {"trainable_token_indices", "[[]]"},
    {"init_lora_weights", R"([true, false, "gaussian"])"},
    {"alora_invocation_tokens", "[]"},
    {"use_qalora", "[false]"},
    {"use_bdlora", "[]"},
    {"arrow_config", "[]"},
    {"kasa_config", "[]"},
    {"monteclora_config", "[]"},
};

constexpr const char* kBaseRoot = "tailrace.base_root";
constexpr std::string_view kModulePrefix = "base_model.model.", kInSuffix = ".lora_A.weight",
                           kOutSuffix = ".lora_B.weight";
// Longer names of tensors are unknown to every model, which is told where they are read.
constexpr size_t kMaxModuleBytes = 100;
constexpr size_t kShownModules = 3;

std::vector<LoraTarget> all_targets() {
  std::vector<LoraTarget> all;
  for (size_t i = 0; i < kEnumNames<LoraTarget>.size(); ++i)
    all.push_back(static_cast<LoraTarget>(i));
  return all;
}

std::optional<LoraTarget> last_part(const std::string& name) {
  return value_of<LoraTarget>(std::string_view(name).substr(name.rfind('.') + 1));
}

std::string first_module(LoraTarget target) {
  using enum LoraTarget;
  const bool in_mlp = target == kGate || target == kUp || target == kDown;
  return fmt::format("model.layers.0.{}.{}", in_mlp ? "mlp" : "self_attn", name_of(target));
}

// The linear layers that the expression names in the first layer of a model. Each layer has the
// same ones, or its tensors are missing or unknown where they are read, or check_modules() tells.
std::vector<LoraTarget> targets_of_pattern(const std::string& text) {
  const ModulePattern pattern(text);
  for (const char* other : {"lm_head", "model.embed_tokens"})
    if (pattern.matches(other)) throw UserError("matches {}, which is not built", other);
  std::vector<LoraTarget> targets = all_targets();
  std::erase_if(targets, [&](LoraTarget one) { return !pattern.matches(first_module(one)); });
  if (targets.empty())
    throw UserError("matches no linear layer of the first layer, such as {}",
                    first_module(LoraTarget::kQ));
  return targets;
}

// The modules whose tensors a file holds, without the names that no model has.
std::set<std::string> modules_of(const SafetensorsFile& file) {
  std::set<std::string> modules;
  for (const auto& [name, view] : file.tensors()) {
    std::string_view module = name;
    if (!module.starts_with(kModulePrefix)) continue;
    if (!module.ends_with(kInSuffix) && !module.ends_with(kOutSuffix)) continue;
    module.remove_prefix(kModulePrefix.size());
    // Both suffixes have the same length.
    module.remove_suffix(std::min(module.size(), kInSuffix.size()));
    if (!module.empty() && module.size() <= kMaxModuleBytes) modules.emplace(module);
  }
  return modules;
}

// Whether peft gives a module an adapter.
std::function<bool(const std::string&)> naming_of(const Json& targets) {
  if (targets.is_string())
    return [pattern = ModulePattern(targets.get<std::string>())](const std::string& module) {
      return pattern.matches(module);
    };
  // A name, or the end of one behind a dot.
  const auto names = targets.get<std::set<std::string>>();
  return [names](const std::string& module) {
    for (size_t at = 0; at != std::string::npos; at = module.find('.', at + 1))
      if (names.contains(module.substr(at == 0 ? 0 : at + 1))) return true;
    return false;
  };
}

// peft builds no adapter where target_modules names none, and leaves such tensors out; applied,
// they would make another model of the same folder.
void check_modules(const ConfigReader& reader, const fs::path& tensors) {
  const Json& targets = *reader.find("target_modules");
  if (targets == "all-linear" || !fs::exists(tensors)) return;
  const auto names = naming_of(targets);
  std::vector<std::string> left_out;
  for (const std::string& module : modules_of(SafetensorsFile(tensors)))
    if (!names(module)) left_out.push_back(module);
  if (left_out.empty()) return;
  const size_t more = left_out.size() - std::min(left_out.size(), kShownModules);
  left_out.resize(left_out.size() - more);
  throw UserError(
      "{}: target_modules {} leaves out {}{}, of which {} has tensors. peft gives them no adapter, "
      "and here each layer has the same ones. Train one for all layers, or write an expression "
      "that "
      "names all of them.",
      reader.path(), targets.is_string() ? json_text(targets) : "is a list that",
      join_texts(left_out, ", "), more == 0 ? "" : fmt::format(" and {} more", more),
      tensors.filename().string());
}

// "all-linear", a regular expression, or a list of names, of which the last parts say what they
// are: peft writes whole names where few modules have them. A layer that lacks one shows where the
// tensors are read, and one that is not named in check_modules().
std::vector<LoraTarget> targets_of(const ConfigReader& reader) {
  const Json* modules = reader.find("target_modules");
  if (modules != nullptr && *modules == "all-linear") return all_targets();
  const auto refuse = [&](const std::string& what) {
    return UserError(
        "{}: target_modules {}. Accepted are \"all-linear\", a list of {}, and a regular "
        "expression over whole names such as {}.",
        reader.path(), what, join_texts(kEnumNames<LoraTarget>, ", "),
        first_module(LoraTarget::kQ));
  };
  if (modules != nullptr && modules->is_string()) {
    try {
      return targets_of_pattern(modules->get<std::string>());
    } catch (const UserError& error) {
      throw refuse(error.what());
    }
  }
  if (modules == nullptr || !modules->is_array() || modules->empty())
    throw refuse("is not a list of names");
  std::vector<LoraTarget> targets;
  for (const Json& name : *modules) {
    const auto target = name.is_string() ? last_part(name.get<std::string>()) : std::nullopt;
    if (!target) throw refuse(fmt::format("has {}, which is not built", json_text(name)));
    targets.push_back(*target);
  }
  std::ranges::sort(targets);
  targets.erase(std::ranges::unique(targets).begin(), targets.end());
  return targets;
}

}  // namespace

bool is_adapter(const fs::path& directory) { return fs::exists(directory / kAdapterConfigFile); }

Lora read_adapter_config(const fs::path& directory) {
  const fs::path path = directory / kAdapterConfigFile;
  const Json json = read_json_object(path);
  const ConfigReader reader(path.string(), json);
  for (const ConfigFeature& feature : kAdapterFeatures) reader.check(feature);
  Lora lora{.rank = reader.integer("r"),
            .alpha = reader.number("lora_alpha"),
            .targets = targets_of(reader)};
  if (lora.rank < 1 || lora.rank > kMaxLoraRank)
    throw UserError("{}: r is {}; it must be between 1 and {}", path.string(), lora.rank,
                    kMaxLoraRank);
  check_modules(reader, directory / kAdapterFile);
  if (const Json* base = reader.find("base_model_name_or_path"); base && base->is_string())
    lora.base = base->get<std::string>();
  return lora;
}

void save_adapter(const fs::path& directory, const Lora& lora, const Parameters& adapter,
                  const std::string& base_root) {
  std::vector<std::string> targets;
  for (const LoraTarget target : lora.targets) targets.emplace_back(name_of(target));
  const nlohmann::ordered_json json = {{"peft_type", "LORA"},
                                       {"task_type", "CAUSAL_LM"},
                                       {"base_model_name_or_path", lora.base},
                                       {"r", lora.rank},
                                       {"lora_alpha", lora.alpha},
                                       {"lora_dropout", 0.0},
                                       {"target_modules", targets},
                                       {"bias", "none"},
                                       {"fan_in_fan_out", false},
                                       {"use_rslora", false},
                                       {"use_dora", false},
                                       {"modules_to_save", nullptr},
                                       {"inference_mode", true}};
  const auto written = write_file_atomic(directory / kAdapterConfigFile, json_text(json, 2) + "\n");
  if (!written) throw UserError("{}", written.failure().message);
  // The root of the base's weights goes along, so that a run that takes the adapter up again can
  // tell whether it stands on the weights it was trained beside.
  save_parameters(directory / kAdapterFile, adapter, {{kBaseRoot, base_root}});
}

std::string base_root_of(const fs::path& directory) {
  const SafetensorsFile file(directory / kAdapterFile);
  const auto found = file.metadata().find(kBaseRoot);
  return found == file.metadata().end() ? std::string() : found->second;
}

fs::path base_folder(const fs::path& directory, const Lora& lora) {
  std::error_code ignored;
  // peft writes the name that the base was loaded by: a path of the working directory, or one
  // beside the adapter. A name of the hub is not downloaded here.
  for (const fs::path& folder : {fs::path(lora.base), directory / lora.base})
    if (!lora.base.empty() && fs::exists(folder / "config.json", ignored)) return folder;
  throw UserError(
      "{}: base_model_name_or_path is \"{}\", and there is no such model here. Download it, and "
      "write its folder there.",
      (directory / kAdapterConfigFile).string(), lora.base);
}

PolicyFolder read_policy_folder(const fs::path& directory) {
  if (!is_adapter(directory)) return {read_policy_config(directory), directory};
  const Lora lora = read_adapter_config(directory);
  PolicyFolder folder;
  folder.base = base_folder(directory, lora);
  folder.config = read_policy_config(folder.base);
  folder.config.lora = lora;
  validate(folder.config, directory.string());
  return folder;
}

void merge_adapter(const ModelConfig& config, const Parameters& adapter, Parameters& base) {
  const double scale = config.lora.alpha / static_cast<double>(config.lora.rank);
  for (const ParameterInfo& info : adapter.layout().entries()) {
    if (info.kind != ParameterKind::kLowRankIn) continue;
    const std::string module = info.name.substr(0, info.name.size() - kInSuffix.size());
    const ConstMatrix a = adapter.matrix(info.name), b = adapter.matrix(module + ".lora_B.weight");
    const Matrix weight = base.matrix(module.substr(kModulePrefix.size()) + ".weight");
    TR_CHECK(weight.rows == b.rows && weight.cols == a.cols);
    // B times A in double, row by row: the merged weight is rounded once, and no product of the
    // size of the weight is held.
    std::vector<double> sums(static_cast<size_t>(a.cols));
    for (int64_t o = 0; o < b.rows; ++o) {
      std::ranges::fill(sums, 0.0);
      for (int64_t j = 0; j < a.rows; ++j)
        for (int64_t i = 0; i < a.cols; ++i)
          sums[static_cast<size_t>(i)] += double{b.row(o)[j]} * a.row(j)[i];
      for (int64_t i = 0; i < a.cols; ++i)
        weight.row(o)[i] =
            static_cast<float>(weight.row(o)[i] + scale * sums[static_cast<size_t>(i)]);
      if (!std::all_of(weight.row(o), weight.row(o) + a.cols,
                       [](float w) { return std::isfinite(w); }))
        throw UserError("{}: with the adapter its row {} is not finite", module, o);
    }
  }
}

}  // namespace tailrace
