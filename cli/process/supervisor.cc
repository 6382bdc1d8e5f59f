#include "cli/process/supervisor.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>
#include <signal.h>

#include "cli/config/counted.h"
#include "cli/process/child_process.h"
#include "cli/process/quiet_watch.h"
#include "core/base/exit_code.h"
#include "core/base/file.h"
#include "core/base/time.h"
#include "core/run/stall_watch.h"
#include "sandbox/process/offspring.h"

namespace tailrace {
namespace {

namespace asio = boost::asio;
using SteadyTime = std::chrono::steady_clock::time_point;
using End = SupervisorResult::End;
using boost::system::error_code;

constexpr int kQuotedLines = 8;
constexpr int kSearchedLines = 100;

class Supervisor {
 public:
  Supervisor(const std::vector<ChildSpec>& specs, const SupervisorOptions& options,
             const SupervisorSink& say, const std::function<void()>& tick)
      : options_(options), say_(say), tick_(tick) {
    for (const ChildSpec& spec : specs)
      children_.push_back(std::make_unique<Child>(spec, options_.stall, io_));
    const auto leads = [](const auto& child) {
      return child->spec.role.kind == RoleKind::kScheduler;
    };
    TR_CHECK(std::ranges::count_if(children_, leads) == 1);
    scheduler_ = std::ranges::find_if(children_, leads)->get();
    // Processes that the programs of a killed worker have left come here.
    (void)sandbox::Offspring::of_this_process();
  }

  SupervisorResult run() {
    wait_for_signals();
    wait_for_tick();
    // In any order: a worker says Hello until the scheduler is there.
    for (auto& child : children_) start(*child);
    io_.run();
    if (tick_) tick_();
    return result_;
  }

 private:
  struct Break {
    SteadyTime at;
    bool stalled = false;
  };
  struct Child {
    Child(const ChildSpec& spec_in, std::chrono::milliseconds patience, asio::io_context& io)
        : spec(spec_in), stall(patience), restart_timer(io) {}
    const ChildSpec& spec;
    std::optional<StatusPage> page;  // of this process; a new one begins with its own
    StallWatch stall;
    std::unique_ptr<asio::posix::stream_descriptor> watch;  // a duplicate of the process's pidfd
    std::optional<ChildProcess> process;
    asio::steady_timer restart_timer;
    std::deque<Break> breaks;  // within the window
    bool finished = false;     // exited with 0
    bool stalled = false;      // killed for it
  };

  void start(Child& child) {
    child.finished = child.stalled = false;
    const auto refuse = [&](const Failure& failure) {
      finish({End::kFailed, fmt::format("{}: {}", child.spec.role.text(), failure.message)});
    };
    auto page = StatusPage::create();
    if (!page) return refuse(page.failure());
    child.page.emplace(std::move(page).value());
    child.stall = StallWatch(options_.stall);
    auto process = ChildProcess::spawn(child.spec.command, child.spec.log, &*child.page);
    if (!process) return refuse(process.failure());
    child.process.emplace(std::move(process).value());
    // Asio closes what it holds, and the process closes its own.
    child.watch =
        std::make_unique<asio::posix::stream_descriptor>(io_, ::dup(child.process->descriptor()));
    child.watch->async_wait(asio::posix::stream_descriptor::wait_read,
                            [this, &child](error_code error) {
                              if (!error) on_exit(child);
                            });
  }

  void on_exit(Child& child) {
    const auto status = child.process->try_reap();
    if (!status) return;
    child.process.reset();
    child.watch.reset();
    sandbox::Offspring::of_this_process().end_orphans();
    if (ending_) {
      end_if_all_gone();
    } else if (status->ok()) {
      child.finished = true;
      if (&child == scheduler_) return finish({End::kDone, ""});
      start_again_if_needed(child);
    } else if (&child == scheduler_ && status->code == kExitInterrupted) {
      finish({End::kInterrupted, ""});  // it may have been asked behind our back
    } else if (is_user_error(*status) && (&child == scheduler_ || !options_.begun())) {
      // Before a worker has been of use, its complaint is most likely about the config. Later the
      // same config has worked, and the scheduler keeps that one worker from work instead.
      finish({End::kUserError, own_error(child)});
    } else {
      restart_later(child, *status);
    }
  }

  // "killed by signal 11 (Segmentation fault) in step() of maze (libmaze.so), task seed 17"
  static std::string how_ended(const Child& child, const ExitStatus& status) {
    const std::string call = child.page->calls()->describe();
    const std::string how = child.stalled ? "killed, since it made no progress" : describe(status);
    if (call.empty()) return how;
    // Where it ended by an exit, another thread may have called for it.
    return fmt::format("{}{} {}", how, status.signal != 0 ? " in" : ", while it was in", call);
  }

  static bool is_user_error(const ExitStatus& status) {
    return status.signal == 0 && status.code == kExitUserError;
  }

