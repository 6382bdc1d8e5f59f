#include "bench/run/launched_run.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>

#include <fmt/format.h>

#include "bench/report/program.h"
#include "cli/process/child_process.h"
#include "cli/process/supervisor.h"
#include "core/base/error.h"
#include "core/base/file.h"

namespace tailrace {

namespace fs = std::filesystem;

namespace {

std::string key_of(const std::string& assignment) {
  const size_t equals = assignment.find('=');
  return assignment.substr(0, equals == std::string::npos ? equals : equals + 1);
}

// The binary with these words until it ends. A poll is enough: runs take seconds.
ExitStatus run_and_wait(std::vector<std::string> command, const fs::path& log) {
  command.insert(command.begin(), (build_folder() / "tailrace").string());
  auto child = ChildProcess::spawn(command, log);
  if (!child.ok()) throw UserError("{}", child.failure().message);
  while (true) {
    if (const auto status = child.value().try_reap()) return *status;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

ExitStatus launch_and_wait(const std::string& config, const Keys& flags, const Keys& overrides,
                           const fs::path& log) {
  std::vector<std::string> command = {"launch", config};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(), overrides.begin(), overrides.end());
  return run_and_wait(std::move(command), log);
}

// 2 is a mistake of the config.
bool is_mistake(const ExitStatus& status) { return status.code == 2 && status.signal == 0; }

}  // namespace

std::string last_line_of(const std::vector<std::string>& words, const fs::path& log) {
  const ExitStatus status = run_and_wait(words, log);
  const std::vector<std::string> lines = last_lines(log, 1);
  if (!status.ok() || lines.empty())
    throw WrongResult(fmt::format("{}: {}; {} ends with: {}", words.front(), describe(status),
                                  log.string(), lines.empty() ? "" : lines.front()));
  return lines.front();
}

fs::path build_folder() { return fs::read_symlink("/proc/self/exe").parent_path().parent_path(); }

Keys joined(Keys keys, const Keys& more) {
  for (const std::string& assignment : more) {
    std::erase_if(keys, [&](const auto& key) { return key.starts_with(key_of(assignment)); });
    keys.push_back(assignment);
  }
  return keys;
}

void add_settings(Settings& settings, const Keys& overrides) {
  for (const std::string& override : overrides) {
    const size_t equals = std::min(override.find('='), override.size());
    settings.emplace_back(override.substr(0, equals),
                          override.substr(std::min(equals + 1, override.size())));
  }
}

void launch_run(const std::string& name, const std::string& config, const fs::path& directory,
                const Keys& overrides) {
  if (fs::exists(directory))
    throw UserError("{} is there already; give another --out or remove it", directory.string());
  continue_run(name, config, directory, overrides);
}

void continue_run(const std::string& name, const std::string& config, const fs::path& directory,
                  const Keys& overrides) {
  const fs::path log = directory.string() + ".log";
  const ExitStatus status =
      launch_and_wait(config, {"--run-dir", directory.string()}, overrides, log);
  if (status.ok()) return;
  std::string message =
      fmt::format("{}: {}; the last lines of {}:", name, describe(status), log.string());
  for (const auto& line : last_lines(log, 5)) message += "\n       " + line;
  // Every other run would meet a mistake of the config too; anything else is the run's own failure.
  if (is_mistake(status)) throw UserError("{}", message);
  throw WrongResult(message);
}

std::string refusal(const std::string& config, const Keys& overrides) {
  const fs::path log = config + ".dry_run.log";
  const ExitStatus status = launch_and_wait(config, {"--dry-run"}, overrides, log);
  if (status.ok()) return "";
  // The warnings and the plan of a dry run stand above its error.
  constexpr std::string_view kError = "error: ";
  std::string message;
  for (const auto& line : last_lines(log, 5)) {
    if (line.starts_with(kError))
      message = line.substr(kError.size());
    else
      message += "\n       " + line;
  }
  if (!is_mistake(status))
    throw WrongResult(fmt::format("launch --dry-run: {}: {}", describe(status), message));
  return message;
}

std::string write_config(const fs::path& folder, const std::string& name, const std::string& text) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) throw UserError("cannot make {}: {}", folder.string(), failed.message());
  const fs::path file = folder / name;
  if (auto written = write_file_atomic(file, text); !written)
    throw UserError("{}", written.failure().message);
  return file.string();
}

fs::path warm_up(const std::string& name, const std::string& config, const fs::path& directory,
                 const Keys& overrides) {
  launch_run(name, config, directory, joined(overrides, {"run.steps=1", "eval.prompts=0"}));
  return fs::absolute(directory) / "checkpoints" / "step_000000";
}

Keys from_weights(Keys keys, const fs::path& weights) {
  // They would have no effect any more.
  std::erase_if(keys, [](const std::string& key) { return key.starts_with("sft."); });
  return joined(std::move(keys),
                {"model.create.hidden_size=0", fmt::format("model.path={}", weights.string()),
                 "sft.demonstrations=0"});
}

std::vector<MetricsRow> metrics_of(const fs::path& directory) {
  auto rows = read_metrics(directory / "metrics.jsonl");
  if (!rows.ok()) throw UserError("{}", rows.failure().message);
  return std::move(rows).value();
}

double value_of(const MetricsRow& row, std::string_view name) {
  const double* value = row.find(name);
  return value == nullptr ? 0 : *value;
}

}  // namespace tailrace
