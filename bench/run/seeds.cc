#include "bench/run/seeds.h"

#include <chrono>
#include <filesystem>
#include <thread>

#include <fmt/format.h>

#include "cli/process/child_process.h"
#include "cli/process/supervisor.h"
#include "core/base/error.h"
#include "core/base/metrics.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// The binary that this bench was built beside.
std::string tailrace_binary() {
  return (fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "tailrace").string();
}

void launch(const SeedsCase& setup, int seed, const fs::path& directory) {
  fs::path log = directory.string() + ".log";
  std::vector<std::string> command = {tailrace_binary(), "launch", setup.config, "--run-dir",
                                      directory.string()};
  command.insert(command.end(), setup.overrides.begin(), setup.overrides.end());
  command.push_back(fmt::format("run.seed={}", seed));
  auto child = ChildProcess::spawn(command, log);
  if (!child.ok()) throw UserError("{}", child.failure().message);
  std::optional<ExitStatus> status;
  while (!(status = child.value().try_reap()))
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  if (status->ok()) return;
  std::string tail;
  for (const auto& line : last_lines(log, 5)) tail += "\n       " + line;
  throw UserError("seed {}: {}; the last lines of {}:{}", seed, describe(*status), log.string(),
                  tail);
}

SeedRun read_run(int seed, const fs::path& directory) {
  auto rows = read_metrics(directory / "metrics.jsonl");
  if (!rows.ok()) throw UserError("{}", rows.failure().message);
  SeedRun run{.seed = seed};
  bool first = true;
  for (const auto& row : rows.value()) {
    const double* success = row.find("eval/success");
    if (success == nullptr) continue;
    const double* invalid = row.find("eval/invalid_actions");
    const double* turns = row.find("eval/turns/mean");
    run.success_last = *success;
    run.invalid_last = invalid == nullptr || turns == nullptr ? 0 : *invalid / *turns;
    if (first) {
      run.success_first = run.success_last;
      run.invalid_first = run.invalid_last;
      first = false;
    }
  }
  if (first)
    throw UserError("{}: no evaluation in metrics.jsonl; set eval.prompts in the config",
                    directory.string());
  return run;
}

}  // namespace

SeedsReport bench_seeds(const SeedsCase& setup, const std::function<void(const SeedRun&)>& on_run) {
  SeedsReport report;
  fs::create_directories(setup.out);
  for (int seed = setup.first_seed; seed < setup.first_seed + setup.num_seeds; ++seed) {
    fs::path directory = fs::path(setup.out) / fmt::format("seed-{}", seed);
    if (fs::exists(directory))
      throw UserError("{} is there already; give another --out or remove it", directory.string());
    auto start = std::chrono::steady_clock::now();
    launch(setup, seed, directory);
    SeedRun run = read_run(seed, directory);
    run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    on_run(run);
    report.runs.push_back(run);
  }
  return report;
}

}  // namespace tailrace
