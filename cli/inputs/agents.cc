#include "cli/inputs/agents.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "sandbox/process/command.h"

namespace tailrace {
namespace {

using sandbox::AgentProgram;

Time as_time(double seconds) {
  return std::chrono::duration_cast<Time>(std::chrono::duration<double>(seconds));
}

// The placeholder of an environment: it knows tasks, and nobody steps it.
class AgentTask final : public sandbox::Environment {
 public:
  explicit AgentTask(const sandbox::EnvironmentInfo& info) : info_(info) {}
  const sandbox::EnvironmentInfo& info() const override { return info_; }
  Result<sandbox::Observation> reset(const sandbox::Task&) override {
    return sandbox::Observation{};
  }
  Result<sandbox::StepResult> step(const std::string&) override {
    return Failure{"an agent plays by itself; nobody steps it"};
  }
  std::string sample_action(Rng&) override { return ""; }

 private:
  const sandbox::EnvironmentInfo& info_;
};

class AgentSource final : public sandbox::EnvironmentSource {
 public:
  AgentSource(sandbox::EnvironmentInfo info, std::shared_ptr<const AgentProgram> program)
      : info_(std::move(info)), program_(std::move(program)) {}
  const sandbox::EnvironmentInfo& info() const override { return info_; }
  std::unique_ptr<sandbox::Environment> open() const override {
    return std::make_unique<AgentTask>(info_);
  }
  std::shared_ptr<const AgentProgram> agent() const override { return program_; }

