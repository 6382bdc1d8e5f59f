#include "bench/run/launched_run.h"

#include <chrono>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "bench/report/program.h"
#include "cli/process/child_process.h"
#include "cli/process/supervisor.h"
#include "core/base/error.h"

namespace tailrace {

namespace fs = std::filesystem;

fs::path build_folder() { return fs::read_symlink("/proc/self/exe").parent_path().parent_path(); }

void launch_run(const std::string& name, const std::string& config, const fs::path& directory,
                const std::vector<std::string>& overrides) {
  if (fs::exists(directory))
    throw UserError("{} is there already; give another --out or remove it", directory.string());
  const fs::path log = directory.string() + ".log";
  std::vector<std::string> command = {(build_folder() / "tailrace").string(), "launch", config,
                                      "--run-dir", directory.string()};
  command.insert(command.end(), overrides.begin(), overrides.end());
  auto child = ChildProcess::spawn(command, log);
  if (!child.ok()) throw UserError("{}", child.failure().message);
  std::optional<ExitStatus> status;
  // A poll is enough: runs take seconds.
  while (!(status = child.value().try_reap()))
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  if (status->ok()) return;
  std::string message =
      fmt::format("{}: {}; the last lines of {}:", name, describe(*status), log.string());
  for (const auto& line : last_lines(log, 5)) message += "\n       " + line;
  // 2 is a mistake of the config, which every other run would meet too; anything else is the run's
  // own failure.
  if (status->code == 2 && status->signal == 0) throw UserError("{}", message);
  throw WrongResult(message);
}

std::vector<MetricsRow> metrics_of(const fs::path& directory) {
  auto rows = read_metrics(directory / "metrics.jsonl");
  if (!rows.ok()) throw UserError("{}", rows.failure().message);
  return std::move(rows).value();
}

}  // namespace tailrace
