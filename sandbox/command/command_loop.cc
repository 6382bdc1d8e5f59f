#include "sandbox/command/command_loop.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <list>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/base/clock.h"
#include "core/base/file_descriptor.h"
#include "core/base/json_text.h"
#include "sandbox/command/answer_line.h"
#include "sandbox/process/start_progress.h"

namespace tailrace::sandbox {
namespace {

using namespace std::chrono_literals;

// An observation and the evidence, each as long as it may be, and some of it escaped.
constexpr size_t kMostAnswerBytes = size_t{16} << 20;
// Between two episodes; who needs it again starts it again.
constexpr Time kLongestIdleProcess = 5min;

}  // namespace

struct CommandLoop::State final : ProgramLoop {
  struct Queued {
    CommandCall call;
    Time deadline{};          // of a call that begins: since it was written
    bool is_goodbye = false;  // the episode is over for everybody else
    Time wanted{};            // a process, since when
  };

  // A process, and what it is asked.
  struct Child final : Conversation {
    explicit Child(State& its_loop) : loop(its_loop) {}

    void ask(Queued queued) {
      calls.push_back(std::move(queued));
      if (calls.size() == 1) go_on();
    }

    void go_on() {
      if (calls.empty()) {
        idle_since = steady_now();
        program->set_deadline(episode == 0 ? idle_since + kLongestIdleProcess : Time::max());
      } else {
        // Such a call may have waited for a start, or for the end of another episode.
        if (calls.front().call.begins)
          calls.front().deadline = steady_now() + calls.front().call.timeout;
        program->set_deadline(calls.front().deadline);
        program->write(calls.front().call.line + '\n');
      }
    }

    std::optional<std::string> hear(const std::string& line, std::string_view behind) override {
      if (calls.empty()) return unasked(line);
      const auto text = sound_line(line);
      if (!text) return text.failure().message;
      // With two answers nobody knows which of them is meant, so the first one is not taken. Each
      // line is told in the words that it has where it comes alone.
      const size_t second = behind.find_first_not_of(" \t\r\n");
      if (second != behind.npos) {
        if (!parse_json(text.value()).is_object()) return no_object(line);
        const std::string_view rest = behind.substr(second);
        return unasked(rest.substr(0, rest.find('\n')));
      }
      if (auto fault = calls.front().call.take(text.value())) return fault;
      calls.pop_front();
      has_started = true;
      go_on();
      return std::nullopt;
    }
    std::string late() override {
      if (calls.empty()) return "has nothing to do";
      if (!has_started)
        return fmt::format(
            "has not answered its first line within {:.3g} s of its start (rollout.start_timeout_s;"
            " a program that loads a model may need more)",
            seconds_of(calls.front().call.timeout));
      return fmt::format(
          "has not answered within {:.3g} s. It answers each line that it reads with a line, and "
          "flushes its output",
          seconds_of(calls.front().call.timeout));
    }
    void lost(const ProgramLoss& loss) override { loop.lose(*this, loss); }

    static std::string unasked(std::string_view line) {
      return fmt::format(
          "wrote a line to stdout that nobody asked for: '{}'. What is not an answer belongs on "
          "stderr",
          excerpt(line));
    }
    bool says_goodbye() const { return !calls.empty() && calls.front().is_goodbye; }

    State& loop;
    std::unique_ptr<ChildProgram> program = nullptr;
    Episode episode = 0;  // 0: it is idle, or about to be
    // The first is in flight; the others follow.
    std::deque<Queued> calls = {};
    bool has_started = false;  // it has answered the greeting
    bool has_played = false;   // an episode before this one
    Time wanted{};
    Time idle_since{};
  };

  State(CommandStart start, CommandCall greeting, int64_t starts_at_once,
        std::shared_ptr<ToldTracebacks> told)
      : ProgramLoop(shown(start), std::move(told)),
        start_(std::move(start)),
        greeting_(std::move(greeting)),
        starts_at_once_(starts_at_once) {}

  // --- Any thread.

  Episode open() { return next_episode_++; }

  void post_begin(Episode episode, Queued queued) {
    post([this, episode, queued = std::move(queued)](bool goes_on) mutable {
      goes_on ? begin(episode, std::move(queued)) : fail(queued, kIsEnding);
    });
  }
  void post_release(Episode episode, std::optional<Queued> goodbye) {
    post([this, episode, goodbye = std::move(goodbye)](bool goes_on) mutable {
      if (goes_on) release(episode, std::move(goodbye));
    });
  }

 private:
  static inline const ProgramLoss kIsEnding{.why = "is ending"};
  static inline const ProgramLoss kIsUnwanted{.why = "was ended, as nobody waits for it any more"};

  void fail(const Queued& queued, const ProgramLoss& loss) const {
    if (queued.call.fail)
      queued.call.fail(Failure{
          fmt::format("'{}' {}, in {}{}", name(), loss.why, queued.call.name, loss.quoted_last())});
  }

  // --- The loop's thread.

  Time turn(Time now) override {
    hand_out();
    Time since = Time::max();
    for (const auto& [episode, queued] : waiting_) since = std::min(since, queued.wanted);
    for (const Child& child : children_)
      if (!child.has_started) since = std::min(since, child.wanted);
    const int64_t num_wanted = std::ssize(children_) + std::ssize(waiting_);
    const int64_t num_started = std::ssize(children_) - num_starting();
    if (const auto line = progress_.look(now, since, num_started, num_wanted)) tell(*line);
    return progress_.next(since);
  }

  // Processes to who waits for one.
  void hand_out() {
    while (!waiting_.empty()) {
      Child* child = idle_child();
      if (child == nullptr && num_starting() >= starts_at_once_) break;
      if (child == nullptr) child = start_child(waiting_.front().second);
      auto [episode, queued] = std::move(waiting_.front());
      waiting_.pop_front();
      if (child == nullptr) continue;
      child->episode = episode;
      playing_[episode] = child;
      child->ask(std::move(queued));
    }
  }

