#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/commands/command_words.h"
#include "cli/commands/commands.h"
#include "cli/commands/row_flags.h"
#include "cli/config/options.h"
#include "cli/env/check.h"
#include "cli/env/list.h"
#include "cli/env/play.h"
#include "cli/inputs/registries.h"
#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/printable.h"
#include "core/config/flags.h"
#include "core/text/dataset.h"
#include "sandbox/plugin/used_library.h"

namespace tailrace {
namespace {

struct EnvArguments {
  std::string source, environment, dataset;
  std::string program;  // a command line
  std::string reward_plugin;
  std::vector<std::string> settings, columns, reward_settings;
  FilesSection files;
  uint64_t seed = 0;
};

// A name of a built-in environment has neither.
bool is_library_file(const std::string& source) {
  return source.find('/') != std::string::npos || source.ends_with(".so");
}

// A person who gives the file of a program means --command.
void refuse_program(const std::string& source) {
  const std::filesystem::path file(source);
  std::error_code ignored;
  // A name of a built-in environment is no file, also where one is called so.
  if (!is_library_file(source) && !file.has_extension()) return;
  if (source.ends_with(".so") || !std::filesystem::is_regular_file(file, ignored)) return;
  char magic[4] = {};
  std::ifstream(file).read(magic, sizeof magic);
  if (std::string_view(magic, sizeof magic) == "\177ELF") return;
  const std::string runs = file.extension() == ".py" ? "python3 " + source
                           : file.has_parent_path()  ? source
                                                     : "./" + source;
  throw UserError("{} is no library. Try --command \"{}\".", source, runs);
}

sandbox::EnvironmentSettings read_settings(const std::string& option,
                                           const std::vector<std::string>& texts) {
  sandbox::EnvironmentSettings settings;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      throw UserError("{} {}: it is written key=value, for example size=6", option, text);
    settings.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return settings;
}

std::vector<std::string> read_rows(const EnvArguments& arguments) {
  std::vector<std::string> rows;
  if (arguments.dataset.empty()) return rows;
  const text::ColumnMap columns = read_settings("--columns", arguments.columns);
  for (auto& row : text::read_dataset(arguments.dataset, columns, limits_of_flags(arguments.files)))
    rows.push_back(std::move(row.json));
  if (rows.empty()) throw UserError("{}: it has no rows", arguments.dataset);
  return rows;
}

// The environment that FILE.so or NAME means, with all that a run of it could name.
struct NamedEnvironment {
  std::string name;
  Registries registries;
  std::vector<std::string> rewards;  // of its library

