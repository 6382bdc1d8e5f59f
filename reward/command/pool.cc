#include "reward/command/pool.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <future>
#include <list>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/clock.h"
#include "reward/command/answer.h"
#include "sandbox/command/answer_line.h"
#include "sandbox/process/start_progress.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

constexpr size_t kMostLineBytes = size_t{1} << 20;
// Beyond its deadline, until who asked gives up on the thread of the pool.
constexpr Time kGrace = 1s;
// Longer than a step takes whose episodes are scored at its end.
constexpr Time kLongestIdle = 30min;
constexpr const char* kIsEnding = "the reward worker is ending";

}  // namespace

struct CommandPool::State final : sandbox::ProgramLoop {
  struct Question {
    std::string episode;
    Time asked{}, budget{};
    Time deadline{};        // while there is a process that has started
    Time longest{};         // while there is none
    bool is_alone = false;  // a batch with it has failed
    std::shared_ptr<std::promise<Result<Score>>> answer =
        std::make_shared<std::promise<Result<Score>>>();

    void fail(std::string why) const { answer->set_value(Failure{std::move(why)}); }
  };

  // A process with the batch that it works on.
  struct Worker final : sandbox::Conversation {
    Worker(State& its_pool, int64_t id) : pool(its_pool), first_id(id), begun(steady_now()) {}

    std::optional<std::string> hear(const std::string& line, std::string_view) override {
      return pool.take_line(*this, line);
    }
    std::string late() override {
      Time first = Time::max();
      for (const auto& [id, question] : batch) first = std::min(first, question.asked);
      const Time start = pool.options_.start;
      if (!has_started() && start > Time{})
        return fmt::format(
            "has not answered an episode within {:.3g} s, {:.3g} s of which are for its start "
            "(reward.start_timeout_s; a program that loads a model may need more)",
            seconds_of(deadline - begun), seconds_of(start));
      return fmt::format(
          "has not answered {} within {:.3g} s. It answers each line that it reads with a line, "
          "and flushes its output",
          batch.size() == 1 ? "an episode" : "a batch", seconds_of(deadline - first));
    }
    void lost(const sandbox::ProgramLoss& loss) override { pool.lose(*this, loss); }
    bool has_started() const { return answered != Time{}; }

    State& pool;
    std::unique_ptr<sandbox::ChildProgram> program = nullptr;
    const int64_t first_id;  // of what it has been asked
    const Time begun;
    std::map<int64_t, Question> batch = {};
    Time deadline{};              // of the batch
    Time answered{};              // when the last one was done; 0: it starts
    bool is_out_of_turn = false;  // it wrote when nobody had asked, or asked any more
  };

  State(sandbox::CommandStart program, CommandPoolOptions how)
      : ProgramLoop(shown(program),
                    how.logs ? std::make_shared<sandbox::ToldTracebacks>() : nullptr, how.hear),
        command_(std::move(program)),
        options_(std::move(how)) {}

  // Any thread.
  Result<Score> ask(std::string episode, Time budget) {
    Question question{.episode = std::move(episode), .asked = steady_now(), .budget = budget};
    question.deadline = question.asked + budget;
    question.longest = question.deadline + options_.start;
    auto answer = question.answer->get_future();
    post([this, question = std::move(question)](bool goes_on) mutable {
      if (goes_on)
        waiting_.push_back(std::move(question));
      else
        question.fail(kIsEnding);
    });
    const Time longest = budget + options_.start;
    if (answer.wait_for(longest + kGrace) == std::future_status::ready) return answer.get();
    return Failure{fmt::format("'{}' has no verdict within {:.3g} s", name(), seconds_of(longest))};
  }

 private:
  // --- The thread of the pool.

  Time turn(Time now) override {
    end_surplus(now);
    hand_out(now);
    Time until = Time::max();
    for (const Question& question : waiting_) until = std::min(until, limit_of(question));
    if (!waiting_.empty() && std::ssize(workers_) < most_for(waiting_.front()))
      until = std::min(until, patient_until(waiting_.front()));
    return std::min(until, tell_progress(now));
  }

  void end() override {
    for (const Question& question : waiting_) question.fail(kIsEnding);
    for (const Worker& worker : workers_)
      for (const auto& [id, question] : worker.batch) question.fail(kIsEnding);
    workers_.clear();
  }

  // When there may be more to say.
  Time tell_progress(Time now) {
    Time since = Time::max();
    for (const Worker& worker : workers_)
      if (!worker.has_started()) since = std::min(since, worker.begun);
    const int64_t num_started = std::ranges::count_if(workers_, &Worker::has_started);
    if (const auto line = progress_.look(now, since, num_started, std::ssize(workers_)))
      tell(*line);
    return progress_.next(since);
  }

