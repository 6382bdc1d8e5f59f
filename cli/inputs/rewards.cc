#include "cli/inputs/rewards.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "cli/config/datasets.h"
#include "cli/config/named_file.h"
#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "core/base/machine.h"
#include "core/base/nearest.h"
#include "core/base/random.h"
#include "core/text/dataset.h"
#include "reward/command/command_verifier.h"
#include "reward/command/retold.h"
#include "reward/command/weighted.h"
#include "reward/judge.h"
#include "reward/models/chat_judge.h"
#include "reward/models/model_verifier.h"

namespace tailrace {
namespace {

constexpr const char* kVerifierSetting = "verifier";
constexpr int kMostTurnsTried = 64;

// Each command with its key.
std::vector<std::pair<std::string, std::vector<std::string>>> commands_of(
    const RunRewards& rewards) {
  std::vector<std::pair<std::string, std::vector<std::string>>> commands;
  for (const RunReward& part : rewards.parts)
    if (!part.command.empty()) commands.emplace_back(part.key("command"), part.command);
  return commands;
}

sandbox::CommandStart command_of(const RewardSection& reward,
                                 const std::vector<std::string>& words) {
  return {.words = words, .is_isolated = reward.isolation == Isolation::kSandbox};
}

std::unique_ptr<Verifier> make_judge(const JudgeSection& judge) {
  const char* key = judge.key_env.empty() ? nullptr : std::getenv(judge.key_env.c_str());
  return make_chat_judge({.url = judge.url,
                          .model = judge.model,
                          .prompt = judge.prompt,
                          .answer = judge.answer,
                          .best = judge.best,
                          .max_tokens = judge.max_tokens,
                          .key = key == nullptr ? "" : key});
}

void check_parts(const RunRewards& rewards, bool has_judge, const VerifierRegistry& verifiers) {
  std::map<std::string, size_t> known;
  for (size_t i = 0; i < rewards.parts.size(); ++i) {
    const RunReward& part = rewards.parts[i];
    const auto key = [&](std::string_view name) { return part.key(name); };
    if (!is_item_name(part.name))
      throw UserError::at(key("name"),
                          "is '{}'; it names a metric and keys, and is of letters, digits, _ and "
                          "-. Try style.",
                          part.name);
    // The part's metrics are reward_METRIC, or reward_NAME_METRIC, which are names of other parts.
    if (part.name == "reward" || part.name.starts_with("reward_"))
      throw UserError::at(key("name"),
                          "is {}; reward_ is in front of what all parts have for a metric. Try "
                          "outcome.",
                          part.name);
    if (const auto [first, is_new] = known.emplace(part.name, i); !is_new)
      throw UserError::at(key("name"),
                          "is {}, as that of reward.parts[{}] is. Give each a name of its own.",
                          part.name, first->second);
    if (part.command.empty() == part.verifier.empty())
      throw UserError("{}: {}. Give it one of them.", part.item,
                      part.command.empty() ? "neither command nor verifier is given"
                                           : "command and verifier are both given")
          .about(key("name"));
    if (part.verifier.empty()) continue;
    if (part.verifier == kJudgePart) {
      if (!has_judge)
        throw UserError::at(key("verifier"),
                            "is judge, and there is none. Write reward.judge.url, or another "
                            "verifier.");
      continue;
    }
    try {
      (void)verifiers.at(part.verifier);
    } catch (const UserError& error) {
      throw error.about(key("verifier"));
    }
  }
}

void check_model(const RewardSection& reward) {
  if (!reward.model.empty() && !reward.stage.empty())
    throw UserError::at("reward.stage",
                        "and reward.model are both given. Remove the one that is not meant.");
  const char* other = !reward.command.empty()  ? kRewardCommand
                      : !reward.parts.empty()  ? kRewardParts
                      : !reward.plugin.empty() ? "reward.plugin"
                                               : nullptr;
  if (other != nullptr)
    throw UserError::at(kRewardModel,
                        "and {} are both given, and the model scores all episodes. Remove one of "
                        "them.",
                        other);
  if (reward.workers == 0)
    throw UserError::at(kRewardModel,
                        "is read on this machine alone, and reward.workers is 0. Try "
                        "reward.workers=1.");
}

void check_judge(const RewardSection& reward, const RunRewards& rewards) {
  const bool is_part = std::ranges::any_of(
      rewards.parts, [](const RunReward& part) { return part.verifier == kJudgePart; });
  const char* other = !reward.command.empty()              ? kRewardCommand
                      : reward.has_model()                 ? kRewardModel
                      : !reward.parts.empty() && !is_part  ? kRewardParts
                      : !reward.plugin.empty() && !is_part ? "reward.plugin"
                                                           : nullptr;
  if (other != nullptr)
    throw UserError::at("reward.judge.url",
                        "and {} are both given, and the judge scores all episodes. Remove one of "
                        "them, or list both in reward.parts (verifier: judge).",
                        other);
  const JudgeSection& judge = reward.judge;
  if (judge.prompt.find("{response}") == std::string::npos &&
      judge.prompt.find("{conversation}") == std::string::npos)
    throw UserError::at("reward.judge.prompt",
                        "shows the judge neither {{response}} nor {{conversation}}: it would say "
                        "the same of all. Write one of them into it.");
  try {
    (void)make_judge(judge);
  } catch (const UserError& error) {
    throw error.about("reward.judge.url");
  }
}

void check_section(const RewardSection& reward, const RunRewards& rewards,
                   const VerifierRegistry& verifiers) {
  if (!reward.command.empty() && !reward.parts.empty())
    throw UserError::at(kRewardCommand,
                        "and reward.parts are both given. Make the command one of the parts, or "
                        "remove one of them.");
  if (reward.has_model()) check_model(reward);
  if (reward.judge.is_given()) check_judge(reward, rewards);
  if (rewards.is_sum()) check_parts(rewards, reward.judge.is_given(), verifiers);
  for (const auto& [key, words] : commands_of(rewards))
    if (words.front().empty()) throw UserError::at(key, "begins with an empty name");
  if (reward.has_commands() && reward.isolation == Isolation::kNone)
    throw UserError::at("reward.isolation",
                        "is none, and a command always runs in processes of its own. Try "
                        "reward.isolation=process, or sandbox.");
  if (!reward.has_commands() && reward.isolation == Isolation::kSandbox)
    throw UserError::at("reward.isolation",
                        "is sandbox, which is for programs (reward.command). Try "
                        "reward.isolation=process.");
  if (!reward.plugin.empty() && !reward.command.empty())
    throw UserError::at("reward.plugin",
                        "has no effect: reward.command scores all episodes. Remove one of them, or "
                        "list both in reward.parts.");
}

// Where the stderr of programs goes. Not `logs`: nowhere, for a trial, whose message says the same.
struct StderrTo {
  bool logs = true;
  sandbox::StderrLog::Hear hear = {};  // in the place of ours
};

std::unique_ptr<Verifier> make_command(const RewardSection& reward, const RunRewards& rewards,
                                       const std::vector<std::string>& words, const StderrTo& to) {
  return make_command_verifier(command_of(reward, words),
                               {.batch = static_cast<int>(reward.batch),
                                .at_once = static_cast<int>(rewards.at_once),
                                .logs = to.logs,
                                .hear = to.hear,
                                .start = rewards.start});
}

std::unique_ptr<Verifier> make_parts(const RewardSection& reward, const RunRewards& rewards,
                                     const std::shared_ptr<const VerifierRegistry>& verifiers,
                                     const StderrTo& to) {
  std::vector<WeightedPart> parts;
  for (const RunReward& part : rewards.parts) {
    WeightedPart made{.name = part.name, .weight = part.weight, .verifier = nullptr};
    // A program is told the episode; a verifier is given the evidence that its environment has for
    // it.
    made.is_retold = !part.command.empty() || part.verifier == kJudgePart;
    if (part.verifier == kJudgePart)
      made.verifier = make_judge(reward.judge);
    else if (made.is_retold)
      made.verifier = make_command(reward, rewards, part.command, to);
    else  // it shares the registry that it is in
      made.verifier = {verifiers, &verifiers->at(part.verifier)};
    parts.push_back(std::move(made));
  }
  return make_weighted_verifier(std::move(parts));
}

// The reward workers share the cores.
std::unique_ptr<Verifier> make_model(const RewardSection& reward) {
  const int64_t threads =
      std::max<int64_t>(1, num_usable_cores() / std::max<int64_t>(1, reward.workers));
  return make_model_verifier(reward.model_folder(), {.threads = static_cast<int>(threads),
                                                     .max_tokens = reward.model_tokens,
                                                     .chat = reward.trained_chat});
}

std::unique_ptr<Verifier> make_scorer(const RewardSection& reward, const RunRewards& rewards,
                                      const std::shared_ptr<const VerifierRegistry>& verifiers,
                                      const StderrTo& to) {
  if (reward.has_model()) return make_model(reward);
  if (rewards.scorer == kRewardJudge) return make_judge(reward.judge);
  return rewards.is_sum() ? make_parts(reward, rewards, verifiers, to)
                          : make_command(reward, rewards, rewards.parts.front().command, to);
}

// An environment that wants the name of its verifier is given this one.
bool wants_verifier(const sandbox::Declaration& declared) {
  return std::ranges::any_of(declared.settings, [](const sandbox::Setting& setting) {
    return setting.name == kVerifierSetting && !setting.fallback;
  });
}

bool has_setting(const sandbox::EnvironmentSettings& settings, std::string_view name) {
  return std::ranges::any_of(settings, [&](const auto& setting) { return setting.first == name; });
}

// An episode of answers that an environment would accept.
Result<sandbox::StepResult> play(sandbox::Environment& environment, const sandbox::Task& task) {
  Rng rng(0);
  if (const auto first = environment.reset(task); !first) return first.failure();
  for (int turn = 0; turn < kMostTurnsTried; ++turn) {
    const std::string action = environment.sample_action(rng);
    auto result = environment.step(action);
    while (result && result.value().pending) result = environment.step(action);
    if (!result || result.value().terminated || result.value().truncated) return result;
  }
  return environment.cut();
}

Result<sandbox::StepResult> first_episode(const RunOptions& options, const RunDataset& dataset,
                                          const sandbox::EnvironmentRegistry& environments) {
  const auto environment = environments.make(dataset.env, dataset.settings);
  sandbox::Task task{.seed = sandbox::task_seed(static_cast<uint64_t>(options.run.seed), false, 0)};
  if (environment->info().needs_dataset) {
    const RowsFile file = rows_of(dataset, /*held_out=*/dataset.dataset.empty());
    const auto rows = text::read_dataset(file.file, file.columns, options.files.limits());
    if (!rows.empty()) task.data = rows.front().json;
  }
  auto end = play(*environment, task);
  environment->close();
  return end;
}

}  // namespace

void replace_verifiers(const RunOptions& options, sandbox::EnvironmentRegistry& environments,
                       std::shared_ptr<const VerifierRegistry>& verifiers) {
  const RewardSection& reward = options.reward;
  const RunRewards rewards = rewards_of(reward);
  check_section(reward, rewards, *verifiers);
  if (rewards.scorer.empty()) return;
  const std::string& name = rewards.scorer;
  // A copy: the registry before is shared, and the parts of the scorer name verifiers of it.
  VerifierRegistry all = *verifiers;
  all.add(name, "the rewards of this config",
          make_scorer(reward, rewards, verifiers, {.logs = true}));
  verifiers = std::make_shared<const VerifierRegistry>(std::move(all));
  // Its verifiers are given what the environment says.
  const bool keeps_evidence = std::ranges::any_of(rewards.parts, [](const RunReward& part) {
    return !part.verifier.empty() && part.verifier != kJudgePart;
  });
  auto inner =
      std::make_shared<const sandbox::EnvironmentRegistry>(std::exchange(environments, {}));
  for (const sandbox::Declaration& declared : inner->list())
    environments.add(
        declared, sandbox::EnvironmentRegistry::Sources(
                      [inner, environment = declared.name, wants = wants_verifier(declared), name,
                       keeps_evidence](sandbox::EnvironmentSettings settings) {
                        if (wants && !has_setting(settings, kVerifierSetting))
                          settings.emplace_back(kVerifierSetting, name);
                        return retold(inner->source(environment, settings), name, keeps_evidence);
                      }));
}

std::unique_ptr<Verifier> make_heard_rewards(
    const RewardSection& reward, const std::shared_ptr<const VerifierRegistry>& verifiers,
    sandbox::StderrLog::Hear hear) {
  const RunRewards rewards = rewards_of(reward);
  if (rewards.scorer.empty()) return nullptr;
  return make_scorer(reward, rewards, verifiers, {.logs = true, .hear = std::move(hear)});
}

void settle_verifiers(RunOptions& options, ConfigKeys& keys) {
  const std::string scorer = rewards_of(options.reward).scorer;
  if (scorer.empty()) return;
  const ConfigPlace* decided = keys.place(scorer);
  std::vector<std::string> idle;
  const auto settle = [&](const std::string& settings_key, sandbox::EnvironmentSettings& settings) {
    if (!has_setting(settings, kVerifierSetting)) return;
    const std::string key = join_key(settings_key, kVerifierSetting);
    const ConfigPlace* place = keys.place(key);
    if (place != nullptr && decided != nullptr && place->layer >= decided->layer)
      throw UserError::at(key, "has no effect: {} scores all episodes. Remove one of them.",
                          scorer);
    std::erase_if(settings, [](const auto& setting) { return setting.first == kVerifierSetting; });
    idle.push_back(key);
  };
  settle("env.settings", options.env.settings);
  const std::vector<RunDataset> datasets = datasets_of(options);
  for (size_t i = 0; i < options.datasets.size(); ++i)
    settle(datasets[i].key("settings"), options.datasets[i].settings);
  if (!idle.empty())
    keys.add_note(fmt::format("without effect, as {} scores all episodes: {}", scorer,
                              join_texts(idle, ", ")));
}

void require_programs(const ResolvedRun& run) {
  for (const auto& [key, words] : commands_of(run.rewards)) {
    const sandbox::CommandStart command = command_of(run.options.reward, words);
    if (const Result<void> fit = check_machine(command); !fit)
      throw UserError::at(key, "is '{}': {}.", shown(command), fit.failure().message);
  }
}

void try_rewards(const ResolvedRun& run, const sandbox::EnvironmentRegistry& environments,
                 const std::shared_ptr<const VerifierRegistry>& verifiers) {
  const RunOptions& options = run.options;
  const RewardSection& reward = options.reward;
  // Where workers of other machines score, what they have is asked there.
  const bool is_tried = reward.has_commands() || !reward.model.empty() || reward.judge.is_given();
  if (!is_tried || reward.workers == 0) return;
  require_programs(run);
  // Here, where reward workers inherit it; others need no key.
  if (const std::string& key = reward.judge.key_env;
      reward.judge.is_given() && !key.empty() && std::getenv(key.c_str()) == nullptr)
    throw UserError::at("reward.judge.key_env", "is {}, and there is no such environment variable.",
                        key);
  if (!reward.model.empty())
    read_named(kRewardModel, [&] {
      check_reward_folder(reward.model, reward.model_tokens);
      return true;
    });
  // Its processes end with the trial.
  const auto trial = make_scorer(reward, run.rewards, verifiers, {.logs = false});
  for (const RunDataset& dataset : run.datasets) {
    // An agent has no episode without a policy.
    if (environments.source(dataset.env, dataset.settings)->agent() != nullptr) continue;
    const auto end = first_episode(options, dataset, environments);
    if (!end)
      throw UserError("environment {} fails in its first episode: {}", dataset.env,
                      end.failure().message)
          .about(dataset.key("env"));
    const Time budget = score_budget(options.scheduler.deadlines.verify);
    auto score = trial->score(end.value().evidence, budget);
    // Once more: what a program writes behind an answer is seen when it is asked again.
    if (score && &dataset == &run.datasets.front())
      score = trial->score(end.value().evidence, budget);
    if (score && !is_reward(score.value().reward)) score = Failure{no_reward(score.value().reward)};
    if (!score)
      throw UserError::at(run.rewards.scorer,
                          "has no verdict on a first episode{}, before the run: {}",
                          dataset.listed ? " of " + dataset.name : "", score.failure().message);
  }
}

std::string judge_of(const RunOptions& options) {
  std::string name = options.algo.filter_metric;
  // As metrics.jsonl has it.
  constexpr std::string_view kSection = "env/";
  if (name.starts_with(kSection)) name.erase(0, kSection.size());
  if (name == AlgoOptions{}.filter_metric) return "";
  if (std::ranges::find(options.reward.parts, name, &RewardPart::name) !=
      options.reward.parts.end())
    return "reward_" + name;
  return name;
}

void check_filter_metric(const ResolvedRun& run, const sandbox::EnvironmentRegistry& environments,
                         const std::shared_ptr<const VerifierRegistry>& verifiers) {
  const RunOptions& options = run.options;
  const RewardSection& reward = options.reward;
  const std::string judge = judge_of(options);
  std::vector<std::string> parts;
  for (const RewardPart& part : reward.parts) parts.push_back("reward_" + part.name);
  if (judge.empty() || std::ranges::find(parts, judge) != parts.end()) return;
  // A score that only another machine can make is known once it has.
  if (reward.has_commands() && reward.workers == 0) return;
  const auto trial = !run.rewards.scorer.empty()
                         ? make_scorer(reward, run.rewards, verifiers, {.logs = false})
                         : std::unique_ptr<Verifier>();
  for (const RunDataset& dataset : run.datasets) {
    if (dataset.prompts == 0) continue;
    if (environments.source(dataset.env, dataset.settings)->agent() != nullptr) continue;
    const auto end = first_episode(options, dataset, environments);
    if (!end) continue;
    MetricList metrics = end.value().metrics;
    if (const std::string& verifier = end.value().verifier; !verifier.empty()) {
      const auto score =
          (trial ? *trial : verifiers->at(verifier))
              .score(end.value().evidence, score_budget(options.scheduler.deadlines.verify));
      // It says so itself, of each sample.
      if (!score) continue;
      metrics.insert(metrics.end(), score.value().metrics.begin(), score.value().metrics.end());
    }
    std::vector<std::string> names;
    for (const auto& [name, value] : metrics) names.push_back(name);
    if (std::ranges::find(names, judge) != names.end()) continue;
    const std::string of = dataset.listed ? fmt::format(" of dataset {}", dataset.name) : "";
    throw UserError::at("algo.filter_metric",
                        "is {}, and a first episode{} has no such metric{} It has: {}.",
                        options.algo.filter_metric, of, did_you_mean(judge, names),
                        names.empty() ? "none" : join_texts(names, ", "));
  }
}

std::vector<CommandFile> reward_files(const RunRewards& rewards) {
  std::vector<CommandFile> files;
  for (const auto& [key, words] : commands_of(rewards))
    for (CommandFile& file : files_of_command(key, words)) files.push_back(std::move(file));
  return files;
}

std::vector<std::string> describe_rewards(const ResolvedRun& run) {
  const RewardSection& reward = run.options.reward;
  std::vector<std::string> lines;
  for (const auto& [key, words] : commands_of(run.rewards))
    lines.push_back(fmt::format("{} is '{}', {}", key, shown(command_of(reward, words)),
                                place_of_program(reward.isolation)));
  if (reward.has_model())
    lines.push_back(fmt::format("{} is {}, on the CPU of this machine", kRewardModel,
                                reward.stage.empty()
                                    ? reward.model
                                    : fmt::format("what the stage {} trains", reward.stage)));
  if (reward.judge.is_given())
    lines.push_back(fmt::format("{} is {}{}", kRewardJudge, reward.judge.url,
                                reward.judge.model.empty() ? "" : ", model " + reward.judge.model));
  return lines;
}

}  // namespace tailrace