 private:
  const sandbox::EnvironmentInfo info_;
  const std::shared_ptr<const AgentProgram> program_;
};

std::shared_ptr<const AgentProgram> program_of(const DatasetSection& dataset) {
  const AgentSection& agent = dataset.agent;
  AgentProgram program{.setup = agent.setup,
                       .run = agent.command,
                       .score = agent.score,
                       .setup_deadline = as_time(agent.setup_seconds),
                       .run_deadline = as_time(agent.run_seconds),
                       .score_deadline = as_time(agent.score_seconds),
                       .episodes = agent.episodes,
                       .at_once = agent.at_once,
                       .max_request_bytes = agent.max_request_mb << 20,
                       .is_isolated = dataset.isolation == Isolation::kSandbox,
                       .verifier = agent.verifier};
  // Proved whenever a process of the program starts, so that a file which changes under a worker is
  // noticed.
  for (const auto* words : {&program.setup, &program.run, &program.score})
    if (!words->empty()) program.digests.merge(sandbox::with_digests({.words = *words}).digests);
  return std::make_shared<const AgentProgram>(std::move(program));
}

// Calls `with` with each dataset that an agent plays, and the key and words of each of its
// programs.
template <class With>
void each_program(std::span<const RunDataset> datasets, const With& with) {
  for (const RunDataset& dataset : datasets) {
    const AgentSection& agent = dataset.agent;
    if (!agent.plays()) continue;
    for (const auto& [name, words] :
         {std::pair{"setup", &agent.setup}, {"command", &agent.command}, {"score", &agent.score}})
      if (!words->empty()) with(dataset, dataset.key(fmt::format("agent.{}", name)), *words);
  }
}

}  // namespace

void add_agents(RunOptions& options, std::span<const RunDataset> datasets,
                sandbox::EnvironmentRegistry& environments) {
  for (size_t i = 0; i < datasets.size(); ++i) {
    const RunDataset& dataset = datasets[i];
    const AgentSection& agent = dataset.agent;
    const auto key = [&](std::string_view name) { return dataset.key(name); };
    if (!agent.plays()) {
      if (!agent.setup.empty() || !agent.score.empty())
        throw UserError::at(key("agent.command"),
                            "is missing: the program that plays, for example [python3, agent.py]");
      continue;
    }
    for (const auto& [name, is_given] :
         {std::pair{"plugin", !dataset.plugin.empty()}, {"command", !dataset.command.empty()}})
      if (is_given)
        throw UserError::at(key(name), "and {} are both given. Remove one of them.",
                            key("agent.command"));
    if (agent.episodes > 1 && !agent.score.empty())
      throw UserError::at(key("agent.score"),
                          "and {} are both given: a process that plays several episodes says "
                          "itself what each was worth. Remove one of them.",
                          key("agent.episodes"));
    if (options.algo.router_replay != RouterReplay::kOff)
      throw UserError::at("algo.router_replay",
                          "is on, and {} plays: the experts of its tokens are not recorded. Try "
                          "algo.router_replay=off.",
                          key("agent.command"));
    if (dataset.isolation == Isolation::kNone)
      throw UserError::at(key("isolation"),
                          "is none, and an agent always runs in processes of its own. Try "
                          "{}=process, or sandbox.",
                          key("isolation"));
    for (const auto& [name, words] :
         {std::pair{"agent.setup", &agent.setup}, {"agent.score", &agent.score}})
      if (dataset.isolation == Isolation::kSandbox && !words->empty())
        throw UserError::at(key(name),
                            "needs the folder of the run, and each process in a sandbox has one of "
                            "its own. Do its work in {}, or try {}=process.",
                            key("agent.command"), key("isolation"));
    if (!dataset.settings.empty())
      throw UserError::at(key("settings"),
                          "has no effect: {} plays, which is given its task and nothing else. "
                          "Remove it.",
                          key("agent.command"));
    std::string& name = dataset.listed ? options.datasets[i].env : options.env.name;
    if (name.empty()) name = dataset.listed ? "agent-" + dataset.name : "agent";
    // An agent stands in the registry like an environment, so that tasks, limits and verifiers are
    // found by its name as those of any other. A call to the policy is a turn.
    sandbox::EnvironmentInfo info{.name = name,
                                  .vocabulary = agent.vocabulary,
                                  .max_turns = agent.max_calls,
                                  .max_action_tokens = agent.max_tokens,
                                  .needs_dataset = !dataset.dataset.empty(),
                                  .verifier = agent.verifier};
    const auto source = std::make_shared<const AgentSource>(std::move(info), program_of(dataset));
    try {
      environments.add({.name = name, .help = "a program that plays by itself", .settings = {}},
                       [source](const sandbox::EnvironmentSettings&)
                           -> std::shared_ptr<const sandbox::EnvironmentSource> { return source; });
    } catch (const UserError& error) {
      throw UserError("{}", error.what()).about(key("env"));
    }
  }
}

std::vector<CommandFile> agent_files(std::span<const RunDataset> datasets) {
  std::vector<CommandFile> files;
  each_program(datasets, [&](const DatasetSection&, const std::string& key,
                             const std::vector<std::string>& words) {
    std::ranges::move(files_of_command(key, words), std::back_inserter(files));
  });
  return files;
}

void require_agents(std::span<const RunDataset> datasets) {
  each_program(datasets, [&](const DatasetSection& dataset, const std::string& key,
                             const std::vector<std::string>& words) {
    const sandbox::CommandStart start{.words = words,
                                      .is_isolated = dataset.isolation == Isolation::kSandbox};
    if (const auto fit = sandbox::check_machine(start); !fit)
      throw UserError::at(key, "is '{}': {}.", shown(start), fit.failure().message);
  });
}

int64_t agents_at_once(std::span<const RunDataset> datasets) {
  int64_t sum = 0;
  for (const RunDataset& dataset : datasets) {
    // An environment among the datasets takes slots as well, so that processes of agents say
    // nothing of how many a worker may hold.
    if (!dataset.agent.plays()) return 0;
    sum += dataset.agent.at_once;
  }
  return sum;
}

std::vector<std::string> describe_agents(std::span<const RunDataset> datasets) {
  std::vector<std::string> lines;
  for (const RunDataset& dataset : datasets) {
    const AgentSection& agent = dataset.agent;
    if (!agent.plays()) continue;
    lines.push_back(fmt::format("{}, an agent: '{}', at most {:g} s and {} answers an episode, {}",
                                dataset.env, sandbox::shown({.words = agent.command}),
                                agent.run_seconds, agent.max_calls,
                                dataset.isolation == Isolation::kSandbox
                                    ? "in a sandbox: of all networks the policy alone, and no "
                                      "files but those that it names"
                                    : place_of_program(dataset.isolation)));
  }
  return lines;
}

}  // namespace tailrace
