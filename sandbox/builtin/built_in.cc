#include "sandbox/builtin/built_in.h"

#include "sandbox/builtin/calculator.h"
#include "sandbox/builtin/countdown.h"
#include "sandbox/builtin/frozen_grid.h"
#include "sandbox/builtin/paced.h"
#include "sandbox/builtin/shopping.h"
#include "sandbox/builtin/text_task.h"
#include "sandbox/plugin/library.h"
#include "sandbox/plugin/plugin_environment.h"
#include "tailrace/library.h"

namespace tailrace::sandbox {
namespace {

// As a library outside the tree has them. Asked once in a process.
const tr_library* own_library(const tr_host* host) {
  static Library library(*host);
  declare_calculator(library);
  declare_countdown(library);
  declare_frozen_grid(library);
  declare_paced(library);
  declare_shopping(library);
  declare_text_task(library);
  return library.finish("tailrace", "");
}

}  // namespace

EnvironmentRegistry built_in_environments() {
  static const auto library = PluginLibrary::linked("tailrace", own_library);
  EnvironmentRegistry registry;
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
