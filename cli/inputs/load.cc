#include "cli/inputs/load.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "cli/config/foreign_names.h"
#include "cli/config/hardware_file.h"
#include "cli/config/mistakes.h"
#include "cli/inputs/fitted_prompts.h"
#include "cli/inputs/prompts.h"
#include "cli/inputs/rules.h"
#include "core/base/digest_of.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/config/config_printer.h"
#include "core/model/adapter_files.h"

namespace tailrace {
namespace {

constexpr std::string_view kProof = "# proof: ";

// All keys that a launch would write today are there. A missing key came later, and its default is
// what the run has done so far only where the key says so, or where nothing reads it.
void check_complete(const std::filesystem::path& config) {
  RunOptions options;
  ConfigNode root = load_config(config, {});
  drop_simulate_section(root);
  const ConfigKeys stored = bind_config(root, options);
  RunOptions again;
  const ConfigKeys written =
      bind_config(parse_config(print_config(options), config.string(), {}), again);
  for (const auto& [key, option] : options_by_key(options))
    if (option.resume == Resume::kFixed && !option.default_is_older && !option.idle &&
        written.given(key) && !stored.given(key))
      throw UserError(
          "{}: {} is missing: an older build, which did not know it, began the run and has to "
          "continue it.",
          config.string(), key);
}

// A policy is loaded or made. Of model.path and model.create the one of a higher layer (the command
// line over a file, a file over what it extends) takes the place of the other; both of one layer
// are left for the rules to refuse. Returns a note; empty: nothing was replaced.
std::string keep_upper_model(ConfigNode& root) {
  const auto at = [](ConfigNode& node, std::string_view key) {
    return std::ranges::find(node.entries, key, [](const auto& entry) { return entry.first; });
  };
  const auto section = at(root, "model");
  if (section == root.entries.end()) return "";
  ConfigNode& model = section->second;
  const auto path = at(model, "path"), create = at(model, "create");
  if (path == model.entries.end() || create == model.entries.end()) return "";
  const ConfigNode* size = create->second.find("hidden_size");
  if (path->second.text.empty() || size == nullptr || size->text == "0") return "";
  // Other keys of model.create may stand beside model.path by mistake.
  int highest = 0;
  for (const auto& [key, value] : create->second.entries)
    highest = std::max(highest, value.place.layer);
  const int path_layer = path->second.place.layer;
  if (path_layer > highest) {
    std::string note = fmt::format("model.path of {} replaces model.create of {}",
                                   path->second.place.text(), size->place.text());
    model.entries.erase(create);
    return note;
  }
  if (size->place.layer > path_layer) {
    std::string note = fmt::format("model.create of {} replaces model.path of {}",
                                   size->place.text(), path->second.place.text());
    model.entries.erase(path);
    return note;
  }
  return "";
}

// Most configs are written in our keys, and need no table to be parsed.
std::span<const ForeignName> names_for(const ConfigNode& root, bool supervised) {
  if (has_only_our_keys(root)) return {};
  return supervised ? supervised_names() : foreign_names();
}

LoadedRun load(const std::filesystem::path& path, std::span<const std::string> overrides,
               const Registries& registries, LibraryUse use, const std::filesystem::path& run_dir,
               const std::filesystem::path& known = {}) {
  LoadedRun loaded;
  RunOptions options;
  ConfigNode root = load_config(path, overrides);
  if (!known.empty()) drop_simulate_section(root);  // a run that has begun
  refuse_simulate_section(root, path);
  const std::string replaced = keep_upper_model(root);
  const std::span<const ForeignName> names = names_for(root, is_supervised(root));
  std::optional<UserError> refused;
  loaded.keys = bind_config(root, options, names, &refused);
  if (!replaced.empty()) loaded.keys.add_note(replaced);
  Mistakes mistakes;
  if (refused) mistakes.add(*refused);
  // A recipe of another framework is told all that has to change at once; in a config of ours the
  // rules could stumble over what a slip of the pen has left out.
  if (!loaded.keys.has_foreign_names()) mistakes.tell();
  const std::filesystem::path run = run_dir.empty() ? options.run.dir : run_dir.string();
  mistakes.look([&] {
    find_trained_model(RunPaths{run}, options);
    try {
      loaded.registries = with_libraries(registries, options, use, known);
    } catch (const UserError& error) {
      throw loaded.keys.placed(error);
    }
    find_kept_adapter(RunPaths{run}, options);
    validate(options, loaded.keys, loaded.registries);
  });
  mistakes.tell();
  loaded.run = resolve(std::move(options));
  return loaded;
}

}  // namespace

void find_kept_adapter(const RunPaths& paths, RunOptions& options) {
  LoraSection& lora = options.lora;
  if (lora.adapter.empty() || is_adapter(lora.adapter) || paths.root.empty()) return;
  if (is_adapter(paths.adapter()) && newest_checkpoint(paths)) lora.kept = paths.adapter();
}

void find_trained_model(const RunPaths& paths, RunOptions& options) {
  if (options.reward.stage.empty() || paths.root.empty()) return;
  options.reward.trained = paths.stage_model(options.reward.stage);
  options.reward.trained_chat = chat_of_run(paths, options);
}

LoadedRun load_run_options(const std::filesystem::path& path,
                           std::span<const std::string> overrides, const Registries& registries,
                           const std::filesystem::path& run_dir) {
  return load(path, overrides, registries, LibraryUse::kApart, run_dir);
}

LoadedRun load_simulated_run(const std::filesystem::path& path,
                             std::span<const std::string> overrides, const HardwareFile& hardware,
                             const Registries& registries) {
  LoadedRun loaded;
  RunOptions options;
  ConfigNode root = load_config(path, overrides);
  refuse_simulate_section(root, path);
  const std::string replaced = keep_upper_model(root);
  loaded.keys = bind_config(root, options, names_for(root, /*supervised=*/false));
  if (!replaced.empty()) loaded.keys.add_note(replaced);
  options.simulate = hardware.section;
  loaded.registries = registries;
  try {
    loaded.registries = with_libraries(registries, options, LibraryUse::kApart);
  } catch (const UserError&) {
    // What plays its episodes need not be here.
  }
  try {
    validate_simulated(options, loaded.keys, loaded.registries);
  } catch (const UserError& error) {
    throw hardware.keys.placed(error);
  }
  loaded.run = resolve(std::move(options));
  return loaded;
}

std::string prove_config(const std::string& title, const std::string& config) {
  return fmt::format("# {}\n{}{}\n{}", title, kProof, digest_of(config), config);
}

LoadedRun load_stored_run(const RunPaths& paths, std::span<const std::string> overrides,
                          const Registries& registries, LibraryUse use) {
  const auto text = read_file(paths.config());
  if (!text) throw UserError("{}", text.failure().message);
  LineReader lines(text.value());
  lines.next();
  const auto proof = lines.next();
  const std::string expected = std::string(kProof) + digest_of(lines.rest());
  if (!proof || !proof->text.starts_with(kProof))
    throw UserError(
        "{}: it does not prove itself (no line '{}...'): it was written by hand, or by an older "
        "build, which has to continue the run.",
        paths.config().string(), kProof);
  if (proof->text != expected)
    throw UserError(
        "{}: it was edited or damaged since the run began, and a run keeps its config. Put it "
        "back; what may change is given on the command line: 'tailrace launch --run-dir {} "
        "key=value'.",
        paths.config().string(), paths.root.string());
  check_complete(paths.config());
  LoadedRun loaded =
      load(paths.config(), overrides, registries, use, paths.root, paths.environments());
  find_fitted_prompts(paths, loaded.run);
  return loaded;
}

}  // namespace tailrace