  std::unique_ptr<sandbox::Environment> make(const sandbox::EnvironmentSettings& settings) const {
    return registries.environments.make(name, settings);
  }
};

NamedEnvironment find_environment(const Registries& built_in, const EnvArguments& arguments,
                                  LibraryUse use) {
  if (arguments.source.empty() == arguments.program.empty())
    throw UserError(
        "{}. Give FILE.so, the name of a built-in environment, or --command \"python3 "
        "env.py\".",
        arguments.source.empty() ? "no environment is given"
                                 : "an environment and --command are both given");
  refuse_program(arguments.source);
  if (arguments.program.empty() && !is_library_file(arguments.source)) {
    if (!arguments.environment.empty() && arguments.environment != arguments.source)
      throw UserError("--env names an environment of a library; {} is no file.", arguments.source);
    return {arguments.source, built_in, {}};
  }
  RunOptions options;
  options.env.plugin = arguments.source;
  options.env.command = words_of(arguments.program);
  // A config of one environment, so that a library or a program is found and refused as in a run.
  options.env.settings = read_settings("--set", arguments.settings);
  if (!arguments.program.empty() && options.env.command.empty())
    throw UserError("--command is empty. Try --command \"python3 env.py\".");
  options.env.name = arguments.environment;
  options.reward.plugin = arguments.reward_plugin;
  options.reward.settings = read_settings("--reward-set", arguments.reward_settings);
  NamedEnvironment found;
  try {
    found.registries = with_libraries(built_in, options, use);
  } catch (const UserError& error) {
    // A person here has written an option, and not the key of a config.
    const std::string key = "env.name ", message = error.what();
    if (message.starts_with(key + "has no use"))
      throw UserError(
          "{} has no environments, and rewards are checked with one that names them:\n       Try "
          "FILE.so of an environment, with --reward-plugin {}.",
          arguments.source, arguments.source);
    throw UserError("{}",
                    message.starts_with(key) ? "--env " + message.substr(key.size()) : message);
  }
  found.name = options.env.name;
  for (const auto& library : found.registries.libraries)
    for (const auto& reward : library->facts().rewards) found.rewards.push_back(reward.name);
  return found;
}

// ---- list

void list_all(const Registries& built_in, const std::vector<std::string>& files,
              const std::string& program, bool json) {
  std::vector<EnvFacts> facts;
  if (!program.empty()) {
    EnvArguments arguments;
    arguments.program = program;
    const NamedEnvironment found = find_environment(built_in, arguments, LibraryUse::kApart);
    facts.push_back({.name = found.name,
                     .help = "of a program",
                     .library = program,
                     .info = found.registries.programs.front()->info({})});
  } else if (files.empty())
    facts = facts_of(built_in.environments);
  for (const std::string& file : files) refuse_program(file);
  for (const std::string& file : files)
    for (EnvFacts& one : facts_of(*sandbox::UsedLibrary::ask(file)))
      facts.push_back(std::move(one));
  fmt::print("{}", json ? env_facts_json(facts) : env_facts_text(facts));
}

void add_env_list(Command& env, const Registries& registries) {
  auto files = std::make_shared<std::vector<std::string>>();
  auto json = std::make_shared<bool>(false);
  auto program = std::make_shared<std::string>();
  Command& command = env.command("list", "Environments and rewards, with their settings");
  command.option("files", *files,
                 {.help = "libraries; without one, what is built in", .value = "FILE.so"});
  command.option("--command", *program, {.help = "a program that plays one", .value = "PROGRAM"});
  command.option("--json", *json, {.help = "one JSON list, with the same facts"});
  command.footer(
      "Turns, dataset and who scores are those of the default settings.\n\n"
      "Example:\n  tailrace env list ./libmaze.so");
  command.action([files, program, json, &registries] {
    list_all(registries, *files, *program, *json);
    return kExitDone;
  });
}

// ---- check

// A finding that an earlier one of `shown` has named is not repeated.
void show_check(const EnvCheck& check, std::vector<EnvCheck>& shown) {
  const auto said = std::ranges::find_if(shown, [&](const EnvCheck& earlier) {
    return check.outcome == CheckOutcome::kFailed && earlier.seen == check.seen;
  });
  fmt::print(
      "{:<7} {:<16} {}\n", name_of(check.outcome), check.name,
      said != shown.end() ? fmt::format("as above ({})", said->name) : printable(check.seen));
  std::fflush(stdout);
  shown.push_back(check);
}

std::string checks_json(const std::string& name, const std::vector<EnvCheck>& checks) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const EnvCheck& check : checks) {
    auto& row = rows.emplace_back();
    row["name"] = check.name;
    row["outcome"] = name_of(check.outcome);
    row["seen"] = check.seen;
    if (check.seconds_per_step) row["seconds_per_step"] = *check.seconds_per_step;
  }
  return json_text(nlohmann::ordered_json{
      {"environment", name}, {"good", is_good(checks)}, {"checks", std::move(rows)}});
}

int check_environment(const Registries& built_in, const EnvArguments& arguments, int64_t episodes,
                      bool json) {
  refuse_program(arguments.source);
  // One that cannot be loaded shows that in a process of its own, as each check has one.
  for (const std::string& file : {arguments.source, arguments.reward_plugin})
    if (is_library_file(file)) (void)sandbox::UsedLibrary::ask(file);
  const NamedEnvironment found = find_environment(built_in, arguments, LibraryUse::kHere);
  const auto settings = read_settings("--set", arguments.settings);
  const EnvCheckPlan plan{.make = [&] { return found.make(settings); },
                          .rows = read_rows(arguments),
                          .verifiers = found.registries.verifiers.get(),
                          .rewards = found.rewards,
                          .seed = arguments.seed,
                          .episodes = episodes};
  std::vector<EnvCheck> shown;
  const auto checks =
      json ? check_env(plan)
           : check_env(plan, [&](const EnvCheck& check) { show_check(check, shown); });
  if (json) fmt::print("{}\n", checks_json(found.name, checks));
  return is_good(checks) ? kExitDone : kExitFailed;
}

