// Requests of decide(). Actions that name a worker are messages to it, in the session that it has
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

#include "core/base/fields.h"
#include "core/base/ids.h"
#include "core/messages/message.h"
#include "scheduler/state/state.h"

namespace tailrace::scheduler {

// A message to a worker in a session of it.
struct Addressee {
  WorkerId worker;
  uint64_t session = 0;
  friend bool operator==(const Addressee&, const Addressee&) = default;
};
template <class Message>
struct To : Addressee, Message {
  template <class V>
  void fields(V& visit) {
    visit(this->worker, this->session);
    Message::fields(visit);
  }
  friend bool operator==(const To&, const To&) = default;
};

// At the start of a session: this is all that the worker holds. Work that it has besides is void;
// what it lacks of these follows as Grant or Verify.
using Hold = To<wire::Hold>;

// Run this attempt on weights >= version (evaluation: exactly).
struct Grant {
  WorkerId worker;
  uint64_t session = 0;
  LeaseId lease;
  Lane lane = Lane::kTrain;
  int64_t version = 0;
  std::optional<BodyId> prefix = {};  // stored turns that it goes on from; absent: it begins anew
  TR_FIELDS(Grant, worker, session, lease, lane, version, prefix);
};

// The attempt, or its verification, is no longer wanted; no answer needed.
using Abort = To<wire::Abort>;

// Score the stored body of `lease`.
struct Verify {
  WorkerId worker;
  uint64_t session = 0;
  LeaseId lease;
  Lane lane = Lane::kTrain;
  int32_t verify_attempt = 0;
  TR_FIELDS(Verify, worker, session, lease, lane, verify_attempt);
};

// Fetch and prove these weights, beside those that sample.
using Stage = To<wire::Stage>;

// Sample by what is staged.
using Switch = To<wire::Switch>;

// The trainer's batch: bodies in the order of training, each with the reward that counts (a
// verifier's is not in the body). Whole, or the groups that have become complete since the part
// before it (HandOverBy::kGroups).
struct HandOver {
  struct Item {
    LeaseId lease;
    double reward = 0;
    std::optional<double> judged = {};  // Member::judged
    TR_FIELDS(Item, lease, reward, judged);
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
  TR_FIELDS(HandOver, worker, session, policy, step, first, last, items, copy, share_begin,
            share_end);
};

// Write a checkpoint of this version before anything else.
using Save = To<wire::Save>;

// These bodies are never asked for again.
struct Release {
  std::vector<BodyId> bodies;
  TR_FIELDS(Release, bodies);
};

// A prompt of an epoch ended. `trained` is provisional until the oldest checkpoint covers it: a
// trainer that comes back with other weights takes it back (TaskWithdrawn). So is `unreached` until
// a run that is continued goes further.
struct TaskDone {
  TaskId task;
  TaskEnd end = TaskEnd::kTrained;
  int64_t step = 0;
  TR_FIELDS(TaskDone, task, end, step);
};

struct TaskWithdrawn {
  TaskId task;
  TR_FIELDS(TaskWithdrawn, task);
};

// An evaluation is complete: report it, then say EvalReported. A member without reward failed for
// good: it is counted, never scored 0.
struct EvalDone {
  struct Item {
    LeaseId lease;
    std::optional<double> reward;
    TR_FIELDS(Item, lease, reward);
  };
  PolicyId policy = 0;
  int64_t version = 0;
  std::vector<Item> items;
  TR_FIELDS(EvalDone, policy, version, items);
};

// Another lineage begins at version `from`: what rests on the weights that it replaces is void.
struct Forked {
  PolicyId policy = 0;
  int64_t from = 0;
  TR_FIELDS(Forked, policy, from);
};

// Nothing more will happen, and the last version is safe or nobody is left to save it: end the
// workers.
struct RunDone {
  RunEnd end;
  TR_FIELDS(RunDone, end);
};

// A worker gets no work for a while, or has done well again (`until` 0).
struct Quarantine {
  WorkerId worker;
  Time until{};
  std::string reason;
  TR_FIELDS(Quarantine, worker, until, reason);
};

// Failures pile up, or the past that was asked for is gone: a person must look.
struct Halt {
  std::string reason;
  TR_FIELDS(Halt, reason);
};

// This worker is one of the ranks that train the policy together: meet the others under this name,
// and go on from what rank 0 holds. It comes before the batch, and again when one of them is
// another process, or has another session, than before.
using FormRanks = To<wire::FormRanks>;

// Nobody can play or score this task: no prompt plays its row again (law 6.10). Said once of a row.
struct TaskBroken {
  Lane lane = Lane::kTrain;
  TaskId task;
  int64_t row = 0;  // of the dataset, counted from 0; of one without rows the prompt
  std::string reason;
  TR_FIELDS(TaskBroken, lane, task, row, reason);
};

// To the trainer: the published weights of versions below `below` are needed by nobody, and of
// those below `fetched_from`, but for `evaluated`, nobody fetches the payload (law 9.8).
using ReleaseWeights = To<wire::ReleaseWeights>;

using Action = std::variant<Hold, Grant, Abort, Verify, Stage, Switch, HandOver, Save, Release,
                            TaskDone, TaskWithdrawn, EvalDone, Forked, RunDone, Quarantine, Halt,
                            FormRanks, TaskBroken, ReleaseWeights>;
using Actions = std::vector<Action>;

// Actions that must not leave before all that led to them is on disk (law 12.2): the trainer would
// know, delete or end something that a machine without power has forgotten. Grants, aborts and
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
