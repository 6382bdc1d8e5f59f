#include "cli/inputs/programs.h"

#include <fmt/format.h>

#include "core/base/error.h"

namespace tailrace {

std::vector<CommandFile> files_of_command(const std::string& key,
                                          const std::vector<std::string>& words) {
  std::vector<CommandFile> files;
  // The words that are files on this machine. They are inputs of the run: proved before it goes on,
  // and sent to workers of other machines.
  for (const size_t i : sandbox::run_files(words))
    files.push_back({fmt::format("{}.{}", key, i), words[i]});
  return files;
}

std::vector<CommandFile> environment_files(std::span<const RunDataset> datasets) {
  std::vector<CommandFile> files;
  for (const RunDataset& dataset : datasets)
    for (CommandFile& file : files_of_command(dataset.key("command"), dataset.command))
      files.push_back(std::move(file));
  return files;
}

sandbox::CommandStart start_of(const DatasetSection& dataset) {
  return {.words = dataset.command, .is_isolated = dataset.isolation == Isolation::kSandbox};
}

void check_environment_commands(std::span<const RunDataset> datasets) {
  for (const RunDataset& dataset : datasets) {
    const auto key = [&](std::string_view name) { return dataset.key(name); };
    if (dataset.command.empty()) {
      if (dataset.isolation == Isolation::kSandbox && !dataset.agent.plays())
        throw UserError::at(key("isolation"),
                            "is sandbox, which is for programs ({}). Try {}=process.",
                            key("command"), key("isolation"));
      continue;
    }
    if (dataset.command.front().empty())
      throw UserError::at(key("command"), "begins with an empty name");
    if (!dataset.plugin.empty())
      throw UserError::at(key("command"), "and {} are both given. Remove one of them.",
                          key("plugin"));
    if (dataset.isolation == Isolation::kNone)
      throw UserError::at(key("isolation"),
                          "is none, and a command always runs in processes of its own. Try "
                          "{}=process, or sandbox.",
                          key("isolation"));
  }
}

void require_environment_programs(std::span<const RunDataset> datasets) {
  for (const RunDataset& dataset : datasets) {
    if (dataset.command.empty()) continue;
    const sandbox::CommandStart start = start_of(dataset);
    if (const Result<void> fit = check_machine(start); !fit)
      throw UserError::at(dataset.key("command"), "is '{}': {}.", shown(start),
                          fit.failure().message);
  }
}

std::string place_of_program(Isolation isolation) {
  return isolation == Isolation::kSandbox
             ? "in a sandbox: no network, and no files but those that it names"
             : "in processes of its own: a crash and a hang end there; files and network are open "
               "to it";
}

}  // namespace tailrace
