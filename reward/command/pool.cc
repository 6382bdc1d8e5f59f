#include "reward/command/pool.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <future>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file_descriptor.h"
#include "core/base/rate_limit.h"
#include "kernels/base/mutex.h"
#include "reward/command/answer.h"
#include "sandbox/command/answer_line.h"
#include "sandbox/process/process.h"
#include "sandbox/process/stderr_lines.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

constexpr size_t kMostLineBytes = size_t{1} << 20;
// Beyond its deadline, until who asked gives up on the thread of the pool.
constexpr Time kGrace = 1s;
constexpr Time kLongestWait = 1s;
constexpr int kLastWordMs = 500;
// Longer than a step takes whose episodes are scored at its end.
constexpr Time kLongestIdle = 30min;
// Of the log: so many lost processes at once, and from then on one in each period.
constexpr int64_t kLostAtOnce = 20;
constexpr Time kLostPeriod = 2s;

}  // namespace

struct CommandPool::State {
  struct Question {
    std::string episode;
    Time asked{}, deadline{};
    bool is_alone = false;  // a batch with it has failed
    std::shared_ptr<std::promise<Result<Score>>> answer =
        std::make_shared<std::promise<Result<Score>>>();

    void fail(std::string why) const { answer->set_value(Failure{std::move(why)}); }
  };

  // A process with the batch that it works on.
  struct Worker {
    std::unique_ptr<sandbox::CommandProcess> process;
    sandbox::StderrLines said;
    int64_t first_id = 0;  // of what it has been asked
    std::map<int64_t, Question> batch = {};
    Time deadline{};  // of the batch
    Time answered{};  // when the last one was done
    std::string to_write = {}, read = {};
    size_t written = 0;  // of to_write
    bool out_is_closed = false, err_is_closed = false;
  };

