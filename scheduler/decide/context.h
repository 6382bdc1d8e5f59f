// What the parts of decide() share while one event is applied.
#pragma once

#include <utility>

#include "scheduler/state/action.h"
#include "scheduler/state/state.h"

namespace tailrace::scheduler {

struct Context {
  State& state;
  Actions actions;
  std::vector<WorkId>
      settled;  // members that reached a final phase; proceed() settles their groups

  void act(Action action) { actions.push_back(std::move(action)); }
  const Config& config() const { return state.config; }
};

}  // namespace tailrace::scheduler
