#include "cli/roles/bundle.h"

#include <algorithm>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/inputs/agents.h"
#include "cli/inputs/fitted_prompts.h"
#include "cli/inputs/rewards.h"
#include "core/base/digest_of.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_file.h"
#include "core/model/adapter_files.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// The size of a safetensors header: 8 bytes of length, and so many of JSON.
int64_t header_bytes(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  uint64_t length = 0;
  stream.read(reinterpret_cast<char*>(&length), sizeof length);
  // The length is a file's word: damaged, it would have us read the whole file for a header.
  if (!stream || length > uint64_t{1} << 30)
    throw UserError("{}: not a safetensors file", file.string());
  return static_cast<int64_t>(sizeof length + length);
}

Digest digest_of_header(const fs::path& file, int64_t bytes) {
  std::string header(static_cast<size_t>(bytes), '\0');
  std::ifstream stream(file, std::ios::binary);
  stream.read(header.data(), bytes);
  if (!stream) throw UserError("{}: it is cut", file.string());
  return digest_of(std::string_view(header));
}

}  // namespace

Bundle::Bundle(const RunPaths& paths, const ResolvedRun& run) : paths_(paths) {
  const RunOptions& o = run.options;
  const nlohmann::json noted = read_proved_json(paths.inputs());
  for (const auto& [name, digest] : noted.items())
    if (digest.is_string()) noted_[name] = digest.get<std::string>();
  add({.file = {.place = "config.yaml"}, .path = paths.config()});
  int number = 0;
  // `key` is what inputs.json and the config call it.
  const auto input = [&](const std::string& key, const std::string& file, bool rollout_only) {
    if (file.empty()) return;
    const fs::path path(file);
    add({.file = {.place = fmt::format("inputs/{}-{}", ++number, path.filename().string())},
         .path = path,
         .key = key,
         .rollout_only = rollout_only});
  };
  for (const RunDataset& dataset : run.datasets) {
    input(dataset.key("plugin"), dataset.plugin, false);
    const auto rows = [&](const char* name, const std::string& file, const FittedFile& fitted) {
      const std::string key = dataset.key(name);
      if (fitted.file.empty()) return input(key, file, true);
      // Where a run has it, so that the worker finds it as those of this host do.
      add({.file = {.place = fmt::format("prompts/{}", fitted.file.filename().string())},
           .path = fitted.file,
           .key = key,
           .input = fitted_input(key),
           .rollout_only = true});
    };
    rows("dataset", dataset.dataset, dataset.fitted);
    if (o.eval.prompts > 0) rows("eval_dataset", dataset.eval_dataset, dataset.fitted_eval);
  }
  input("reward.plugin", o.reward.plugin, false);
  // Files of one folder stay in one, where they find each other.
  const auto commands = [&](const char* place, const std::vector<CommandFile>& files) {
    std::vector<fs::path> folders;
    for (const CommandFile& file : files) {
      const fs::path folder = file.path.parent_path();
      auto at = std::ranges::find(folders, folder);
      if (at == folders.end()) at = folders.insert(at, folder);
      add({.file = {.place = fmt::format("{}/{}/{}", place, at - folders.begin(),
                                         file.path.filename().string())},
           .path = file.path,
           .key = file.key});
    }
  };
  commands("env", environment_files(run.datasets));
  commands("agent", agent_files(run.datasets));
  commands("reward", reward_files(run.rewards));
  if (!o.model.path.empty()) {
    const fs::path model(o.model.path);
    std::vector<std::string> names = {"config.json", "generation_config.json",
                                      "model.safetensors.index.json"};
    // Headers of the weights, in one file or many, say what the config does not. Weights that an
    // adapter goes beside are no version, and come here whole.
    const bool frozen = o.lora.trains();
    for (const fs::directory_entry& entry : fs::directory_iterator(model))
      if (entry.path().extension() == ".safetensors")
        names.push_back(entry.path().filename().string());
    for (const std::string& name : names) {
      if (!fs::exists(model / name)) continue;
      const bool weights = fs::path(name).extension() == ".safetensors";
      add({.file = {.place = "model/" + name, .is_header = weights && !frozen},
           .path = model / name,
           .rollout_only = weights && frozen});
    }
  }
  if (!o.lora.adapter.empty())
    add({.file = {.place = fmt::format("adapter/{}", kAdapterConfigFile)},
         .path = o.lora.shape_folder() / kAdapterConfigFile});
  for (const fs::directory_entry& entry : fs::directory_iterator(paths.tokenizer()))
    add({.file = {.place = fmt::format("tokenizer/{}", entry.path().filename().string())},
         .path = entry.path(),
         .rollout_only = true});
}