  bool broke_too_often(const Child& child, SteadyTime now) const {
    return std::ranges::count_if(child.breaks, [&](const Break& one) {
             return now - one.at <= options_.window;
           }) >= options_.max_restarts;
  }

  // Somebody else does this child's work, or will when it is started again.
  bool has_substitute(const Child& child, SteadyTime now) const {
    if (options_.joined(child.spec.role.kind)) return true;
    return std::ranges::any_of(children_, [&](const auto& other) {
      return other.get() != &child && other->spec.role.kind == child.spec.role.kind &&
             !other->finished && !broke_too_often(*other, now);
    });
  }

  void restart_later(Child& child, const ExitStatus& status) {
    const SteadyTime now = std::chrono::steady_clock::now();
    while (!child.breaks.empty() && now - child.breaks.front().at > options_.window)
      child.breaks.pop_front();
    const auto count = static_cast<int>(child.breaks.size());
    const bool too_often = broke_too_often(child, now) && !has_substitute(child, now);
    child.breaks.push_back({now, child.stalled});
    if (too_often) {
      if (is_user_error(status)) return finish({End::kUserError, own_error(child)});
      return finish({End::kFailed, quote(child, describe_breaks(child, status))});
    }
    // Doubled each time: what breaks at once, such as a full disk, must not spin. 16 keeps the
    // shift in range.
    const auto delay =
        std::min(options_.max_delay, options_.first_delay * (1 << std::min(count, 16)));
    say_(fmt::format("{}: {}; starting it again in {} ms (log: {})", child.spec.role.text(),
                     how_ended(child, status), delay.count(), child.spec.log.string()));
    child.restart_timer.expires_after(delay);
    child.restart_timer.async_wait([this, &child](error_code error) {
      if (!error && !ending_) restart(child);
    });
  }

  // The text about a child that broke too often, the last time now.
  std::string describe_breaks(const Child& child, const ExitStatus& status) const {
    const auto seconds = [](std::chrono::milliseconds time) {
      return fmt::format("{} s", seconds_of(time));
    };
    const auto stalls = std::ranges::count_if(child.breaks, &Break::stalled);
    const auto deaths = std::ssize(child.breaks) - stalls;
    const std::string last =
        child.stalled ? "" : fmt::format(", the last time with {}", how_ended(child, status));
    const std::string died = fmt::format("died {}", counted(deaths, "time"));
    if (stalls == 0) return fmt::format("{} within {}{}", died, seconds(options_.window), last);
    return fmt::format(
        "{}was killed {} for making no progress for {}, with less than {} of work in between{}",
        deaths > 0 ? died + " and " : "", counted(stalls, "time"), seconds(options_.stall),
        seconds(options_.window), last);
  }

  // The scheduler sends others home as its last act. One that lives on never did: the word was of
  // another before it, and the worker needed longer to end than this one to come.
  void start_again_if_needed(Child& child) {
    child.restart_timer.expires_after(options_.parting);
    child.restart_timer.async_wait([this, &child](error_code error) {
      // While there is no scheduler, the next one brings it along.
      if (error || ending_ || !child.finished || !scheduler_->process) return;
      child.finished = false;
      restart_later(child, {});
    });
  }

  // A scheduler that comes back may have sent others home already, as its last act before it died.
  void restart(Child& child) {
    start(child);
    if (&child != scheduler_) return;
    for (auto& other : children_) {
      if (other->finished) start(*other);
    }
    // The one that was asked to stop is dead, and this one has not heard of it.
    if (interrupted_ && child.process) child.process->send_signal(SIGTERM);
  }

  void wait_for_signals() {
    signals_.async_wait([this](error_code error, int) {
      if (error) return;
      on_stop_asked();
      wait_for_signals();
    });
  }

  void on_stop_asked() {
    if (interrupted_ || ending_) {
      finish({End::kInterrupted, "killed"});
      signal_all(SIGKILL);
      return;
    }
    interrupted_ = true;
    say_(kStoppingLine);
    if (scheduler_->process) scheduler_->process->send_signal(SIGTERM);
    // One timer for all phases of an end: finish() sets it again, and what it waited for is void.
    after(options_.stop_timeout, [this] {
      if (ending_) return;
      finish(
          {End::kFailed,
           fmt::format("the run did not stop within {} s; it was killed, and goes on from its last "
                       "checkpoint when it is launched again",
                       options_.stop_timeout.count() / 1000)});
      signal_all(SIGKILL);
    });
  }

  void wait_for_tick() {
    tick_timer_.expires_after(options_.tick);
    tick_timer_.async_wait([this](error_code error) {
      if (error) return;
      look_for_stalls();
      tell_waits();
      if (tick_) tick_();
      wait_for_tick();
    });
  }

