// The messages between scheduler and workers: plain structs, with all that is known of each. To add
// one: its struct here (TR_MESSAGE: speaker and fields; check(): ranges) and its name at the end of
// Message; scheduler/state/event.h (From, with expects()) or action.h (To); the part of
// scheduler/decide that hears it or says it; the worker; a sample in tests/core/wire/samples.h. One
// that is no affair of the law has a handler in scheduler/service. Delivery is at least once, in
// order for one worker (core/wire); acceptance is idempotent, because work is named by leases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/digest.h"
#include "core/base/fields.h"
#include "core/base/ids.h"
#include "core/base/install_cause.h"
#include "core/base/metric_list.h"
#include "core/messages/check.h"

namespace tailrace::wire {

// One trajectory, of some 20 million tokens: nothing larger travels.
inline constexpr int64_t kMaxMessageBytes = int64_t{256} << 20;
// More than any engine has; without a bound a peer's mistake would draw all the work there is.
inline constexpr int64_t kMaxSlots = 1 << 20;
inline constexpr int32_t kMaxRanks = 1 << 16;

// The sender of a message. kWorker: one of any role.
enum class Speaker : uint8_t { kScheduler, kWorker, kRollout, kReward, kTrainer };

#define TR_MESSAGE(Type, speaker, ...)                  \
  static constexpr std::string_view kName = #Type;      \
  static constexpr Speaker kSpeaker = Speaker::speaker; \
  TR_FIELDS(Type, __VA_ARGS__)

// ---- worker -> scheduler

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
  TR_MESSAGE(Hello, kWorker, role, worker, incarnation, pid, slots, numerics_class, joined, pool,
             hardware, cluster, rank, host);
  void check(Check& c) {
    c.require(!worker.empty() && worker.size() <= 255, "a worker's name of {} characters",
              worker.size());
    c.require(slots >= 1 && slots <= kMaxSlots, "{} slots", slots);
    c.cut(numerics_class, 64);
    c.site_name(pool, "pool");
    c.site_name(hardware, "hardware");
    c.site_name(cluster, "cluster");
    c.host_name(host);
    c.rank(rank, role == Role::kTrainer ? kMaxRanks : 1);
  }
};
struct Heartbeat {
  // Another number whenever a worker that samples has got on since its last one; 0: nothing is said
  // of that.
  uint64_t progress = 0;
  // The cause that has held up its agents for some seconds, for a person; empty: none has.
  std::string held = {};
  TR_MESSAGE(Heartbeat, kWorker, progress, held);
  void check(Check& c) { c.line(held, 400); }
};
// Also of failed attempts: the outcome says so. The body is an encoded trajectory
// (trajectory_codec.h), written once by the worker and stored as it arrives.
struct TrajectoryResult {
  std::vector<std::byte> body;
  // The body is of an attempt that is not over: the turns so far, from which another may go on. Its
  // outcome is kAborted.
  bool goes_on = false;
  TR_MESSAGE(TrajectoryResult, kRollout, body, goes_on);
};
struct Verdict {  // a reward worker's answer
  LeaseId lease;
  Lane lane = Lane::kTrain;
  int32_t verify_attempt = 0;
  std::optional<double> reward;  // absent: the verifier failed
  MetricList metrics;
  std::string failure;       // why, when it failed
  bool task_broken = false;  // nobody can score this task: asking again would not help
  TR_MESSAGE(Verdict, kReward, lease, lane, verify_attempt, reward, metrics, failure, task_broken);
  void check(Check& c) {
    c.at_least(0, verify_attempt, "verify_attempt");
    if (reward) c.finite(*reward, "reward");
    c.cut(failure);
  }
};
struct Staged {  // the weights are here, and their digest is proved; others still sample
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;
  MetricList metrics = {};  // what that took, as docs/metrics.md names it below `weights/`
  TR_MESSAGE(Staged, kRollout, policy, version, digest, metrics);
  void check(Check& c) { c.version_of(policy, version, digest); }
};
// Part of the payload of what is staged has come: more time is given for the rest.
struct StageProgress {
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;
  int64_t bytes = 0, total = 0;
  TR_MESSAGE(StageProgress, kRollout, policy, version, digest, bytes, total);
  void check(Check& c) {
    c.version_of(policy, version, digest);
    c.require(0 <= bytes && bytes <= total, "{} bytes of {}", bytes, total);
  }
};
struct Installed {  // what samples from now on
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;
  MetricList metrics = {};  // of the switch
  TR_MESSAGE(Installed, kRollout, policy, version, digest, metrics);
  void check(Check& c) { c.version_of(policy, version, digest); }
};
struct InstallFailed {
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;  // that it was asked for
  std::string reason;
  InstallCause cause = InstallCause::kOther;
  TR_MESSAGE(InstallFailed, kRollout, policy, version, digest, reason, cause);
  void check(Check& c) {
    c.version_of(policy, version, digest);
    c.cut(reason);
  }
};
struct TrainerReady {  // after start: the weights that the trainer holds
  PolicyId policy = 0;
  // The version of the checkpoint it loaded; -1: none, it will prepare (SFT) and publish 0.
  int64_t version = 0;
  Digest digest;              // of what is published; empty when version is -1
  std::string manifest = {};  // file name below RUN/weights, where they lie again; or empty
  Digest master = {};         // of the float32 weights that it trains; empty when version is -1
  MetricList metrics = {};    // of the step that made the version: Published may have been lost
  TR_MESSAGE(TrainerReady, kTrainer, policy, version, digest, manifest, master, metrics);
  void check(Check& c) {
    c.at_least(0, policy, "policy");
    c.at_least(-1, version, "version");
    c.digest(digest);
    if (!manifest.empty()) c.file_name(manifest);
    c.digest(master);
  }
};
// The batch of this step, counted from 1.
struct TrainerWants {
  PolicyId policy = 0;
  int64_t step = 0;
  TR_MESSAGE(TrainerWants, kTrainer, policy, step);
  void check(Check& c) {
    c.at_least(0, policy, "policy");
    c.at_least(1, step, "step");
  }
};
struct Published {  // step `version` is trained (0: before the first step)
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;         // of what is published, which workers prove
  std::string manifest;  // file name below RUN/weights
  // The digest of the float32 weights, which two versions that are published alike may not share.
  Digest master = {};
  MetricList metrics = {};  // of the step
  TR_MESSAGE(Published, kTrainer, policy, version, digest, manifest, master, metrics);
  void check(Check& c) {
    c.version_of(policy, version, digest);
    c.file_name(manifest);
    c.digest(master);
  }
};
struct Durable {  // a checkpoint of this version is on disk
  PolicyId policy = 0;
  int64_t version = 0;
  int64_t oldest = 0;  // checkpoint that is kept: how far its trainer can go back
  std::string path = {};
  TR_MESSAGE(Durable, kTrainer, policy, version, oldest, path);
  void check(Check& c) {
    c.version_of(policy, version);
    c.at_least(0, oldest, "oldest");
    c.require(path.size() <= 4096, "a path of {} characters", path.size());
  }
};
// The trainer begins a training on rows, or goes on with it: stage `number` of `of`, from 1.
struct TrainingStage {
  PolicyId policy = 0;
  int64_t number = 0, of = 0;
  std::string name;
  TR_MESSAGE(TrainingStage, kTrainer, policy, number, of, name);
  void check(Check& c) {
    c.at_least(0, policy, "policy");
    c.at_least(1, number, "number");
    c.at_least(number, of, "of");
    c.cut(name);
  }
};
// The progress of a training on rows: of the stage with this number.
struct Progress {
  std::string phase;  // its kind: "sft"
  int64_t done = 0, total = 0;
  MetricList metrics;
  int64_t stage = 1;
  TR_MESSAGE(Progress, kTrainer, phase, done, total, metrics, stage);
  void check(Check& c) {
    c.at_least(1, stage, "stage");
    c.cut(phase);
    c.at_least(0, done, "done");
    c.at_least(0, total, "total");
  }
};
// It cannot go on (a full disk, bad weights). Before the run has begun a person must act; later the
// worker is kept from work for a while.
struct WorkerFailed {
  std::string reason;
  TR_MESSAGE(WorkerFailed, kWorker, reason);
  void check(Check& c) { c.cut(reason); }
};
// Fetches of a session that may wait for their answer; one beyond them gets none.
inline constexpr int64_t kMaxFetches = 16;
// Asks for bytes of bodies that a Batch named, one behind the other: at most max_bytes of them,
// from `offset` on. Answered by the Payload with the same `request`.
struct Fetch {
  int64_t request = 0;
  std::vector<BodyId> bodies;
  int64_t offset = 0, max_bytes = 0;
  TR_MESSAGE(Fetch, kTrainer, request, bodies, offset, max_bytes);
  void check(Check& c) {
    c.at_least(0, request, "request");
    c.at_least(0, offset, "offset");
    c.at_least(1, max_bytes, "max_bytes");
    c.whole(bodies);
  }
};

