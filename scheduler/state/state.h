// All that the scheduler knows: a value. It can be copied, compared and written to bytes
// (archive.h); two schedulers with equal states answer equal events with equal actions.
//
// Invariants that tie the parts together are in invariants.h and are checked after every event of
// the randomised tests.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/digest.h"
#include "core/base/enum_names.h"
#include "core/base/ids.h"
#include "core/base/time.h"
#include "scheduler/state/attempt_window.h"
#include "scheduler/state/config.h"
#include "scheduler/state/event.h"
#include "scheduler/state/hashed_map.h"
#include "scheduler/state/index.h"
#include "scheduler/state/leases.h"

namespace tailrace::scheduler {

// The last three are settled; the last is not needed any more: enough of its siblings have a
// reward.
enum class Phase : uint8_t {
  kWaiting,
  kRunning,
  kToVerify,
  kVerifying,
  kRewarded,
  kFailed,
  kSurplus
};

// The stored turns of an attempt that was not over: the next one goes on from there (law 6.8).
struct Prefix {
  int32_t attempt = 0;  // that sampled it, or went on from another prefix
  int32_t turns = 0;
  int64_t tokens = 0;                        // sampled
  int64_t min_version = 0, max_version = 0;  // of these
  template <class V>
  void fields(V& visit) {
    visit(attempt, turns, tokens, min_version, max_version);
  }
  friend bool operator==(const Prefix&, const Prefix&) = default;
};

struct Member {
  Phase phase = Phase::kWaiting;
  int32_t attempt = 0;         // whose lease or body counts
  int32_t last_attempt = 0;    // the newest lease, counted from 1
  int32_t verify_attempt = 0;  // the newest verification of this attempt, counted from 1
  int32_t env_failures = 0, verifier_failures = 0, losses = 0;
  int32_t returns = 0;  // by workers that said goodbye
  int32_t moves = 0;    // away from workers that stood still
  // The older of two versions: its worker's at the grant, and that of the prefix it went on from.
  int64_t granted_version = -1;
  int64_t min_version = -1, max_version = -1;  // of its sampled tokens
  std::optional<Prefix> prefix;                // only while it waits or runs
  bool has_body = false;                       // the store holds the body of `attempt`
  std::map<WorkerId, Time> rests;  // where it failed, and until when it does not go back there
  std::optional<double> reward;
  // The value by which its group is judged in place of the reward (algo.filter_metric); nothing: it
  // says nothing of the group, unless all lack it.
  std::optional<double> judged = {};
  template <class V>
  void fields(V& visit) {
    visit(phase, attempt, last_attempt, verify_attempt, env_failures, verifier_failures, losses,
          returns, moves, granted_version, min_version, max_version, prefix, has_body, rests,
          reward, judged);
  }
  friend bool operator==(const Member&, const Member&) = default;
};

// Where a task is (law 2.1); those that the cursor has not reached are in the dataset.
enum class Place : uint8_t {
  kQueued,  // to be launched again
  kLong,    // the same, in a round of long prompts
  kRunning,
  kParked,  // complete, without a place in a step yet (TailPolicy::kKeep)
  kReady,
  kHandedOver,
  kDone
};

enum class TaskEnd : uint8_t { kTrained, kFiltered, kFailed, kStale, kUnreached, kBroken };
constexpr auto enum_names(TaskEnd) {
  return name_table<TaskEnd>({{TaskEnd::kTrained, "trained"},
                              {TaskEnd::kFiltered, "filtered"},
                              {TaskEnd::kFailed, "failed"},
                              {TaskEnd::kStale, "stale"},
                              {TaskEnd::kUnreached, "unreached"},
                              {TaskEnd::kBroken, "broken"}});
}

// Names a round of a policy, from 1; never given twice.
using RoundId = int64_t;

struct Task {
  Place place = Place::kRunning;
  int32_t launch = 0;
  int32_t attempts = 0;      // that members of this launch had before they were made anew
  int64_t weight_floor = 0;  // this launch runs on weights >= floor
  // The round that keeps a place for it, or kept one: it may be closed. 0: none, for tasks of an
  // evaluation, queued ones, and those that run on behind their round (TailPolicy::kKeep).
  RoundId round = 0;
  // Once handed over, the step of the batch; once done, the step whose checkpoint makes that final.
  int64_t step = 0;
  TaskEnd end = TaskEnd::kTrained;  // once done
  int64_t longest = -1;             // most tokens of a sample of this launch; -1: none has come
  std::vector<Member> members;
  template <class V>
  void fields(V& visit) {
    visit(place, launch, attempts, weight_floor, round, step, end, longest, members);
  }
  friend bool operator==(const Task&, const Task&) = default;
};

// Tasks of a dataset that nobody can play or score (law 6.10).
struct BrokenTasks {
  std::set<int64_t> rows;      // that no prompt plays any more; none of a dataset without rows
  std::set<int64_t> held_out;  // prompts of evaluations
  int64_t found = 0;           // tasks, of either kind, and of a dataset without rows as well
  int64_t in_a_row = 0;        // of training, since the dataset's last reward
  std::string last_reason;
  template <class V>
  void fields(V& visit) {
    visit(rows, held_out, found, in_a_row, last_reason);
  }
  friend bool operator==(const BrokenTasks&, const BrokenTasks&) = default;
};

// The cursor over one dataset's prompts, and its groups that wait for somebody.
struct Dataset {
  int64_t epoch = 0, next = 0;  // the next prompt to launch, never one of a broken row
  std::set<TaskId> queued;      // launched before, to be launched again (another lineage)
  std::set<TaskId> long_queue;  // the same, left behind by short rounds
  std::set<TaskId> carried;     // run on behind their round, which is full
  std::deque<TaskId> parked;    // of those, complete; in order of completion
  std::deque<TaskId> ready;     // complete groups, in order of completion
  BrokenTasks broken;
  std::array<int64_t, kEnumNames<TaskEnd>.size()> ended{};
  int64_t& ended_as(TaskEnd end) { return ended[static_cast<size_t>(end)]; }
  int64_t ended_as(TaskEnd end) const { return ended[static_cast<size_t>(end)]; }
  template <class V>
  void fields(V& visit) {
    visit(epoch, next, queued, long_queue, carried, parked, ready, broken);
    for (int64_t& count : ended) visit(count);
  }
  friend bool operator==(const Dataset&, const Dataset&) = default;
};

// A dataset's part of a round. Places that are not accepted yet are reserved: they count against
// the credit.
struct Share {
  int64_t target = 0;         // groups that the round keeps
  int64_t launch_target = 0;  // groups that it starts; over-provisioning: more than target
  int64_t running = 0;        // started and undecided
  int64_t accepted = 0;       // complete groups held
  template <class V>
  void fields(V& visit) {
    visit(target, launch_target, running, accepted);
  }
  friend bool operator==(const Share&, const Share&) = default;
};

// Tail batching has two kinds: a short round starts a surplus and leaves the slowest prompts to the
// long queue, a long round takes them from there and has none.
enum class RoundKind : uint8_t { kPlain, kShort, kLong };
constexpr auto enum_names(RoundKind) {
  using enum RoundKind;
  return name_table<RoundKind>({{kPlain, "plain"}, {kShort, "short"}, {kLong, "long"}});
}

struct Round {
  RoundId id = 0;
  RoundKind kind = RoundKind::kPlain;
  int64_t step = 0;           // that was next when it opened
  std::vector<Share> shares;  // one a dataset
  template <class V>
  void fields(V& visit) {
    visit(id, kind, step, shares);
  }
  friend bool operator==(const Round&, const Round&) = default;
};

// The groups of a step, kept until the oldest checkpoint covers it.
struct Batch {
  std::vector<TaskId> tasks;      // in the order of the batch
  std::vector<int64_t> datasets;  // how many of each
  bool whole = true;              // no more groups come (HandOverBy::kGroups)
  Time handed{};                  // when the trainer got it last
  // Once it is whole: the part of the run that its step is (law 3.10), and the prompts of each
  // dataset that are used with it.
  double share_begin = 0, share_end = 0;
  std::vector<int64_t> used;
  template <class V>
  void fields(V& visit) {
    visit(tasks, datasets, whole, handed, share_begin, share_end, used);
  }
  friend bool operator==(const Batch&, const Batch&) = default;
};

// How far a version has come (law 9.7). Samples may name one that is committed.
enum class VersionState : uint8_t {
  kOffered,   // published
  kStaged,    // some worker has proved it
  kCommitted  // some worker was told to sample by it
};
constexpr auto enum_names(VersionState) {
  using enum VersionState;
  return name_table<VersionState>(
      {{kOffered, "offered"}, {kStaged, "staged"}, {kCommitted, "committed"}});
}

struct Weights {
  Digest master;  // of the weights that are trained: the lineage goes by it
  Digest digest;  // of what is published: workers prove it
  std::string manifest;
  VersionState state = VersionState::kOffered;
  std::vector<int64_t> used = {};  // of the batch that it was trained on; empty: of version 0
  template <class V>
  void fields(V& visit) {
    visit(master, digest, manifest, state, used);
  }
  friend bool operator==(const Weights&, const Weights&) = default;
};

// An evaluation of one version: open while members are out, then kept until it is reported, so that
// a restart in between asks for the report again.
struct Evaluation {
  int64_t version = 0;
  int64_t open = 0;             // members that are not settled
  std::set<WorkerId> recalled;  // that had come past the version, and go back to it
  HashedMap<TaskId, Task> tasks;
  template <class V>
  void fields(V& visit) {
    visit(version, open, recalled, tasks);
  }
  friend bool operator==(const Evaluation&, const Evaluation&) = default;
};

// How attempts and verifications of the train lane ended, since the run began: for the metrics.
struct AttemptCounts {
  int64_t samples = 0;
  int64_t discarded = 0;  // of these, those that no step trains: of groups and members not kept
  int64_t env_failed = 0, verifier_failed = 0, lost = 0;
  int64_t resumed_tokens = 0;  // of prefixes that attempts went on from: not sampled again
  template <class V>
  void fields(V& visit) {
    visit(samples, discarded, env_failed, verifier_failed, lost, resumed_tokens);
  }
  friend bool operator==(const AttemptCounts&, const AttemptCounts&) = default;
};

// When the step after the frontier began, with the publication of that version, and what had been
// counted by then: the row of the step tells what came since (metrics.md).
struct StepStart {
  Time time{};
  AttemptCounts attempts;
  int64_t failed = 0, stale = 0;  // prompts
  std::vector<int64_t> filtered;  // the same, by dataset
  template <class V>
  void fields(V& visit) {
    visit(time, attempts, failed, stale, filtered);
  }
  friend bool operator==(const StepStart&, const StepStart&) = default;
};

// The training on rows that the trainer is at; number 0: it has said none.
struct RowStage {
  int64_t number = 0, of = 0;
  std::string name;
  template <class V>
  void fields(V& visit) {
    visit(number, of, name);
  }
  friend bool operator==(const RowStage&, const RowStage&) = default;
};

// All that belongs to one trained policy.
struct Policy {
  int64_t published = -1;              // what the trainer holds
  int64_t frontier = -1;               // newest version of this lineage; see at_frontier()
  int64_t durable = -1;                // newest version with a checkpoint
  std::map<int64_t, Weights> lineage;  // from the oldest checkpoint on
  std::vector<Dataset> datasets;
  HashedMap<TaskId, Task> tasks;      // launched, and not yet in the oldest checkpoint
  std::vector<Round> rounds;          // open ones, oldest first
  RoundId last_round = 0;             // the newest that was opened
  std::map<int64_t, Batch> batches;   // by step: handed over, and not yet in the oldest checkpoint
  WorkerId trainer;                   // that trains it; empty: none has come yet
  uint64_t trainer_incarnation = 0;   // of the process that said so
  std::map<int32_t, WorkerId> ranks;  // its other ranks that are connected, from 1 (law 8.7)
  uint64_t formation = 0;             // that all ranks were told to form; 0: none
  std::optional<int64_t> wanted;      // the step that the trainer asked for
  int64_t told = 0;                   // groups of it that it was given
  int64_t told_items = 0;             // the items of these; derived, so never archived
  bool handed = false;                // and was given whole; it trains
  bool greeted = true;  // a trainer has said what it holds, since the scheduler's last restart
  int64_t saving = -1;  // the version that it was asked to save in this session
  // Published weights of versions below it are needed by nobody (law 9.8), and what of that the
  // trainer was told in this session.
  int64_t released = 0, told_released = 0;
  // The same of their payloads: versions from here on may be asked for by a worker, and those
  // before it may be kept as deltas.
  int64_t fetched_from = 0, told_fetched_from = 0;
  std::optional<Evaluation> evaluation;
  int64_t evaluated = -1;   // newest version that was, or is being, evaluated
  int32_t eval_launch = 0;  // of the next evaluation: raised when a version is evaluated anew
  AttemptCounts attempts;
  StepStart step_start;  // of the step that is next, or under way
  RowStage stage;        // before there is a first version
  template <class V>
  void fields(V& visit) {
    visit(published, frontier, durable, lineage, datasets, tasks, rounds, last_round, batches,
          trainer, trainer_incarnation, ranks, formation, wanted, told, handed, greeted, saving,
          released, told_released, fetched_from, told_fetched_from, evaluation, evaluated,
          eval_launch, attempts, step_start, stage);
  }
  friend bool operator==(const Policy&, const Policy&) = default;
};

// An install under way (law 9.6): what the worker is to sample by next. Staging goes on beside what
// it samples; what is staged waits until nothing needs the weights before; while it switches it is
// granted nothing.
struct Install {
  enum class Phase : uint8_t { kStaging, kStaged, kSwitching };
  Phase phase = Phase::kStaging;
  int64_t version = 0;
  Digest digest;
  Time deadline{};    // unless staged: then it has failed
  int64_t bytes = 0;  // that were there when the deadline was renewed last
  template <class V>
  void fields(V& visit) {
    visit(phase, version, digest, deadline, bytes);
  }
  friend bool operator==(const Install&, const Install&) = default;
};

// Weights could not come to a worker, through no fault of its own: it is asked to stage again after
// a rest, which is longer each time in a row (law 9.7).
struct StageRest {
  int64_t times = 0;
  Time until{};
  int64_t version = 0;  // of the latest
  InstallCause cause = InstallCause::kSource;
  std::string reason;
  template <class V>
  void fields(V& visit) {
    visit(times, until, version, cause, reason);
  }
  friend bool operator==(const StageRest&, const StageRest&) = default;
};

struct Worker {
  Role role = Role::kRollout;
  PolicyId policy = 0;
  uint64_t incarnation = 0;
  uint64_t session = 0;
  bool joined = false;  // WorkerUp::joined
  Site site;
  int32_t rank = 0;           // WorkerUp::rank
  bool connected = true;      // false: not heard of since a restart, or silent
  bool stalled = false;       // it stands still (law 8.6)
  Time reconnect_deadline{};  // while not connected; then it is lost
  int64_t slots = 1;
  int64_t leased = 0;
  int64_t version = -1;  // what it samples by; -1: nothing that it has proved in this session
  Digest digest;
  // The version that its process has sampled by last, also while that is not proved in this
  // session; -1: none.
  int64_t held = -1;
  std::optional<Install> install;
  std::optional<StageRest> rest;  // until it has staged something
  // Words of a trainer that is not its policy's, until it is (law 8.3).
  std::optional<RolledBack> greeting;
  std::optional<TrainerWants> question;
  Index::Entry indexed;  // what the index says of it; derived, so never archived
  template <class V>
  void fields(V& visit) {
    visit(role, policy, incarnation, session, joined, site, rank, connected, stalled,
          reconnect_deadline, slots, leased, version, digest, held, install, rest, greeting,
          question);
  }
  friend bool operator==(const Worker&, const Worker&) = default;
};

enum class Fault : uint8_t {
  kLost,         // its process went, with work in hand
  kSilent,       // no answer within the deadline
  kInstall,      // weights did not load
  kEnvironment,  // its environments failed, while others' did not
  kVerifier,     // the same of verifiers
  kFailed,       // it said that it cannot go on
};
constexpr auto enum_names(Fault) {
  return name_table<Fault>({{Fault::kLost, "lost"},
                            {Fault::kSilent, "silent"},
                            {Fault::kInstall, "install"},
                            {Fault::kEnvironment, "environment"},
                            {Fault::kVerifier, "verifier"},
                            {Fault::kFailed, "failed"}});
}

// How a worker has done lately: kept under its name, so that neither a new session nor a new
// process forgets it, and forgotten at its next good answer.
struct Health {
  Role role = Role::kRollout;
  PolicyId policy = 0;
  std::string pool;
  int32_t rank = 0;
  bool joined = false;      // nobody starts it again
  int64_t faults = 0;       // since the last quarantine, of different tasks
  int64_t quarantines = 0;  // in a row
  Time until{};             // of the last one: no work before
  Time left{};              // when its process was last seen to be gone
  Fault fault = Fault::kLost;
  std::string reason;                       // of the latest fault
  std::set<std::pair<Lane, TaskId>> tasks;  // that the faults are about, if they are about one
  template <class V>
  void fields(V& visit) {
    visit(role, policy, pool, rank, joined, faults, quarantines, until, left, fault, reason, tasks);
  }
  friend bool operator==(const Health&, const Health&) = default;
};

// By what the breaker judges a pool (law 7.6).
struct Breaker {
  AttemptWindow window;
  std::map<Outcome, std::string> last_reason;
  template <class V>
  void fields(V& visit) {
    visit(window, last_reason);
  }
  friend bool operator==(const Breaker&, const Breaker&) = default;
};

struct RunEnd {
  enum class Reason : uint8_t { kSteps, kDataEnd, kStopped };
  Reason reason = Reason::kSteps;
  int64_t unreached = 0;  // prompts of finite data that did not get their turn
  template <class V>
  void fields(V& visit) {
    visit(reason, unreached);
  }
  friend bool operator==(const RunEnd&, const RunEnd&) = default;
};

// The workers that members wait for: rollout workers with weights of this version or a newer (of
// evaluation: exactly this one), of this pool, if it has a name. Evaluation sorts first, then what
// was launched first, then what has only one pool to go to.
struct Need {
  Lane lane = Lane::kTrain;
  PolicyId policy = 0;
  int64_t floor = 0;
  std::string pool = {};
  template <class V>
  void fields(V& visit) {
    visit(lane, policy, floor, pool);
  }
  friend bool operator==(const Need&, const Need&) = default;
  friend std::strong_ordering operator<=>(const Need& a, const Need& b) {
    if (a.lane != b.lane)
      return a.lane == Lane::kEval ? std::strong_ordering::less : std::strong_ordering::greater;
    if (a.policy != b.policy) return a.policy <=> b.policy;
    if (a.floor != b.floor) return a.floor <=> b.floor;
    if (a.pool.empty() != b.pool.empty()) return a.pool.empty() <=> b.pool.empty();
    return a.pool <=> b.pool;
  }
};

// A member in its queue: the smaller rank is granted first, and of equals what was launched first.
// With DispatchOrder::kLaunched all are equal.
struct Waiting {
  int64_t rank = 0;
  WorkId work;
  template <class V>
  void fields(V& visit) {
    visit(rank, work);
  }
  friend bool operator==(const Waiting&, const Waiting&) = default;
  friend auto operator<=>(const Waiting&, const Waiting&) = default;
};

struct State {
  Config config;
  Time now{};  // never goes back
  std::map<PolicyId, Policy> policies;
  HashedMap<WorkerId, Worker> workers;
  Leases leases;
  std::map<Need, std::set<Waiting>> waiting;  // members in Phase::kWaiting
  std::set<WorkId> to_verify;                 // members in Phase::kToVerify
  std::set<Time> rest_ends;                   // of members, as far as they lie ahead
  std::map<WorkerId, Health> health;          // faults, quarantines, and who has left
  // Names in `health` that no worker has, by when they were last heard of or given up;
  // derived, so never archived. See find_away() (touch.h).
  std::set<std::pair<Time, WorkerId>> away;
  std::map<std::pair<Role, PoolId>, Breaker> breakers;  // by pool
  bool begun = false;  // some worker has installed weights: from now on no single one ends the run
  bool stopping = false;
  Time stop_deadline{};       // while stopping: for the step that is being trained
  std::string halted;         // why; empty: not halted
  std::optional<RunEnd> end;  // nothing is left to do; the last version is being saved
  Time end_deadline{};        // for that
  bool ended = false;         // RunDone was given
  // Pools for whose workers held-out members wait that a version behind the frontier is to sample:
  // their workers keep that version, or come to it. Those without a name: all of the policy.
  // Derived, so never archived; see follow_evaluations() (touch.h).
  std::set<PoolId> held_out;
  Index index;  // of workers; see touch.h

