// Adapters as folders of peft: adapter_config.json and adapter_model.safetensors, whose tensors
// have the names of ParameterLayout::of_adapter(), and are read by load_parameters() as those of a
// model are.
#pragma once

#include <filesystem>
#include <string>

#include "core/model/lora.h"
#include "core/model/model_config.h"
#include "core/model/parameters.h"

namespace tailrace {

inline constexpr const char* kAdapterFile = "adapter_model.safetensors";
inline constexpr const char* kAdapterConfigFile = "adapter_config.json";

// Whether a folder is one, by its adapter_config.json.
bool is_adapter(const std::filesystem::path& directory);

// The shape that adapter_config.json says. Throws UserError with file and key; what would change
// the numbers and is not built (DoRA, rsLoRA, ranks by layer, trained biases) is refused by name,
// and so are target_modules that leave out a module of the tensors beside it.
Lora read_adapter_config(const std::filesystem::path& directory);

// Both files, as peft reads them, with float32 matrices. The root digest of the base that it was
// trained beside stands in the metadata of the tensors. Throws UserError.
void save_adapter(const std::filesystem::path& directory, const Lora& lora,
                  const Parameters& adapter, const std::string& base_root);
// The root of an adapter's base; empty: another program has written the adapter without it.
std::string base_root_of(const std::filesystem::path& directory);

// The folder of an adapter's base: lora.base as it is, or relative to the adapter's folder. Throws
// UserError when there is no such folder here, as with a name of a model on a hub.
std::filesystem::path base_folder(const std::filesystem::path& directory, const Lora& lora);

// The facts of a folder of a model, or of an adapter and its base: `config` with `lora` set, and
// where the base lies. Throws UserError as the two do.
struct PolicyFolder {
  ModelConfig config;
  std::filesystem::path base;  // the folder itself where it is a model
};
PolicyFolder read_policy_folder(const std::filesystem::path& directory);

// W += (alpha / rank) B A for each matrix that has an adapter, summed in double: the weights of the
// base and the adapter as one model. `config`: of the adapter. Throws UserError where a sum is not
// finite.
void merge_adapter(const ModelConfig& config, const Parameters& adapter, Parameters& base);

}  // namespace tailrace
