#include "cli/run/load.h"

#include "cli/run/rules.h"

namespace tailrace {

LoadedRun load_run_options(const std::filesystem::path& path,
                           std::span<const std::string> overrides, const Registries& registries) {
  LoadedRun loaded;
  loaded.keys = bind_config(load_config(path, overrides), loaded.options);
  validate(loaded.options, loaded.keys, registries);
  return loaded;
}

}  // namespace tailrace
