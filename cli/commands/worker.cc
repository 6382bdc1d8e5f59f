#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <signal.h>

#include "cli/commands/commands.h"
#include "cli/commands/join_remote.h"
#include "cli/commands/leave.h"
#include "cli/config/listen.h"
#include "cli/config/pools.h"
#include "cli/inputs/load.h"
#include "cli/roles/endpoint.h"
#include "cli/roles/roles.h"
#include "cli/view/progress.h"
#include "core/base/error.h"
#include "core/config/flags.h"
#include "core/run/call_board.h"
#include "core/wire/tcp_address.h"
#include "kernels/base/pulse.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

struct WorkerArguments {
  std::optional<RoleKind> kind;
  std::optional<int> index;
  std::string run, join;
  std::string pool, cluster;
  std::string key, server_key, work_dir, relay;  // of a run of another host
  double rate_mbit = 0;
  bool stays = false, forced = false;
  int status = -1;  // descriptor; -1: no supervisor looks
};

// SIGTERM and SIGINT ask for a clean end.
class StopOnSignal {
 public:
  StopOnSignal() {
    thread_ = std::jthread([this](std::stop_token end) {
      while (!end.stop_requested()) {
        if (signals_.wait()) source_.request_stop();
      }
    });
  }
  std::stop_token token() const { return source_.get_token(); }

 private:
  const Signals signals_{SIGINT, SIGTERM};
  std::stop_source source_;
  std::jthread thread_;
};

void say(const std::string& line) { show(stdout, line + "\n"); }

// A signal by which the process ends itself notes the thread that it came from first: a supervisor
// then names the call of a library that this thread was in.
void note_crashes() {
  struct sigaction action {};
  action.sa_handler = [](int signal) {
    CallBoard::note_crash();
    ::raise(signal);  // with nobody there to take it: the process ends when we return
  };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT})
    ::sigaction(signal, &action, nullptr);
}

StatusPage status_page(const WorkerArguments& arguments) {
  auto page = arguments.status < 0 ? StatusPage::create() : StatusPage::adopt(arguments.status);
  if (!page) throw UserError("{}", page.failure().message);
  return std::move(page).value();
}

// Adds a worker to a living run. A person has started it: the terminal tells what becomes of it.
ExitCode join(const WorkerArguments& arguments, const Registries& registries) {
  const RunPaths paths{arguments.join};
  const std::string run = paths.root.string();
  if (!fs::exists(paths.config()))
    throw UserError("{} holds no run (no config.yaml).\n       Try the directory of a living run.",
                    run);
  const std::string endpoint = endpoint_to_join(paths.root);
  ::signal(SIGPIPE, SIG_IGN);  // it outlives its reader (`| head`)
  Leave leave;
  // The next launch may want its name for a worker of its own.
  const Leave::Watch watch = leave.watch([&] { return is_endpoint_of(paths.root, endpoint); });
  StatusPage page = status_page(arguments);
  const LoadedRun loaded = load_stored_run(paths, {}, registries);
  const RoleKind kind = arguments.kind.value_or(RoleKind::kRollout);
  if (kind == RoleKind::kRollout) (void)pool_to_join(loaded.run.pools, arguments.pool);
  const HeldRole role = hold_role_to_join(kind, loaded.run, paths);
  // People read the name that they gave; programs in folders of their own find the whole one.
  const RoleContext context{RunPaths{fs::absolute(paths.root).lexically_normal()},
                            loaded.run,
                            endpoint,
                            loaded.registries,
                            /*joined=*/true,
                            arguments.pool,
                            arguments.cluster};
  const fs::path file = paths.log(name_of(role.name.kind), role.name.index);
  Log log(role.name.text(), file, loaded.run.options.log.level);
  say(fmt::format("joined {} as {}; Ctrl-C leaves it (log: {})", run, role.name.text(),
                  file.string()));
  const ExitCode status = play_role(role, context, page, log, leave.token());
  if (leave.asked()) {
    say(fmt::format("{} has left {}", role.name.text(), run));
    return kExitInterrupted;
  }
  if (status != kExitDone && !leave.over()) return status;  // the log's last line, on stderr too
  say(fmt::format("{} has ended or was stopped; 'tailrace status {}' says which", run, run));
  return kExitDone;
}

// Beats `all` while both of the others beat: a supervisor sees it where one stands still.
void beat_as_both(std::stop_token stop, const Pulse& a, const Pulse& b, Pulse& all) {
  uint64_t seen_a = a.beats(), seen_b = b.beats();
  while (!stop.stop_requested()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    // A beat of one alone counts for nothing: the other one may be the role that stands still.
    if (a.beats() == seen_a || b.beats() == seen_b) continue;
    seen_a = a.beats(), seen_b = b.beats();
    all.beat();
  }
}

