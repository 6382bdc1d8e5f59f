#include "rollout/environment_executor.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/check.h"
#include "kernels/base/mutex.h"

namespace tailrace {
namespace {

// Each may hold memory and a core for ever; so many stuck environments are a broken machine.
constexpr int64_t kMostAbandoned = 64;

Result<StepResult> run_call(const EnvironmentExecutor::Call& call) {
  try {
    if (call.kind == EnvironmentExecutor::Kind::kStep) return call.environment->step(call.action);
    if (call.kind == EnvironmentExecutor::Kind::kCut) return call.environment->cut();
    Result<Observation> first = call.environment->reset(call.task);
    if (!first) return first.failure();
    StepResult result;
    result.observation = std::move(first).value();
    return result;
  } catch (const std::exception& error) {
    return Failure{fmt::format("the environment threw: {}", error.what())};
  } catch (...) {
    return Failure{"the environment threw something that is no std::exception"};
  }
}

void close_quietly(Environment& environment) {
  try {
    environment.close();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the episode is over, nobody could act on it
  }
}

}  // namespace

// What one thread is doing.
struct EnvironmentExecutor::State {
  struct Slot {
    bool busy = false, abandoned = false, ended = false;
    Call call;  // of a busy slot: id and kind
    Time started{};
  };

  Mutex mutex;
  std::condition_variable work, done;
  std::deque<Call> queue TR_GUARDED_BY(mutex);
  std::vector<Answer> answers TR_GUARDED_BY(mutex);
  int64_t last_batch TR_GUARDED_BY(mutex) = 0;  // unanswered calls of the last hand-over
  bool waiting TR_GUARDED_BY(mutex) = false;    // the owner sleeps in collect()
  bool wants_all TR_GUARDED_BY(mutex) = false;
  bool closing TR_GUARDED_BY(mutex) = false;

  bool enough() const { return wants_all ? last_batch <= 0 : !answers.empty(); }
  void loop(const std::shared_ptr<Slot>& slot, const Clock& clock);
};

struct EnvironmentExecutor::Worker {
  std::shared_ptr<State::Slot> slot;  // guarded by the state's mutex
  std::thread thread;
};

void EnvironmentExecutor::State::loop(const std::shared_ptr<Slot>& slot, const Clock& clock) {
  MutexLock lock(mutex);
  while (true) {
    work.wait(lock.native(), [&] { return closing || !queue.empty(); });
    if (closing) break;
    Call call = std::move(queue.front());
    queue.pop_front();
    slot->busy = true;
    slot->call.id = call.id;
    slot->call.kind = call.kind;
    slot->started = clock.now();
    lock.native().unlock();
    std::optional<Result<StepResult>> result;
    if (call.kind == Kind::kClose) {
      close_quietly(*call.environment);
    } else {
      result = run_call(call);
    }
    call.environment.reset();  // here, because a destructor may block as well
    lock.native().lock();
    // Abandoned: our owner may be gone, and with it the clock.
    if (slot->abandoned) break;
    slot->busy = false;
    if (!result) continue;
    double seconds = std::chrono::duration<double>(clock.now() - slot->started).count();
    answers.push_back({.id = call.id, .result = std::move(*result), .seconds = seconds});
    --last_batch;
    if (waiting && enough()) done.notify_one();
  }
  slot->ended = true;
  done.notify_one();
}

EnvironmentExecutor::EnvironmentExecutor(int num_threads, Time deadline, const Clock& clock)
    : deadline_(deadline), clock_(clock), state_(std::make_shared<State>()) {
  TR_CHECK(num_threads >= 1 && deadline > Time{0}, "{} threads", num_threads);
  for (int i = 0; i < num_threads; ++i) add_thread();
}

EnvironmentExecutor::~EnvironmentExecutor() {
  std::deque<Call> dropped;
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
    state_->done.wait_for(lock.native(), deadline_, all_ended);
    for (Worker& worker : workers_) worker.slot->abandoned = !worker.slot->ended;
  }
  for (Worker& worker : workers_) {
    // A call that does not return cannot be ended from outside, and waiting for it would hang the
    // worker. All that its thread still touches is shared with it.
    if (worker.slot->abandoned) {
      worker.thread.detach();
    } else {
      worker.thread.join();
    }
  }
}

void EnvironmentExecutor::add_thread() {
  auto slot = std::make_shared<State::Slot>();
  workers_.push_back(
      {slot, std::thread([state = state_, slot, &clock = clock_] { state->loop(slot, clock); })});
}

void EnvironmentExecutor::hand_over(std::vector<Call> calls) {
  if (calls.empty()) return;
  size_t count = calls.size();
  {
    MutexLock lock(state_->mutex);
    state_->last_batch = 0;
    for (Call& call : calls) {
      if (call.kind != Kind::kClose) {
        ++num_unanswered_;
        ++state_->last_batch;
      }
      state_->queue.push_back(std::move(call));
    }
  }
  for (size_t i = 0; i < std::min(count, workers_.size()); ++i) state_->work.notify_one();
}

std::vector<EnvironmentExecutor::Answer> EnvironmentExecutor::collect(
    std::chrono::microseconds wait, bool all) {
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

void EnvironmentExecutor::abandon_late_calls(std::vector<Answer>& answers) {
  int to_add = 0;
  {
    MutexLock lock(state_->mutex);
    Time now = clock_.now();
    for (Worker& worker : workers_) {
      State::Slot& slot = *worker.slot;
      if (!slot.busy || slot.abandoned || now - slot.started < deadline_) continue;
      slot.abandoned = true;
      ++num_abandoned_;
      ++to_add;
      if (slot.call.kind == Kind::kClose) continue;
      double seconds = std::chrono::duration<double>(now - slot.started).count();
      double deadline = std::chrono::duration<double>(deadline_).count();
      answers.push_back(
          {.id = slot.call.id,
           .result = Failure{fmt::format("the environment did not answer within {} s", deadline)},
           .seconds = seconds,
           .abandoned = true});
    }
    int64_t stuck = std::ranges::count_if(workers_, [](const Worker& worker) {
      return worker.slot->abandoned && !worker.slot->ended;
    });
    if (stuck > kMostAbandoned) {
      // No thread is added for them: what is queued fails at once instead of waiting for ever.
      to_add = 0;
      for (Call& call : state_->queue) {
        if (call.kind != Kind::kClose)
          answers.push_back(
              {.id = call.id,
               .result = Failure{fmt::format("{} environment calls are stuck", stuck)}});
      }
      state_->queue.clear();
    }
    std::erase_if(workers_, [](Worker& worker) {
      if (!worker.slot->ended) return false;
      worker.thread.join();  // it has left its loop
      return true;
    });
  }
  for (int i = 0; i < to_add; ++i) add_thread();
}

}  // namespace tailrace
