// A made-up world around decide(): workers, a trainer, a wire that doubles, delays and reorders, a
// disk that may forget what was not forced out. After every event it checks the invariants and that
// nothing more would happen by itself; at the end, the accounts.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "tests/scheduler/decide/harness.h"

namespace tailrace::scheduler {

// "a", "b", ...
std::string pool_name(int64_t index);

// Any legal configuration, of any mode, with so many pools of rollout workers.
Config random_config(Rng& rng, int64_t num_pools);

class World {
 public:
  explicit World(uint64_t seed);

  // Runs to the end of the run. False with a reason in `failure`.
  bool run();

  // Called before each decision, for a test that keeps what this world went through.
  std::function<void(const State& before, const Event& event, Time now)> watch;

  std::string failure;
  std::deque<std::string> log;          // the last events and actions
  std::map<std::string, int64_t> seen;  // what this run has gone through, how often

 private:
  struct Node {
    Role role = Role::kRollout;
    std::string pool;
    uint64_t incarnation = 0, session = 0;
    int64_t slots = 1, version = -1;
    Digest staged;
    bool alive = true;      // its process runs
    bool connected = true;  // it has a session with the scheduler that runs now
    bool joined = false;    // nobody starts it again
    bool hangs = false;     // it heartbeats and does nothing
    bool stalled = false;   // and that was told, or is a false alarm
    std::vector<Grant> grants;
    std::map<BodyId, int64_t> begun;      // the version that each was begun on
    std::map<BodyId, TurnsStored> turns;  // of what it plays: what it began with, or has stored
    std::vector<Verify> verifies;
  };
  // One of the trainer's, beside rank 0.
  struct RankNode {
    int32_t rank = 0;
    uint64_t incarnation = 0, session = 0;
    bool alive = false, connected = false;
    uint64_t formation = 0;
    int64_t step = 0;  // whose batch it has, whole
  };
  // What the scheduler has written, and how it can be taken back.
  struct Written {
    std::string event;
    Time now{};
    std::vector<std::pair<TaskId, std::optional<TaskEnd>>> ends_before;  // of tasks it spoke of
  };

  bool fail(std::string why);
  void tell(const Event& event);
  void check_expected(const Event& event);
  void check(const Event& event, const Actions& actions);
  void check_deadlines();
  void check_switch(const Switch& change);
  void check_order(const Grant& grant);
  void check_pool(const Grant& grant);
  bool may_sample(const Worker& worker, const WorkId& work) const;
  // Where there is one alone, it has no name.
  std::string pool_of(int64_t worker) const {
    return num_pools_ == 1 ? "" : pool_name(worker % num_pools_);
  }
  void check_stalled();
  void watch_progress();
  void come_or_go();
  void note(const Event& event, const Actions& actions);
  bool calls_broken(Lane lane, const MemberId& member);
  void store(const AttemptResult& result);
  void store(const TurnsStored& turns);
  void check_prefix(const Grant& grant);

  // Not told once more, in a session after the one that it was given in.
  bool is_new(const Grant& grant) const {
    const Lease* lease = state_.leases.find({grant.lane, grant.lease.member});
    return !nodes_.at(grant.worker).begun.contains({grant.lane, grant.lease}) && lease != nullptr &&
           lease->deadline == state_.now + state_.config.deadlines.lease;
  }
  void damage_a_part();
  void check_short(const HandOver& batch);
  void check_staleness(const HandOver& batch);
  void act(const Hold& hold);
  void act(const Grant& grant);
  void act(const Abort& abort);
  void act(const Verify& verify);
  void act(const Stage& stage);
  void act(const Switch& change);
  void act(const HandOver& batch);
  void act(const Save& save);
  void act(const Release& release);
  void act(const TaskDone&) {}
  void act(const TaskWithdrawn&) {}
  void act(const EvalDone& report);
  void act(const Forked&) {}
  void act(const RunDone&) {}
  void act(const Quarantine&) {}
  void act(const Halt& halt) { fail("halted: " + halt.reason); }
  void act(const FormRanks& ranks);
  void act(const TaskBroken&) {}

  Node* session_of(const WorkerId& id, uint64_t session);
  void start_worker(const WorkerId& id, Role role, const std::string& pool, bool joined = false);
  void connect(const WorkerId& id, Node& node);
  void cut_session(const WorkerId& id);
  void take_copy(const HandOver& batch);
  void check_ranks(const Actions& actions);
  void connect_rank(const WorkerId& id, RankNode& rank);
  void lose_rank();
  void revive_ranks();
  void start_trainer();
  void connect_trainer();
  void ask();
  void publish(int64_t version);
  void save(int64_t version);
  std::string new_digest(int64_t version) { return fmt::format("v{}-{}", version, ++salt_); }
  void deliver();
  void forget_abandoned(const Event& event);
  void work(const WorkerId& id, Node& node);
  AttemptResult answer(const WorkerId& id, const Node& node, const Grant& grant);
  void store_turns(const WorkerId& id, Node& node, const Grant& grant);
  void train();

  void restart(bool power_lost);
  State replayed();
  void fault();
  void revive();
  void step();
  bool check_accounts();

  Rng rng_;
  int64_t num_pools_ = 1;
  State state_;
  Time now_{seconds(100)};
  bool faults_ = false;
  double alarms_ = 0;  // how often somebody is said to stand still that does not
  // A task of dataset 0 that nobody can play, or else score; -1: none.
  int64_t broken_row_ = -1;
  bool broken_for_verifiers_ = false;
  std::string snapshot_;
  std::vector<Written> journal_;  // since the snapshot
  size_t synced_ = 0;             // of these are on disk
  std::set<BodyId> bodies_, unsynced_bodies_;
  std::set<BodyId> lost_;
  std::map<BodyId, TurnsStored> turns_;  // what is in bodies of turns
  std::map<WorkerId, Node> nodes_;
  std::vector<Event> wire_;  // from workers: any order, doubled
  // Of these a Staged may come when it is no longer so: doubled, or of a session before.
  std::set<std::pair<WorkerId, Digest>> late_staged_;
  std::vector<Event> service_;         // from the scheduler's own process: gone with it
  std::deque<Event> trainer_queue_;    // in order; kept by the trainer until it is acknowledged
  std::vector<Event> unacknowledged_;  // delivered, but a dead scheduler might not have said so
  uint64_t incarnations_ = 0, sessions_ = 0;
  uint64_t trainer_incarnation_ = 0, trainer_session_ = 0;
  uint64_t trainer_formation_ = 0;  // 0: it has met nobody
  std::map<WorkerId, RankNode> ranks_;
  int64_t trainer_items_ = 0;  // of the batch that it has
  bool trainer_alive_ = false, trainer_connected_ = false, trainer_batch_ = false;
  int64_t trainer_version_ = -1, durable_ = -1;
  std::deque<int64_t> checkpoints_;  // the trainer's, oldest first; the last is durable_
  int64_t keep_last_ = 1;
  int salt_ = 0;
  std::map<int64_t, std::string> digests_;
  std::map<int64_t, std::vector<HandOver::Item>> batches_;
  std::set<int64_t> whole_;  // of these, those that were told to their end
  std::map<TaskId, TaskEnd> ended_;
  std::map<int64_t, Digest> evaluated_;
  std::set<LeaseId> leases_;
};

}  // namespace tailrace::scheduler
