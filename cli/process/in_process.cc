#include "cli/process/in_process.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include "cli/process/child_process.h"
#include "cli/process/quiet_watch.h"
#include "core/base/error.h"
#include "core/run/stall_watch.h"
#include "core/run/status_page.h"

namespace tailrace {
namespace {

using End = SupervisorResult::End;
using Moment = std::chrono::steady_clock::time_point;

// One role and its thread.
class RoleThread {
 public:
  RoleThread(RoleName name, const RoleContext& context, std::chrono::milliseconds stall)
      : name_(std::move(name)),
        page_(new_page()),
        stall_(stall),
        log_(name_.text(), context.run.log(name_of(name_.kind), name_.index),
             context.resolved.options.log.level) {}

  void start(const RoleContext& context) {
    thread_ = std::jthread([this, &context](std::stop_token stop) { play(context, stop); });
  }
  void stop() { thread_.request_stop(); }
  bool ended() const { return ended_.load(); }
  ExitCode status() const { return status_; }              // once ended
  const std::string& failure() const { return failure_; }  // once ended
  std::string name() const { return name_.text(); }
  RoleKind kind() const { return name_.kind; }
  Waits waits() const { return page_.waits(); }
  // Looks once; how long it has made no progress, if it stands still.
  std::optional<std::chrono::milliseconds> stalled(std::chrono::milliseconds elapsed) {
    if (ended() || !stall_.look(page_.pulse().beats(), elapsed)) return std::nullopt;
    return stall_.silent();
  }
  Standstill standstill() const { return standstill_of(::getpid(), thread_id_.load()); }
  bool excuse() { return stall_.excuse(); }
  bool reported = false;  // that it ended; the owner's

 private:
  static StatusPage new_page() {
    auto page = StatusPage::create();
    if (!page) throw UserError("{}", page.failure().message);
    return std::move(page).value();
  }

  void play(const RoleContext& context, std::stop_token stop) {
    thread_id_.store(::gettid());
    try {
      status_ = run_role(name_, context, page_, log_, stop);
    } catch (const UserError& error) {
      status_ = kExitUserError;
      failure_ = error.what();
    } catch (const std::exception& error) {
      status_ = kExitFailed;
      failure_ = error.what();
    }
    if (!failure_.empty()) log_.error("{}", failure_);
    // Last: whoever sees this may read the status and the failure.
    ended_.store(true);
  }

  RoleName name_;
  StatusPage page_;
  StallWatch stall_;  // the owner's
  Log log_;
  ExitCode status_ = kExitDone;
  std::string failure_;
  std::atomic<pid_t> thread_id_ = 0;  // 0: it has not begun
  std::atomic<bool> ended_ = false;
  std::jthread thread_;  // last: it uses all of the above
};

// SIGINT and SIGTERM wait to be fetched, by this thread and in those that start while it lives.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigemptyset(&set_);
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set_, signal);
    ::pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;

  // True when one came.
  bool wait(std::chrono::milliseconds timeout) {
    const timespec time{timeout.count() / 1000, timeout.count() % 1000 * 1'000'000};
    return ::sigtimedwait(&set_, nullptr, &time) > 0;
  }

 private:
  sigset_t set_{}, before_{};
};

SupervisorResult result_of(const RoleThread& role, const RoleContext& context) {
  const std::string message =
      role.failure().empty()
          ? fmt::format("{} ended with status {}; see {}", role.name(),
                        static_cast<int>(role.status()), context.run.logs().string())
          : fmt::format("{}: {}", role.name(), role.failure());
  return {role.status() == kExitUserError ? End::kUserError : End::kFailed, message};
}

bool has_substitute(const std::vector<std::unique_ptr<RoleThread>>& roles, const RoleThread& role) {
  return std::ranges::any_of(roles, [&](const auto& other) {
    return other.get() != &role && other->kind() == role.kind() && !other->ended();
  });
}

}  // namespace

