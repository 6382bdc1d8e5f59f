// The calls of many environments at once: handed over in batches, collected when they are answered.
// Nobody who plays episodes waits for an environment anywhere else.
//
// An environment is opened, called and closed on threads of the executor, each call under its
// deadline; one that plays elsewhere (sandbox::RemoteEnvironment) holds no thread, however many of
// them there are. What is answered is encoded for the policy on those threads too.
//
// Every environment that was opened is closed, on whatever path its episode ends.
//
// Thread: the owner's thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/base/clock.h"
#include "core/run/deadline_executor.h"
#include "rollout/episode/episode.h"
#include "sandbox/environment_source.h"

namespace tailrace {

class EnvironmentCalls {
 public:
  using Id = int64_t;  // of an episode
  using Source = std::shared_ptr<const sandbox::EnvironmentSource>;

  struct Call {
    Id id = 0;
    sandbox::EnvironmentCall call;
    Source source = nullptr;                     // of a reset: where its environment comes from
    std::function<void(Result<Heard>&)> encode;  // Episode::encoder()
  };
  struct Answer {
    Id id = 0;
    Result<Heard> heard;
    double seconds = 0;
  };

  // `deadline` of each call, judged by `clock`, which is borrowed.
  EnvironmentCalls(int threads, Time deadline, const Clock& clock)
      : executor_("the environment", threads, deadline, clock) {}

  // Closes what is open, without waiting longer than a call may take.
  ~EnvironmentCalls();
  EnvironmentCalls(const EnvironmentCalls&) = delete;

  // At most one call of an id at a time; a reset comes first, and only then.
  void hand_over(std::vector<Call> calls);
  // Waits up to `wait` (real time): with `all` for all calls of the last hand-over, else for any.
  std::vector<Answer> collect(std::chrono::microseconds wait, bool all);
  // Nothing more is called or collected of it. It is closed with the next hand-over, or behind the
  // call that it is in.
  void close(Id id);

 private:
  using Executor = DeadlineExecutor<Heard>;

  // Shared with the call that it is in: closed by its last owner, however late that is.
  struct Opened {
    std::shared_ptr<sandbox::Environment> here;  // opened by its reset
    std::shared_ptr<sandbox::RemoteEnvironment> remote;
    ~Opened();
  };

  Executor::Call begun(const Call& call, const std::shared_ptr<Opened>& opened) const;
  Executor::Call run(Call& call, const std::shared_ptr<Opened>& opened) const;

  std::unordered_map<Id, std::shared_ptr<Opened>> opened_;
  std::vector<Executor::Call> closing_;
  Executor executor_;  // last: its threads end first
};

}  // namespace tailrace