  void look_for_stalls() {
    const SteadyTime now = std::chrono::steady_clock::now();
    const auto elapsed =
        std::chrono::duration_cast<std::chrono::milliseconds>(now - std::exchange(looked_, now));
    for (auto& child : children_) {
      if (!child->process || child->stalled || ending_) continue;
      if (child->stall.look(child->page->pulse().beats(), elapsed)) on_stall(*child);
    }
  }

  void on_stall(Child& child) {
    const Standstill why = standstill_of(child.process->pid());
    const auto silent = child.stall.silent();
    const bool left_alone = is_excused(why);
    if (!left_alone || child.stall.excuse()) {
      say_(fmt::format("{} (process {}) has made no progress for {} s: {}, {}. {}",
                       child.spec.role.text(), child.process->pid(), silent.count() / 1000,
                       describe(why), left_alone ? "and is left alone" : "and is replaced",
                       waits_for(child)));
    }
    if (left_alone) return;
    // Time that it stood still is no time in which it did not break: five stalls are not forgotten
    // because each took longer than the window.
    for (Break& one : child.breaks) one.at += silent;
    child.stalled = true;
    child.process->send_signal(SIGKILL);  // on_exit() does the rest
  }

  std::string waits_for(const Child& child) const {
    if (&child == scheduler_) return "All others wait for it.";
    // A dead scheduler's message is old.
    if (!scheduler_->process) return "The scheduler is not running now.";
    const std::string line = scheduler_->page->waits().line;
    return line.empty() ? "" : fmt::format("The scheduler: {}.", line);
  }

  void tell_waits() {
    // A dead scheduler's message is old.
    if (!scheduler_->process || ending_) return;
    if (const auto line = quiet_.look(scheduler_->page->waits())) say_(*line);
  }

  // The run is over. When all went well the scheduler has told the others so, but one that was
  // still starting did not hear it.
  void finish(SupervisorResult result) {
    if (ending_) return;
    ending_ = true;
    result_ = std::move(result);
    for (auto& child : children_) child->restart_timer.cancel();
    const bool told =
        result_.end == End::kDone || (result_.end == End::kInterrupted && result_.message.empty());
    after(told ? options_.grace : std::chrono::milliseconds(0), [this] {
      signal_all(SIGTERM);
      after(options_.drain_timeout, [this] { signal_all(SIGKILL); });
    });
    end_if_all_gone();
  }

  template <class Then>
  void after(std::chrono::milliseconds delay, Then then) {
    stop_timer_.expires_after(delay);
    stop_timer_.async_wait([then](error_code error) {
      if (!error) then();
    });
  }

  void signal_all(int signal) {
    for (auto& child : children_) {
      if (child->process) child->process->send_signal(signal);
    }
  }

  void end_if_all_gone() {
    for (auto& child : children_) {
      if (child->process) return;
    }
    io_.stop();
  }

  // The child's last error, which is its reason; the end of its log when it said nothing.
  static std::string own_error(const Child& child) {
    std::string message;
    for (const std::string& line : last_lines(child.spec.log, kSearchedLines)) {
      const size_t at = line.starts_with("error: ") ? 0 : line.find(": error: ");
      if (at != std::string::npos) {
        message = child.spec.role.text() + ": " + line.substr(line.find("error: ") + 7);
      } else if (!message.empty() && line.starts_with(' ')) {
        message += "\n" + line;  // a message of several lines
      }
    }
    return message.empty() ? quote(child, "stopped") : message;
  }

  static std::string quote(const Child& child, const std::string& what) {
    std::string message =
        fmt::format("{} {}. The end of {}:", child.spec.role.text(), what, child.spec.log.string());
    for (const std::string& line : last_lines(child.spec.log, kQuotedLines))
      message += "\n         " + line;
    return message;
  }

  const SupervisorOptions options_;
  const SupervisorSink& say_;
  const std::function<void()>& tick_;
  asio::io_context io_{1};
  asio::signal_set signals_{io_, SIGINT, SIGTERM, SIGHUP};
  asio::steady_timer tick_timer_{io_}, stop_timer_{io_};
  std::vector<std::unique_ptr<Child>> children_;
  Child* scheduler_ = nullptr;  // one of them
  bool interrupted_ = false, ending_ = false;
  SteadyTime looked_ = std::chrono::steady_clock::now();  // for stalls
  QuietWatch quiet_{options_.quiet};
  SupervisorResult result_;
};

}  // namespace

SupervisorResult supervise(const std::vector<ChildSpec>& children, const SupervisorOptions& options,
                           const SupervisorSink& say, const std::function<void()>& tick) {
  return Supervisor(children, options, say, tick).run();
}

std::vector<std::string> last_lines(const std::filesystem::path& file, int count) {
  const auto text = read_file(file);
  if (!text) return {};
  std::deque<std::string> lines;
  LineReader reader(text.value());
  while (auto line = reader.next()) {
    lines.emplace_back(line->text);
    if (lines.size() > static_cast<size_t>(count)) lines.pop_front();
  }
  return {lines.begin(), lines.end()};
}

}  // namespace tailrace