// ---- scheduler -> worker

struct Welcome {  // answers Hello
  uint64_t session = 0;
  TR_MESSAGE(Welcome, kScheduler, session);
};
// Follows Welcome: the work that is still leased to the worker. What it does besides is void; what
// it has of these goes on, and what it lacks is granted again. Weights stay.
struct Hold {
  std::vector<BodyId> leases;
  TR_MESSAGE(Hold, kScheduler, leases);
  void check(Check& c) { c.whole(leases); }
};
struct Grant {
  LeaseId lease;
  Lane lane = Lane::kTrain;
  int64_t version = 0;  // runs on weights >= version (evaluation: exactly)
  // The turns of an attempt before it, as that worker encoded them: the episode goes on behind
  // them. Empty: from its beginning.
  std::vector<std::byte> prefix = {};
  TR_MESSAGE(Grant, kScheduler, lease, lane, version, prefix);
  void check(Check& c) { c.at_least(0, version, "version"); }
};
struct Abort {
  LeaseId lease;
  Lane lane = Lane::kTrain;
  TR_MESSAGE(Abort, kScheduler, lease, lane);
};
struct Verify {
  LeaseId lease;
  Lane lane = Lane::kTrain;
  int32_t verify_attempt = 0;
  std::string verifier, evidence;
  TR_MESSAGE(Verify, kScheduler, lease, lane, verify_attempt, verifier, evidence);
  void check(Check& c) { c.at_least(0, verify_attempt, "verify_attempt"); }
};
struct Stage {  // fetch and prove these weights, while the present ones sample
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;
  std::string manifest;  // file name below RUN/weights
  TR_MESSAGE(Stage, kScheduler, policy, version, digest, manifest);
  void check(Check& c) {
    c.version_of(policy, version, digest);
    c.file_name(manifest);
  }
};
struct Switch {  // sample by what is staged
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;
  TR_MESSAGE(Switch, kScheduler, policy, version, digest);
  void check(Check& c) { c.version_of(policy, version, digest); }
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
    TR_FIELDS(Item, lease, reward, bytes, checksum, judged);
  };
  PolicyId policy = 0;
  int64_t step = 0;
  int64_t first = 0;  // items of the parts before it
  bool last = true;   // no more parts come
  std::vector<Item> items;
  // With the last part: which part of the run the step is, 0 <= begin <= end <= 1.
  double share_begin = 0, share_end = 0;
  TR_MESSAGE(Batch, kScheduler, policy, step, first, last, items, share_begin, share_end);
  void check(Check& c) {
    c.at_least(0, policy, "policy");
    c.at_least(1, step, "step");
    c.at_least(0, first, "first");
    // Also of one that is not a number.
    c.require(share_begin >= 0 && share_begin <= share_end && share_end <= 1,
              "a step from {} to {} of the run", share_begin, share_end);
    for (const Item& item : items) {
      c.finite(item.reward, "reward");
      if (item.judged) c.finite(*item.judged, "judged by");
      // A body came in one message.
      c.require(item.bytes >= 1 && item.bytes <= kMaxMessageBytes, "a body of {} bytes",
                item.bytes);
    }
  }
};
struct Payload {  // answers Fetch
  int64_t request = 0;
  std::vector<std::byte> bytes;
  TR_MESSAGE(Payload, kScheduler, request, bytes);
  void check(Check& c) { c.at_least(0, request, "request"); }
};
struct Save {  // write a checkpoint of this version before anything else
  PolicyId policy = 0;
  int64_t version = 0;
  TR_MESSAGE(Save, kScheduler, policy, version);
  void check(Check& c) { c.version_of(policy, version); }
};
struct Shutdown {  // end cleanly
  std::string reason;
  TR_MESSAGE(Shutdown, kScheduler, reason);
  void check(Check& c) { c.cut(reason); }
};
// Several trainers train together: meet the others under this name, and go on from what rank 0
// holds.
struct FormRanks {
  PolicyId policy = 0;
  uint64_t formation = 0;
  int32_t rank = 0, size = 1;
  TR_MESSAGE(FormRanks, kScheduler, policy, formation, rank, size);
  void check(Check& c) {
    c.at_least(0, policy, "policy");
    c.require(size >= 2 && size <= kMaxRanks, "{} ranks", size);
    c.rank(rank, size);
  }
};
// To the trainer: nobody needs the published weights of versions below `below` any more, and nobody
// fetches the payload of one below `fetched_from`, which may be kept as a delta, but for the one
// that is evaluated.
struct ReleaseWeights {
  PolicyId policy = 0;
  int64_t below = 0;
  int64_t fetched_from = 0;
  int64_t evaluated = -1;  // -1: none
  TR_MESSAGE(ReleaseWeights, kScheduler, policy, below, fetched_from, evaluated);
  void check(Check& c) {
    c.at_least(0, policy, "policy");
    c.at_least(0, below, "below");
    c.at_least(0, fetched_from, "fetched_from");
    c.at_least(-1, evaluated, "evaluated");
  }
};

using Message =
    std::variant<Hello, Heartbeat, TrajectoryResult, Verdict, Staged, Installed, InstallFailed,
                 TrainerReady, TrainerWants, Published, Durable, Progress, WorkerFailed, Fetch,
                 Welcome, Hold, Grant, Abort, Verify, Stage, Switch, Batch, Payload, Save, Shutdown,
                 FormRanks, StageProgress, ReleaseWeights, TrainingStage>;

std::string_view name_of(const Message& message);  // "Grant"

// For log lines: "Grant lease=p0/d0/e0/q12/l0/m3#1 lane=train version=3".
std::string describe(const Message& message);

// Whether a worker sends such messages; the scheduler sends the others.
bool is_from_worker(const Message& message);

// Whether they are those of its role.
bool is_said_by(Role role, const Message& message);

}  // namespace tailrace::wire