// The trainer, and the rollout worker that takes turns with it. Neither goes on without the other:
// the process ends with the first that fails, and the supervisor starts both again.
ExitCode work_in_turn(const RoleName& trainer, RoleContext context, StatusPage& page, Log& log) {
  const std::unique_ptr<Colocation> colocation = make_colocation(context);
  context.colocation = colocation.get();
  Pulse pulses[2];
  context.trainer_pulse = &pulses[0];
  context.rollout_pulse = &pulses[1];
  const std::jthread watch(beat_as_both, std::cref(pulses[0]), std::cref(pulses[1]),
                           std::ref(page.pulse()));
  const RoleName rollout{RoleKind::kRollout, 0};
  Log rollout_log(rollout.text(), context.run.log(name_of(rollout.kind), rollout.index),
                  context.resolved.options.log.level);
  const auto play = [&](const RoleName& name, Log& to) {
    ExitCode status = kExitFailed;
    try {
      status = run_role(name, context, page, to, {});
    } catch (const UserError& error) {
      to.error("{}", error.what());
      status = kExitUserError;
    } catch (const std::exception& error) {
      to.error("{}", error.what());
    }
    // The other one is in the middle of something, and all that matters is on disk.
    if (status != kExitDone) std::_Exit(status);
  };
  std::jthread beside([&] { play(rollout, rollout_log); });
  play(trainer, log);
  return kExitDone;
}

ExitCode work(const WorkerArguments& arguments, const Registries& registries) {
  const RoleName name{arguments.kind.value(), arguments.index.value_or(0)};
  StatusPage page = status_page(arguments);
  // From here on, and not only in the role: a run's datasets may be large.
  const PulseScope pulse(page.pulse());
  const CallBoardScope calls(page.calls());
  note_crashes();
  // Names of the run leave this process, to programs that work in folders of their own.
  const RunPaths paths{fs::absolute(arguments.run).lexically_normal()};
  const LoadedRun loaded = load_stored_run(paths, {}, registries);
  RoleContext context{paths, loaded.run, read_endpoint(paths.root), loaded.registries};
  context.forced = arguments.forced;
  // stderr is the role's log file already: the supervisor saw to that.
  Log log(name.text(), "", loaded.run.options.log.level);
  // The scheduler has something to do at a SIGTERM: it has the others save and end. These end by
  // its word, or at once by the signal; the gate, to which it says nothing, by the signal alone.
  if (name.kind == RoleKind::kScheduler || name.kind == RoleKind::kGate) {
    const StopOnSignal stop;
    return run_role(name, context, page, log, stop.token());
  }
  if (name.kind == RoleKind::kTrainer && loaded.run.options.run.colocate)
    return work_in_turn(name, context, page, log);
  return run_role(name, context, page, log, {});
}

// A run of another host, and not a folder of this one.
bool is_remote(const WorkerArguments& arguments) {
  return arguments.join.find("://") != std::string::npos;
}

// "gpu1:7701", which is no folder and was meant as an address.
bool lacks_scheme(const WorkerArguments& arguments) {
  return parse_tcp_address("tcp://" + arguments.join) && !fs::exists(arguments.join);
}