SupervisorResult run_in_process(const RoleContext& given, const SupervisorOptions& options,
                                const SupervisorSink& say, const std::function<void()>& tick,
                                const AbandonSink& abandon) {
  // First, so that all threads inherit the mask: one that did not would be ended by the signal.
  BlockedSignals signals;
  std::vector<std::unique_ptr<RoleThread>> roles;
  const std::unique_ptr<Colocation> colocation = make_colocation(given);
  RoleContext context = given;
  context.colocation = colocation.get();
  for (const RoleName& name : roles_of(context.resolved)) {
    roles.push_back(std::make_unique<RoleThread>(name, context, options.stall));
  }
  // When all are made: one that cannot be would else leave threads that nobody stops.
  for (const auto& role : roles) role->start(context);
  RoleThread& scheduler = **std::ranges::find_if(
      roles, [](const auto& role) { return role->kind() == RoleKind::kScheduler; });
  const auto all_ended = [&] {
    return std::all_of(roles.begin(), roles.end(), [](const auto& role) { return role->ended(); });
  };
  const auto stop_all = [&] {
    for (const auto& role : roles) role->stop();
  };

  // Until a role has said how it ended, nothing has gone well.
  SupervisorResult result{End::kFailed, "the roles ended without a word"};
  auto deadline = Moment::max();
  bool asked = false;  // to stop
  bool over = false;   // the scheduler ended, or a role broke
  const auto look_for_ends = [&] {
    for (const auto& role : roles) {
      if (over || !role->ended() || role->reported) continue;
      // A worker that was told to end.
      if (role->status() == kExitDone && role.get() != &scheduler) continue;
      // Threads are not started again; while others do its work the run goes on without it.
      if (role->status() != kExitDone && options.begun() && has_substitute(roles, *role)) {
        role->reported = true;
        say(result_of(*role, context).message);
        continue;
      }
      over = true;
      // The scheduler's word counts: a stop that came too late has interrupted nothing.
      if (role.get() == &scheduler && role->status() == kExitDone)
        result = {End::kDone, ""};
      else if (role.get() == &scheduler && role->status() == kExitInterrupted)
        result = {End::kInterrupted, ""};
      else
        result = result_of(*role, context);
      stop_all();
      // More than the grace of processes, which are only sent a signal after it: here the whole
      // process ends.
      deadline = std::chrono::steady_clock::now() + options.grace * 4;
    }
  };
  QuietWatch quiet(options.quiet);
  Moment looked = std::chrono::steady_clock::now();
  while (!all_ended()) {
    if (signals.wait(options.tick)) {
      // _Exit() and not exit(): threads are in the middle of things that destructors would take
      // away.
      if (asked || over) std::_Exit(abandon({End::kInterrupted, "killed"}));
      asked = true;
      say(kStoppingLine);
      scheduler.stop();
      deadline = std::chrono::steady_clock::now() + options.stop_timeout;
    }
    tick();
    if (const auto line = quiet.look(scheduler.waits()); line && !over && !scheduler.ended())
      say(*line);
    const Moment now = std::chrono::steady_clock::now();
    const auto elapsed =
        std::chrono::duration_cast<std::chrono::milliseconds>(now - std::exchange(looked, now));
    for (const auto& role : roles) {
      const auto silent = role->stalled(elapsed);
      if (!silent) continue;
      const Standstill why = role->standstill();
      const std::string line = fmt::format("{} has made no progress for {} s: {}", role->name(),
                                           silent->count() / 1000, describe(why));
      if (is_excused(why)) {
        if (role->excuse()) say(line + ", and is left alone");
        continue;
      }
      // A thread cannot be replaced.
      std::_Exit(abandon({End::kFailed, line}));
    }
    look_for_ends();
    if (std::chrono::steady_clock::now() < deadline) continue;
    if (!over)
      result = {End::kFailed, "the run did not stop in time; it goes on from its last checkpoint"};
    std::_Exit(abandon(result));  // all that matters is on disk
  }
  // The last may have ended since the last look, or all before the first.
  look_for_ends();
  tick();
  return result;
}

}  // namespace tailrace