void Bundle::add(Item item) {
  BundleFile& file = item.file;
  std::error_code error;
  const auto size = fs::file_size(item.path, error);
  if (error) throw UserError("{}", describe_errno("read", item.path, error.value()));
  file.bytes = file.is_header ? header_bytes(item.path) : static_cast<int64_t>(size);
  const auto found =
      file.is_header ? digest_of_header(item.path, file.bytes) : digest_of_file(item.path);
  if (!found) throw UserError("{}", found.failure().message);
  file.digest = found.value();
  const auto noted = noted_.find(item.input.empty() ? item.key : item.input);
  if (noted != noted_.end() && noted->second != file.digest)
    throw UserError("{}: it has changed since the run began, and a run keeps what it began with.",
                    item.path.string())
        .about(item.key);
  items_.push_back(std::move(item));
}

BundleListing Bundle::listing(Role role) const {
  BundleListing listing;
  for (const Item& item : items_) {
    if (item.rollout_only && role != Role::kRollout) continue;
    // One file may be named by several keys.
    if (std::ranges::find(listing.files, item.file.place, &BundleFile::place) ==
        listing.files.end())
      listing.files.push_back(item.file);
    if (!item.key.empty()) listing.keys.emplace_back(item.key, item.file.place);
    for (const auto& [folder, key] :
         {std::pair{"model", "model.path"}, {"adapter", "lora.adapter"}})
      if (item.file.place.starts_with(fmt::format("{}/", folder)) &&
          listing.keys.end() ==
              std::ranges::find(listing.keys, key, &std::pair<std::string, std::string>::first))
        listing.keys.emplace_back(key, folder);
  }
  return listing;
}

void Bundle::write_listings() const {
  for (const Role role : {Role::kRollout, Role::kReward}) {
    std::error_code ignored;
    fs::create_directories(paths_.bundle(), ignored);
    const fs::path file = paths_.bundle() / fmt::format("{}.json", name_of(role));
    if (auto written = write_file_atomic(file, to_json(listing(role))); !written)
      throw UserError("{}", written.failure().message);
  }
}

bool Bundle::is_for(Role role, const std::string& name) const {
  if (role == Role::kRollout) return true;
  // A reward worker needs neither weights nor prompts, and what it does not need does not leave
  // this host.
  if (name.starts_with(kWeightFiles)) return false;
  const auto item = std::ranges::find(
      items_, name, [](const Item& known) { return std::string(kBundleFiles) + known.file.place; });
  return item == items_.end() || !item->rollout_only;
}

std::optional<SharedFile> Bundle::find(const std::string& name) const {
  const auto rest = [&](std::string_view prefix) { return name.substr(prefix.size()); };
  if (name.starts_with(kBundleListings)) {
    for (const Role role : {Role::kRollout, Role::kReward})
      if (rest(kBundleListings) == fmt::format("{}.json", name_of(role)))
        return SharedFile{paths_.bundle() / rest(kBundleListings)};
  } else if (name.starts_with(kWeightFiles)) {
    return find_weight_file(paths_.weights(), rest(kWeightFiles));
  } else if (name.starts_with(kBundleFiles)) {
    for (const Item& item : items_)
      if (item.file.place == rest(kBundleFiles))
        return SharedFile{item.path, item.file.is_header ? item.file.bytes : -1};
  }
  return std::nullopt;
}

}  // namespace tailrace