// Which of the three ways to start one is meant, and whether all that it wants was given.
ExitCode run(const WorkerArguments& arguments, const Registries& registries) {
  if (arguments.join.empty() == arguments.run.empty())
    throw UserError(
        "worker wants --join RUN, which adds a worker to a living run (of another host: --join "
        "tcp://HOST:PORT); or --run RUN with --role, as 'launch' starts its own.\n       Try "
        "'tailrace worker --join runs/quickstart'.");
  if (!arguments.pool.empty()) {
    if (arguments.join.empty() || arguments.kind.value_or(RoleKind::kRollout) != RoleKind::kRollout)
      throw UserError(
          "--pool has no use here: a rollout worker that joins a run (--join) is in one.");
    check_site_name("--pool", arguments.pool);
  }
  if (!arguments.cluster.empty()) {
    if (arguments.join.empty())
      throw UserError("--cluster has no use here: a worker that joins a run (--join) is in one.");
    check_site_name("--cluster", arguments.cluster);
  }
  if (lacks_scheme(arguments))
    throw UserError("--join is '{}'; of another host it is tcp://HOST:PORT. Try --join tcp://{}.",
                    arguments.join, arguments.join);
  if (arguments.stays && !is_remote(arguments))
    throw UserError("--stay has no use here: it is of a run of another host.");
  if (arguments.rate_mbit > 0 && !is_remote(arguments))
    throw UserError("--rate-mbit has no use here: it is of a run of another host.");
  for (const auto& [flag, value] : {std::pair{"--key", arguments.key},
                                    {"--server-key", arguments.server_key},
                                    {"--work-dir", arguments.work_dir},
                                    {"--relay", arguments.relay}}) {
    if (!value.empty() && !is_remote(arguments))
      throw UserError(
          "{} has no use here: it is of a run of another host (--join tcp://HOST:PORT).", flag);
  }
  if (arguments.join.empty()) {
    if (!arguments.kind)
      throw UserError("--role is missing: scheduler, gate, rollout, reward or trainer.");
    return work(arguments, registries);
  }
  if (arguments.index)
    throw UserError("--index has no use with --join: who joins gets the first name that is free.");
  if (arguments.kind && *arguments.kind != RoleKind::kRollout &&
      *arguments.kind != RoleKind::kReward)
    throw UserError("a run has one {}; rollout and reward workers can join it.",
                    name_of(*arguments.kind));
  if (!is_remote(arguments)) return join(arguments, registries);
  StatusPage page = status_page(arguments);
  return join_remote({.address = arguments.join,
                      .key = arguments.key,
                      .server_key = arguments.server_key,
                      .kind = arguments.kind.value_or(RoleKind::kRollout),
                      .pool = arguments.pool,
                      .cluster = arguments.cluster,
                      .relay = arguments.relay,
                      .work_dir = arguments.work_dir,
                      .rate_mbit = arguments.rate_mbit,
                      .stays = arguments.stays},
                     page, registries);
}

}  // namespace

void add_worker(Command& program, const Registries& registries) {
  auto arguments = std::make_shared<WorkerArguments>();
  Command& command = program.command(
      "worker", "Add a worker to a living run; or one role of a run, as 'launch' starts these");
  command.option("--join", arguments->join,
                 {.help = "the living run that gets one worker more: its directory, or of a run of "
                          "another host tcp://HOST:PORT (its run.listen)",
                  .value = "RUN"});
  command.option("--key", arguments->key,
                 {.help = "secret key of this machine, for a run on another host ('tailrace worker "
                          "keys new NAME')",
                  .value = "FILE"});
  command.option("--server-key", arguments->server_key,
                 {.help = "public key of a run on another host, its server.pub", .value = "FILE"});
  command.option("--work-dir", arguments->work_dir,
                 {.help = "of another host: where files of the run are kept; empty: tailrace in "
                          "XDG_CACHE_HOME or ~/.cache",
                  .value = "DIR"});
  command.option("--relay", arguments->relay,
                 {.help = "of another host: hand weights on to the other hosts of its cluster, at "
                          "this address (tcp://HOST:PORT) by which they reach this machine",
                  .value = "ADDRESS"});
  command.option("--stay", arguments->stays,
                 {.help = "with a run on another host: wait for it where it is not there yet, and "
                          "again when it has ended or was stopped, until Ctrl-C"});
  command.option(
      "--rate-mbit", arguments->rate_mbit,
      {.help = "limit for fetching weights and other files of a run on another host, in Mbit/s; 0: "
               "none",
       .min = 0.01,
       .max = 1e6,
       .or_zero = true});
  command.option("--role", arguments->kind, {.help = "with --join rollout or reward"});
  command.option("--index", arguments->index, {.help = "which of the workers of this role"});
  command.option("--pool", arguments->pool,
                 {.help = "with --join: its pool of rollout workers, where the run has several "
                          "(rollout.pools)",
                  .value = "NAME"});
  command.option(
      "--cluster", arguments->cluster,
      {.help = "with --join: the name of where it runs, for status and timeline", .value = "NAME"});
  command.option("--run", arguments->run,
                 {.help = "run directory of a launch that is under way", .value = "RUN"});
  // Only a supervisor has something to say here.
  command.option("--force", arguments->forced, {.hidden = true});
  command.option("--status", arguments->status, {.hidden = true});
  command.footer(
      "A worker that joins takes its options from the run and shares the work at once. Ctrl-C "
      "makes "
      "it leave: what it holds goes to others. Exit status: 0 the run has ended, 130 it has left, "
      "1 failed, 2 something to mend.\n\n"
      "Examples:\n  tailrace worker --join runs/quickstart\n"
      "  tailrace worker --join tcp://gpu1:7701 --key box7.key --server-key server.pub");
  command.action([arguments, &registries] { return run(*arguments, registries); });
  add_worker_keys(command);
}

}  // namespace tailrace
