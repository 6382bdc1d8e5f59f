// What decide() asks for. Actions that name a worker are messages to it, in the session that it has
// now: one whose session ends first is void, because the event that says so makes decide() ask
// again. The others are for the service (bodies, batches, metrics). All may be given again, and
// doing one twice does no harm.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/digest.h"
#include "core/base/ids.h"
#include "scheduler/state/state.h"

namespace tailrace::scheduler {

// At the start of a session: this is all that the worker holds. Work that it has besides is void;
// what it lacks of these follows as Grant or Verify.
struct Hold {
  WorkerId worker;
  uint64_t session = 0;
  std::vector<BodyId> leases;
  template <class V>
  void fields(V& visit) {
    visit(worker, session, leases);
  }
  friend bool operator==(const Hold&, const Hold&) = default;
};

// Run this attempt on weights >= version (evaluation: exactly).
struct Grant {
  WorkerId worker;
  uint64_t session = 0;
  LeaseId lease;
  Lane lane = Lane::kTrain;
  int64_t version = 0;
  std::optional<BodyId> prefix = {};  // stored turns that it goes on from; absent: it begins anew
  template <class V>
  void fields(V& visit) {
    visit(worker, session, lease, lane, version, prefix);
  }
  friend bool operator==(const Grant&, const Grant&) = default;
};

// The attempt, or its verification, is no longer wanted; no answer needed.
struct Abort {
  WorkerId worker;
  uint64_t session = 0;
  LeaseId lease;
  Lane lane = Lane::kTrain;
  template <class V>
  void fields(V& visit) {
    visit(worker, session, lease, lane);
  }
  friend bool operator==(const Abort&, const Abort&) = default;
};

// Score the stored body of `lease`.
struct Verify {
  WorkerId worker;
  uint64_t session = 0;
  LeaseId lease;
  Lane lane = Lane::kTrain;
  int32_t verify_attempt = 0;
  template <class V>
  void fields(V& visit) {
    visit(worker, session, lease, lane, verify_attempt);
  }
  friend bool operator==(const Verify&, const Verify&) = default;
};

// Fetch and prove these weights, beside those that sample.
struct Stage {
  WorkerId worker;
  uint64_t session = 0;
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;
  std::string manifest;
  template <class V>
  void fields(V& visit) {
    visit(worker, session, policy, version, digest, manifest);
  }
  friend bool operator==(const Stage&, const Stage&) = default;
};

// Sample by what is staged.
struct Switch {
  WorkerId worker;
  uint64_t session = 0;
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;
  template <class V>
  void fields(V& visit) {
    visit(worker, session, policy, version, digest);
  }
  friend bool operator==(const Switch&, const Switch&) = default;
};

// The trainer's batch: bodies in the order of training, each with the reward that counts (a
// verifier's is not in the body). Whole, or the groups that have become complete since the part
// before it (HandOverBy::kGroups).
struct HandOver {
  struct Item {
    LeaseId lease;
    double reward = 0;
    std::optional<double> judged = {};  // Member::judged
    template <class V>
    void fields(V& visit) {
      visit(lease, reward, judged);
    }
    friend bool operator==(const Item&, const Item&) = default;
  };
  WorkerId worker;
  uint64_t session = 0;
  PolicyId policy = 0;
  int64_t step = 0;
  int64_t first = 0;  // items that came before these
  bool last = true;   // no more come; then there may be no items
  std::vector<Item> items;
  bool copy = false;  // for a rank beside the one that asked
  // With the last part: the part of the run that the step is (law 3.10).
  double share_begin = 0, share_end = 0;
  template <class V>
  void fields(V& visit) {
    visit(worker, session, policy, step, first, last, items, copy, share_begin, share_end);
  }
  friend bool operator==(const HandOver&, const HandOver&) = default;
};

// Write a checkpoint of this version before anything else.
struct Save {
  WorkerId worker;
  uint64_t session = 0;
  PolicyId policy = 0;
  int64_t version = 0;
  template <class V>
  void fields(V& visit) {
    visit(worker, session, policy, version);
  }
  friend bool operator==(const Save&, const Save&) = default;
};

// These bodies are never asked for again.
struct Release {
  std::vector<BodyId> bodies;
  template <class V>
  void fields(V& visit) {
    visit(bodies);
  }
  friend bool operator==(const Release&, const Release&) = default;
};

// A prompt of an epoch ended. `trained` is provisional until the oldest checkpoint covers it: a
// trainer that comes back with other weights takes it back (TaskWithdrawn). So is `unreached` until
// a run that is continued goes further.
struct TaskDone {
  TaskId task;
  TaskEnd end = TaskEnd::kTrained;
  int64_t step = 0;
  template <class V>
  void fields(V& visit) {
    visit(task, end, step);
  }
  friend bool operator==(const TaskDone&, const TaskDone&) = default;
};

struct TaskWithdrawn {
  TaskId task;
  template <class V>
  void fields(V& visit) {
    visit(task);
  }
  friend bool operator==(const TaskWithdrawn&, const TaskWithdrawn&) = default;
};

// An evaluation is complete: report it, then say EvalReported. A member without reward failed for
// good: it is counted, never scored 0.
struct EvalDone {
  struct Item {
    LeaseId lease;
    std::optional<double> reward;
    template <class V>
    void fields(V& visit) {
      visit(lease, reward);
    }
    friend bool operator==(const Item&, const Item&) = default;
  };
  PolicyId policy = 0;
  int64_t version = 0;
  std::vector<Item> items;
  template <class V>
  void fields(V& visit) {
    visit(policy, version, items);
  }
  friend bool operator==(const EvalDone&, const EvalDone&) = default;
};

// Another lineage begins at version `from`: what rests on the weights that it replaces is void.
struct Forked {
  PolicyId policy = 0;
  int64_t from = 0;
  template <class V>
  void fields(V& visit) {
    visit(policy, from);
  }
  friend bool operator==(const Forked&, const Forked&) = default;
};

// Nothing more will happen, and the last version is safe or nobody is left to save it: end the
// workers.
struct RunDone {
  RunEnd end;
  template <class V>
  void fields(V& visit) {
    visit(end);
  }
  friend bool operator==(const RunDone&, const RunDone&) = default;
};

// A worker gets no work for a while, or has done well again (`until` 0).
struct Quarantine {
  WorkerId worker;
  Time until{};
  std::string reason;
  template <class V>
  void fields(V& visit) {
    visit(worker, until, reason);
  }
  friend bool operator==(const Quarantine&, const Quarantine&) = default;
};

// Failures pile up, or the past that was asked for is gone: a person must look.
struct Halt {
  std::string reason;
  template <class V>
  void fields(V& visit) {
    visit(reason);
  }
  friend bool operator==(const Halt&, const Halt&) = default;
};

// This worker is one of the ranks that train the policy together: meet the others under this name,
// and go on from what rank 0 holds. It comes before the batch, and again when one of them is
// another process, or has another session, than before.
struct FormRanks {
  WorkerId worker;
  uint64_t session = 0;
  PolicyId policy = 0;
  uint64_t formation = 0;  // another one each time
  int32_t rank = 0, size = 1;
  template <class V>
  void fields(V& visit) {
    visit(worker, session, policy, formation, rank, size);
  }
  friend bool operator==(const FormRanks&, const FormRanks&) = default;
};

// Nobody can play or score this task: no prompt plays its row again (law 6.10). Said once of a row.
struct TaskBroken {
  Lane lane = Lane::kTrain;
  TaskId task;
  int64_t row = 0;  // of the dataset, counted from 0; of one without rows the prompt
  std::string reason;
  template <class V>
  void fields(V& visit) {
    visit(lane, task, row, reason);
  }
  friend bool operator==(const TaskBroken&, const TaskBroken&) = default;
};

// To the trainer: the published weights of versions below `below` are needed by nobody, and of
// those below `fetched_from`, but for `evaluated`, nobody fetches the payload (law 9.8).
struct ReleaseWeights {
  WorkerId worker;
  uint64_t session = 0;
  PolicyId policy = 0;
  int64_t below = 0;
  int64_t fetched_from = 0;
  int64_t evaluated = -1;  // -1: none
  template <class V>
  void fields(V& visit) {
    visit(worker, session, policy, below, fetched_from, evaluated);
  }
  friend bool operator==(const ReleaseWeights&, const ReleaseWeights&) = default;
};

using Action = std::variant<Hold, Grant, Abort, Verify, Stage, Switch, HandOver, Save, Release,
                            TaskDone, TaskWithdrawn, EvalDone, Forked, RunDone, Quarantine, Halt,
                            FormRanks, TaskBroken, ReleaseWeights>;
using Actions = std::vector<Action>;

// What must not leave before all that led to it is on disk (law 12.2): the trainer would know,
// delete or end something that a machine without power has forgotten. Grants, aborts and
// verifications need no disk: what is lost of them is asked for again. Ends of prompts, reports of
// evaluations and halts may be forgotten too: they follow again from the events that are left.
// So may the release of a prefix: the attempt that would miss it begins anew.
inline bool needs_disk(const Action& action) {
  if (const auto* release = std::get_if<Release>(&action)) {
    return std::ranges::any_of(release->bodies, [](const BodyId& body) { return body.turns == 0; });
  }
  return std::holds_alternative<HandOver>(action) || std::holds_alternative<Save>(action) ||
         std::holds_alternative<RunDone>(action) || std::holds_alternative<ReleaseWeights>(action);
}

}  // namespace tailrace::scheduler
