#include "cli/commands/join_remote.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include "cli/commands/leave.h"
#include "cli/config/listen.h"
#include "cli/inputs/load.h"
#include "cli/view/progress.h"
#include "core/base/error.h"
#include "core/gate/remote_run.h"
#include "core/gate/weight_relay.h"
#include "core/hosts/run_mirror.h"
#include "core/messages/check.h"
#include "core/wire/curve_keys.h"
#include "core/wire/tcp_address.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// Between two looks for a run that is not there.
constexpr std::chrono::milliseconds kTryAgain{500};

void say_line(const std::string& line) { show(stdout, line + "\n"); }

wire::Endpoint endpoint_of(const RemoteJoin& join) {
  const auto address = parse_tcp_address(join.address);
  if (!address || address->is_any())
    throw UserError(
        "--join is '{}'; of another host it is tcp://HOST:PORT, as run.listen of the run says.",
        join.address);
  if (join.key.empty())
    throw UserError(
        "--key is missing: the file NAME.key that 'tailrace worker keys new NAME' made where the "
        "run is.");
  if (join.server_key.empty())
    throw UserError(
        "--server-key is missing: the file server.pub of the folder run.keys where the run is.");
  return {join.address, {wire::read_secret_key(join.key), wire::read_public_key(join.server_key)}};
}

void check_relay(const RemoteJoin& join) {
  if (join.relay.empty()) return;
  if (!is_address_to_reach(join.relay))
    throw UserError(
        "--relay is '{}'; it is tcp://HOST:PORT, with the address of this machine at which the "
        "other hosts of its cluster reach it, and a free port. Try --relay tcp://10.0.0.7:7702.",
        join.relay);
  if (join.kind != RoleKind::kRollout)
    throw UserError("--relay has no use here: a {} worker has no weights to hand on.",
                    name_of(join.kind));
}

// The name of this machine, for people who look at the run; empty where that is no name.
std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || !wire::is_host_name(name)) return {};
  return name;
}

// A worker whose run has welcomed it.
ExitCode play(const RemoteJoin& join, RemoteRun& run, const Leave& leave, StatusPage& page,
              const Registries& registries) {
  const wire::GreetingAnswer& welcome = run.welcome();
  const fs::path work = join.work_dir.empty() ? default_work_directory() : fs::path(join.work_dir);
  const Role role = join.kind == RoleKind::kRollout ? Role::kRollout : Role::kReward;
  RunMirror mirror(run, role, work, leave.token(), say_line);
  const LoadedRun loaded = load_stored_run(mirror.paths(), mirror.overrides(), registries);
  const auto name = parse_role_name(welcome.name);
  if (!name || name->kind != join.kind)
    throw UserError("the run calls this worker '{}', which is no name of one.", welcome.name);
  const HeldRole held{*name, LockFile(mirror.paths().role(name_of(name->kind), name->index))};
  const fs::path file = mirror.log_file();
  Log log(name->text(), file, loaded.run.options.log.level);
  // Its log lies on this host, and people look at the run's: the gate writes these lines there.
  log.also_to([&run](LogLevel level, std::string_view line) { run.tell(level, line); });
  const auto cluster =
      std::ranges::find(loaded.run.options.clusters, welcome.cluster, &ClusterSection::name);
  // Within a cluster hosts take files from each other; a worker alone measures its link.
  std::optional<int64_t> link_mbit;
  if (cluster != loaded.run.options.clusters.end()) link_mbit = cluster->link_mbit;
  mirror.sources().log_to(log);
  std::optional<WeightRelay> relay;
  if (!join.relay.empty()) {
    if (welcome.cluster.empty())
      throw UserError(
          "--relay has no use here: it is for other hosts of a cluster, and this worker is in "
          "none.\n       Try --cluster NAME, here and for the workers of these hosts.");
    try {
      relay.emplace(mirror.relay_options(join.relay, link_mbit, log), log);
    } catch (const UserError& error) {
      throw UserError("--relay is {}, which cannot be opened: {}", join.relay, error.what());
    }
  }
  const RemoteRole remote{.incarnation = run.incarnation(),
                          .fetch_weights = [&](const WeightFetch& fetch) {
                            return mirror.weights().bring(fetch, link_mbit, log);
                          }};
  const RoleContext context{.run = mirror.paths(),
                            .resolved = loaded.run,
                            .endpoint = run.endpoint(),
                            .registries = loaded.registries,
                            .joined = true,
                            .pool = welcome.pool,
                            .cluster = welcome.cluster,
                            .host = host_name(),
                            .remote = &remote};
  say_line(
      fmt::format("working as {}; Ctrl-C leaves the run (log: {})", name->text(), file.string()));
  return play_role(held, context, page, log, leave.token());
}

// Joins once. Throws Unreachable where the run is not there.
ExitCode join_once(const RemoteJoin& join, const wire::Endpoint& endpoint, Leave& leave,
                   StatusPage& page, const Registries& registries) {
  RemoteRun run(
      {.gate = endpoint,
       .greeting = {.role = join.kind == RoleKind::kRollout ? Role::kRollout : Role::kReward,
                    .pool = join.pool,
                    .cluster = join.cluster,
                    .host = host_name(),
                    .relay = join.relay},
       .on_shut_out =
           [](const std::string& why) {
             show(stderr, fmt::format("warning: {}; trying again until it does\n", why));
           },
       .rate_mbit = join.rate_mbit});
  say_line(
      fmt::format("{} has joined {} at {}", run.welcome().name, run.welcome().run, join.address));
  const Leave::Watch watch = leave.watch([&run] { return run.refusal().empty(); });
  try {
    const ExitCode status = play(join, run, leave, page, registries);
    if (leave.asked()) {
      say_line(fmt::format("{} has left the run", run.welcome().name));
      return kExitInterrupted;
    }
    if (leave.over()) throw UserError("{}", run.refusal());
    if (status == kExitDone) say_line("the run has ended or was stopped");
    return status;
  } catch (const UserError& error) {
    if (leave.asked()) return kExitInterrupted;
    // Whoever looks at the run wants to know too.
    run.tell(LogLevel::kError, error.what());
    throw;
  }
}

}  // namespace

ExitCode join_remote(const RemoteJoin& join, StatusPage& page, const Registries& registries) {
  const wire::Endpoint endpoint = endpoint_of(join);
  check_relay(join);
  ::signal(SIGPIPE, SIG_IGN);  // it outlives its reader (`| head`)
  Leave leave;
  for (bool told = false; !leave.asked(); std::this_thread::sleep_for(kTryAgain)) {
    try {
      const ExitCode status = join_once(join, endpoint, leave, page, registries);
      if (!join.stays || status == kExitInterrupted || status == kExitUserError) return status;
      told = false;
    } catch (const Unreachable&) {
      if (!join.stays) throw;
    }
    if (!std::exchange(told, true))
      say_line(fmt::format("waiting for a run at {}; Ctrl-C ends that", join.address));
  }
  return kExitInterrupted;
}

}  // namespace tailrace