  // The next questions for one process: one that must be alone, or as many as wait, at most `most`.
  std::vector<Question> next_batch(int64_t most) {
    std::vector<Question> batch;
    while (!waiting_.empty() && std::ssize(batch) < most &&
           (batch.empty() || !waiting_.front().is_alone)) {
      batch.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
      if (batch.back().is_alone) break;
    }
    return batch;
  }

  bool has_started() const { return std::ranges::any_of(workers_, &Worker::has_started); }

  Time limit_of(const Question& question) const {
    return has_started() ? question.deadline : question.longest;
  }

  void drop_late(Time now) {
    std::erase_if(waiting_, [&](const Question& question) {
      if (now < limit_of(question)) return false;
      if (!has_started() && options_.start > Time{})
        question.fail(fmt::format(
            "no process of '{}' has started within {:.3g} s (reward.start_timeout_s; a program "
            "that loads a model may need more)",
            name(), seconds_of(question.longest - question.asked)));
      else
        question.fail(fmt::format(
            "no process of '{}' had time for it within {:.3g} s. Try more reward.workers, or a "
            "smaller reward.batch, which starts more processes",
            name(), seconds_of(question.budget)));
      return true;
    });
  }

  // As many processes as full batches are at once.
  int for_batches() const { return std::max(1, options_.at_once / options_.batch); }

  // When it has waited for long enough that those who work are slow, or hang. A start has its own
  // time before that.
  Time patient_until(const Question& question) const {
    return limit_of(question) - question.budget * 3 / 4;
  }

  // The processes there may be for it, once it is urgent. Where none has started in the time for
  // that, one more says whether one of them hangs.
  int most_for(const Question& question) const {
    if (question.is_alone || has_started()) return options_.at_once;
    return std::min(for_batches() + 1, options_.at_once);
  }

  // Whether one more process may start: also beyond full batches for what has to be alone, or has
  // waited for long.
  bool may_start(Time now) const {
    const Question& next = waiting_.front();
    const bool is_urgent = next.is_alone || now >= patient_until(next);
    return std::ssize(workers_) < (is_urgent ? most_for(next) : for_batches());
  }

  // Ends processes started beyond full batches, and those that nobody has wanted for long: a
  // launch keeps its verifiers after it has used them. No process that has started ends for one
  // that has not.
  void end_surplus(Time now) {
    if (!waiting_.empty()) return;
    const auto is_idle = [](const Worker& worker) { return worker.batch.empty(); };
    auto surplus = std::ssize(workers_) - for_batches();
    if (std::ranges::any_of(workers_, is_idle)) surplus -= end_starting(surplus, now);
    if (!std::ranges::all_of(workers_, &Worker::has_started)) surplus = 0;
    workers_.remove_if([&](const Worker& worker) {
      return is_idle(worker) && (now - worker.answered > kLongestIdle || surplus-- > 0);
    });
  }

  // Ends at most so many that still start; an idle process gets their episodes. One that has failed
  // in a batch stays where it is. How many have ended.
  int64_t end_starting(int64_t most, Time now) {
    int64_t num_ended = 0;
    for (auto last = workers_.end(); last != workers_.begin() && num_ended < most;) {
      Worker& worker = *--last;
      if (worker.has_started() || worker.batch.empty()) continue;
      Question& question = worker.batch.begin()->second;
      if (question.is_alone) continue;
      question.deadline = std::min(question.longest, now + question.budget);
      waiting_.push_front(std::move(question));
      last = workers_.erase(last);
      ++num_ended;
    }
    return num_ended;
  }

  void hand_out(Time now) {
    for (drop_late(now); !waiting_.empty(); drop_late(steady_now())) {
      auto idle = std::ranges::find_if(workers_, [](const Worker& w) { return w.batch.empty(); });
      const bool is_new = idle == workers_.end();
      if (is_new && !may_start(now)) return;
      // One that begins may load a model: its first episode has the whole of its deadline.
      std::vector<Question> batch = next_batch(is_new || !idle->has_started() ? 1 : options_.batch);
      std::string fault = std::exchange(late_fault_, {});
      if (fault.empty() && is_new) {
        idle = workers_.emplace(workers_.end(), *this, next_id_);
        auto started = start(command_, *idle, {.most_line_bytes = kMostLineBytes});
        if (started) {
          idle->program = std::move(started).value();
        } else {
          workers_.erase(idle);
          fault = started.failure().message;
          note(fmt::format("no process was started: {}", fault));
        }
      }
      if (fault.empty())
        give(*idle, std::move(batch));
      else
        for (const Question& question : batch) question.fail(fault);
    }
  }