  State(sandbox::CommandStart program, CommandPoolOptions how)
      : command_(std::move(program)),
        options_(how),
        name_(shown(command_)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_.is_open()) throw UserError("no files are left for '{}'", name_);
  }

  // --- Any thread.

  Result<Score> ask(std::string episode, Time budget) {
    Question question{.episode = std::move(episode), .asked = steady_now()};
    question.deadline = question.asked + budget;
    auto answer = question.answer->get_future();
    {
      MutexLock lock(mutex_);
      if (is_closing_) return Failure{"the reward worker is ending"};
      waiting_.push_back(std::move(question));
    }
    wake();
    if (answer.wait_for(budget + kGrace) == std::future_status::ready) return answer.get();
    return Failure{fmt::format("'{}' has no verdict within {:.3g} s", name_, seconds_of(budget))};
  }

  void close() {
    {
      MutexLock lock(mutex_);
      is_closing_ = true;
    }
    wake();
  }

  // --- The thread of the pool.

  void run() {
    sandbox::leave_signals_to_others();
    while (!is_over()) {
      hand_out();
      wait();
      const Time now = steady_now();
      for (Worker& worker : workers_) look_at(worker, now);
      std::erase_if(workers_, [](const Worker& worker) { return worker.process == nullptr; });
      end_surplus();
    }
    for (Worker& worker : workers_)
      for (auto& [id, question] : worker.batch) question.fail("the reward worker is ending");
    workers_.clear();
  }

 private:
  static void set_deadline(Worker& worker, Time now) {
    worker.deadline = Time::max();
    for (const auto& [id, question] : worker.batch)
      worker.deadline = std::min(worker.deadline, question.deadline);
    // Of several one may be what takes so long: the other half is for asking each alone.
    if (worker.batch.size() > 1) worker.deadline = now + (worker.deadline - now) / 2;
  }

  // As much as its stdin takes.
  static void write_some(Worker& worker) {
    while (worker.written < worker.to_write.size()) {
      const ssize_t count = ::write(worker.process->in(), worker.to_write.data() + worker.written,
                                    worker.to_write.size() - worker.written);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) return;
      // It reads no more; whether it answers all the same is seen on the other side.
      if (count <= 0) break;
      worker.written += static_cast<size_t>(count);
    }
    worker.to_write.clear();
    worker.written = 0;
  }

  static void read_errors(Worker& worker) {
    char piece[1 << 14];
    // Bounded, so that a flood does not keep the others from their turn.
    for (int i = 0; i < 16; ++i) {
      const ssize_t count = ::read(worker.process->err(), piece, sizeof piece);
      if (count == 0) worker.err_is_closed = true;
      if (count <= 0) return;
      worker.said.take({piece, static_cast<size_t>(count)}, steady_now());
    }
  }

  void wake() {
    const uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);
  }

  bool is_over() {
    MutexLock lock(mutex_);
    if (!is_closing_) return false;
    for (const Question& question : std::exchange(waiting_, {}))
      question.fail("the reward worker is ending");
    return true;
  }

  // What is next for one process: one that must be alone, or as many as wait, at most `most`.
  std::vector<Question> next_batch(int64_t most) TR_REQUIRES(mutex_) {
    std::vector<Question> batch;
    while (!waiting_.empty() && std::ssize(batch) < most &&
           (batch.empty() || !waiting_.front().is_alone)) {
      batch.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
      if (batch.back().is_alone) break;
    }
    return batch;
  }

  void drop_late(Time now) TR_REQUIRES(mutex_) {
    std::erase_if(waiting_, [&](const Question& question) {
      if (now < question.deadline) return false;
      question.fail(fmt::format(
          "no process of '{}' had time for it within {:.3g} s. Try more reward.workers, or a "
          "smaller reward.batch, which starts more processes",
          name_, seconds_of(question.deadline - question.asked)));
      return true;
    });
  }

  // As many processes as full batches are at once.
  int for_batches() const { return std::max(1, options_.at_once / options_.batch); }

  // When it has waited for long enough that those who work are slow, or hang.
  static Time patient_until(const Question& question) {
    return question.asked + (question.deadline - question.asked) / 4;
  }

  // Whether one more process may start: also beyond full batches for what has to be alone, or has
  // waited for long.
  bool may_start() TR_REQUIRES(mutex_) {
    const Question& next = waiting_.front();
    const bool is_urgent = next.is_alone || steady_now() >= patient_until(next);
    return std::ssize(workers_) < (is_urgent ? options_.at_once : for_batches());
  }

  // Those that were started beyond full batches, and those that nobody has wanted for long: a
  // launch keeps its verifiers after it has used them.
  void end_surplus() {
    {
      MutexLock lock(mutex_);
      if (!waiting_.empty()) return;
    }
    auto surplus = std::ssize(workers_) - for_batches();
    std::erase_if(workers_, [&](const Worker& worker) {
      if (!worker.batch.empty()) return false;
      return steady_now() - worker.answered > kLongestIdle || surplus-- > 0;
    });
  }

  void hand_out() {
    while (true) {
      std::vector<Question> batch;
      Worker* idle = nullptr;
      {
        MutexLock lock(mutex_);
        drop_late(steady_now());
        if (waiting_.empty()) return;
        const auto found = std::ranges::find_if(
            workers_, [](const Worker& worker) { return worker.batch.empty(); });
        if (found != workers_.end()) idle = &*found;
        if (idle == nullptr && !may_start()) return;
        // One that begins may load a model: its first episode has the whole of its deadline.
        const bool has_answered = idle != nullptr && idle->answered != Time{};
        batch = next_batch(has_answered ? options_.batch : 1);
      }
      if (const std::string fault = std::exchange(late_fault_, {}); !fault.empty()) {
        for (const Question& question : batch) question.fail(fault);
        continue;
      }
      if (idle == nullptr) {
        auto started = sandbox::CommandProcess::start(command_);
        if (!started) {
          const std::string& why = started.failure().message;
          note(fmt::format("no process was started: {}", why));
          for (const Question& question : batch) question.fail(why);
          continue;
        }
        workers_.push_back(
            Worker{.process = std::move(started).value(),
                   .said = sandbox::StderrLines(name_, options_.logs ? &log_ : nullptr),
                   .first_id = next_id_});
        idle = &workers_.back();
      }
      give(*idle, std::move(batch));
    }
  }

  void give(Worker& worker, std::vector<Question> batch) {
    for (Question& question : batch) {
      worker.to_write += fmt::format("{{\"id\":{},{}}}\n", next_id_, question.episode);
      worker.batch.emplace(next_id_++, std::move(question));
    }
    set_deadline(worker, steady_now());
    write_some(worker);
  }

  // Until something is to be read, written or ended.
  void wait() {
    std::vector<pollfd> files = {{wake_.get(), POLLIN, 0}};
    Time until = steady_now() + kLongestWait;
    for (const Worker& worker : workers_) {
      const sandbox::CommandProcess& process = *worker.process;
      if (!worker.out_is_closed) files.push_back({process.out(), POLLIN, 0});
      if (!worker.err_is_closed) files.push_back({process.err(), POLLIN, 0});
      if (!worker.to_write.empty()) files.push_back({process.in(), POLLOUT, 0});
      files.push_back({process.pidfd(), POLLIN, 0});
      if (!worker.batch.empty()) until = std::min(until, worker.deadline);
    }
    {
      MutexLock lock(mutex_);
      for (const Question& question : waiting_) until = std::min(until, question.deadline);
      if (!waiting_.empty() && std::ssize(workers_) < options_.at_once)
        until = std::min(until, patient_until(waiting_.front()));
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - steady_now());
    (void)::poll(files.data(), files.size(), static_cast<int>(std::max<int64_t>(0, left.count())));
    uint64_t count = 0;
    if (files[0].revents != 0) (void)!::read(wake_.get(), &count, sizeof count);
  }

  void look_at(Worker& worker, Time now) {
    write_some(worker);
    read_errors(worker);
    // Asked before its last words are read, so that none of them is missed.
    pollfd end = {worker.process->pidfd(), POLLIN, 0};
    const bool has_ended = ::poll(&end, 1, 0) > 0;
    if (const auto fault = read_answers(worker)) return lose(worker, fault->why, fault->is_late);
    if (has_ended) {
      read_errors(worker);
      // A last line without its end.
      const auto fault = take_line(worker, worker.read);
      const std::string ending = worker.process->ending();
      if (fault) return lose(worker, fault->why, fault->is_late);
      return lose(worker, worker.batch.empty() ? ending : ending + " before its answer");
    }
    // One that is about to end says more by its status.
    if (worker.out_is_closed && ::poll(&end, 1, kLastWordMs) <= 0)
      return lose(worker, "closed its stdout and goes on");
    if (worker.out_is_closed) return;
    if (!worker.batch.empty() && now >= worker.deadline)
      lose(worker, fmt::format("has not answered {} within {:.3g} s. It answers each line that it "
                               "reads with a line, and flushes its output",
                               worker.batch.size() == 1 ? "an episode" : "a batch",
                               seconds_of(worker.deadline - first_asked(worker))));
  }

  static Time first_asked(const Worker& worker) {
    Time first = Time::max();
    for (const auto& [id, question] : worker.batch) first = std::min(first, question.asked);
    return first;
  }

  // What is wrong with what a process writes.
  struct Fault {
    std::string why;
    bool is_late = false;  // it is about an episode that has been answered
  };

  std::optional<Fault> read_answers(Worker& worker) {
    char piece[1 << 16];
    for (int i = 0; i < 64 && !worker.out_is_closed; ++i) {
      const ssize_t count = ::read(worker.process->out(), piece, sizeof piece);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) break;
      if (count <= 0) {
        worker.out_is_closed = true;
        break;
      }
      worker.read.append(piece, static_cast<size_t>(count));
      size_t begin = 0;
      for (size_t end; (end = worker.read.find('\n', begin)) != std::string::npos;
           begin = end + 1) {
        const std::string_view line(worker.read.data() + begin, end - begin);
        if (auto fault = take_line(worker, line)) return fault;
      }
      worker.read.erase(0, begin);
      if (worker.read.size() > kMostLineBytes)
        return Fault{fmt::format("wrote more than {} bytes to stdout without an end of line",
                                 kMostLineBytes)};
    }
    return std::nullopt;
  }

  std::optional<Fault> take_line(Worker& worker, std::string_view line) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return std::nullopt;
    auto answer = parse_command_answer(line);
    if (!answer) return Fault{.why = answer.failure().message, .is_late = worker.batch.empty()};
    const int64_t id = answer.value().id;
    const auto asked = worker.batch.find(id);
    if (asked == worker.batch.end()) {
      const bool was_asked = id >= worker.first_id && id < next_id_;
      return Fault{.why = fmt::format("{}: '{}'",
                                      was_asked ? fmt::format("answers the id {} twice", id)
                                                : fmt::format("answers with the id {}, which it "
                                                              "was not asked about",
                                                              id),
                                      sandbox::excerpt(line)),
                   .is_late = was_asked || worker.batch.empty()};
    }
    Result<Score>& score = answer.value().score;
    asked->second.answer->set_value(
        score ? std::move(score)
              : Result<Score>(Failure{fmt::format("'{}': {}", name_, score.failure().message)}));
    worker.batch.erase(asked);
    if (worker.batch.empty()) worker.answered = steady_now();
    return std::nullopt;
  }

  // A line of the log.
  void note(const std::string& what) {
    if (!options_.logs) return;
    if (!lost_limit_.take(steady_now())) {
      ++num_unnoted_;
      return;
    }
    const int64_t unnoted = std::exchange(num_unnoted_, 0);
    (void)std::fputs(fmt::format("{}: {}{}\n", name_, what,
                                 unnoted > 0 ? fmt::format(" (and {} times before)", unnoted) : "")
                         .c_str(),
                     stderr);
  }

  // Ends the process. Of those that it owes an answer who was alone has no verdict. Nobody knows
  // what an answer was worth behind which another one comes, so a late fault is no verdict for all
  // of them, or for who is asked next, and nobody is asked again here.
  void lose(Worker& worker, const std::string& why, bool is_late = false) {
    worker.said.end(steady_now());
    const std::string said = worker.said.last();
    const std::string reason =
        fmt::format("'{}' {}{}", name_, why, said.empty() ? "" : "; its stderr ends: " + said);
    note(fmt::format("a process of it {}", why));
    if (is_late && worker.batch.empty()) late_fault_ = reason;
    worker.process.reset();
    const Time now = steady_now();
    const bool was_alone = worker.batch.size() == 1 && worker.batch.begin()->second.is_alone;
    std::deque<Question> again;
    for (auto& [id, question] : worker.batch) {
      if (was_alone || is_late || now >= question.deadline) {
        question.fail(reason);
      } else {
        question.is_alone = true;
        again.push_back(std::move(question));
      }
    }
    worker.batch.clear();
    MutexLock lock(mutex_);
    for (; !again.empty(); again.pop_back()) waiting_.push_front(std::move(again.back()));
  }

  const sandbox::CommandStart command_;
  const CommandPoolOptions options_;
  const std::string name_;
  FileDescriptor wake_;
  Mutex mutex_;
  std::deque<Question> waiting_ TR_GUARDED_BY(mutex_);
  bool is_closing_ TR_GUARDED_BY(mutex_) = false;
  // The thread's own.
  std::vector<Worker> workers_;
  int64_t next_id_ = 0;
  std::string late_fault_;  // that nobody has heard of; empty: none
  sandbox::StderrLog log_;  // of what they write to stderr
  RateLimit lost_limit_{kLostAtOnce, kLostPeriod};
  int64_t num_unnoted_ = 0;
};

CommandPool::CommandPool(sandbox::CommandStart command, CommandPoolOptions options)
    : state_(std::make_shared<State>(std::move(command), options)),
      thread_([state = state_] { state->run(); }) {}

CommandPool::~CommandPool() {
  state_->close();
  thread_.join();
}

Result<Score> CommandPool::ask(std::string episode, Time budget) {
  return state_->ask(std::move(episode), budget);
}

}  // namespace tailrace
