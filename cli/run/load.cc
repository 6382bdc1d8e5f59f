#include "cli/run/load.h"

#include "cli/run/rules.h"
#include "core/base/error.h"

namespace tailrace {

LoadedRun load_run_options(const std::filesystem::path& path,
                           std::span<const std::string> overrides, const Registries& registries) {
  LoadedRun loaded;
  loaded.keys = bind_config(load_config(path, overrides), loaded.options);
  try {
    validate(loaded.options, loaded.keys, registries);
  } catch (const UserError& error) {
    throw UserError("{}", loaded.keys.with_place(error.what()));
  }
  return loaded;
}

}  // namespace tailrace
