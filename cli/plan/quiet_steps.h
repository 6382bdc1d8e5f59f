// The steps of a run of several processes as QuietClock has the work of one: without the time in
// which its threads were ready and others had the cores. What a process waits for a core is the
// others' by their share of what all but that process have computed meanwhile; the rest are its
// neighbours in the run, which wait for each other on a quiet machine as well. It is watched from
// outside while it runs; of a mode that samples and trains at the same time it says nothing that is
// true.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "cli/inputs/threads.h"
#include "core/run/run_directory.h"

namespace tailrace {

// Seconds of a step, mean.
struct QuietStep {
  double rollout = 0, train = 0, rest = 0;
  double whole() const { return rollout + train + rest; }
};

class QuietSteps {
 public:
  // Watches the steps from `first` on of `run`, whose processes have these threads.
  QuietSteps(RunPaths run, const ThreadPlan& threads, int64_t first)
      : run_(std::move(run)), threads_(threads), first_(first) {}

  // Often, some times a step.
  void look();
  // The mean of the steps that were looked at; nothing when they were too few. Throws UserError.
  std::optional<QuietStep> mean() const;

 private:
  // The sums over the threads of a process since they began.
  struct Use {
    double waited = 0;  // for a core, together
    double cpu = 0;     // seconds on a core, together
  };
  struct Moment {
    int64_t step = -1;
    double busy = 0;                       // seconds of all cores, of whoever
    std::map<std::string, Use> processes;  // "rollout 0"
  };
  std::map<std::string, Use> processes() const;

  RunPaths run_;
  ThreadPlan threads_;
  int64_t first_;
  uintmax_t seen_ = 0;  // bytes of metrics
  Moment begin_, end_;
};

}  // namespace tailrace
