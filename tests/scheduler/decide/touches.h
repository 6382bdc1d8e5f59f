// States of any size, and events that touch as much in a large one as in a small one (law 14.5):
// what they cost is counted by cost_test and timed by the bench of the scheduler.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "scheduler/state/event.h"
#include "scheduler/state/state.h"

namespace tailrace::scheduler {

// What is to be decided on, in this order.
struct Touches {
  State state;
  std::vector<Event> events;
  int64_t each = 1;  // that an event touches

  int64_t touched() const { return std::ssize(events) * each; }
};

// `size` workers with this many leases each, all of their slots.
constexpr int64_t kHeldEach = 64;

// Some of the workers say goodbye, one after another.
Touches worker_losses(int64_t size);
// All but one of the workers do.
Touches mass_loss(int64_t size);
// Some of the workers are not heard of for a while, and come back with the same process.
Touches reconnects(int64_t size);
// Names that were never there come and go, after `size` others have.
Touches departures(int64_t size);
// A version comes by which half of `size` ready groups, and others that run, are too old.
Touches stale_groups(int64_t size);
// Time passes, while a worker stands still with work that may not be moved and another has room.
Touches stalled_worker(int64_t size);
// The groups of a step of `size` prompts are handed over one by one as they become complete.
Touches streamed_step(int64_t size);
// So many held-out members settle one by one.
Touches evaluation(int64_t size);
// Held-out attempts fail and begin again elsewhere, while `size` workers sample an evaluation that
// lags.
Touches held_out_failures(int64_t size);
// Attempts fail at half of `size` workers, while the breaker's window is full and most of what is
// in it has failed.
Touches failed_attempts(int64_t size);
// Some rows of a dataset without end are called broken, while half of `size` groups are ready.
Touches broken_tasks(int64_t size);

// With its name, as a test or a bench prints it.
struct TouchCase {
  std::string name;
  Touches (*make)(int64_t size);
  int64_t small = 0, large = 0;
  friend std::ostream& operator<<(std::ostream& out, const TouchCase& one) {
    return out << one.name;
  }
};
std::vector<TouchCase> touch_cases();

}  // namespace tailrace::scheduler
