// The programs of a config that play environments (env.command, datasets.NAME.command).
//
// Thread: any.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "cli/config/datasets.h"
#include "cli/config/options.h"
#include "sandbox/process/command.h"

namespace tailrace {

// A word of a command that is a file of the run.
struct CommandFile {
  std::string key;  // "env.command.1"
  std::filesystem::path path;
};
std::vector<CommandFile> files_of_command(const std::string& key,
                                          const std::vector<std::string>& words);
std::vector<CommandFile> environment_files(std::span<const RunDataset> datasets);

sandbox::CommandStart start_of(const DatasetSection& dataset);

// Throws UserError about the key: what cannot be together.
void check_environment_commands(std::span<const RunDataset> datasets);

// Throws UserError about its key for a program that this machine lacks.
void require_environment_programs(std::span<const RunDataset> datasets);

// "in processes of its own: ...", for the plan.
std::string place_of_program(Isolation isolation);

}  // namespace tailrace
