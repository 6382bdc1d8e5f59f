#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include "cli/commands/commands.h"
#include "cli/commands/quick_plan.h"
#include "cli/config/counted.h"
#include "cli/inputs/agent_trial.h"
#include "cli/inputs/length.h"
#include "cli/inputs/load.h"
#include "cli/inputs/prompts.h"
#include "cli/inputs/rewards.h"
#include "cli/prepare/placed_run.h"
#include "cli/prepare/plan.h"
#include "cli/prepare/setup.h"
#include "cli/process/child_process.h"
#include "cli/process/in_process.h"
#include "cli/process/supervisor.h"
#include "cli/roles/endpoint.h"
#include "cli/roles/gate_role.h"
#include "cli/roles/roles.h"
#include "cli/view/log_tail.h"
#include "cli/view/metrics_tail.h"
#include "cli/view/missing_rows.h"
#include "cli/view/progress.h"
#include "cli/view/report_page.h"
#include "cli/view/summary.h"
#include "cli/view/wrapped.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/machine.h"
#include "core/base/printable.h"
#include "core/base/progress.h"
#include "core/config/flags.h"
#include "sandbox/registry.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using End = SupervisorResult::End;
using Moment = std::chrono::steady_clock::time_point;

struct LaunchArguments {
  std::string config, run_dir;
  std::vector<std::string> overrides;
  bool dry_run = false, in_process = false, force = false;
};

// Words without dashes come in order: the config comes first, unless the first is an override
// already.
void sort_positionals(LaunchArguments& arguments) {
  // A file may have '=' in its name.
  if (arguments.config.find('=') == std::string::npos || fs::exists(arguments.config)) return;
  arguments.overrides.insert(arguments.overrides.begin(), arguments.config);
  arguments.config.clear();
}

LoadedRun load(const LaunchArguments& arguments, const Registries& registries) {
  if (!arguments.config.empty())
    return load_run_options(arguments.config, arguments.overrides, registries, arguments.run_dir);
  if (arguments.run_dir.empty()) {
    throw UserError(
        "launch wants a config, or --run-dir with a run to continue.\n"
        "       Try 'tailrace launch configs/quickstart.yaml'.");
  }
  const RunPaths paths{arguments.run_dir};
  if (!fs::exists(paths.config())) {
    throw UserError(
        "{} holds no run (no config.yaml).\n       Try 'tailrace launch CONFIG --run-dir {}'.",
        arguments.run_dir, arguments.run_dir);
  }
  return load_stored_run(paths, arguments.overrides, registries, LibraryUse::kApart);
}

std::vector<ChildSpec> child_specs(const RunPaths& paths, const ResolvedRun& run, bool forced) {
  // This very binary, whatever lies under its name by now: all processes of a run must be of one
  // build.
  const std::string program = fs::read_symlink("/proc/self/exe").string();
  std::vector<ChildSpec> children;
  for (const RoleName& name : roles_of(run)) {
    // The trainer's process plays it.
    if (run.options.run.colocate && name.kind == RoleKind::kRollout) continue;
    const std::string kind(name_of(name.kind));
    // Only the run is named: a worker reads its options from the config.yaml that this launch has
    // written.
    children.push_back({.role = name,
                        .command = {program, "worker", "--role", kind, "--index",
                                    std::to_string(name.index), "--run", paths.root.string(),
                                    "--status", std::to_string(ChildProcess::kStatusDescriptor)},
                        .log = paths.log(kind, name.index)});
    if (forced) children.back().command.push_back("--force");
  }
  return children;
}

int exit_status(End end) {
  switch (end) {
    case End::kDone:
      return kExitDone;
    case End::kInterrupted:
      return kExitInterrupted;
    case End::kUserError:
      return kExitUserError;
    case End::kFailed:
      return kExitFailed;
  }
  return kExitFailed;  // not reached
}

// The scheduler's warnings go to its log, which nobody reads unasked.
std::string missing_so_far(const RunPaths& paths, const ResolvedRun& run, bool is_over) {
  return warning_of_missing_rows(paths, {.is_over = is_over,
                                         .warm_up = !run.stages.empty(),
                                         .evaluates = run.options.eval.prompts > 0,
                                         .interval_steps = run.options.eval.interval_steps});
}

// The rows that the plan has read, in the order of the stages.
std::vector<StageFiles> stage_files(Plan& plan) {
  std::vector<StageFiles> files;
  for (StagePlan& stage : plan.stages) files.push_back(std::move(stage.files));
  return files;
}

