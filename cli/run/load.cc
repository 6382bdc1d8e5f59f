#include "cli/run/load.h"

#include <string_view>

#include <fmt/format.h>

#include "cli/run/foreign_names.h"
#include "cli/run/rules.h"
#include "core/base/config_printer.h"
#include "core/base/digest_of.h"
#include "core/base/error.h"
#include "core/base/file.h"

namespace tailrace {
namespace {

constexpr std::string_view kProof = "# proof: ";

// What a launch would write today is all there. A key that is missing came later, and its default
// need not be what the run has done so far.
void check_complete(const std::filesystem::path& config) {
  RunOptions options;
  const ConfigKeys stored = bind_config(load_config(config, {}), options);
  RunOptions again;
  const ConfigKeys written =
      bind_config(parse_config(print_config(options), config.string(), {}), again);
  for (const auto& [key, option] : options_by_key(options))
    if (option.resume == Resume::kFixed && written.given(key) && !stored.given(key))
      throw UserError(
          "{}: {} is missing: an older build, which did not know it, began the run and has to "
          "continue it.",
          config.string(), key);
}

LoadedRun load(const std::filesystem::path& path, std::span<const std::string> overrides,
               const Registries& registries, LibraryUse use,
               const std::filesystem::path& known = {}) {
  LoadedRun loaded;
  const ConfigNode root = load_config(path, overrides);
  loaded.keys =
      bind_config(root, loaded.options, is_supervised(root) ? supervised_names() : foreign_names());
  try {
    loaded.registries = with_libraries(registries, loaded.options, use, known);
  } catch (const UserError& error) {
    throw loaded.keys.placed(error);
  }
  validate(loaded.options, loaded.keys, loaded.registries);
  return loaded;
}

}  // namespace

LoadedRun load_run_options(const std::filesystem::path& path,
                           std::span<const std::string> overrides, const Registries& registries) {
  return load(path, overrides, registries, LibraryUse::kApart);
}

LoadedRun load_simulated_run(const std::filesystem::path& path,
                             std::span<const std::string> overrides, const Registries& registries) {
  LoadedRun loaded;
  loaded.registries = registries;
  loaded.keys = bind_config(load_config(path, overrides), loaded.options, foreign_names());
  validate_simulated(loaded.options, loaded.keys);
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
  return load(paths.config(), overrides, registries, use, paths.environments());
}

}  // namespace tailrace