  void end() override {
    for (const auto& [episode, queued] : waiting_) fail(queued, kIsEnding);
    waiting_.clear();
    for (const Child& child : children_)
      for (const Queued& queued : child.calls) fail(queued, kIsEnding);
    children_.clear();
  }

  Child* child_of(Episode episode) const {
    const auto at = playing_.find(episode);
    return at == playing_.end() ? nullptr : at->second;
  }

  void begin(Episode episode, Queued queued) {
    if (Child* const child = child_of(episode)) return child->ask(std::move(queued));
    if (queued.call.begins) {
      lost_.erase(episode);
      queued.wanted = steady_now();
      waiting_.emplace_back(episode, std::move(queued));
      return;
    }
    const auto lost = lost_.find(episode);
    fail(queued, lost == lost_.end() ? ProgramLoss{.why = "has no process for it"} : lost->second);
  }

  void release(Episode episode, std::optional<Queued> goodbye) {
    lost_.erase(episode);
    std::erase_if(waiting_, [&](const auto& entry) {
      if (entry.first == episode) fail(entry.second, kIsUnwanted);
      return entry.first == episode;
    });
    Child* const child = child_of(episode);
    if (child == nullptr) return;
    playing_.erase(episode);
    child->episode = 0;
    if (!child->has_started) {
      // Its start may have taken long, and serves the next episode as well.
      for (; child->calls.size() > 1; child->calls.pop_back())
        fail(child->calls.back(), kIsUnwanted);
      return;
    }
    child->has_played = true;
    if (!child->calls.empty()) return lose(*child, child->program->kill(kIsUnwanted.why));
    if (!goodbye) return child->go_on();
    goodbye->is_goodbye = true;
    child->ask(std::move(*goodbye));
  }

  int64_t num_starting() const { return std::ranges::count(children_, false, &Child::has_started); }

  // The one that has played last, so that those who are not needed grow old; else one that is
  // about to be idle, as that is sooner than a start, or one that starts for nobody any more.
  Child* idle_child() {
    Child *best = nullptr, *next = nullptr;
    for (Child& child : children_) {
      if (child.episode != 0) continue;
      if (child.says_goodbye() || !child.has_started) next = &child;
      if (child.calls.empty() && (best == nullptr || child.idle_since > best->idle_since))
        best = &child;
    }
    return best != nullptr ? best : next;
  }

  // Null: `queued`, for which it starts, has failed.
  Child* start_child(const Queued& queued) {
    Child& child = children_.emplace_back(*this);
    auto started =
        start(start_, child, {.most_line_bytes = kMostAnswerBytes, .awaited = "an answer"});
    if (!started) {
      children_.pop_back();
      note(fmt::format("no process was started: {}", started.failure().message));
      if (queued.call.fail) queued.call.fail(started.failure());
      return nullptr;
    }
    child.program = std::move(started).value();
    child.wanted = queued.wanted;
    child.ask({.call = greeting_, .deadline = steady_now() + greeting_.timeout});
    return &child;
  }

  // The calls of a process that is lost fail, and so does the next one of its episode.
  void lose(Child& lost, const ProgramLoss& loss) {
    std::list<Child> gone;
    gone.splice(gone.end(), children_,
                std::ranges::find(children_, &lost, [](const Child& child) { return &child; }));
    const Episode episode = lost.episode;
    if (episode != 0) playing_.erase(episode);
    // A program may end by itself when an episode is over.
    const bool is_between = (episode == 0 && lost.calls.empty()) || lost.says_goodbye();
    if (!is_between) note(fmt::format("a process of it {}", loss.why));
    if (episode != 0 && lost.calls.empty()) lost_[episode] = {.why = loss.why, .last = loss.last};
    for (Queued& queued : std::exchange(lost.calls, {})) {
      // It has ended when the last episode was over, and nobody had heard of it yet.
      const bool was_over = is_between || (lost.has_played && loss.is_good_end);
      if (was_over && queued.call.begins)
        begin(episode, std::move(queued));
      else
        fail(queued, loss);
    }
  }

  const CommandStart start_;
  const CommandCall greeting_;
  const int64_t starts_at_once_;
  std::atomic<Episode> next_episode_ = 1;
  // The thread's own.
  StartProgress progress_;
  std::list<Child> children_;
  std::deque<std::pair<Episode, Queued>> waiting_;  // for a process
  std::map<Episode, Child*> playing_;
  std::map<Episode, ProgramLoss> lost_;  // whose process was lost between two calls
};

CommandLoop::CommandLoop(CommandStart start, CommandCall greeting, int64_t starts_at_once,
                         std::shared_ptr<ToldTracebacks> told)
    : state_(std::make_shared<State>(std::move(start), std::move(greeting), starts_at_once,
                                     std::move(told))),
      thread_(state_) {
  allow_all_files();
}

CommandLoop::~CommandLoop() = default;

CommandLoop::Episode CommandLoop::open() { return state_->open(); }

void CommandLoop::begin(Episode episode, CommandCall call) {
  const Time deadline = steady_now() + call.timeout;
  state_->post_begin(episode, {.call = std::move(call), .deadline = deadline});
}

void CommandLoop::release(Episode episode, std::optional<CommandCall> goodbye) {
  std::optional<State::Queued> queued;
  if (goodbye) {
    const Time deadline = steady_now() + goodbye->timeout;
    queued = {.call = std::move(*goodbye), .deadline = deadline};
  }
  state_->post_release(episode, std::move(queued));
}

}  // namespace tailrace::sandbox
