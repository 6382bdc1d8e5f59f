#include "sandbox/command/command_loop.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <map>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file_descriptor.h"
#include "core/base/rate_limit.h"
#include "kernels/base/mutex.h"
#include "sandbox/command/answer_line.h"
#include "sandbox/process/offspring.h"
#include "sandbox/process/process.h"
#include "sandbox/process/stderr_lines.h"

namespace tailrace::sandbox {
namespace {

using namespace std::chrono_literals;

// An observation and the evidence, each as long as it may be, and some of it escaped.
constexpr size_t kMostAnswerBytes = size_t{16} << 20;
// How exactly deadlines are kept, while a call is in flight.
constexpr int kTickMs = 20;
constexpr int kIdleTickMs = 1000;
// For one that has closed its stdout to end as well: its status says more.
constexpr Time kLastWords = 500ms;
// Between two episodes; who needs it again starts it again.
constexpr Time kLongestIdleProcess = 5min;
// Of the log: so many lost processes at once, and from then on one in each period.
constexpr int64_t kLostNotesAtOnce = 20;
constexpr Time kLostNotesPeriod = 2s;

// What an event of a process is about.
enum Stream : uint64_t { kIn, kOut, kErr, kEnd, kStreams };

}  // namespace

struct CommandLoop::State {
  // 0: none.
  using ChildId = uint64_t;

  struct Queued {
    CommandCall call;
    Time deadline{};
    bool is_goodbye = false;  // the episode is over for everybody else
  };

  struct Child {
    std::unique_ptr<CommandProcess> process;
    StderrLines said;
    Episode episode = 0;  // 0: it is idle, or about to be
    // The first is in flight; the others follow.
    std::deque<Queued> calls = {};
    bool has_played = false;  // an episode before this one
    bool has_answered = false;
    Time idle_since{}, closed_at{};
    std::string to_write = {}, read = {};
    size_t written = 0;  // of to_write
    bool waits_to_write = false, out_is_closed = false, err_is_closed = false;
  };

  struct Loss {
    std::string why, last;  // `last`: of its stderr
  };

  struct Begin {
    Episode episode;
    Queued queued;
  };
  struct Release {
    Episode episode;
    std::optional<Queued> goodbye;
  };
  using Order = std::variant<Begin, Release>;

