#include "cli/inputs/inputs.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/inputs/agents.h"
#include "cli/inputs/fitted_prompts.h"
#include "cli/inputs/policies.h"
#include "cli/inputs/rewards.h"
#include "core/base/digest_of.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_file.h"
#include "core/model/adapter_files.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

struct Input {
  std::string key;  // of the config that names it
  fs::path path;
  bool optional = false;  // that there is none is noted too
  // The digest of a part of the file; empty: that of the whole file counts.
  Digest digest = {};
};

constexpr std::string_view kTokenizer = "tokenizer/", kAbsent = "none";

// A file of all datasets grows when another one is first read. Of its fields, and of no text that
// another build may word otherwise.
Digest digest_of_fit(const std::vector<PromptFit>& fits, const std::string& key) {
  const auto fit = std::ranges::find(fits, key, &PromptFit::key);
  if (fit == fits.end()) return Digest(kAbsent);
  std::string fields = fmt::format("{}\n{}", fit->file, fit->rows);
  for (const auto& [name, rows] : {std::pair{"dropped", &fit->dropped}, {"cut", &fit->cut}}) {
    fields += fmt::format("\n{}", name);
    for (const LongRow& row : *rows)
      fields += fmt::format(" {},{},{}", row.line, row.tokens, row.bytes);
  }
  return digest_of(fields);
}

// By the name that stays when a run is moved.
std::map<std::string, Input> inputs_of(const RunPaths& paths, const ResolvedRun& run) {
  const RunOptions& o = run.options;
  std::map<std::string, Input> inputs;
  const auto named = [&](const std::string& key, const fs::path& path) {
    if (!path.empty()) inputs[key] = {key, path};
  };
  const std::vector<PromptFit> fits = read_prompt_fits(paths);
  for (const RunDataset& dataset : run.datasets) {
    named(dataset.key("plugin"), dataset.plugin);
    named(dataset.key("dataset"), dataset.dataset);
    if (o.eval.prompts > 0) named(dataset.key("eval_dataset"), dataset.eval_dataset);
    for (const auto& [key, fitted] :
         {std::pair{"dataset", &dataset.fitted}, std::pair{"eval_dataset", &dataset.fitted_eval}})
      if (const std::string full = dataset.key(key); !fitted->file.empty()) {
        inputs[fitted_input(full)] = {full, fitted->file};
        inputs[full + "/fit"] = {dataset.key("too_long"), prompt_fits_file(paths),
                                 /*optional=*/true, digest_of_fit(fits, full)};
      }
  }
  for (const CommandFile& file : agent_files(run.datasets)) named(file.key, file.path);
  named("reward.plugin", o.reward.plugin);
  for (const CommandFile& file : environment_files(run.datasets)) named(file.key, file.path);
  for (const CommandFile& file : reward_files(run.rewards)) named(file.key, file.path);
  // Its weights are read by each reward worker, whenever it starts.
  for (const fs::path& file : model_files(o.reward.model))
    inputs[fmt::format("{}/{}", kRewardModel, file.filename().string())] = {kRewardModel, file};
  for (const PolicySection& policy : o.policies)
    for (const fs::path& file : model_files(policy.model)) {
      const std::string key = fmt::format("policies.{}.model", policy.name);
      inputs[fmt::format("{}/{}", key, file.filename().string())] = {key, file};
    }
  for (const RunStage& stage : run.stages) {
    named(stage.key("data"), stage.rows().data);
    named(stage.key("eval_data"), stage.rows().eval_data);
  }
  // Its weights are read before the first checkpoint only; its shape is, whenever the run goes on.
  const fs::path model = o.model.path;
  if (!model.empty()) {
    named("model.path", model / "config.json");
    inputs["model.path/generation"] = {"model.path", model / "generation_config.json", true};
  }
  if (!o.lora.adapter.empty()) named("lora.adapter", o.lora.shape_folder() / kAdapterConfigFile);
  for (const RunStage& stage : run.stages) {
    const auto rows = [&](const std::string& key, const fs::path& file) {
      inputs[key + "/rows"] = {key, file};
    };
    if (stage.has_demonstrations())
      inputs["demonstrations"] = {stage.key("demonstrations"), paths.demonstrations()};
    if (!stage.rows().data.empty()) rows(stage.key("data"), paths.stage_rows(stage.name));
    if (!stage.rows().eval_data.empty())
      rows(stage.key("eval_data"), paths.stage_eval_rows(stage.name));
  }
  // Without it there is no tokenizer yet, whatever lies beside it.
  if (!fs::exists(paths.tokenizer() / "tokenizer.json")) return inputs;
  for (const fs::directory_entry& entry : fs::directory_iterator(paths.tokenizer())) {
    const std::string name = entry.path().filename();
    inputs[std::string(kTokenizer) + name] = {"model.path", entry.path()};
  }
  return inputs;
}

