#include "cli/plan/quiet_steps.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

#include <unistd.h>

#include "cli/inputs/threads.h"
#include "core/base/error.h"
#include "core/run/metrics.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// "/path/tailrace", "worker", "--role", ..; empty for what has gone.
std::vector<std::string> arguments_of(const fs::path& process) {
  std::ifstream in(process / "cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(in, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

std::string value_behind(const std::vector<std::string>& arguments, std::string_view flag) {
  const auto at = std::ranges::find(arguments, flag);
  return at == arguments.end() || std::next(at) == arguments.end() ? "" : *std::next(at);
}

// Seconds that all cores together have computed.
double busy_seconds() {
  // "cpu user nice system idle iowait irq softirq steal ...", in ticks.
  std::ifstream stat("/proc/stat");
  std::string cpu;
  stat >> cpu;
  double busy = 0, ticks = 0;
  for (int column = 0; column < 8 && stat >> ticks; ++column)
    // Idle and iowait are no work. The columns of guests behind these eight are in those of the
    // user already.
    if (column != 3 && column != 4) busy += ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return busy;
}

}  // namespace

std::map<std::string, QuietSteps::Use> QuietSteps::processes() const {
  std::map<std::string, Use> found;
  std::error_code ignored;
  for (const auto& process : fs::directory_iterator("/proc", ignored)) {
    const std::string pid = process.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::vector<std::string> arguments = arguments_of(process.path());
    const std::string role = value_behind(arguments, "--role");
    if (role.empty() || value_behind(arguments, "--run") != run_.root.string()) continue;
    Use& use = found[role + " " + value_behind(arguments, "--index")];
    for (const auto& task : fs::directory_iterator(process.path() / "task", ignored)) {
      std::ifstream stats(task.path() / "schedstat");
      double running = 0, waiting = 0;  // nanoseconds
      if (!(stats >> running >> waiting)) continue;
      use.waited += 1e-9 * waiting;
      use.cpu += 1e-9 * running;
    }
  }
  return found;
}

void QuietSteps::look() {
  std::error_code missing;
  const uintmax_t size = fs::file_size(run_.metrics(), missing);
  // Asked every few milliseconds: rows and processes are read when a step has ended.
  if (missing || size == seen_) return;
  seen_ = size;
  const auto rows = read_metrics(run_.metrics());
  if (!rows) return;  // a line that is half written
  int64_t step = -1;
  for (const MetricsRow& row : rows.value())
    if (row.find("time/train") != nullptr) step = std::max(step, row.step);
  if (step < first_ - 1 || step <= end_.step) return;
  Moment& moment = begin_.step < 0 ? begin_ : end_;
  moment = {.step = step, .busy = busy_seconds(), .processes = processes()};
}

std::optional<QuietStep> QuietSteps::mean() const {
  if (begin_.step < 0 || end_.step <= begin_.step) return std::nullopt;
  const auto rows = read_metrics(run_.metrics());
  if (!rows) throw UserError("{}", rows.failure().message);
  QuietStep passed;
  int64_t steps = 0;
  for (const MetricsRow& row : rows.value()) {
    const double *step = row.find("time/step"), *rollout = row.find("time/rollout"),
                 *train = row.find("time/train");
    if (row.step <= begin_.step || row.step > end_.step || step == nullptr || rollout == nullptr ||
        train == nullptr)
      continue;
    ++steps;
    passed.rollout += *rollout;
    passed.train += *train;
    passed.rest += *step - *rollout - *train;
  }
  double own = 0;
  const auto cpu_of = [&](const std::string& name, const Use& end) {
    const auto begin = begin_.processes.find(name);
    return end.cpu - (begin == begin_.processes.end() ? 0 : begin->second.cpu);
  };
  for (const auto& [name, end] : end_.processes) own += cpu_of(name, end);
  // A plan is for a machine that does nothing else. From the time of a step goes what its threads
  // waited for a core, as far as processes of others were on it; but no step is shorter than its
  // threads computed.
  const double busy = end_.busy - begin_.busy, others = std::max(0.0, busy - own);
  // The slowest worker of a role decides, and may be the one that waited most.
  const auto quiet = [&](double seconds, std::string_view role, int64_t threads) {
    double waited = 0, least = 0;
    for (const auto& [name, end] : end_.processes) {
      const auto begin = begin_.processes.find(name);
      if (!name.starts_with(role) || begin == begin_.processes.end()) continue;
      const double cpu = cpu_of(name, end);
      const double share = std::clamp(others / std::max(1e-9, busy - cpu), 0.0, 1.0);
      waited = std::max(waited, share * (end.waited - begin->second.waited));
      least = std::max(least, cpu / static_cast<double>(threads));
    }
    return std::min(seconds, std::max(least, seconds - waited)) / static_cast<double>(steps);
  };
  return QuietStep{.rollout = quiet(passed.rollout, "rollout", threads_.worker),
                   .train = quiet(passed.train, "trainer", threads_.trainer),
                   .rest = quiet(passed.rest, "scheduler", 1)};
}

}  // namespace tailrace
