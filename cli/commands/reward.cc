#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/commands/command_words.h"
#include "cli/commands/commands.h"
#include "cli/config/datasets.h"
#include "cli/env/player.h"
#include "cli/inputs/load.h"
#include "cli/inputs/registries.h"
#include "cli/inputs/rewards.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/json_row.h"
#include "core/base/json_text.h"
#include "core/base/nearest.h"
#include "core/base/printable.h"
#include "core/config/flags.h"
#include "core/text/dataset.h"
#include "kernels/base/mutex.h"
#include "reward/judge.h"

namespace tailrace {
namespace {

struct RewardCheckArguments {
  std::string config, program, dataset, rows, row;
  std::vector<std::string> overrides, answers;
  double timeout_s = 0;
  uint64_t seed = 0;
  bool json = false;
};

// One that answers nothing takes its whole deadline each time.
constexpr int64_t kMostFailures = 3;
constexpr size_t kShownBytes = 300;
constexpr const char* kResponse = "response";

// An answer, and the task that it answers.
struct TriedAnswer {
  sandbox::Task task;
  std::string text;
};

// The lines that programs write to stderr, from the threads that read them.
class HeardLines {
 public:
  void add(const std::string& line) {
    MutexLock lock(mutex_);
    lines_.push_back(line);
  }
  std::vector<std::string> take() {
    MutexLock lock(mutex_);
    return std::exchange(lines_, {});
  }

