// How the places of a simulated cluster spend their time, and what they wait for when they have
// nothing to do: as cli/view/worker_use.h reads it off a timeline, but added up while the run goes
// on, so that thousands of workers and any number of steps cost no rows. A place is a slot of a
// rollout or reward worker, used or not (a timeline knows those that were in use at some time); the
// trainer is one.
//
// An event costs what it touches.
//
// Thread: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "cli/view/worker_use.h"
#include "core/base/enum_names.h"
#include "core/base/ids.h"
#include "core/base/time.h"
#include "scheduler/state/action.h"
#include "scheduler/state/event.h"
#include "scheduler/state/leases.h"
#include "scheduler/state/state.h"

namespace tailrace {

class UseMeter {
 public:
  // After decide() has turned `event` into `actions`.
  void observe(const scheduler::Event& event, const scheduler::Actions& actions,
               const scheduler::State& after);

  // Shares of all places of a role, up to the last event; adds up to 1, or to 0 without any.
  UseShares shares(Role role) const;

 private:
  struct Held {
    WorkerId worker;
    int32_t attempt = 0, verify_attempt = 0;
    Lane lane = Lane::kTrain;
    bool verifies = false;
  };
  struct Worker {
    Role role = Role::kRollout;
    int64_t slots = 0;  // none before it is known
    bool connected = false, installs = false, rests = false;
    int64_t held = 0, held_out = 0;  // leases; of these, in the evaluation lane
  };
  // Places of a role by what they do.
  struct Places {
    double free = 0, evaluating = 0, installing = 0, resting = 0, away = 0;
  };

  void pass(Time now);
  void take_actions(const scheduler::Actions& actions, const scheduler::State& state);
  void take_lease(const scheduler::WorkId& work, const scheduler::State& state);
  void end_lease(const scheduler::WorkId& work);
  void compare_all(const scheduler::State& state);
  void refresh(const WorkerId& id, const scheduler::State& state);
  void place(const Worker& worker, double sign);
  double& count_of(const Held& held);

  struct Hash {
    size_t operator()(const scheduler::WorkId& work) const;
  };

  Time now_{};
  std::unordered_map<scheduler::WorkId, Held, Hash> held_;
  std::map<WorkerId, Worker> workers_;
  std::set<std::pair<Time, WorkerId>> rests_;  // until when
  std::array<Places, kEnumNames<Role>.size()> places_{};
  UseCounts counts_{};
  int64_t saving_ = -1;  // the version whose checkpoint is written
  bool trains_ = false, warms_up_ = true;
  std::array<UseShares, kEnumNames<Role>.size()> seconds_{};
};

}  // namespace tailrace
