#include "sandbox/builtin/built_in.h"

#include "sandbox/builtin/calculator.h"
#include "sandbox/builtin/countdown.h"
#include "sandbox/builtin/frozen_grid.h"
#include "sandbox/builtin/paced.h"
#include "sandbox/builtin/text_task.h"
#include "sandbox/plugin/library.h"
#include "sandbox/plugin/plugin_environment.h"
#include "tailrace/library.h"

namespace tailrace::sandbox {
namespace {

// Those that speak the interface of a library outside the tree. Asked once in a process.
const tr_library* own_library(const tr_host* host) {
  static Library library(*host);
  declare_text_task(library);
  return library.finish("tailrace", "");
}

}  // namespace

EnvironmentRegistry built_in_environments() {
  EnvironmentRegistry registry;
  registry.add(
      {"calculator", "arithmetic with a calculator tool, several turns", calculator_settings()},
      make_calculator);
  registry.add({"countdown", "reach a target number with each given number once, one turn",
                countdown_settings()},
               make_countdown);
  registry.add(
      {"frozen_grid", "walk to the goal past holes seen only from next to them, several turns",
       frozen_grid_settings()},
      make_frozen_grid);
  registry.add(
      {"paced", "repeat a word, over turns whose number and time are settings", paced_settings()},
      make_paced);
  static const auto library = PluginLibrary::linked("tailrace", own_library);
  for (const PluginLibrary::EnvironmentEntry& entry : library->environments())
    registry.add(entry,
                 EnvironmentRegistry::Factory(
                     [&entry](const EnvironmentSettings& given) -> std::unique_ptr<Environment> {
                       return make_plugin_environment(
                           library, entry,
                           complete_settings(entry.settings, given, "environment " + entry.name,
                                             "env.settings"));
                     }));
  return registry;
}

}  // namespace tailrace::sandbox