 private:
  Mutex mutex_;
  std::vector<std::string> lines_ TR_GUARDED_BY(mutex_);
};

// What became of an answer.
struct TriedScore {
  std::string prompt, scored_by;
  Result<Score> score = Failure{};
  Time took{};
  std::vector<std::string> heard;
};

// The run that the arguments mean: that of a config, or one of prompts whose rewards are those of
// the program.
LoadedRun run_of(const RewardCheckArguments& arguments, const Registries& built_in) {
  if (arguments.config.empty() == arguments.program.empty())
    throw UserError(
        "{}. Give a config, or --command \"python3 reward.py\".",
        arguments.config.empty() ? "no reward is given" : "a config and --command are both given");
  if (!arguments.config.empty())
    // A reward needs no policy.
    return load_simulated_run(arguments.config, arguments.overrides, HardwareFile{}, built_in);
  RunOptions options;
  options.env.name = "text";
  options.reward.command = words_of(arguments.program);
  if (options.reward.command.empty())
    throw UserError("--command is empty. Try --command \"python3 reward.py\".");
  LoadedRun loaded;
  loaded.registries = with_libraries(built_in, options, LibraryUse::kApart);
  loaded.run = resolve(std::move(options));
  return loaded;
}

size_t dataset_index(const RewardCheckArguments& arguments,
                     const std::vector<RunDataset>& datasets) {
  if (datasets.empty())
    throw UserError("{} trains on rows of sft.data alone, and has no rewards.", arguments.config);
  if (arguments.dataset.empty()) return 0;
  const std::vector<std::string> names = dataset_names(datasets);
  const auto found = std::ranges::find(names, arguments.dataset);
  if (found == names.end())
    throw UserError("--dataset: there is no dataset '{}'{}{}", arguments.dataset,
                    did_you_mean(arguments.dataset, names),
                    names.empty() ? " The config has one, without a name." : "");
  return static_cast<size_t>(found - names.begin());
}

// The rows of --rows, each with an answer to it.
std::vector<TriedAnswer> answers_of_rows(const RewardCheckArguments& arguments,
                                         const RunDataset& dataset, const FilesSection& files) {
  std::vector<TriedAnswer> tried;
  for (const text::DatasetRow& row :
       text::read_dataset(arguments.rows, dataset.columns, files.limits())) {
    nlohmann::ordered_json object = parse_ordered_json(row.json);
    const auto answer = object.find(kResponse);
    if (answer == object.end() || !answer->is_string())
      throw UserError(
          "{}:{}: \"response\" {}; a row is one of the dataset, with the answer to try: "
          "{{\"prompt\": ..., \"response\": \"...\"}}",
          arguments.rows, row.line, answer == object.end() ? "is missing" : "is no text");
    std::string text = answer->get<std::string>();
    object.erase(answer);
    tried.push_back({{.seed = arguments.seed, .data = json_text(object)}, std::move(text)});
  }
  if (tried.empty()) throw UserError("{}: it has no rows", arguments.rows);
  return tried;
}

// The task of --answer: its row where the environment wants one.
sandbox::Task task_of(const RewardCheckArguments& arguments, const ResolvedRun& run, size_t index,
                      const RunDataset& dataset, bool needs_row) {
  sandbox::Task task{.seed = sandbox::task_seed(arguments.seed, /*held_out=*/false, 0,
                                                static_cast<int32_t>(index))};
  if (!arguments.row.empty()) {
    const auto row = parse_json_row(arguments.row);
    if (!row) throw UserError("--row: {}: {}", row.failure().message, shown_name(arguments.row));
    task.data = arguments.row;
  } else if (needs_row && arguments.config.empty()) {
    task.data = R"({"prompt": ""})";
  } else if (needs_row) {
    const RowsFile file = rows_of(dataset, /*held_out=*/dataset.dataset.empty());
    const auto rows = text::read_dataset(file.file, file.columns, run.options.files.limits());
    if (rows.empty()) throw UserError("{}: it has no rows", file.file.string());
    task.data = rows[arguments.seed % rows.size()].json;
  }
  return task;
}

std::string as_action(const sandbox::EnvironmentInfo& info, const std::string& answer) {
  if (info.stop_strings.empty() || answer.ends_with(info.stop_strings.front())) return answer;
  return answer + info.stop_strings.front();
}

// Plays the answer as an episode of one turn, and has it scored.
TriedScore try_answer(sandbox::Environment& environment, const TriedAnswer& answer,
                      const VerifierRegistry& verifiers, Time budget, HeardLines& heard) {
  TriedScore tried;
  const Time begun = steady_now();
  EpisodePlayer player(environment);
  const auto play = [&]() -> Result<void> {
    if (auto done = player.begin(answer.task); !done) return done;
    const sandbox::Observation& first = player.played().first;
    tried.prompt = first.messages.empty() ? first.text : first.messages;
    if (auto done = player.turn(as_action(environment.info(), answer.text)); !done) return done;
    return player.is_done() ? Result<void>() : player.cut();
  };
  if (const auto played = play(); !played) {
    tried.score = Failure{"the environment: " + played.failure().message};
  } else if (const sandbox::StepResult& end = player.played().end(); end.verifier.empty()) {
    tried.scored_by = "the environment";
    tried.score = Score{.reward = player.played().reward(), .metrics = end.metrics};
  } else {
    tried.scored_by = end.verifier;
    tried.score = judge(verifiers, end.verifier, end.evidence, budget);
  }
  tried.took = steady_now() - begun;
  tried.heard = heard.take();
  return tried;
}

void labelled(std::string_view label, const std::string& text) {
  fmt::print("{:<9} {}\n", label, printable(text));
}

std::string on_one_line(const std::string& text) {
  std::string shown = shortened(text, kShownBytes);
  for (size_t at; (at = shown.find('\n')) != std::string::npos;) shown.replace(at, 1, "\\n");
  return shown;
}

void show_score(const TriedAnswer& answer, const TriedScore& tried,
                const std::vector<RewardPart>& parts) {
  labelled("prompt", on_one_line(tried.prompt));
  labelled("answer", on_one_line(answer.text));
  if (tried.score) {
    MetricList metrics = tried.score.value().metrics;
    labelled("reward", fmt::format("{:.6g}, of {}", tried.score.value().reward, tried.scored_by));
    for (const RewardPart& part : parts) {
      const auto found =
          std::ranges::find(metrics, "reward_" + part.name, &MetricList::value_type::first);
      if (found == metrics.end()) continue;
      labelled("", fmt::format("{}: {:.6g} x {:g}", part.name, found->second, part.weight));
      metrics.erase(found);
    }
    for (const auto& [name, value] : metrics)
      labelled("metric", fmt::format("{} {:.6g}", name, value));
  } else {
    labelled("FAILED", tried.score.failure().message);
  }
  labelled("time", fmt::format("{:.3f} s", seconds_of(tried.took)));
  for (const std::string& line : tried.heard) labelled("stderr", line);
  fmt::print("\n");
  std::fflush(stdout);
}

void show_score_json(const TriedAnswer& answer, const TriedScore& tried) {
  nlohmann::ordered_json row = {{"prompt", tried.prompt}, {"answer", answer.text}};
  if (tried.score) {
    row["reward"] = tried.score.value().reward;
    row["scored_by"] = tried.scored_by;
    row["metrics"] = nlohmann::ordered_json::object();
    for (const auto& [name, value] : tried.score.value().metrics) row["metrics"][name] = value;
  } else {
    row["error"] = tried.score.failure().message;
  }
  row["seconds"] = seconds_of(tried.took);
  row["stderr"] = tried.heard;
  fmt::print("{}\n", json_text(row));
  std::fflush(stdout);
}

int check_reward(const RewardCheckArguments& arguments, const Registries& built_in) {
  if (arguments.answers.empty() == arguments.rows.empty())
    throw UserError(
        "{}. Give --answer TEXT, or --rows FILE.jsonl.",
        arguments.rows.empty() ? "no answer is given" : "--answer and --rows are both given");
  if (!arguments.rows.empty() && !arguments.row.empty())
    throw UserError("--row is the task of --answer, and --rows has tasks of its own. Remove one.");
  const LoadedRun loaded = run_of(arguments, built_in);
  ResolvedRun run = loaded.run;
  Time budget = score_budget(run.options.scheduler.deadlines.verify);
  if (arguments.timeout_s > 0) {
    budget = std::chrono::duration_cast<Time>(std::chrono::duration<double>(arguments.timeout_s));
    run.options.reward.start_timeout_s = 0;
  }
  require_programs(run);
  const size_t index = dataset_index(arguments, run.datasets);
  const RunDataset& dataset = run.datasets[index];
  const auto source = loaded.registries.environments.source(dataset.env, dataset.settings);
  if (source->agent() != nullptr)
    throw UserError(
        "the episodes of {} are played by an agent, which wants a policy. Try its program of "
        "rewards alone: --command.",
        dataset.env);
  const auto environment = source->open();
  if (!environment->info().needs_dataset && !(arguments.rows.empty() && arguments.row.empty()))
    throw UserError("{}: {} draws its own tasks. Give --answer, and --seed for another task.",
                    arguments.rows.empty() ? "--row" : "--rows", dataset.env);
  std::vector<TriedAnswer> answers;
  if (!arguments.rows.empty()) {
    answers = answers_of_rows(arguments, dataset, run.options.files);
  } else {
    const sandbox::Task task =
        task_of(arguments, run, index, dataset, environment->info().needs_dataset);
    for (const std::string& text : arguments.answers) answers.push_back({task, text});
  }
  HeardLines heard;
  VerifierRegistry own;
  auto rewards = make_heard_rewards(run.options.reward, loaded.registries.verifiers,
                                    [&heard](const std::string& line) { heard.add(line); });
  const bool has_own = rewards != nullptr;
  if (has_own) own.add(environment->info().verifier, "", std::move(rewards));
  std::optional<std::string> first_failure;
  int64_t failures = 0, tried = 0;
  for (const TriedAnswer& answer : answers) {
    const TriedScore score = try_answer(
        *environment, answer, has_own ? own : *loaded.registries.verifiers, budget, heard);
    ++tried;
    if (arguments.json)
      show_score_json(answer, score);
    else
      show_score(answer, score, run.options.reward.parts);
    if (score.score) continue;
    if (!first_failure) first_failure = score.score.failure().message;
    if (++failures == kMostFailures) break;
  }
  environment->close();
  if (first_failure)
    throw UserError("{} of {} answers {} no verdict: {}{}", failures, tried,
                    failures == 1 ? "has" : "have", *first_failure,
                    tried < std::ssize(answers) ? fmt::format("\n       {} more were not tried.",
                                                              std::ssize(answers) - tried)
                                                : "");
  return kExitDone;
}

void add_reward_check(Command& reward, const Registries& registries) {
  auto arguments = std::make_shared<RewardCheckArguments>();
  Command& command =
      reward.command("check", "Try the rewards of a config, or a program, on answers by hand");
  command.option(
      "config", arguments->config,
      {.help = "YAML file, whose rewards, verifier and rows are tried", .value = "CONFIG"});
  command.option("overrides", arguments->overrides,
                 {.help = "keys of the config in the place of its own",
                  .value = "KEY=VALUE",
                  .settings = true});
  command.option("--command", arguments->program,
                 {.help = "or a program (reward.command): its name and arguments in one text",
                  .value = "PROGRAM"});
  command.option("--answer", arguments->answers,
                 {.help = "an answer of a policy's; may be given several times", .value = "TEXT"});
  command.option("--rows", arguments->rows,
                 {.help = "or rows of a dataset, each with an answer to it as \"response\"",
                  .value = "FILE.jsonl"});
  command.option("--row", arguments->row,
                 {.help = "the row that --answer answers, as JSON; else one of the config's",
                  .value = "JSON"});
  command.option("--dataset", arguments->dataset,
                 {.help = "which one of the config's, where it has several", .value = "NAME"});
  command.option("--seed", arguments->seed, {.help = "another one is another row, or task"});
  command.option("--timeout-s", arguments->timeout_s,
                 {.help = "for each answer, with the start of a program (s); 0: as in a run",
                  .min = 0.01,
                  .max = 1e6,
                  .or_zero = true});
  command.option("--json", arguments->json, {.help = "a JSON row for each answer"});
  command.footer(
      "Each answer is an episode of one turn, scored as a run would. Printed are the reward, its "
      "parts and\nmetrics, the time, and what a program wrote to stderr. Exit status: 0, or 2 "
      "where an answer got no\nverdict: the program fails, hangs, or answers what is no "
      "score.\n\n"
      "Examples:\n"
      "  tailrace reward check configs/gsm8k.yaml --answer 'It is 18.' --answer 'no idea'\n"
      "  tailrace reward check --command 'python3 reward.py' --row '{\"prompt\": \"2 + 2\"}' "
      "--answer 4");
  command.action([arguments, &registries] { return check_reward(*arguments, registries); });
}

}  // namespace

void add_reward(Command& program, const Registries& registries) {
  Command& reward =
      program.command("reward", "Try rewards on answers by hand, before a run learns from them");
  reward.footer(
      "Example:\n  tailrace reward check --command 'python3 reward.py' --answer 'Some text.'");
  add_reward_check(reward, registries);
}

}  // namespace tailrace
