// Runs calls of environments on a few threads, each call under a deadline, so that the engine never
// waits for an environment.
//
// A call that exceeds its deadline is answered with a Failure and abandoned: its thread is
// replaced, and it and its environment end whenever the call returns. Calls are handed over in
// batches, because most environments take microseconds and waking a thread does not.
//
// Thread: the owner's thread only; results do not depend on how many threads run the calls.
// Close: the destructor drops what has not begun, waits one deadline for what has, and joins.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "sandbox/environment.h"

namespace tailrace {

class EnvironmentExecutor {
 public:
  enum class Kind : uint8_t { kReset, kStep, kCut, kClose };
  struct Call {
    int64_t id = 0;  // the caller's; at most one call of an id at a time
    Kind kind = Kind::kStep;
    std::shared_ptr<Environment> environment;  // nobody else touches it until the call is answered
    Task task;                                 // kReset
    std::string action;                        // kStep
  };
  // Of a reset only the observation is set. kClose has no answer.
  struct Answer {
    int64_t id = 0;
    Result<StepResult> result;
    double seconds = 0;
    bool abandoned = false;  // the call still runs: the environment must not be touched again
  };

  // `deadline` is judged by `clock`, which is borrowed.
  EnvironmentExecutor(int num_threads, Time deadline, const Clock& clock);
  ~EnvironmentExecutor();
  EnvironmentExecutor(const EnvironmentExecutor&) = delete;

  void hand_over(std::vector<Call> calls);

  // What has been answered, and Failures of calls that are late. Waits up to `wait` (real time):
  // with `all` for all calls of the last hand-over, else for any answer.
  std::vector<Answer> collect(std::chrono::microseconds wait, bool all);

  int64_t num_unanswered() const { return num_unanswered_; }  // without kClose
  int64_t num_abandoned() const { return num_abandoned_; }    // since the start

 private:
  struct State;  // shared with the threads; outlives us while an abandoned call still runs
  struct Worker;

  void add_thread();
  void abandon_late_calls(std::vector<Answer>& answers);

  const Time deadline_;
  const Clock& clock_;
  std::shared_ptr<State> state_;
  std::vector<Worker> workers_;
  int64_t num_unanswered_ = 0, num_abandoned_ = 0;
};

}  // namespace tailrace
