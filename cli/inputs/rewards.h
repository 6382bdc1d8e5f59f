// The rewards that a config has of its own: programs (reward.command), sums of several
// (reward.parts), and a reward model (reward.model). They take the place of the verifiers that
// environments name, and score those that reward by themselves as well.
//
// Thread: any.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/config/options.h"
#include "cli/inputs/programs.h"
#include "cli/inputs/resolved_run.h"
#include "core/config/yaml_config.h"
#include "reward/registry.h"
#include "reward/verifier.h"
#include "sandbox/process/stderr_lines.h"
#include "sandbox/registry.h"

namespace tailrace {

// Adds the verifier and has all environments name it. Nothing where the options have no rewards of
// their own. Throws UserError about the key: what cannot be together.
void replace_verifiers(const RunOptions& options, sandbox::EnvironmentRegistry& environments,
                       std::shared_ptr<const VerifierRegistry>& verifiers);

// The same verifier by itself, with processes of its own: what its programs write to stderr goes to
// `hear`, on threads of theirs. Null: the options have no rewards of their own.
std::unique_ptr<Verifier> make_heard_rewards(
    const RewardSection& reward, const std::shared_ptr<const VerifierRegistry>& verifiers,
    sandbox::StderrLog::Hear hear);

// Refuses `verifier` among the settings of environments where it has no effect any more. One of a
// lower layer goes, with a note in `keys`.
void settle_verifiers(RunOptions& options, ConfigKeys& keys);

// Has each program score one episode of each dataset, so that one that does not work ends the
// launch and no episode. Throws UserError about its key.
void try_rewards(const ResolvedRun& run, const sandbox::EnvironmentRegistry& environments,
                 const std::shared_ptr<const VerifierRegistry>& verifiers);

// The metric of a sample by which groups are judged (algo.filter_metric): that of a part of
// reward.parts is reward_NAME. Empty: the reward.
std::string judge_of(const RunOptions& options);

// Plays one episode of each dataset, where that needs no policy, for the metrics that
// algo.filter_metric may name. Throws UserError about it, with those that there are.
void check_filter_metric(const ResolvedRun& run, const sandbox::EnvironmentRegistry& environments,
                         const std::shared_ptr<const VerifierRegistry>& verifiers);

// Throws UserError about its key for a program that this machine lacks.
void require_programs(const ResolvedRun& run);

// The files of the run that the programs name.
std::vector<CommandFile> reward_files(const RunRewards& rewards);

// Lines of the plan: the programs, and what keeps them from the rest.
std::vector<std::string> describe_rewards(const ResolvedRun& run);

}  // namespace tailrace
