// Runs calls of code that we do not trust to return (environments, verifiers) on a few threads,
// each call under a deadline, so that its caller never waits for it.
//
// A call that exceeds its deadline is answered with a Failure and abandoned: its thread is
// replaced, and the call ends whenever it returns. Calls are handed over in batches, because most
// take microseconds and waking a thread does not. A call may also be begun elsewhere, where it has
// a deadline of its own and holds none of the threads.
//
// Its threads are bound to the call board of the thread that makes it: what crashes them is named.
//
// Thread: the owner's thread only; results do not depend on how many threads run the calls.
// Close: the destructor drops what has not begun, waits for what has (one deadline, but at most
// two seconds), and joins. What a dropped call owns is destroyed on a thread of its own, for it may
// block as well.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/run/call_board.h"
#include "kernels/base/check.h"
#include "kernels/base/mutex.h"

namespace tailrace {

template <class T>
struct DeadlineCall {
  DeadlineCall() = default;
  DeadlineCall(int64_t its_id, std::function<Result<T>()> its_run)
      : id(its_id), run(std::move(its_run)) {}

  int64_t id = 0;  // the caller's; at most one call of an id at a time
  // Owns all that it touches, because it may outlive us. Destroyed on its thread.
  std::function<Result<T>()> run;
  // Instead: called by hand_over(), returns at once, and sees to it that the answer comes, once,
  // from any thread.
  std::function<void(std::function<void(Result<T>)>)> begin;
  // The handler of the answer, on a thread of ours. It returns, so it has no deadline, and what
  // it touches must only live as long as we do: behind an abandoned call it does not run.
  std::function<void(Result<T>&)> then;
  bool is_answered = true;  // false: nobody wants to know, not even of an exception
};

template <class T>
class DeadlineExecutor {
 public:
  using Call = DeadlineCall<T>;
  struct Answer {
    int64_t id = 0;
    Result<T> result;
    double seconds = 0;
    bool abandoned = false;  // the call still runs: what it touches must not be touched
  };

  // `callee` begins the Failures: "the environment". `deadline` is judged by `clock`, which is
  // borrowed.
  DeadlineExecutor(std::string callee, int num_threads, Time deadline, const Clock& clock);
  ~DeadlineExecutor() { close(); }
  DeadlineExecutor(const DeadlineExecutor&) = delete;

  void hand_over(std::vector<Call> calls);

  // Returns the answers so far, and Failures of calls that are late. Waits up to `wait` (real
  // time): with `all` for all calls of the last hand-over, else for any answer.
  std::vector<Answer> collect(std::chrono::microseconds wait, bool all);

  int64_t num_unanswered() const { return num_unanswered_; }  // of those that are answered
  int64_t num_abandoned() const { return num_abandoned_; }    // since the start

 private:
  // Each may hold memory and a core for ever; so many stuck calls are a broken machine.
  static constexpr int64_t kMostAbandoned = 64;
  static constexpr Time kLongestClose = std::chrono::seconds(2);

  // The state of one thread.
  struct Slot {
    bool busy = false, abandoned = false, ended = false;
    bool follows = false;  // in `then`
    int64_t id = 0;        // of the call, while busy
    bool is_answered = true;
    Time started{};
  };

  // A call whose turn has come, or the answer to one that was begun.
  struct Job {
    Call call;
    std::optional<Result<T>> answer = {};
    Time started = {};
  };

  // Shared with the threads; outlives us while an abandoned call still runs.
  struct State {
    Mutex mutex;
    std::condition_variable work, done;
    std::deque<Job> queue TR_GUARDED_BY(mutex);
    std::vector<Answer> answers TR_GUARDED_BY(mutex);
    int64_t last_batch TR_GUARDED_BY(mutex) = 0;  // unanswered calls of the last hand-over
    bool waiting TR_GUARDED_BY(mutex) = false;    // the owner sleeps in collect()
    bool wants_all TR_GUARDED_BY(mutex) = false;
    bool closing TR_GUARDED_BY(mutex) = false;

    bool enough() const { return wants_all ? last_batch <= 0 : !answers.empty(); }
    void loop(const std::shared_ptr<Slot>& slot, const std::string& callee, const Clock& clock);
  };

  struct Worker {
    std::shared_ptr<Slot> slot;  // guarded by the state's mutex
    std::thread thread;
  };

