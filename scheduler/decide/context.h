// The state that the parts of decide() share while one event is applied.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "scheduler/state/action.h"
#include "scheduler/state/state.h"

namespace tailrace::scheduler {

// A worker's word that nobody can play or score a task.
struct BrokenWord {
  Lane lane = Lane::kTrain;
  TaskId task;
  std::string reason;
};

// A member that the event has settled.
struct Settled {
  WorkId work;
  bool was_open = true;  // it was not settled before: of an evaluation it counts once
};

struct Context {
  State& state;
  Actions actions;
  // Members that reached a final phase and left their group complete; proceed() settles it. Of an
  // evaluation all of them.
  std::vector<Settled> settled;
  // Tasks that the event called broken; proceed() gives them up before it settles anything.
  std::vector<BrokenWord> broken = {};

  template <class A>
  void act(A action) {
    actions.emplace_back(std::move(action));
  }

  // A message to a worker. To one that is away nothing is said: when it comes back it gets all that
  // is outstanding then.
  template <class Message>
  void tell(const WorkerId& id, Message message) {
    const auto worker = state.workers.find(id);
    if (worker != state.workers.end()) tell(id, worker->second, std::move(message));
  }
  template <class Message>
  void tell(const WorkerId& id, const Worker& worker, Message message) {
    if (!worker.connected) return;
    if constexpr (requires { message.session; }) {
      message.worker = id;
      message.session = worker.session;
      act(std::move(message));
    } else {
      act(To<Message>{{id, worker.session}, std::move(message)});
    }
  }

  const Config& config() const { return state.config; }
};

}  // namespace tailrace::scheduler
