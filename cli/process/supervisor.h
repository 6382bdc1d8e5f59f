// Runs the processes of a run: spawns them, restarts those that die, passes a stop on, and ends
// when the scheduler among them does.
//
// Children get their own process group, so that a terminal's Ctrl-C reaches the supervisor alone,
// and die with it, however it ends (PR_SET_PDEATHSIG). Their output goes to their log files.
//
// A child that ends as kExitDone was told to, and where the scheduler lives on, by one that has
// died since: it is started again. As kExitUserError, a person must mend something (its last log
// lines say what). Before the run has begun, and of the scheduler at any time, that ends the run.
// Otherwise, and after any other status or a signal, the child is started again after a delay that
// grows. One that breaks too often within a minute ends the run when nobody else does its work;
// while others do, it is tried again now and then, and the scheduler keeps it from work.
//
// One that makes no progress (its status page; stopped or deadlocked) is killed and started again,
// unless a debugger holds it; a process in the kernel, which no signal reaches, is only named.
//
// Thread: run() belongs to the thread that calls it, which must outlive the children.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cli/roles/roles.h"

namespace tailrace {

struct ChildSpec {
  RoleName role;                     // exactly one is the scheduler; one kind does the same work
  std::vector<std::string> command;  // argv; the first is a path
  std::filesystem::path log;         // stdout and stderr are appended
};

struct SupervisorOptions {
  int max_restarts = 5;  // of one child within `window`
  std::chrono::milliseconds window{60'000};
  std::chrono::milliseconds first_delay{100};  // doubles with each restart within the window
  std::chrono::milliseconds max_delay{5'000};
  std::chrono::milliseconds stop_timeout{120'000};  // for a clean end after a stop was asked
  // For the others to end by the scheduler's word after it ended.
  std::chrono::milliseconds grace{500};
  // For the scheduler to end after a worker did: it only waits for all to hear that it is over.
  std::chrono::milliseconds parting{5'000};
  // Then they are told by SIGTERM, and killed after this.
  std::chrono::milliseconds drain_timeout{10'000};
  std::chrono::milliseconds tick{200};
  std::chrono::milliseconds stall{45'000};  // without progress; 0: for ever
  // Nothing comes in: after that, and then ever less often, who waits for whom is said.
  std::chrono::seconds quiet{60};
  // The run has begun: a worker has been of use. From then on no single one ends it.
  std::function<bool()> begun = [] { return false; };
  // Somebody plays this role who is no child: a person added it to the run.
  std::function<bool(RoleKind)> joined = [](RoleKind) { return false; };
};

struct SupervisorResult {
  enum class End { kDone, kInterrupted, kUserError, kFailed };
  End end = End::kDone;
  std::string message;  // for kUserError and kFailed: who, how, and the last lines of its log
};

inline constexpr char kStoppingLine[] =
    "stopping: the trainer saves a checkpoint first (once more kills at once)";

// A sink for the events of children, for the view and for the log.
using SupervisorSink = std::function<void(const std::string& line)>;

// SIGTERM asks the scheduler to stop the run cleanly; its kExitDone or kExitInterrupted ends the
// run. Takes SIGINT, SIGTERM and SIGHUP of this process while it runs; a second one kills
// everything. `tick` is called now and then.
SupervisorResult supervise(const std::vector<ChildSpec>& children, const SupervisorOptions& options,
                           const SupervisorSink& say, const std::function<void()>& tick);

// The last `count` lines of a file, for a message; empty when it cannot be read.
std::vector<std::string> last_lines(const std::filesystem::path& file, int count);

}  // namespace tailrace
