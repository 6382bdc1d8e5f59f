#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/commands/run_state.h"
#include "cli/run/datasets.h"
#include "cli/run/endpoint.h"
#include "core/base/error.h"
#include "core/base/flags.h"
#include "core/base/run_directory.h"
#include "core/base/time.h"
#include "core/base/yaml_config.h"
#include "scheduler/state/waits.h"

namespace tailrace {
namespace {

using scheduler::State;

void line(std::string_view label, const std::string& text) {
  fmt::print("{:<9} {}\n", label, text);
}

// Since the scheduler wrote to its journal. Not by the state's time: that stands still while nobody
// runs it.
Time age_of_journal(const RunPaths& paths) {
  std::error_code error;
  auto newest = std::filesystem::file_time_type::min();
  for (const auto& file : std::filesystem::directory_iterator(paths.journal(), error)) {
    const auto written = file.last_write_time(error);
    if (!error) newest = std::max(newest, written);
  }
  const auto now = std::filesystem::file_time_type::clock::now();
  // A disk may have another clock.
  if (newest > now || newest == std::filesystem::file_time_type::min()) return Time{};
  return std::chrono::duration_cast<Time>(now - newest);
}

std::string how_it_stands(const State& state, const std::string& run, bool runs) {
  if (!state.halted.empty()) return "halted: " + state.halted;
  if (!state.end && !runs)
    return fmt::format(
        "no scheduler of it answers here; unless it runs on another machine, as somebody else, or "
        "is just being started, 'tailrace launch --run-dir {}' continues it",
        run);
  if (!state.end) return state.stopping ? "it is being stopped" : "it goes on";
  switch (state.end->reason) {
    case scheduler::RunEnd::Reason::kSteps:
      return "complete: all steps are trained";
    case scheduler::RunEnd::Reason::kDataEnd:
      return "complete: the data has ended";
    case scheduler::RunEnd::Reason::kStopped:
      return "stopped; 'tailrace launch --run-dir' continues it";
  }
  return "";  // not reached
}

std::string describe(const State& state, const WorkerId& id, const scheduler::Worker& worker) {
  std::vector<std::string> parts;
  if (worker.joined) parts.push_back("joined");
  if (!worker.connected) parts.push_back("away");
  if (!worker.site.pool.empty()) parts.push_back("pool " + worker.site.pool);
  if (!worker.site.cluster.empty()) parts.push_back("cluster " + worker.site.cluster);
  if (worker.stalled) parts.push_back("makes no progress");
  if (worker.role != Role::kTrainer)
    parts.push_back(fmt::format("{} of {} slots", worker.leased, worker.slots));
  if (worker.role == Role::kRollout) {
    parts.push_back(worker.version < 0 ? "without weights"
                                       : fmt::format("version {}", worker.version));
    if (worker.install)
      parts.push_back(fmt::format("{} version {}", is_asked(worker) ? "installs" : "has staged",
                                  worker.install->version));
  }
  if (!worker.site.numerics_class.empty()) parts.push_back(worker.site.numerics_class);
  if (in_quarantine(state, id)) parts.push_back("in quarantine: " + state.health.at(id).reason);
  return fmt::format("{}", fmt::join(parts, ", "));
}

// Where the prompts of one dataset are that were begun, or of all; what is nowhere is left out.
std::string describe_prompts(const scheduler::Policy& policy, std::optional<int32_t> domain) {
  int64_t running = 0, ready = 0, parked = 0, queued = 0, long_queue = 0, handed = 0;
  for (const auto& [id, task] : policy.tasks) {
    if (domain && id.domain != *domain) continue;
    running += task.place == scheduler::Place::kRunning;
    handed += task.place == scheduler::Place::kHandedOver;
  }
  std::array<int64_t, kEnumNames<scheduler::TaskEnd>.size()> ended{};
  for (int32_t index = 0; index < std::ssize(policy.domains); ++index) {
    if (domain && index != *domain) continue;
    const scheduler::Domain& one = policy.domains[static_cast<size_t>(index)];
    ready += std::ssize(one.ready);
    parked += std::ssize(one.parked);
    queued += std::ssize(one.queued);
    long_queue += std::ssize(one.long_queue);
    for (size_t i = 0; i < ended.size(); ++i) ended[i] += one.ended[i];
  }
  std::vector<std::string> parts;
  const auto add = [&](int64_t count, std::string_view what) {
    if (count > 0) parts.push_back(fmt::format("{} {}", count, what));
  };
  for (size_t i = 0; i < ended.size(); ++i) add(ended[i], kEnumNames<scheduler::TaskEnd>[i]);
  add(handed, "at the trainer");
  add(ready, "ready");
  add(parked, "complete, for a later step");
  add(running, "running");
  add(queued, "to be sampled again");
  add(long_queue, "for a long round");
  return parts.empty() ? "none begun" : fmt::format("{}", fmt::join(parts, ", "));
}

// Names of the datasets in the order of the run's config; without a config they are numbered.
std::vector<std::string> names_of(const RunPaths& paths, size_t num_domains) {
  std::vector<std::string> names;
  try {
    RunOptions options;
    bind_config(load_config(paths.config(), {}), options);
    names = dataset_names(options);
  } catch (const UserError&) {
    // Where a run stands is told all the same.
  }
  for (size_t i = names.size(); i < num_domains; ++i) names.push_back(fmt::format("dataset {}", i));
  return names;
}

void show_status(const std::string& run) {
  const RunPaths paths{run};
  const RunState found = read_run_state(paths);
  if (!found.state)
    throw UserError("{} has no journal; 'tailrace launch' makes a run directory.",
                    paths.root.string());
  const State& state = *found.state;
  const Time age = age_of_journal(paths);
  // What the journal says of workers and waits is true now only while somebody writes it.
  const bool runs = is_running(paths.root);
  if (!found.damage.empty())
    line("damaged", found.damage + ". What follows is the state before the damage");
  line("run", fmt::format("{}: {}", run, how_it_stands(state, run, runs)));
  for (const auto& [id, policy] : state.policies) {
    line("step",
         fmt::format("{}{}, newest checkpoint {}", std::max<int64_t>(0, policy.published),
                     state.config.steps > 0 ? fmt::format(" of {}", state.config.steps) : "",
                     policy.durable < 0 ? "none" : std::to_string(policy.durable)));
    line("prompts", describe_prompts(policy, std::nullopt));
    if (policy.domains.size() < 2) continue;
    const std::vector<std::string> names = names_of({run}, policy.domains.size());
    for (int32_t i = 0; i < std::ssize(policy.domains); ++i)
      line("", fmt::format("{}: {}", names[static_cast<size_t>(i)], describe_prompts(policy, i)));
  }
  std::string_view label = runs || state.end ? "workers" : "had";
  for (const auto& [id, worker] : state.workers) {
    const std::string text = describe(state, id, worker);
    line(label, text.empty() ? id : fmt::format("{}: {}", id, text));
    label = "";
  }
  if (state.end) return;
  line(runs ? "waits" : "waited",
       scheduler::describe_waits(state, runs ? state.now + age : state.now));
  line("", fmt::format("the scheduler's last event was {:.1f} s ago",
                       std::chrono::duration<double>(age).count()));
}

}  // namespace

void add_status(Command& program) {
  auto run = std::make_shared<std::string>();
  Command& command =
      program.command("status", "Where a run stands, and who waits for whom since when");
  command.option("run", *run, {.help = "run directory", .value = "RUN", .required = true});
  command.footer(
      "Reads the journal, of a living run too.\n\nExample:\n  tailrace status runs/quickstart");
  command.action([run] {
    show_status(*run);
    return kExitDone;
  });
}

}  // namespace tailrace
