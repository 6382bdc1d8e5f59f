// Whether the first attempts of a launch say that none will ever work: a program that crashes each
// time is told at once, by its own words, and not when the breaker's window is full (law 7.6).
//
// It judges this launch alone, and until the first sample of an environment: what works once may
// work again, and from then on the breaker judges. It is no part of the law, so nothing of it is in
// the journal: a launch that goes on looks anew, as a person may have mended it.
//
// Thread: the service's only.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "core/base/time.h"
#include "scheduler/state/event.h"
#include "scheduler/state/state.h"

namespace tailrace::scheduler {

class FirstAttempts {
 public:
  // The least number of attempts that have to fail.
  static constexpr int64_t kEnough = 12;
  // After this time since the first failure they say so also of one task alone, which else may be
  // the only broken one, and workers without work are not waited for any more: more than half of
  // those that have had some, and two where there are two, are enough.
  static constexpr Time kLong = std::chrono::seconds(60);

  // An attempt that has ended, behind what decide() made of it. Returns why the run has to end;
  // empty: it goes on.
  std::string look(const State& state, const AttemptResult& result, Time now);

 private:
  bool are_enough_workers(const State& state, bool is_long) const;

  bool is_over_ = false;
  int64_t num_failed_ = 0;
  Time first_{};
  std::set<std::pair<Lane, TaskId>> tasks_;
  std::set<WorkerId> workers_;
};

}  // namespace tailrace::scheduler