// One launch of a run whose directory is prepared.
class Launch {
 public:
  // `resumes`: the directory held a run before.
  Launch(const RunPaths& paths, const ResolvedRun& run, const Registries& registries, Moment start,
         bool resumes)
      : paths_(paths),
        resolved_(run),
        options_(run.options),
        registries_(registries),
        start_(start),
        resumes_(resumes),
        endpoint_(paths.root),
        // New rows only: a run that goes on has shown the others before.
        tail_(paths.metrics(), /*from_start=*/false),
        logs_(tails(paths)),
        view_(stdout, ::isatty(STDOUT_FILENO) == 1, options_.run.name, options_.run.steps,
              health_of(paths)) {}

  // The exit status.
  int run(bool in_process, bool forced) {
    const SupervisorSink say = [this](const std::string& line) {
      view_.say(printable(line));  // it may quote what a worker said
    };
    const std::function<void()> tick = [this, in_process, &say] {
      // Threads of this process have written their warnings on its stderr.
      if (!in_process) tell_notes(say);
      for (MetricsRow& row : tail_.poll()) {
        view_.add(std::move(row));
        idle_ = false;
      }
    };
    SupervisorOptions supervision;
    supervision.begun = [this] { return endpoint_.begun(); };
    supervision.joined = [this](RoleKind kind) { return has_joined(kind, resolved_, paths_); };
    supervision.stall = std::chrono::seconds(options_.run.stall_seconds);
    if (!in_process) {
      return end(supervise(child_specs(paths_, resolved_, forced), supervision, say, tick));
    }
    RoleContext context{RunPaths{fs::absolute(paths_.root).lexically_normal()}, resolved_,
                        endpoint_.name(), registries_};
    context.forced = forced;
    // The process then ends with threads still in it and without destructors.
    const AbandonSink abandon = [this](const SupervisorResult& result) {
      const int status = end(result);
      endpoint_.remove();
      return status;
    };
    return end(run_in_process(context, supervision, say, tick, abandon));
  }

 private:
  // The first worker of a kind stands for all: programs start as slowly at the others.
  static std::map<std::string, LogTail> tails(const RunPaths& paths) {
    std::map<std::string, LogTail> logs;
    for (const char* role : {"scheduler", "trainer", "rollout", "reward"})
      logs.emplace(fmt::format("{}-0", role), paths.log(role, 0));
    return logs;
  }

  void tell_notes(const SupervisorSink& say) {
    for (auto& [name, log] : logs_)
      for (const std::string& line : log.poll())
        if (const auto note = note_of(name, line)) say(*note);
  }

  int end(const SupervisorResult& result) {
    view_.finish();
    // However it ended; only where it ended well is a missing report worth a word.
    if (auto written = write_report(paths_); !written && result.end == End::kDone) {
      show(stderr, fmt::format("note: no report: {}\n", written.failure().message));
    }
    print_end(result);
    return exit_status(result.end);
  }

  void print_end(const SupervisorResult& result) const {
    const std::string again = fmt::format("tailrace launch --run-dir {}", paths_.root.string());
    const auto elapsed = std::chrono::steady_clock::now() - start_;
    switch (result.end) {
      case End::kDone:
        // Before the figure that may be computed without them.
        show(stdout, missing_so_far(paths_, resolved_, /*is_over=*/true));
        show(stdout, run_summary(paths_, options_.run.name,
                                 std::chrono::duration_cast<std::chrono::seconds>(elapsed)) +
                         "\n");
        if (resumes_ && idle_) show(stdout, complete(again));
        return;
      case End::kInterrupted:
        show(stdout, fmt::format("interrupted; '{}' continues the run\n", again));
        return;
      case End::kUserError:
      case End::kFailed:
        show(stderr, fmt::format("error: {}\n", printable(result.message)));
        // A message that says itself that this run is over is not contradicted.
        if (result.message.find("new run directory") == std::string::npos)
          show(stderr, fmt::format("       When that is mended, '{}' continues the run.\n", again));
        return;
    }
  }

  std::string complete(const std::string& again) const {
    if (options_.run.steps == 0)
      return fmt::format("The run was complete before: {}.\n", epochs_text(resolved_));
    return fmt::format(
        "The run was complete before: {}. Raise run.steps to go on: '{} run.steps={}'\n",
        counted(options_.run.steps, "step"), again, 2 * options_.run.steps);
  }

  const RunPaths& paths_;
  const ResolvedRun& resolved_;
  const RunOptions& options_;
  const Registries& registries_;
  const Moment start_;
  const bool resumes_;
  bool idle_ = true;  // nothing has happened since the start
  RunEndpoint endpoint_;
  MetricsTail tail_;
  std::map<std::string, LogTail> logs_;  // by "ROLE-INDEX"
  ProgressView view_;
};

// --run-dir wins over a file, but two places on one command line are a mistake.
void check_one_directory(const LaunchArguments& arguments, const ConfigKeys& keys) {
  const ConfigPlace* place = keys.place("run.dir");
  // Only an override has no line.
  const bool is_override = place != nullptr && place->line == 0;
  if (is_override && !arguments.run_dir.empty())
    throw UserError("--run-dir {} says it too. Remove one of them.", arguments.run_dir)
        .about("run.dir");
}

