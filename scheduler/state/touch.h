// Facts derived of workers, kept up with their changes: the index (index.h), who is away, and
// whose evaluations wait.
#pragma once

#include <cstdint>
#include <set>
#include <utility>

#include "scheduler/state/state.h"

namespace tailrace::scheduler {

// After any change of this worker, of its health, or of what its policy's newest version is.
// Nothing, if there is none of this name.
void touch(State& state, const WorkerId& id);
// The same for who has it at hand.
void touch(State& state, const WorkerId& id, Worker& worker);
// It holds `count` leases more: nothing else has changed.
void add_leases(State& state, const WorkerId& id, Worker& worker, int64_t count);
// The value of State::away.
std::set<std::pair<Time, WorkerId>> find_away(const State& state);
// A worker of this name is there again, or nothing is held against the name any more.
void leave_away(State& state, const WorkerId& id);
// A worker leaves workers and index together.
void erase_worker(State& state, const WorkerId& id);
// Anew, from all workers.
void make_index(State& state);
// It says what it would say if it were made anew.
bool index_is_right(const State& state);
// The value of State::held_out.
std::set<PoolId> find_held_out(const State& state);
// Whether it could be other than empty, or is: held-out members sort first of what waits.
inline bool may_have_held_out(const State& state) {
  return !state.held_out.empty() || !state.index.stuck().empty() ||
         (!state.waiting.empty() && state.waiting.begin()->first.lane == Lane::kEval);
}
// After any change of what waits, or of the frontier: held_out says what is, and so does the index.
// Whether that was news.
bool follow_evaluations(State& state);

}  // namespace tailrace::scheduler
