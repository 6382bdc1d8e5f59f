// The input of decide(): ids, lengths, version spans, rewards and times; never a token or a weight.
//
// A worker id names one worker of the run ("rollout-0"). Each new session of it begins with
// worker_up. Versions count from 0; step n trains on version n - 1 and publishes version n.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/fields.h"
#include "core/base/ids.h"
#include "core/messages/message.h"
#include "core/trajectory/outcome.h"
#include "scheduler/state/config.h"

namespace tailrace::scheduler {

struct State;

// `expects()`, beside each event for which it is asked: whether the run would be another one for
// it. What is late, said twice or never asked for costs no entry of the journal. (decide() itself
// answers a repeated question and hears a repeated complaint once more: to a state machine a
// message that comes twice is harmless, to a journal a million of them are not.)

// A message of a worker that is an event: the same fields, with its name before them. What was
// measured stays out of it: an event's metrics are empty.
struct Sender {
  WorkerId worker;
  friend bool operator==(const Sender&, const Sender&) = default;
};
template <class Message>
struct From : Sender, Message {
  template <class V>
  void fields(V& visit) {
    visit(this->worker);
    Message::fields(visit);
  }
  friend bool operator==(const From&, const From&) = default;
};

// Where a worker is, and what it computes on. Only the pool is decided by (law 1.5); the rest is
// for who looks.
struct Site {
  std::string pool = {};            // of a rollout worker; empty: it was put into none
  std::string hardware = {};        // what it computes on: "cpu", "cuda"; empty: not said
  std::string cluster = {};         // empty: where the scheduler is
  std::string numerics_class = {};  // whose arithmetic agrees to the last bit; empty: no arithmetic
  std::string host = {};            // name of its machine; empty: the scheduler's
  TR_FIELDS(Site, pool, hardware, cluster, numerics_class, host);
};

// A new session; an older one of the same worker has ended with it. The same process (incarnation)
// keeps its leases, another one has lost them.
struct WorkerUp {
  WorkerId worker;
  uint64_t session = 0;
  Role role = Role::kRollout;
  PolicyId policy = 0;
  uint64_t incarnation = 0;
  int64_t slots = 1;
  bool joined = false;  // a person added it: when it goes, nobody starts it again
  Site site = {};
  int32_t rank = 0;  // of a trainer: which of its ranks; 0 speaks for all (law 8.7)
  TR_FIELDS(WorkerUp, worker, session, role, policy, incarnation, slots, joined, site, rank);
};

// The session has ended and none took its place: silent too long, or said goodbye. A lost trainer
// keeps its batch's credit (law 8.3). Of an older session it means nothing.
struct WorkerDown {
  WorkerId worker;
  uint64_t session = 0;
  bool silent = false;  // nothing was heard of it; it may come back with its work (law 8.1)
  TR_FIELDS(WorkerDown, worker, session, silent);
};

// The worker says that it cannot go on. Before the first install of the run a person must act;
// later it is the worker's trouble, and others do its work.
using WorkerFailed = From<wire::WorkerFailed>;
// Said again while it is given up, it is the same trouble (law 7.2).
bool expects(const State& state, const WorkerFailed& event);

// Time passes. Every event looks at the clock; this one has nothing else to say.
struct Tick {
  TR_FIELDS(Tick);
};

// An attempt ended. The body, if the outcome has one, is in the store already.
struct AttemptResult {
  WorkerId worker;
  LeaseId lease;
  Lane lane = Lane::kTrain;
  Outcome outcome = Outcome::kFinished;
  int64_t tokens = 0;                          // sampled
  int64_t min_version = -1, max_version = -1;  // of sampled tokens; -1 when there are none
  std::optional<double> reward;                // absent: `needs_verifier`, or the attempt failed
  bool needs_verifier = false;
  std::string reason;                 // why it failed, for a person
  std::optional<double> judged = {};  // of algo.filter_metric, as far as it is known yet; finite
  TR_FIELDS(AttemptResult, worker, lease, lane, outcome, tokens, min_version, max_version, reward,
            needs_verifier, reason, judged);
};

// A verifier has spoken, or failed (no reward); `task_broken`: so would every verifier.
struct Reward {
  WorkerId worker;
  LeaseId lease;
  Lane lane = Lane::kTrain;
  int32_t verify_attempt = 0;
  std::optional<double> reward;
  std::string reason;
  bool task_broken = false;
  std::optional<double> judged = {};  // of algo.filter_metric; finite
  TR_FIELDS(Reward, worker, lease, lane, verify_attempt, reward, reason, task_broken, judged);
};

// The worker holds these weights and has proved their digest; it samples by those that it had.
using Staged = From<wire::Staged>;
bool expects(const State& state, const Staged& event);

// The staged weights have taken the place of those that the worker sampled by.
using Installed = From<wire::Installed>;
bool expects(const State& state, const Installed& event);

// The worker could not stage, or switch to, what it was asked to. It is asked again, ever less
// often.
using InstallFailed = From<wire::InstallFailed>;
bool expects(const State& state, const InstallFailed& event);

// A trainer came up and says which weights it holds; from now on it is the one that trains the
// policy, unless another one is connected that does. The published version with its digest: nothing
// to do. An older one: that checkpoint is the truth now. -1: it has none.
using RolledBack = From<wire::TrainerReady>;
// A trainer says it once in its session; said again, only other weights are news.
bool expects(const State& state, const RolledBack& event);

// The trainer asks for the batch of step `step` (published version + 1). Asked again, it gets the
// same list. This event and the two after it count from the policy's trainer alone.
using TrainerWants = From<wire::TrainerWants>;
// Asked once more in its session, a trainer has its answer, or gets it when there is one.
bool expects(const State& state, const TrainerWants& event);

// Its digest is of what is published, its master of the weights that are trained, by which the
// lineage goes (law 9.7). The manifest is opaque here, and comes back in Stage.
using Published = From<wire::Published>;
bool expects(const State& state, const Published& event);

// A checkpoint of this version is on disk. What the oldest one has consumed is never asked for
// again.
using Durable = From<wire::Durable>;
bool expects(const State& state, const Durable& event);

// The report that EvalDone asked for is on disk: its bodies can go.
struct EvalReported {
  PolicyId policy = 0;
  int64_t version = 0;
  TR_FIELDS(EvalReported, policy, version);
};

// The scheduler came back from its journal; all connections went with its process. Leases stay:
// their workers have `Deadlines::reconnect` to come back, and get every outstanding action again
// when they do.
struct Restarted {
  std::optional<Config> config;  // new rules, if the person changed them (same datasets)
  TR_FIELDS(Restarted, config);
};

// A person wants the run to end now. It can be continued: `restarted` withdraws the wish.
struct StopRequested {
  TR_FIELDS(StopRequested);
};

// After a loss of power, or damage to the disk, the store misses bodies that the journal remembers:
// their groups are launched again.
struct BodiesLost {
  std::vector<BodyId> bodies;
  TR_FIELDS(BodiesLost, bodies);
};

// A rollout worker holds work and says nothing new of it, or moves again: a new session does (law
// 8.6).
struct Stalled {
  WorkerId worker;
  uint64_t session = 0;
  bool stalled = true;
  TR_FIELDS(Stalled, worker, session, stalled);
};
// A change, of the present session.
bool expects(const State& state, const Stalled& event);

// The first turns of an attempt that goes on are in the store: another attempt may go on from there
// (law 6.8).
struct TurnsStored {
  WorkerId worker;
  LeaseId lease;
  Lane lane = Lane::kTrain;
  int32_t turns = 0;                           // at least 1
  int64_t tokens = 0;                          // sampled in them
  int64_t min_version = -1, max_version = -1;  // of these
  TR_FIELDS(TurnsStored, worker, lease, lane, turns, tokens, min_version, max_version);
};
// True for turns of the present attempt, and more than are stored.
bool expects(const State& state, const TurnsStored& event);

// Bytes of the weights that a worker stages have come: it has more time for the rest.
using StageProgress = From<wire::StageProgress>;
// More bytes of what is being staged, some time after the last that counted.
bool expects(const State& state, const StageProgress& event);

// The trainer is at a training on rows, before there is a first version (law 9.1).
using TrainingStage = From<wire::TrainingStage>;
// Another one than it was at.
bool expects(const State& state, const TrainingStage& event);

// The order is part of the journal's format: append only within one kArchiveFormat.
using Event =
    std::variant<WorkerUp, WorkerDown, WorkerFailed, Tick, AttemptResult, Reward, Staged, Installed,
                 InstallFailed, RolledBack, TrainerWants, Published, Durable, EvalReported,
                 Restarted, StopRequested, BodiesLost, Stalled, TurnsStored, StageProgress, TrainingStage>;

}  // namespace tailrace::scheduler
