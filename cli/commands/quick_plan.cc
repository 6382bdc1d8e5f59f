#include "cli/commands/quick_plan.h"

#include <cstdio>
#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "cli/config/algorithm.h"
#include "cli/prepare/setup.h"
#include "cli/view/progress.h"
#include "cli/view/wrapped.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

fs::path new_run_directory(const std::string& name) {
  // Local time: the name is for people.
  const std::time_t now = std::time(nullptr);
  return fs::path("runs") / fmt::format("{}-{:%Y%m%d-%H%M%S}", name, fmt::localtime(now));
}

}  // namespace

fs::path directory_of(const RunOptions& options, const std::string& given) {
  if (!given.empty()) return given;
  return options.run.dir.empty() ? new_run_directory(options.run.name) : fs::path(options.run.dir);
}

QuickPlan quick_plan(const LoadedRun& loaded, const fs::path& directory, const Registries& built_in,
                     std::FILE* notes) {
  for (const std::string& note : loaded.keys.notes()) show(notes, wrapped(note, "note: "));
  QuickPlan quick{.paths = {directory}, .placed = {}, .plan = {}, .text = {}};
  quick.is_new = !fs::exists(quick.paths.config());
  refuse_foreign_folder(directory);
  quick.placed = place(loaded.run, loaded.registries.environments);
  quick.plan = checked_plan(quick.paths, quick.placed, loaded.registries, quick.is_new);
  check_run_is_hidden(directory, loaded.run, loaded.registries);
  if (!quick.is_new) check_same_run(quick.paths, loaded.run, built_in);
  quick.text =
      format_plan(quick.plan, loaded.run, describe_algorithm(loaded.run.options, loaded.keys));
  return quick;
}

void show_quick_plan(const QuickPlan& quick) {
  show(stdout, quick.text);
  if (!quick.is_new) show(stdout, fmt::format("continues  {}\n", quick.paths.root.string()));
}

}  // namespace tailrace
