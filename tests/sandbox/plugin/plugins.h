// The libraries that tests load, built beside the binary.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "sandbox/plugin/library.h"
#include "sandbox/plugin/plugin_environment.h"

namespace tailrace::sandbox::testing {

inline std::filesystem::path plugin(const std::string& name) {
  return std::filesystem::path(TAILRACE_BINARY).parent_path() / "plugins" / ("lib" + name + ".so");
}

inline const PluginLibrary::EnvironmentEntry& entry_of(const PluginLibrary& library,
                                                       const std::string& name) {
  for (const auto& entry : library.environments())
    if (entry.name == name) return entry;
  throw std::out_of_range(name);
}

inline std::unique_ptr<Environment> make(const std::string& library, const std::string& name,
                                         const EnvironmentSettings& settings = {}) {
  auto loaded = PluginLibrary::load(plugin(library));
  const auto& entry = entry_of(*loaded, name);
  return make_plugin_environment(loaded, entry,
                                 complete_settings(entry.settings, settings, name, "env.settings"));
}

}  // namespace tailrace::sandbox::testing