int launch(const LoadedRun& loaded, const LaunchArguments& arguments, const Registries& built_in,
           Moment start) {
  const RunOptions& options = loaded.run.options;
  const Registries& registries = loaded.registries;
  check_one_directory(arguments, loaded.keys);
  ::signal(SIGPIPE, SIG_IGN);  // a run outlives its reader (`| head`)
  const auto say = [](const std::string& line) { show(stdout, line + "\n"); };
  const SteadyClock clock;
  const ProgressScope progress(say, clock);
  const fs::path directory = directory_of(options, arguments.run_dir);
  QuickPlan quick = quick_plan(loaded, directory, built_in);
  if (arguments.dry_run) {
    show_quick_plan(quick);
    return kExitDone;
  }
  const bool is_new = quick.is_new;
  Plan& plan = quick.plan;
  // Not of a dry run: it may be about another machine.
  check_size(plan, memory_facts(), arguments.force ? MemoryBound::kNone : MemoryBound::kMost);
  check_open_files(loaded.run, arguments.in_process, files_left());
  if (arguments.in_process) check_threads(loaded.run);
  for (const std::string& note : check_gate(options)) show(stdout, wrapped(note, "note: "));
  for (const std::string& note : try_agents(loaded.run, registries.environments))
    show(stdout, wrapped(note, "note: "));
  // From here on the directory is there and locked; all that could be found wrong without it has
  // been.
  const RunDirectory run(directory);
  // Another launch may have begun it since.
  if (is_new && run.resumes()) check_same_run(run.paths(), loaded.run, built_in);
  show(stdout, quick.text);
  say(fmt::format("{}: {}", run.resumes() ? "continuing" : "run", run.paths().root.string()));
  if (run.resumes()) show(stdout, missing_so_far(run.paths(), loaded.run, /*is_over=*/false));
  await_roles(loaded.run, run.paths(), kEarlierLaunchEnds, say);
  prepare_run(run.paths(), quick.placed, registries, say, stage_files(plan),
              std::move(plan.prompts));
  // For the report, which may be made elsewhere. A run is worth more than its line.
  (void)write_file_atomic(run.paths().machine(), machine_line() + "\n");
  // Roles that are threads of this process play as the config says, and not as its checks did.
  RunOptions named = options;
  find_trained_model(quick.paths, named);
  const Registries of_roles =
      with_libraries(built_in, named, LibraryUse::kOfRun, quick.paths.environments());
  ResolvedRun played = changed(loaded.run, std::move(named));
  find_fitted_prompts(quick.paths, played);
  return Launch(run.paths(), played, of_roles, start, run.resumes())
      .run(arguments.in_process, arguments.force);
}

int launch(const LaunchArguments& arguments, const Registries& registries) {
  // Before anything is read: a person waits for that too.
  const Moment start = std::chrono::steady_clock::now();
  const LoadedRun loaded = load(arguments, registries);
  try {
    return launch(loaded, arguments, registries, start);
  } catch (const UserError& error) {
    // In one place: who refuses names a key, and only here is it known where that was given.
    throw loaded.keys.placed(error);
  }
}

}  // namespace

void add_launch(Command& program, const Registries& registries) {
  auto arguments = std::make_shared<LaunchArguments>();
  Command& command =
      program.command("launch", "Run a config from its start to its end, or continue a run");
  command.option("config", arguments->config,
                 {.help = "YAML file; may be left out to continue --run-dir", .value = "CONFIG"});
  command.option("overrides", arguments->overrides,
                 {.help = "keys with other values than the file's: a.b=c",
                  .value = "KEY=VALUE",
                  .settings = true});
  command.option("--run-dir", arguments->run_dir,
                 {.help = "where the run lives; one that is there is continued", .value = "DIR"});
  command.option("--dry-run", arguments->dry_run,
                 {.help = "print batches, updates and memory, and stop: 'tailrace plan --quick'"});
  command.option("--in-process", arguments->in_process,
                 {.help = "run the roles as threads of one process"});
  command.option("--force", arguments->force,
                 {.help = "begin although the plan says that the memory is not there"});
  command.footer(
      "Ctrl-C saves a checkpoint and stops; the same command with the same --run-dir goes on from "
      "there.\n"
      "Exit status: 0 done, 1 failed, 2 something to mend, 130 interrupted.\n\n"
      "Example:\n  tailrace launch configs/quickstart.yaml run.seed=1 --run-dir runs/first");
  command.action([arguments, &registries] {
    sort_positionals(*arguments);
    return launch(*arguments, registries);
  });
}

}  // namespace tailrace