  template <class Body>
  static Result<T> run_call(const Body& run, const std::string& callee);
  void add_thread();
  void close();
  void abandon_late_calls(std::vector<Answer>& answers);

  // On a thread of its own, awaited for `patience`.
  static void destroy_apart(std::deque<Job> jobs, Time patience);

  const std::string callee_;
  const int num_threads_;
  const Time deadline_;
  const Clock& clock_;
  const std::shared_ptr<CallBoard> calls_ = bound_call_board();
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::vector<Worker> workers_;
  int64_t num_unanswered_ = 0, num_abandoned_ = 0;
};

template <class T>
template <class Body>
Result<T> DeadlineExecutor<T>::run_call(const Body& run, const std::string& callee) {
  try {
    return run();
  } catch (const std::exception& error) {
    return Failure{fmt::format("{} threw: {}", callee, error.what())};
  } catch (...) {
    return Failure{fmt::format("{} threw something that is no std::exception", callee)};
  }
}

template <class T>
void DeadlineExecutor<T>::State::loop(const std::shared_ptr<Slot>& slot, const std::string& callee,
                                      const Clock& clock) {
  MutexLock lock(mutex);
  while (true) {
    work.wait(lock.native(), [&] { return closing || !queue.empty(); });
    if (closing) break;
    Job job = std::move(queue.front());
    queue.pop_front();
    Call& call = job.call;
    slot->busy = true;
    slot->id = call.id;
    slot->is_answered = call.is_answered;
    slot->started = clock.now();
    if (!job.answer) job.started = slot->started;
    lock.native().unlock();
    Result<T> result = job.answer ? std::move(*job.answer) : run_call(call.run, callee);
    call.run = nullptr;  // here, because a destructor may block as well
    lock.native().lock();
    // Abandoned: our owner may be gone, and with it the clock.
    if (slot->abandoned) break;
    if (call.then && !closing) {
      slot->follows = true;
      lock.native().unlock();
      Result<T> made = run_call([&] { return call.then(result), std::move(result); }, callee);
      result = std::move(made);
      lock.native().lock();
      slot->follows = false;
    }
    slot->busy = false;
    if (!call.is_answered) continue;
    double seconds = seconds_of(clock.now() - job.started);
    answers.push_back({.id = call.id, .result = std::move(result), .seconds = seconds});
    --last_batch;
    if (waiting && enough()) done.notify_one();
  }
  slot->ended = true;
  done.notify_one();
}

template <class T>
DeadlineExecutor<T>::DeadlineExecutor(std::string callee, int num_threads, Time deadline,
                                      const Clock& clock)
    : callee_(std::move(callee)), num_threads_(num_threads), deadline_(deadline), clock_(clock) {
  TR_CHECK(num_threads >= 1 && deadline > Time{0}, "{} threads", num_threads);
  // Room first: a thread that found none would end the process.
  workers_.reserve(static_cast<size_t>(num_threads));
  try {
    for (int i = 0; i < num_threads; ++i) add_thread();
  } catch (...) {  // the system has no more
    close();
    throw;
  }
}

template <class T>
void DeadlineExecutor<T>::destroy_apart(std::deque<Job> jobs, Time patience) {
  if (jobs.empty()) return;
  auto all = std::make_shared<std::deque<Job>>(std::move(jobs));
  auto done = std::make_shared<std::promise<void>>();
  auto is_done = done->get_future();
  std::thread thread;
  try {
    thread = std::thread([all = std::move(all), done]() mutable {
      all.reset();
      done->set_value();
    });
  } catch (const std::system_error&) {
    return;  // the system has no more: they were destroyed here
  }
  if (is_done.wait_for(patience) == std::future_status::ready) {
    thread.join();
  } else {
    thread.detach();
  }
}

template <class T>
void DeadlineExecutor<T>::close() {
  std::deque<Job> dropped;
  {
    MutexLock lock(state_->mutex);
    state_->closing = true;
    dropped.swap(state_->queue);
    state_->work.notify_all();
    auto all_ended = [&] {
      return std::ranges::all_of(workers_, [](const Worker& worker) {
        return worker.slot->ended || worker.slot->abandoned;
      });
    };
    state_->done.wait_for(lock.native(), std::min(deadline_, kLongestClose), all_ended);
    for (Worker& worker : workers_)
      worker.slot->abandoned = !worker.slot->ended && !worker.slot->follows;
  }
  for (Worker& worker : workers_) {
    // A call that does not return cannot be ended from outside, and waiting for it would hang us.
    // All that its thread still touches is shared with it.
    if (worker.slot->abandoned) {
      worker.thread.detach();
    } else {
      worker.thread.join();
    }
  }
  destroy_apart(std::move(dropped), std::min(deadline_, kLongestClose));
}

template <class T>
void DeadlineExecutor<T>::add_thread() {
  auto slot = std::make_shared<Slot>();
  workers_.push_back(
      {slot, std::thread([state = state_, slot, callee = callee_, &clock = clock_, calls = calls_] {
         const CallBoardScope scope(calls);
         state->loop(slot, callee, clock);
       })});
}

template <class T>
void DeadlineExecutor<T>::hand_over(std::vector<Call> calls) {
  if (calls.empty()) return;
  std::vector<Call> begun;
  size_t count = 0;
  {
    MutexLock lock(state_->mutex);
    state_->last_batch = 0;
    for (Call& call : calls) {
      if (call.is_answered) {
        ++num_unanswered_;
        ++state_->last_batch;
      }
      if (call.begin) {
        begun.push_back(std::move(call));
        continue;
      }
      ++count;
      state_->queue.push_back({.call = std::move(call)});
    }
  }
  for (size_t i = 0; i < std::min(count, workers_.size()); ++i) state_->work.notify_one();
  for (Call& call : begun) {
    const auto begin = std::exchange(call.begin, nullptr);
    begin([state = state_, call = std::move(call), now = clock_.now()](Result<T> answer) {
      MutexLock lock(state->mutex);
      if (state->closing) return;
      state->queue.push_back({call, std::move(answer), now});
      state->work.notify_one();
    });
  }
}

template <class T>
auto DeadlineExecutor<T>::collect(std::chrono::microseconds wait, bool all) -> std::vector<Answer> {
  std::vector<Answer> answers;
  {
    MutexLock lock(state_->mutex);
    state_->wants_all = all;
    if (wait.count() > 0 && num_unanswered_ > 0 && !state_->enough()) {
      state_->waiting = true;
      state_->done.wait_for(lock.native(), wait, [&] { return state_->enough(); });
      state_->waiting = false;
    }
    state_->last_batch = 0;  // who is not done by now is not waited for again
    answers.swap(state_->answers);
  }
  if (num_unanswered_ > static_cast<int64_t>(answers.size())) abandon_late_calls(answers);
  num_unanswered_ -= static_cast<int64_t>(answers.size());
  return answers;
}

template <class T>
void DeadlineExecutor<T>::abandon_late_calls(std::vector<Answer>& answers) {
  int64_t to_add = 0;
  std::deque<Job> dropped;
  {
    MutexLock lock(state_->mutex);
    Time now = clock_.now();
    for (Worker& worker : workers_) {
      Slot& slot = *worker.slot;
      if (!slot.busy || slot.abandoned || slot.follows || now - slot.started < deadline_) continue;
      slot.abandoned = true;
      ++num_abandoned_;
      if (!slot.is_answered) continue;
      double seconds = seconds_of(now - slot.started);
      double deadline = seconds_of(deadline_);
      answers.push_back({.id = slot.id,
                         .result = Failure{fmt::format(
                             "{} did not answer within its deadline of {} s", callee_, deadline)},
                         .seconds = seconds,
                         .abandoned = true});
    }
    int64_t stuck = std::ranges::count_if(workers_, [](const Worker& worker) {
      return worker.slot->abandoned && !worker.slot->ended;
    });
    if (stuck > kMostAbandoned) {
      // No thread is added for them: what is queued fails at once instead of waiting for ever.
      for (const Job& job : state_->queue) {
        if (job.call.is_answered)
          answers.push_back(
              {.id = job.call.id,
               .result = Failure{fmt::format("{} hangs in {} earlier calls", callee_, stuck)}});
      }
      dropped.swap(state_->queue);
    }
    std::erase_if(workers_, [](Worker& worker) {
      if (!worker.slot->ended) return false;
      worker.thread.join();  // it has left its loop
      return true;
    });
    // Also those that were missing while too many were stuck.
    if (stuck <= kMostAbandoned)
      to_add = num_threads_ - std::ranges::count_if(workers_, [](const Worker& worker) {
                 return !worker.slot->abandoned;
               });
  }
  for (int64_t i = 0; i < to_add; ++i) add_thread();
  destroy_apart(std::move(dropped), Time{0});
}

}  // namespace tailrace
