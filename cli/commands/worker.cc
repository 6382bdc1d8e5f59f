#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <signal.h>

#include "cli/commands/commands.h"
#include "cli/run/endpoint.h"
#include "cli/run/load.h"
#include "cli/run/roles.h"
#include "core/base/error.h"
#include "kernels/base/pulse.h"

namespace tailrace {
namespace {

struct WorkerArguments {
  RoleName name;
  std::string run;
  int status = -1;  // descriptor; -1: no supervisor looks
};

// SIGTERM and SIGINT ask for a clean end. Must be made before any other thread, so that all inherit
// the mask.
class StopOnSignal {
 public:
  StopOnSignal() {
    sigemptyset(&set_);
    for (int signal : {SIGINT, SIGTERM}) sigaddset(&set_, signal);
    ::pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    thread_ = std::jthread([this](std::stop_token end) {
      const timespec piece{0, 100'000'000};  // a wait that its end can interrupt
      while (!end.stop_requested()) {
        if (::sigtimedwait(&set_, nullptr, &piece) > 0) source_.request_stop();
      }
    });
  }
  std::stop_token token() const { return source_.get_token(); }

 private:
  sigset_t set_{};
  std::stop_source source_;
  std::jthread thread_;
};

ExitCode work(const WorkerArguments& arguments, const Registries& registries) {
  auto page = arguments.status < 0 ? StatusPage::create() : StatusPage::adopt(arguments.status);
  if (!page) throw UserError("{}", page.failure().message);
  // From here on, and not only in the role: a run's datasets may be large.
  const PulseScope pulse(page.value().pulse());
  const RunPaths paths{arguments.run};
  const LoadedRun run = load_stored_run(paths, {}, registries);
  const RoleContext context{paths, run.options, read_endpoint(paths.root), registries};
  // stderr is the role's log file already: the supervisor saw to that.
  Log log(arguments.name.text(), "", run.options.log.level);
  // Only the scheduler has to do something at a SIGTERM: it has the others save and end. These end
  // by its word, or at once by the signal.
  if (arguments.name.kind == RoleKind::kScheduler) {
    const StopOnSignal stop;
    return run_role(arguments.name, context, page.value(), log, stop.token());
  }
  return run_role(arguments.name, context, page.value(), log, {});
}

}  // namespace

void add_worker(CLI::App& app, const Registries& registries) {
  auto arguments = std::make_shared<WorkerArguments>();
  auto* command = app.add_subcommand("worker", "One role of a run; 'launch' starts these");
  const std::vector<std::string> kinds(kEnumNames<RoleKind>.begin(), kEnumNames<RoleKind>.end());
  const auto choose = [arguments](const std::string& name) {
    arguments->name.kind = value_of<RoleKind>(name).value();  // checked before: it is one of them
  };
  command
      ->add_option_function<std::string>("--role", choose, "scheduler, rollout, reward or trainer")
      ->required()
      ->check(CLI::IsMember(kinds));
  command->add_option("--index", arguments->name.index, "which of the workers of this role")
      ->type_name("N");
  command->add_option("--run", arguments->run, "run directory of a launch that is under way")
      ->required()
      ->type_name("RUN");
  // Hidden: only a supervisor has something to say here.
  command->add_option("--status", arguments->status)->group("");
  command->footer("Example:\n  tailrace worker --role rollout --index 1 --run runs/quickstart");
  command->callback([arguments, &registries] {
    const ExitCode status = work(*arguments, registries);
    if (status != kExitDone) throw CLI::RuntimeError(status);
  });
}

}  // namespace tailrace