  State() = default;
  explicit State(Config run, int num_policies = 1);

  template <class V>
  void fields(V& visit) {
    visit(config, now, policies, workers, leases, waiting, to_verify, rest_ends, health, breakers,
          begun, stopping, stop_deadline, halted, end, end_deadline, ended);
  }
  // For who has just read one: what is derived is not archived (touch.cc).
  void after_reading();
  friend bool operator==(const State&, const State&) = default;
};

// The task of this launch, or null: unknown, ended, or launched again since.
const Task* find_task(const State& state, Lane lane, const MemberId& member);
Task* find_task(State& state, Lane lane, const MemberId& member);

// A member that is known to be there: a lease or a queue names it.
Member& member_of(State& state, const WorkId& work);

Dataset& dataset_of(Policy& policy, const TaskId& id);

// The row of the dataset that the task plays in training; of a dataset without rows the prompt.
int64_t row_of(const State& state, const TaskId& id);
// It was said of the task's row, or of the held-out prompt, that nobody can play it.
bool is_broken(const State& state, Lane lane, const TaskId& id);
// No row is left that could be played.
bool all_broken(const DatasetConfig& config, const Dataset& dataset);

// Nothing more happens to the member: it has its reward, or has failed for good.
bool settled(const Member& member);

// The oldest version that a token of the group was, or may be, sampled by: of what was granted,
// that of its grant. Nothing while all its members wait.
std::optional<int64_t> oldest_version(const Task& task);

// The oldest version that a stored body, stored turns or a lease that samples names, of training
// and evaluation; nothing: none does.
std::optional<int64_t> oldest_sampled(const Policy& policy);

// An attempt or a verification of it has failed.
bool tried_before(const Member& member);

// The member failed at this worker a moment ago (law 6.5). Without this the worker that has just
// failed would have most room, and most siblings, for the retry.
bool is_avoided(const State& state, const Member& member, const WorkerId& id);

// The value of Evaluation::open.
int64_t count_open(const Evaluation& evaluation);
// Members of the evaluation that are still out.
int64_t num_open(const Policy& policy);
bool evaluating(const Policy& policy);

// No new batch is handed over before the evaluation that is there is reported: where trainer and
// worker take turns, and where the frontier is to be evaluated as well, which the next version
// would come before (law 10.1).
bool waits_for_report(const Config& config, const Policy& policy);

// The worker has sampled by later weights of the present lineage than this version's, by what it
// has sampled by last, also if that is not proved in this session.
bool is_past(const Policy& policy, const Worker& worker, int64_t version);

// The version that the policy's rollout worker is to hold: the evaluated one, while it samples a
// held-out member or could be granted one, unless it has come past that version and was not
// recalled; else the frontier (law 10.1).
int64_t wanted_version(const State& state, const Policy& policy, const WorkerId& id,
                       const Worker& worker);

// The version by which the worker is to sample next, if not by its own: the one wanted of it, or,
// where it has that because it is evaluated, the frontier.
std::optional<int64_t> next_version(const State& state, const Policy& policy, const WorkerId& id,
                                    const Worker& worker);

// It has been asked to stage or to switch, and has not answered.
bool is_asked(const Worker& worker);

// The items of the groups that the trainer was told of: its members with a reward.
int64_t count_told_items(const Policy& policy);

// Whether the policy's trainer may publish `version` next: it has the whole batch that leads to it.
bool comes_next(const Policy& policy, int64_t version);
// Whether no trainer can have saved this checkpoint by what the state knows: then it is an old
// state, and the events since are gone. A trainer is one version ahead at most (law 12.2).
bool is_beyond(const Policy& policy, int64_t checkpoint);

// The weights published as this version in the present lineage have this digest: a worker that
// proved it holds the version, whatever master it was made from (law 9.7).
bool on_lineage(const Policy& policy, int64_t version, const Digest& digest);
// The trainer holds the weights of the present lineage.
bool is_master(const Policy& policy, int64_t version, const Digest& master);

// Now, with what is counted up to now.
StepStart step_start_at(const Policy& policy, Time now);

// The trainer holds the newest version. False before the first one, and while a trainer that came
// back with an older one trains the batches since then again.
bool at_frontier(const Policy& policy);

// The policy's trainer, when it is connected; else null.
const Worker* trainer_of(const State& state, const Policy& policy);
// Its trainer, with all its ranks, can be given work: each is there, not in quarantine, and has
// been told to meet the others.
bool can_train(const State& state, const Policy& policy);
// The policy of this id, if `worker` trains it; else nothing.
const Policy* policy_of_trainer(const State& state, PolicyId id, const WorkerId& worker);

// The checkpoint of the published version is on disk, or there is nothing to save.
bool saved(const Policy& policy);

// Not asked to stage for now: its source was dead, or its base wrong.
bool is_resting(const State& state, const Worker& worker);

// Null: nothing is held against it. The questions below about a worker's health take it too, for
// who asks several.
const Health* find_health(const State& state, const WorkerId& worker);

// Kept from work for now. It ends by time alone; no event has to take it back.
bool in_quarantine(const State& state, const Health* health);
bool in_quarantine(const State& state, const WorkerId& worker);

// Its quarantine is over, and it has not proved itself since.
bool on_trial(const State& state, const Health* health);
bool on_trial(const State& state, const WorkerId& worker);

// Faults since its last good answer, or a quarantine.
bool has_faults(const Health* health);
bool has_faults(const State& state, const WorkerId& worker);

// `first`, doubled so many times, but never more than `longest`.
Time doubled(Time first, int64_t times, Time longest);

// How many leases the worker may hold: one while it must prove itself after a quarantine.
int64_t usable_slots(const State& state, const Health* health, const Worker& worker);
int64_t usable_slots(const State& state, const WorkerId& id, const Worker& worker);

// The state counts on the body of this attempt.
bool holds_body(const State& state, const BodyId& id);

// The next time at which a tick would do something, if any: always after `now`, because every event
// does what is due.
std::optional<Time> next_deadline(const State& state);

// The samples of a task's members that have one.
std::vector<BodyId> bodies_of(Lane lane, const TaskId& id, const Task& task);
// The stored turns of a member that has some.
BodyId prefix_of(const WorkId& work, const Prefix& prefix);

// The bodies that the state still counts on. All others in the store can go.
std::vector<BodyId> held_bodies(const State& state);

}  // namespace tailrace::scheduler