[[noreturn]] void refuse(const Input& input, std::string_view what) {
  throw UserError(
      "{}: it {} since the run began, and a run keeps what it began with. Put the file back, or "
      "start a new run directory.",
      input.path.string(), what)
      .about(input.key);
}

// As it is now.
Digest digest_of_input(const Input& input) {
  if (!input.digest.empty()) return input.digest;
  if (input.optional && !fs::exists(input.path)) return Digest(kAbsent);
  const Result<Digest> found = digest_of_file(input.path);
  if (!found) throw UserError("{}", found.failure().message).about(input.key);
  return found.value();
}

void require_same(const Input& input, const Digest& now, const nlohmann::json& noted) {
  if (noted == now) return;
  refuse(input, now == kAbsent && !fs::exists(input.path) ? "is gone" : "has changed");
}

bool has_begun(const RunPaths& paths) {
  std::error_code error;
  return fs::directory_iterator(paths.journal(), error) != fs::directory_iterator();
}

}  // namespace

void prove_inputs(const RunPaths& paths, const ResolvedRun& run) {
  nlohmann::json noted = nlohmann::json::object();
  if (fs::exists(paths.inputs())) {
    noted = read_proved_json(paths.inputs());
  } else if (has_begun(paths)) {
    throw UserError(
        "{} is gone: whether the run would go on with the data that it began with is not known. "
        "Put it back, or start a new run directory.",
        paths.inputs().string());
  }
  const size_t num_noted = noted.size();
  const bool has_tokenizer = noted.contains(fmt::format("{}tokenizer.json", kTokenizer));
  const std::string of_reward_model = fmt::format("{}/", kRewardModel);
  const bool has_reward_model = noted.contains(of_reward_model + "config.json");
  const auto inputs = inputs_of(paths, run);
  for (const auto& [name, input] : inputs) {
    const Digest digest = digest_of_input(input);
    const auto [known, is_new] = noted.emplace(name, digest);
    require_same(input, digest, *known);
    // Its files are what a tokenizer is: one more makes another one.
    if (is_new && has_tokenizer && name.starts_with(kTokenizer)) refuse(input, "was added");
    if (is_new && has_reward_model && name.starts_with(of_reward_model)) refuse(input, "was added");
  }
  for (const auto& [name, digest] : noted.items()) {
    if (name.starts_with(kTokenizer) && !inputs.contains(name))
      refuse({"model.path", paths.root / name}, "is gone");
    if (name.starts_with(of_reward_model) && !inputs.contains(name))
      refuse(
          {kRewardModel, fs::path(run.options.reward.model) / name.substr(of_reward_model.size())},
          "is gone");
  }
  // A digest that is noted never changes: the file is written when an input is read for the first
  // time.
  if (noted.size() == num_noted) return;
  if (auto written = write_file_atomic(paths.inputs(), to_proved_json(noted)); !written)
    throw UserError("{}", written.failure().message);
}

void prove_prompts(const RunPaths& paths, const ResolvedRun& run) {
  if (!fs::exists(paths.inputs())) return;
  const nlohmann::json noted = read_proved_json(paths.inputs());
  ResolvedRun fitted = run;
  find_fitted_prompts(paths, fitted);
  for (const auto& [name, input] : inputs_of(paths, fitted))
    if (input.path.parent_path() == paths.prompts() && noted.contains(name))
      require_same(input, digest_of_input(input), noted.at(name));
}

}  // namespace tailrace