  State(CommandStart start, CommandCall greeting, std::shared_ptr<ToldTracebacks> told)
      : start_(std::move(start)),
        greeting_(std::move(greeting)),
        logs_(told != nullptr),
        log_(std::move(told)),
        name_(shown(start_)),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!epoll_.is_open() || !wake_.is_open()) throw UserError("no files are left for '{}'", name_);
    watch(EPOLL_CTL_ADD, wake_.get(), EPOLLIN, 0, kIn);
  }

  // --- Any thread.

  Episode open() {
    MutexLock lock(mutex_);
    return next_episode_++;
  }

  void order(Order what) {
    {
      MutexLock lock(mutex_);
      if (!is_closing_) {
        orders_.push_back(std::move(what));
        wake();
        return;
      }
    }
    if (const auto* begun = std::get_if<Begin>(&what)) fail(begun->queued, "is ending");
  }

  void close() {
    MutexLock lock(mutex_);
    is_closing_ = true;
    wake();
  }

  // --- The loop's thread.

  void run() {
    leave_signals_to_others();
    std::array<epoll_event, 64> events;
    while (take_orders()) {
      const bool is_busy = std::ranges::any_of(
          children_, [](const auto& child) { return !child.second.calls.empty(); });
      const int ready = ::epoll_wait(epoll_.get(), events.data(), std::ssize(events),
                                     is_busy ? kTickMs : kIdleTickMs);
      for (int i = 0; i < ready; ++i) {
        const epoll_event& event = events[static_cast<size_t>(i)];
        hear(event.data.u64 / kStreams, static_cast<Stream>(event.data.u64 % kStreams));
      }
      end_what_is_late();
    }
    for (const auto& [id, child] : children_)
      for (const Queued& queued : child.calls) fail(queued, "is ending");
    children_.clear();
  }

 private:
  void wake() {
    const uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);
  }

  void watch(int operation, int file, uint32_t what, ChildId child, Stream stream) {
    epoll_event event{.events = what, .data = {.u64 = child * kStreams + stream}};
    (void)::epoll_ctl(epoll_.get(), operation, file, &event);
  }

  // `last`: of its stderr.
  void fail(const Queued& queued, const std::string& why, const std::string& last = "") const {
    if (queued.call.fail)
      queued.call.fail(Failure{fmt::format("'{}' {}, in {}{}{}", name_, why, queued.call.name,
                                           last.empty() ? "" : "; its stderr ends: ", last)});
  }

  // False: the loop ends.
  bool take_orders() {
    std::deque<Order> orders;
    bool goes_on;
    {
      MutexLock lock(mutex_);
      orders = std::exchange(orders_, {});
      goes_on = !is_closing_;
    }
    for (Order& order : orders) {
      if (auto* begun = std::get_if<Begin>(&order)) {
        if (goes_on)
          begin(begun->episode, std::move(begun->queued));
        else
          fail(begun->queued, "is ending");
      } else if (goes_on) {
        auto& released = std::get<Release>(order);
        release(released.episode, std::move(released.goodbye));
      }
    }
    return goes_on;
  }

  ChildId child_of(Episode episode) const {
    const auto at = playing_.find(episode);
    return at == playing_.end() ? 0 : at->second;
  }

  void begin(Episode episode, Queued queued) {
    ChildId id = child_of(episode);
    if (id == 0 && !queued.call.begins) {
      const auto lost = lost_.find(episode);
      if (lost == lost_.end()) return fail(queued, "has no process for it");
      return fail(queued, lost->second.why, lost->second.last);
    }
    if (id == 0) {
      lost_.erase(episode);
      id = idle_child();
      if (id == 0) {
        auto started = start(queued.deadline);
        if (!started) {
          note(fmt::format("no process was started: {}", started.failure().message));
          if (queued.call.fail) queued.call.fail(started.failure());
          return;
        }
        id = started.value();
      }
      children_.at(id).episode = episode;
      playing_[episode] = id;
    }
    ask(id, std::move(queued));
  }

  void release(Episode episode, std::optional<Queued> goodbye) {
    lost_.erase(episode);
    const ChildId id = child_of(episode);
    if (id == 0) return;
    playing_.erase(episode);
    Child& child = children_.at(id);
    child.episode = 0;
    child.has_played = true;
    if (!child.calls.empty()) return lose(id, "was ended, as nobody waits for it any more");
    if (goodbye) {
      goodbye->is_goodbye = true;
      return ask(id, std::move(*goodbye));
    }
    child.idle_since = steady_now();
  }

  static bool says_goodbye(const Child& child) {
    return !child.calls.empty() && child.calls.front().is_goodbye;
  }

  // The one that has played last, so that those who are not needed grow old; else one that is
  // about to be idle, as that is sooner than a start.
  ChildId idle_child() const {
    ChildId best = 0, next = 0;
    for (const auto& [id, child] : children_) {
      if (child.episode != 0) continue;
      if (says_goodbye(child)) next = id;
      if (child.calls.empty() && (best == 0 || child.idle_since > children_.at(best).idle_since))
        best = id;
    }
    return best != 0 ? best : next;
  }

  Result<ChildId> start(Time deadline) {
    auto started = CommandProcess::start(start_);
    if (!started) return started.failure();
    const ChildId id = next_child_++;
    Child& child = children_
                       .emplace(id, Child{.process = std::move(started).value(),
                                          .said = StderrLines(name_, logs_ ? &log_ : nullptr)})
                       .first->second;
    watch(EPOLL_CTL_ADD, child.process->out(), EPOLLIN, id, kOut);
    watch(EPOLL_CTL_ADD, child.process->err(), EPOLLIN, id, kErr);
    watch(EPOLL_CTL_ADD, child.process->pidfd(), EPOLLIN, id, kEnd);
    watch(EPOLL_CTL_ADD, child.process->in(), 0, id, kIn);
    ask(id, {.call = greeting_, .deadline = deadline});
    return id;
  }

  void ask(ChildId id, Queued queued) {
    Child& child = children_.at(id);
    child.calls.push_back(std::move(queued));
    if (child.calls.size() == 1) send_next(id, child);
  }

  void send_next(ChildId id, Child& child) {
    child.to_write = child.calls.front().call.line + '\n';
    child.written = 0;
    write_some(id, child);
  }

  // As much as its stdin takes. One that reads no more is heard of on the other side.
  void write_some(ChildId id, Child& child) {
    bool waits = false;
    while (child.written < child.to_write.size()) {
      const ssize_t count = ::write(child.process->in(), child.to_write.data() + child.written,
                                    child.to_write.size() - child.written);
      if (count < 0 && errno == EINTR) continue;
      waits = count < 0 && errno == EAGAIN;
      if (count <= 0) break;
      child.written += static_cast<size_t>(count);
    }
    if (!waits) child.to_write.clear(), child.written = 0;
    if (waits != std::exchange(child.waits_to_write, waits))
      watch(EPOLL_CTL_MOD, child.process->in(), waits ? EPOLLOUT : 0u, id, kIn);
  }

  void hear(ChildId id, Stream stream) {
    if (id == 0) {
      uint64_t count;
      (void)!::read(wake_.get(), &count, sizeof count);
      return;
    }
    const auto at = children_.find(id);
    if (at == children_.end()) return;  // lost in this turn
    Child& child = at->second;
    switch (stream) {
      case kIn:
        if (child.waits_to_write)
          write_some(id, child);
        else  // its stdin is closed
          watch(EPOLL_CTL_DEL, child.process->in(), 0, id, kIn);
        break;
      case kOut:
        read_answers(id, child);
        break;
      case kErr:
        read_errors(id, child);
        break;
      case kEnd:
      case kStreams:
        has_ended(id, child);
        break;
    }
  }

  void read_errors(ChildId id, Child& child) {
    char piece[1 << 14];
    // Bounded, so that a flood does not keep the others from their turn.
    for (int i = 0; i < 16 && !child.err_is_closed; ++i) {
      const ssize_t count = ::read(child.process->err(), piece, sizeof piece);
      if (count == 0) {
        child.err_is_closed = true;
        watch(EPOLL_CTL_DEL, child.process->err(), 0, id, kErr);
      }
      if (count <= 0) return;
      child.said.take({piece, static_cast<size_t>(count)}, steady_now());
    }
  }

  // False: the child is lost.
  bool read_answers(ChildId id, Child& child) {
    char piece[1 << 16];
    for (int i = 0; i < 64; ++i) {
      const ssize_t count = ::read(child.process->out(), piece, sizeof piece);
      if (count < 0) break;
      if (count == 0) {
        child.out_is_closed = true;
        watch(EPOLL_CTL_DEL, child.process->out(), 0, id, kOut);
        child.closed_at = steady_now();
        break;
      }
      child.read.append(piece, static_cast<size_t>(count));
      if (child.read.size() > kMostAnswerBytes) {
        lose(id,
             fmt::format("wrote more than {} bytes to stdout without an answer", kMostAnswerBytes));
        return false;
      }
      if (std::string_view(piece, static_cast<size_t>(count)).find('\n') != std::string::npos &&
          !take_lines(id, child))
        return false;
    }
    return true;
  }

  static bool is_blank(std::string_view text) {
    return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
  }

  // False: the child is lost.
  bool take_lines(ChildId id, Child& child) {
    for (size_t end; (end = child.read.find('\n')) != std::string::npos;) {
      const std::string line = child.read.substr(0, end);
      child.read.erase(0, end + 1);
      if (is_blank(line)) continue;
      if (child.calls.empty()) {
        lose(id, fmt::format("wrote a line to stdout that nobody asked for: '{}'. What is not an "
                             "answer belongs on stderr",
                             excerpt(line)));
        return false;
      }
      // Which of the two is the answer nobody knows.
      if (!is_blank(child.read)) {
        lose(id, fmt::format("answers with more than a line: '{}'. What is not an answer belongs "
                             "on stderr",
                             excerpt(line)));
        return false;
      }
      if (!take_line(id, child, line)) return false;
    }
    return true;
  }

  bool take_line(ChildId id, Child& child, const std::string& line) {
    const auto text = sound_line(line);
    const auto& take = child.calls.front().call.take;
    const std::optional<std::string> fault = text ? take(text.value()) : text.failure().message;
    if (fault) {
      lose(id, *fault);
      return false;
    }
    child.has_answered = true;
    child.calls.pop_front();
    if (!child.calls.empty())
      send_next(id, child);
    else if (child.episode == 0)
      child.idle_since = steady_now();
    return true;
  }

  void has_ended(ChildId id, Child& child) {
    if (!child.out_is_closed && !read_answers(id, child)) return;
    read_errors(id, child);
    const std::string ending = child.process->ending();
    lose(id, ending, ending == CommandProcess::kGoodEnd);
  }

  void end_what_is_late() {
    const Time now = steady_now();
    if (now - last_look_ < std::chrono::milliseconds(kTickMs)) return;
    last_look_ = now;
    if (!start_.is_isolated && !children_.empty()) Offspring::of_this_process().look();
    std::vector<ChildId> late, old, mute;
    for (const auto& [id, child] : children_) {
      if (!child.calls.empty() && now >= child.calls.front().deadline) late.push_back(id);
      if (child.calls.empty() && child.episode == 0 && now - child.idle_since > kLongestIdleProcess)
        old.push_back(id);
      else if (child.out_is_closed && now - child.closed_at > kLastWords)
        mute.push_back(id);
    }
    for (const ChildId id : mute) lose(id, "closed its stdout and goes on");
    for (const ChildId id : late) {
      if (!children_.contains(id)) continue;
      const CommandCall& call = children_.at(id).calls.front().call;
      lose(id, fmt::format("has not answered within {:.3g} s. It answers each line that it reads "
                           "with a line, and flushes its output",
                           seconds_of(call.timeout)));
    }
    for (const ChildId id : old) children_.erase(id);
  }

  // A line of the log.
  void note(const std::string& what) {
    if (!logs_) return;
    if (!lost_notes_.take(steady_now())) {
      ++num_unnoted_;
      return;
    }
    const int64_t unnoted = std::exchange(num_unnoted_, 0);
    (void)std::fputs(fmt::format("{}: {}{}\n", name_, what,
                                 unnoted > 0 ? fmt::format(" (and {} times before)", unnoted) : "")
                         .c_str(),
                     stderr);
  }

  // Ends the process. Its calls fail, and so does the next one of its episode.
  // `is_good_end`: by itself, and with status 0.
  void lose(ChildId id, const std::string& why, bool is_good_end = false) {
    auto node = children_.extract(id);
    Child& child = node.mapped();
    const bool is_idle = child.episode == 0 && child.calls.empty();
    child.said.end(steady_now());
    const std::string last = child.said.last();
    const Episode episode = child.episode;
    child.process.reset();
    if (episode != 0) playing_.erase(episode);
    // A program may end by itself when an episode is over.
    const bool is_between = is_idle || says_goodbye(child);
    if (!is_between) note(fmt::format("a process of it {}", why));
    if (episode != 0 && child.calls.empty()) lost_[episode] = {why, last};
    for (Queued& queued : std::exchange(child.calls, {})) {
      // It has ended when the last episode was over, and nobody had heard of it yet.
      const bool was_over = is_between || (child.has_played && is_good_end);
      if (was_over && queued.call.begins && steady_now() < queued.deadline) {
        begin(episode, std::move(queued));
      } else {
        fail(queued, why, last);
      }
    }
  }

  const CommandStart start_;
  const CommandCall greeting_;
  const bool logs_;
  StderrLog log_;  // the thread's own
  const std::string name_;
  const FileDescriptor epoll_, wake_;
  Mutex mutex_;
  std::deque<Order> orders_ TR_GUARDED_BY(mutex_);
  bool is_closing_ TR_GUARDED_BY(mutex_) = false;
  Episode next_episode_ TR_GUARDED_BY(mutex_) = 1;
  // The thread's own.
  RateLimit lost_notes_{kLostNotesAtOnce, kLostNotesPeriod};
  int64_t num_unnoted_ = 0;
  std::map<ChildId, Child> children_;
  std::map<Episode, ChildId> playing_;
  std::map<Episode, Loss> lost_;  // whose process was lost between two calls
  ChildId next_child_ = 1;
  Time last_look_{};
};

CommandLoop::CommandLoop(CommandStart start, CommandCall greeting,
                         std::shared_ptr<ToldTracebacks> told)
    : state_(std::make_shared<State>(std::move(start), std::move(greeting), std::move(told))) {
  allow_all_files();
  thread_ = std::thread([state = state_] { state->run(); });
}

CommandLoop::~CommandLoop() {
  state_->close();
  // Whose last owner is a call that it has just answered: the thread then ends by itself.
  if (thread_.get_id() == std::this_thread::get_id())
    thread_.detach();
  else
    thread_.join();
}

CommandLoop::Episode CommandLoop::open() { return state_->open(); }

void CommandLoop::begin(Episode episode, CommandCall call) {
  const Time deadline = steady_now() + call.timeout;
  state_->order(State::Begin{episode, {.call = std::move(call), .deadline = deadline}});
}

void CommandLoop::release(Episode episode, std::optional<CommandCall> goodbye) {
  std::optional<State::Queued> queued;
  if (goodbye) {
    const Time deadline = steady_now() + goodbye->timeout;
    queued = State::Queued{.call = std::move(*goodbye), .deadline = deadline};
  }
  state_->order(State::Release{episode, std::move(queued)});
}

}  // namespace tailrace::sandbox
