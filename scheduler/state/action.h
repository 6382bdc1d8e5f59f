// What decide() asks for. Actions that name a worker are messages to it; the others are for the
// service (bodies, batches, metrics). All may be given again after a restart, and doing one twice
// does no harm.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/ids.h"
#include "scheduler/state/event.h"
#include "scheduler/state/state.h"

namespace tailrace::scheduler {

// Run this attempt on weights >= version (evaluation: exactly). Late after `deadline`.
struct Grant {
  WorkerId worker;
  LeaseId lease;
  Lane lane = Lane::kTrain;
  int64_t version = 0;
  Time deadline{};
  friend bool operator==(const Grant&, const Grant&) = default;
};

// The attempt, or its verification, is no longer wanted; no answer needed.
struct Abort {
  WorkerId worker;
  LeaseId lease;
  Lane lane = Lane::kTrain;
  friend bool operator==(const Abort&, const Abort&) = default;
};

// Score the stored body of `lease`.
struct Verify {
  WorkerId worker;
  LeaseId lease;
  Lane lane = Lane::kTrain;
  int32_t verify_attempt = 0;
  Time deadline{};
  friend bool operator==(const Verify&, const Verify&) = default;
};

struct Install {
  WorkerId worker;
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;
  std::string manifest;
  friend bool operator==(const Install&, const Install&) = default;
};

// The batch of a step: rewarded members ordered by (epoch, prompt, domain, launch, member). The
// reward is the one that counts (a verifier's is not in the body).
struct HandOver {
  struct Item {
    LeaseId lease;
    double reward = 0;
    friend bool operator==(const Item&, const Item&) = default;
  };
  PolicyId policy = 0;
  int64_t step = 0;
  std::vector<Item> items;
  friend bool operator==(const HandOver&, const HandOver&) = default;
};

// These bodies are never asked for again.
struct Release {
  std::vector<BodyId> bodies;
  friend bool operator==(const Release&, const Release&) = default;
};

// A prompt of an epoch ended. `trained` is provisional until the checkpoint is durable: a trainer
// that comes back with other weights takes it back (TaskWithdrawn).
struct TaskDone {
  TaskId task;
  TaskEnd end = TaskEnd::kTrained;
  int64_t step = 0;
  friend bool operator==(const TaskDone&, const TaskDone&) = default;
};

struct TaskWithdrawn {
  TaskId task;
  friend bool operator==(const TaskWithdrawn&, const TaskWithdrawn&) = default;
};

// An evaluation is complete. A member without reward failed for good: it is counted, never scored
// 0.
struct EvalDone {
  struct Item {
    LeaseId lease;
    std::optional<double> reward;
    friend bool operator==(const Item&, const Item&) = default;
  };
  PolicyId policy = 0;
  int64_t version = 0;
  std::vector<Item> items;
  friend bool operator==(const EvalDone&, const EvalDone&) = default;
};

// Nothing more will happen: save a checkpoint, end the workers.
struct RunDone {
  RunEnd end;
  friend bool operator==(const RunDone&, const RunDone&) = default;
};

// Failures pile up, or the past that was asked for is gone: a person must look.
struct Halt {
  std::string reason;
  friend bool operator==(const Halt&, const Halt&) = default;
};

using Action = std::variant<Grant, Abort, Verify, Install, HandOver, Release, TaskDone,
                            TaskWithdrawn, EvalDone, RunDone, Halt>;
using Actions = std::vector<Action>;

std::string describe(const Action& action);

}  // namespace tailrace::scheduler
