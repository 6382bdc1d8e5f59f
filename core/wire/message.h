// The messages between scheduler and workers, as plain structs.
//
// On the wire each is a FlatBuffer (frame.h), always verified before use. Schemas only grow.
// Delivery is at least once and in order for one worker (link.h); acceptance is idempotent, because
// work is named by leases.
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
#include "core/base/ids.h"
#include "core/base/install_cause.h"
#include "core/base/metric_list.h"
#include "core/base/result.h"

namespace tailrace::wire {

// ---- worker -> scheduler

// Of a pool, a cluster or a kind of hardware: letters, digits, _ and -, at most 64.
bool is_site_name(std::string_view name);
// Of a machine: the same, with dots behind the first character.
bool is_host_name(std::string_view name);

struct Hello {  // first message of a session
  Role role = Role::kRollout;
  std::string worker;        // unique in the run: "rollout-0"
  uint64_t incarnation = 0;  // new for every process or restart; 0: the WorkerClient chooses one
  int32_t pid = 0;
  int64_t slots = 1;           // how many leases it holds at once
  std::string numerics_class;  // backend, instruction set, dtypes (design rule 3)
  bool joined = false;         // a person added it to the run: nobody starts it again when it ends
  // Names as is_site_name() wants them, or empty.
  std::string pool = {};      // of a rollout worker: whose datasets it samples
  std::string hardware = {};  // what it computes on: "cpu"
  std::string cluster = {};   // empty: where the scheduler is
  int32_t rank = 0;           // of a trainer: which of those that train together
  // As is_host_name() wants it. Empty: the scheduler's machine.
  std::string host = {};
};
struct Heartbeat {
  // Another number whenever a worker that samples has got on since its last one; 0: nothing is said
  // of that.
  uint64_t progress = 0;
  // What has held its agents up for some seconds, for a person; empty: nothing has.
  std::string held = {};
};
// Also of failed attempts: the outcome says so. The body is an encoded trajectory
// (trajectory_codec.h), written once by the worker and stored as it arrives.
struct TrajectoryResult {
  std::vector<std::byte> body;
  // Of an attempt that is not over: the turns so far, from which another may go on. Its outcome is
  // kAborted.
  bool goes_on = false;
};
struct Verdict {  // a reward worker's answer
  LeaseId lease;
  Lane lane = Lane::kTrain;
  int32_t verify_attempt = 0;
  std::optional<double> reward;  // absent: the verifier failed
  MetricList metrics;
  std::string failure;       // why, when it failed
  bool task_broken = false;  // nobody can score this task: asking again would not help
};
struct Staged {  // the weights are here, and their digest is proved; others still sample
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;
  MetricList metrics = {};  // what that took, as docs/metrics.md names it below `weights/`
};
// Part of the payload of what is staged has come: more time is given for the rest.
struct StageProgress {
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;
  int64_t bytes = 0, total = 0;
};
struct Installed {  // what samples from now on
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;
  MetricList metrics = {};  // of the switch
};
struct InstallFailed {
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;  // that it was asked for
  std::string reason;
  InstallCause cause = InstallCause::kOther;
};
struct TrainerReady {  // after start: the weights that the trainer holds
  PolicyId policy = 0;
  // Of the checkpoint it loaded; -1: none, it will prepare (SFT) and publish 0.
  int64_t version = 0;
  Digest digest;              // of what is published; empty when version is -1
  std::string manifest = {};  // file name below RUN/weights, where they lie again; or empty
  MetricList metrics = {};    // of the step that made the version: Published may have been lost
  Digest master = {};         // of the float32 weights that it trains; empty when version is -1
};
// The batch of this step, counted from 1.
struct TrainerWants {
  PolicyId policy = 0;
  int64_t step = 0;
};
struct Published {  // step `version` is trained (0: before the first step)
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;         // of what is published, which workers prove
  std::string manifest;  // file name below RUN/weights
  MetricList metrics;    // of the step
  // Of the float32 weights, which two versions that are published alike may not share.
  Digest master = {};
};
struct Durable {  // a checkpoint of this version is on disk
  PolicyId policy = 0;
  int64_t version = 0;
  std::string path;
  int64_t oldest = 0;  // checkpoint that is kept: how far its trainer can go back
};
// Of SFT and the like.
struct Progress {
  std::string phase;
  int64_t done = 0, total = 0;
  MetricList metrics;
};
// It cannot go on (a full disk, bad weights). Before the run has begun a person must act; later the
// worker is kept from work for a while.
struct WorkerFailed {
  std::string reason;
};
// Fetches of a session that may wait for their answer; one beyond them gets none.
inline constexpr int64_t kMaxFetches = 16;
// Asks for bytes of bodies that a Batch named, one behind the other: at most max_bytes of them,
// from `offset` on. Answered by the Payload with the same `request`.
struct Fetch {
  int64_t request = 0;
  std::vector<BodyId> bodies;
  int64_t offset = 0, max_bytes = 0;
};

// ---- scheduler -> worker

struct Welcome {  // answers Hello
  uint64_t session = 0;
};
// Follows Welcome: the work that is still leased to the worker. What it does besides is void; what
// it has of these goes on, and what it lacks is granted again. Weights stay.
struct Hold {
  std::vector<BodyId> leases;
};
struct Grant {
  LeaseId lease;
  Lane lane = Lane::kTrain;
  int64_t version = 0;  // runs on weights >= version (evaluation: exactly)
  // The turns of an attempt before it, as that worker encoded them: the episode goes on behind
  // them. Empty: from its beginning.
  std::vector<std::byte> prefix = {};
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
struct Stage {  // fetch and prove these weights, while the present ones sample
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;
  std::string manifest;  // file name below RUN/weights
};
struct Switch {  // sample by what is staged
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;
};
// Answers TrainerWants: the members of a step, or of the groups of it that have become complete
// since the part before it. Each part, where there are several, is in the batch_order() of prompts.
struct Batch {
  struct Item {
    LeaseId lease;
    double reward = 0;      // that counts: a verifier's is not in the body
    int64_t bytes = 0;      // of the body, to be fetched
    uint64_t checksum = 0;  // checksum_of() it
    // The value that its group is judged by in the place of the reward (algo.filter_metric).
    std::optional<double> judged = {};
    friend bool operator==(const Item&, const Item&) = default;
  };
  PolicyId policy = 0;
  int64_t step = 0;
  int64_t first = 0;  // items of the parts before it
  bool last = true;   // no more parts come
  std::vector<Item> items;
  // With the last part: which part of the run the step is, 0 <= begin <= end <= 1.
  double share_begin = 0, share_end = 0;
};
struct Payload {  // answers Fetch
  int64_t request = 0;
  std::vector<std::byte> bytes;
};
struct Save {  // write a checkpoint of this version before anything else
  PolicyId policy = 0;
  int64_t version = 0;
};
struct Shutdown {  // end cleanly
  std::string reason;
};
// Several trainers train together: meet the others under this name, and go on from what rank 0
// holds.
struct FormRanks {
  PolicyId policy = 0;
  uint64_t formation = 0;
  int32_t rank = 0, size = 1;
};
// To the trainer: nobody needs the published weights of versions below `below` any more, and nobody
// fetches the payload of one below `fetched_from`, which may be kept as a delta, but for the one
// that is evaluated.
struct ReleaseWeights {
  PolicyId policy = 0;
  int64_t below = 0;
  int64_t fetched_from = 0;
  int64_t evaluated = -1;  // -1: none
};

using Message =
    std::variant<Hello, Heartbeat, TrajectoryResult, Verdict, Staged, Installed, InstallFailed,
                 TrainerReady, TrainerWants, Published, Durable, Progress, WorkerFailed, Fetch,
                 Welcome, Hold, Grant, Abort, Verify, Stage, Switch, Batch, Payload, Save, Shutdown,
                 FormRanks, StageProgress, ReleaseWeights>;

// For log lines: "Grant p0/d0/e0/q12/l0/m3#1".
std::string describe(const Message& message);

// Whether a worker sends such messages; the scheduler sends the others.
bool is_from_worker(const Message& message);

// Whether they are those of its role.
bool is_said_by(Role role, const Message& message);

}  // namespace tailrace::wire
