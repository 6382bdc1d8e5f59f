// The agents of a config: programs that play by themselves, as environments that datasets name.
//
// Thread: any.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/config/datasets.h"
#include "cli/config/options.h"
#include "cli/inputs/programs.h"
#include "sandbox/registry.h"

namespace tailrace {

// Adds an environment for each, and has its dataset name it ("agent", or "agent-DATASET" of a
// list). Throws UserError about the key: beside a plugin, without its command, an isolation that
// this machine lacks.
void add_agents(RunOptions& options, std::span<const RunDataset> datasets,
                sandbox::EnvironmentRegistry& environments);

// The words of their commands that are files of the run.
std::vector<CommandFile> agent_files(std::span<const RunDataset> datasets);

// Throws UserError about its key for a program that this machine lacks.
void require_agents(std::span<const RunDataset> datasets);

// Processes of agents that a rollout worker has at once; 0: it plays environments too, or alone.
int64_t agents_at_once(std::span<const RunDataset> datasets);

// Lines of the plan.
std::vector<std::string> describe_agents(std::span<const RunDataset> datasets);

}  // namespace tailrace
