// The messages between scheduler and workers, as plain structs.
//
// On the wire each is a FlatBuffer (messages.fbs), always verified before use: structure by the
// FlatBuffers verifier, then ranges, lengths that must agree and enum values by decode(). Schemas
// only grow. Delivery is at least once and in order for one worker (link.h); acceptance is
// idempotent, because work is named by leases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/digest.h"
#include "core/base/metric_list.h"
#include "core/base/result.h"
#include "core/trajectory/trajectory.h"

namespace tailrace::wire {

enum class Role : uint8_t { kRollout, kReward, kTrainer };
std::string_view name(Role role);

// ---- worker -> scheduler

struct Hello {  // first message of a session
  Role role = Role::kRollout;
  std::string worker;        // unique in the run: "rollout-0"
  uint64_t incarnation = 0;  // new for every process or restart; 0: the WorkerClient chooses one
  int32_t pid = 0;
  int64_t slots = 1;           // how many leases it holds at once
  std::string numerics_class;  // backend, instruction set, dtypes (design rule 3)
};
struct Heartbeat {};
struct TrajectoryResult {
  Trajectory trajectory;
};                // also of failed attempts: outcome says so
struct Verdict {  // a reward worker's answer
  LeaseId lease;
  Lane lane = Lane::kTrain;
  int32_t verify_attempt = 0;
  std::optional<double> reward;  // absent: the verifier failed
  MetricList metrics;
  std::string failure;  // why, when it failed
};
struct Installed {  // weights are in place and their digest is proved
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;
};
struct InstallFailed {
  PolicyId policy = 0;
  int64_t version = 0;
  std::string reason;
};
struct TrainerReady {  // after start: the weights that the trainer holds
  PolicyId policy = 0;
  // Of the checkpoint it loaded; -1: none, it will prepare (SFT) and publish 0.
  int64_t version = 0;
  Digest digest;              // empty when version is -1
  std::string manifest = {};  // file name below RUN/weights, where they lie again; or empty
  MetricList metrics = {};    // of the step that made the version: Published may have been lost
};
struct TrainerWants {
  PolicyId policy = 0;
  int64_t step = 0;
};                  // the batch of this step, counted from 1
struct Published {  // step `version` is trained (0: before the first step)
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;
  std::string manifest;  // file name below RUN/weights
  MetricList metrics;    // of the step
};
struct Durable {  // a checkpoint of this version is on disk
  PolicyId policy = 0;
  int64_t version = 0;
  std::string path;
};
struct Progress {
  std::string phase;
  int64_t done = 0, total = 0;
  MetricList metrics;
};  // SFT and the like
struct WorkerFailed {
  std::string reason;
};  // cannot go on (a full disk, bad weights): a person must act

// ---- scheduler -> worker

struct Welcome {
  uint64_t session = 0;
};  // answers Hello; work of an earlier session is void
struct Grant {
  LeaseId lease;
  Lane lane = Lane::kTrain;
  int64_t version = 0;  // runs on weights >= version (evaluation: exactly)
};
struct Abort {
  LeaseId lease;
  Lane lane = Lane::kTrain;
};
struct Verify {
  LeaseId lease;
  Lane lane = Lane::kTrain;
  int32_t verify_attempt = 0;
  std::string verifier, evidence;
};
struct Install {
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;
  std::string manifest;  // file name below RUN/weights
};
struct Batch {  // answers TrainerWants: members ordered by (epoch, prompt, launch, member)
  PolicyId policy = 0;
  int64_t step = 0;
  std::vector<std::vector<std::byte>> trajectories;  // each an encoded Trajectory
};
struct Save {
  PolicyId policy = 0;
};  // write a checkpoint as soon as no update is running (a stop was asked)
struct Shutdown {
  std::string reason;
};  // end cleanly

using Message = std::variant<Hello, Heartbeat, TrajectoryResult, Verdict, Installed, InstallFailed,
                             TrainerReady, TrainerWants, Published, Durable, Progress, WorkerFailed,
                             Welcome, Grant, Abort, Verify, Install, Batch, Save, Shutdown>;

// For log lines: "Grant p0/d0/e0/q12/l0/m3#1".
std::string describe(const Message& message);

// Whether a worker sends such messages; the scheduler sends the others.
bool is_from_worker(const Message& message);

}  // namespace tailrace::wire
