// What the parts of decide() share while one event is applied.
#pragma once

#include <utility>

#include "scheduler/action.h"
#include "scheduler/state.h"

namespace tailrace::scheduler {

struct Context {
  State& state;
  Actions actions;

  void act(Action action) { actions.push_back(std::move(action)); }
  const Config& config() const { return state.config; }
};

}  // namespace tailrace::scheduler