  // When a process that is given the question is late with it. One that still starts has the time
  // for that from its own beginning, however long the question has waited for somebody.
  Time end_of(const Worker& worker, const Question& question) const {
    if (worker.has_started()) return question.deadline;
    if (options_.start == Time{}) return question.longest;
    return std::max(question.longest, worker.begun + options_.start + question.budget);
  }

  void give(Worker& worker, std::vector<Question> batch) {
    const Time now = steady_now();
    worker.deadline = Time::max();
    for (const Question& question : batch)
      worker.deadline = std::min(worker.deadline, end_of(worker, question));
    // One of several may be what takes so long: the other half is for asking each alone.
    if (batch.size() > 1) worker.deadline = now + (worker.deadline - now) / 2;
    worker.program->set_deadline(worker.deadline);
    std::string lines;
    for (Question& question : batch) {
      lines += fmt::format("{{\"id\":{},{}}}\n", next_id_, question.episode);
      worker.batch.emplace(next_id_++, std::move(question));
    }
    worker.program->write(lines);
  }

  // Why it is no answer.
  std::optional<std::string> take_line(Worker& worker, const std::string& line) {
    auto answer = parse_command_answer(line);
    if (!answer) {
      worker.is_out_of_turn = worker.batch.empty();
      return answer.failure().message;
    }
    const int64_t id = answer.value().id;
    const auto asked = worker.batch.find(id);
    if (asked == worker.batch.end()) {
      const bool was_asked = id >= worker.first_id && id < next_id_;
      worker.is_out_of_turn = was_asked || worker.batch.empty();
      return fmt::format(
          "{}: '{}'",
          was_asked ? fmt::format("answers the id {} twice", id)
                    : fmt::format("answers with the id {}, which it was not asked about", id),
          sandbox::excerpt(line));
    }
    Result<Score>& score = answer.value().score;
    asked->second.answer->set_value(
        score ? std::move(score)
              : Result<Score>(Failure{fmt::format("'{}': {}", name(), score.failure().message)}));
    worker.batch.erase(asked);
    if (worker.batch.empty()) {
      if (!has_started()) begin_budgets();
      worker.answered = steady_now();
      worker.program->set_deadline(Time::max());
    }
    return std::nullopt;
  }

  // Those who have waited for a start have waited for nothing else.
  void begin_budgets() {
    for (Question& question : waiting_)
      question.deadline = std::min(question.longest, steady_now() + question.budget);
  }

  // A question that was asked alone and has no answer gets no verdict. An answer behind which
  // another one comes has an unknown worth, so after a late fault none of the open questions, nor
  // the next one asked, gets a verdict, and none is asked again here.
  void lose(Worker& worker, const sandbox::ProgramLoss& loss) {
    std::string why = loss.why;
    // A last line without its end.
    const bool has_rest = loss.has_ended && loss.rest.find_first_not_of(" \t\r") != loss.rest.npos;
    if (const auto fault = has_rest ? take_line(worker, loss.rest) : std::nullopt)
      why = *fault;
    else if (loss.has_ended && !worker.batch.empty())
      why += " before its answer";
    const std::string reason = fmt::format("'{}' {}{}", name(), why, loss.quoted_last());
    note(fmt::format("a process of it {}", why));
    const bool is_late = worker.is_out_of_turn;
    if (is_late && worker.batch.empty()) late_fault_ = reason;
    const Time now = steady_now();
    const bool was_alone = worker.batch.size() == 1 && worker.batch.begin()->second.is_alone;
    std::deque<Question> again;
    for (auto& [id, question] : worker.batch) {
      const Time limit = worker.has_started() ? question.deadline : question.longest;
      if (was_alone || is_late || now >= limit) {
        question.fail(reason);
      } else {
        question.is_alone = true;
        again.push_back(std::move(question));
      }
    }
    waiting_.insert(waiting_.begin(), std::move_iterator(again.begin()),
                    std::move_iterator(again.end()));
    workers_.remove_if([&](const Worker& one) { return &one == &worker; });
  }

  const sandbox::CommandStart command_;
  const CommandPoolOptions options_;
  std::deque<Question> waiting_;
  std::list<Worker> workers_;
  sandbox::StartProgress progress_;
  int64_t next_id_ = 0;
  std::string late_fault_;  // that nobody has heard of; empty: none
};

CommandPool::CommandPool(sandbox::CommandStart command, CommandPoolOptions options)
    : state_(std::make_shared<State>(std::move(command), std::move(options))), thread_(state_) {}

CommandPool::~CommandPool() = default;

Result<Score> CommandPool::ask(std::string episode, Time budget) {
  return state_->ask(std::move(episode), budget);
}

}  // namespace tailrace