void add_source_options(Command& command, EnvArguments& arguments) {
  command.option(
      "source", arguments.source,
      {.help = "a library, or the name of a built-in environment", .value = "FILE.so|NAME"});
  command.option("--command", arguments.program,
                 {.help = "or a program that plays it: its name and arguments in one text",
                  .value = "PROGRAM"});
  command.option("--env", arguments.environment,
                 {.help = "which one of the library's, where it has several", .value = "NAME"});
  command.option("--set", arguments.settings,
                 {.help = "settings of the environment", .value = "KEY=VALUE"});
  command.option(
      "--reward-plugin", arguments.reward_plugin,
      {.help = "library of the reward that it names, where that is another", .value = "FILE.so"});
  command.option("--reward-set", arguments.reward_settings,
                 {.help = "settings of that library's rewards", .value = "KEY=VALUE"});
  command.option("--dataset", arguments.dataset,
                 {.help = "JSONL of prompts, where it needs one", .value = "FILE"});
  command.option("--columns", arguments.columns,
                 {.help = "columns that have other names in the file", .value = "OURS=THEIRS"});
  add_row_flags(command, arguments.files);
  command.option("--seed", arguments.seed, {.help = "of tasks and actions"});
}

void add_env_check(Command& env, const Registries& registries) {
  auto arguments = std::make_shared<EnvArguments>();
  auto episodes = std::make_shared<int64_t>(200);
  auto json = std::make_shared<bool>(false);
  Command& command = env.command("check", "Whether an environment keeps what a run relies on");
  add_source_options(command, *arguments);
  command.option("--episodes", *episodes, {.help = "of each check", .min = 1, .max = 1 << 30});
  command.option("--json", *json, {.help = "one JSON object, with the same facts"});
  command.footer(
      "Prints a line for each check: ok, FAILED or skipped, and what was seen. Each runs in a\n"
      "process of its own, for 30 s where episodes are slow, so a crash or a call that does\n"
      "not return in 30 s is a failed check.\n"
      "Exit status: 0 for a good environment, 1 when a check fails, 2 for a wrong call.\n\n"
      "Example:\n  tailrace env check ./libmaze.so --set size=6");
  command.action([arguments, episodes, json, &registries] {
    return check_environment(registries, *arguments, *episodes, *json);
  });
}

// ---- play

int play_environment(const Registries& built_in, const EnvArguments& arguments, bool json) {
  const NamedEnvironment found = find_environment(built_in, arguments, LibraryUse::kApart);
  const auto rows = read_rows(arguments);
  const auto environment = found.make(read_settings("--set", arguments.settings));
  if (environment->info().needs_dataset && rows.empty())
    throw UserError("environment {} needs a dataset.\n       Give one with --dataset FILE.jsonl.",
                    found.name);
  sandbox::Task task{.seed = sandbox::task_seed(arguments.seed, /*held_out=*/false, 0)};
  if (!rows.empty()) task.data = rows[arguments.seed % rows.size()];
  const auto played = play_by_hand(*environment, task, *found.registries.verifiers, std::cin,
                                   std::cout, json ? PlayedAs::kJson : PlayedAs::kText);
  std::cout.flush();
  if (played) return kExitDone;
  fmt::print(stderr, "error: {}\n", printable(played.failure().message));
  return kExitFailed;
}

void add_env_play(Command& env, const Registries& registries) {
  auto arguments = std::make_shared<EnvArguments>();
  auto json = std::make_shared<bool>(false);
  Command& command = env.command("play", "Play an episode by hand");
  add_source_options(command, *arguments);
  command.option("--json", *json, {.help = "one JSON object once the episode is over"});
  command.footer(
      "Each line that you write is an action; the stop string of the environment is put behind "
      "it.\n"
      "The end of the input (Ctrl-D) cuts the episode. Another --seed is another task.\n\n"
      "Example:\n  tailrace env play frozen_grid --seed 3");
  command.action(
      [arguments, json, &registries] { return play_environment(registries, *arguments, *json); });
}

}  // namespace

void add_env(Command& program, const Registries& registries) {
  Command& env =
      program.command("env", "List, check and play environments, also those of a library");
  env.footer("Example:\n  tailrace env check frozen_grid");
  add_env_list(env, registries);
  add_env_check(env, registries);
  add_env_play(env, registries);
}

}  // namespace tailrace
