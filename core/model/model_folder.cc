#include "core/model/model_folder.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_file.h"
#include "core/base/nearest.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

void count_id(const Json& id, int64_t& num_ids) {
  constexpr int64_t kMost = int64_t{1} << 31;
  if (!id.is_number_integer()) return;
  const auto value = id.get<int64_t>();
  // Ids have gaps in some vocabularies, so the largest counts and not their number.
  if (value >= 0 && value < kMost) num_ids = std::max(num_ids, value + 1);
}

// The first name in a folder that ends so; empty: none.
std::string first_name(const fs::path& directory, std::string_view end) {
  std::string first;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(end) && (first.empty() || name < first)) first = name;
  }
  return first;
}

std::string adapter_hint(const fs::path& directory) {
  const fs::path path = directory / "adapter_config.json";
  std::string base;
  if (fs::exists(path)) {
    const Json config = read_json_object(path);
    if (const auto found = config.find("base_model_name_or_path");
        found != config.end() && found->is_string())
      base = found->get<std::string>();
  }
  return fmt::format(
      " The folder is an adapter{}, not a model.\n       Name its base, and go on with the adapter "
      "by lora.adapter={}; or make a model of both: tailrace model merge {} DIR",
      base.empty() ? "" : fmt::format(" of {}", base), directory.string(), directory.string());
}

}  // namespace

int64_t num_tokenizer_ids(const fs::path& directory) {
  const fs::path path = directory / "tokenizer.json";
  if (!fs::exists(path)) return 0;
  const Json json = read_json_object(path);
  const auto model = json.find("model");
  if (model == json.end() || !model->is_object()) return 0;
  const auto vocab = model->find("vocab");
  if (vocab == model->end() || vocab->empty()) return 0;
  int64_t num_ids = 0;
  if (vocab->is_object()) {
    for (const Json& id : *vocab) count_id(id, num_ids);
  } else if (vocab->is_array()) {  // Unigram: an id is a place
    num_ids = std::ssize(*vocab);
  } else {
    return 0;
  }
  if (const auto added = json.find("added_tokens"); added != json.end() && added->is_array())
    for (const Json& token : *added)
      if (token.is_object() && token.contains("id")) count_id(token["id"], num_ids);
  return num_ids;
}

void refuse_adapter(const fs::path& directory) {
  if (!fs::exists(directory / "adapter_config.json")) return;
  throw UserError(
      "{} has adapter_config.json.{}\n       Where the weights are merged already, remove that "
      "file.",
      directory.string(), adapter_hint(directory));
}

std::string folder_hint(const fs::path& directory) {
  std::error_code ignored;
  const std::string text = directory.string();
  // The hints go from the surest sign to the vaguest: the first that fits is told.
  if (!fs::exists(directory, ignored)) return hub_id_hint(directory);
  const auto has = [&](const char* name) { return fs::exists(directory / name, ignored); };
  if (has("adapter_config.json") || has("adapter_model.safetensors"))
    return adapter_hint(directory);
  const std::string gguf = text.ends_with(".gguf") ? text : first_name(directory, ".gguf");
  if (!gguf.empty())
    return fmt::format(
        " {} is a GGUF file.\n       Make a folder of it once, and name that: tailrace import {} "
        "DIR",
        gguf, text.ends_with(".gguf") ? gguf : (directory / gguf).string());
  if (has("snapshots"))
    return fmt::format(
        " The folder is a part of the hub's cache.\n       Try {}/ and the name of the revision in "
        "it.",
        (directory / "snapshots").string());
  for (const char* end : {"pytorch_model.bin", "pytorch_model.bin.index.json", ".pth", ".pt"})
    if (const std::string name = first_name(directory, end); !name.empty())
      return fmt::format(
          " {} holds pickled weights, which are not read.\n       Convert them once with "
          "transformers: AutoModelForCausalLM.from_pretrained(\"{}\").save_pretrained(DIR), and "
          "save the tokenizer there.",
          name, text);
  if (const std::string shard = first_name(directory, ".safetensors"); shard.starts_with("model-"))
    return fmt::format(
        " {} is a shard, and the index of the shards is missing: the download is incomplete.",
        shard);
  return "";
}

}  // namespace tailrace
