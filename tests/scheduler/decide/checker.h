// Watches a simulated run: after every event the invariants hold, nothing more would happen by
// itself, and each action is one that the law allows; at the end, the accounts.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "scheduler/simulator/world.h"
#include "tests/scheduler/decide/harness.h"

namespace tailrace::scheduler {

class Checker {
 public:
  // Takes the world's observers; the world outlives it. `whole_share`: at so many of the events the
  // whole state is walked.
  Checker(simulator::World& world, uint64_t seed, double whole_share = 1);
  Checker(const Checker&) = delete;

  // At the end of a run: each prompt ended once, and each version was evaluated that was due.
  bool check_accounts();

  // Called before each decision, for a test that keeps what the run went through.
  std::function<void(const State& before, const Event& event, Time at)> watch;

  std::string failure;                  // the first
  std::deque<std::string> log;          // the last events and actions
  std::map<std::string, int64_t> seen;  // what this run has gone through, how often
  bool may_halt = false;

 private:
  // What was told of, and to, the process behind a worker's name.
  struct Told {
    uint64_t incarnation = 0, session = 0;
    int64_t slots = 0;
    bool connected = false;
    std::set<BodyId> granted;
    uint64_t formation = 0;            // of a rank
    int64_t step = 0, groups_end = 0;  // of a trainer: the list that it was given, and how far
  };
  using Ends = std::vector<std::pair<TaskId, std::optional<TaskEnd>>>;

  bool fail(std::string why);
  void before(const State& state, const Event& event, Time at);
  void after(const Event& event, const Actions& actions, const State& state);
  void on_restart(const State& lost, int64_t forgotten);

  void hear_of_session(const Event& event);
  void check_expected(const State& state, const Event& event, Time at);
  void store(const State& state, const Event& event);
  void forget_abandoned(const State& state, const Event& event);

  void note(const Event& event, const Actions& actions);
  void keep_ends(const Actions& actions);
  void check_state(const Event& event);
  void check_filtered();
  void check_deadlines();
  void check_stalled();
  void check_ranks(const Actions& actions);
  void check_bodies();
  void check_fencing(const AttemptResult& result);
  void check(const Hold& hold);
  void check(const Grant& grant);
  void check(const Abort&) {}
  void check(const Verify& verify);
  void check(const Stage& stage);
  void check(const Switch& change);
  void check(const HandOver& batch);
  void check(const Save&) {}
  void check(const Release& release);
  void check(const TaskDone&) {}
  void check(const TaskWithdrawn&) {}
  void check(const EvalDone& report);
  void check(const Forked& fork);
  void check(const RunDone&) {}
  void check(const Quarantine&) {}
  void check(const Halt& halt);
  void check(const FormRanks& ranks);
  void check(const TaskBroken&) {}
  void check(const ReleaseWeights& release);
  void check_pool(const Grant& grant);
  void check_order(const Grant& grant);
  void check_prefix(const Grant& grant);
  void check_short(const HandOver& batch);
  void check_staleness(const HandOver& batch);
  bool is_new(const Grant& grant) const;
  std::string pool_of(const WorkId& work) const;
  bool may_sample(const Worker& worker, const WorkId& work) const;
  bool held_out_waits_for(const Worker& worker) const;

  simulator::World& world_;
  const State& state_;
  Rng rng_;
  double whole_share_;
  Time at_{};  // of the event
  std::map<WorkerId, Told> told_;
  // Who was given a member last, and who had it before, where that one stood still then.
  struct Holder {
    WorkerId worker;
    int32_t attempt = 0;
    std::optional<std::pair<WorkerId, int32_t>> moved_from;
  };
  std::map<WorkId, Holder> holders_;
  bool is_crossing_ = false;    // the event is a sample of an attempt that was moved
  int64_t crossing_least_ = 0;  // version of the grant that took its place
  int64_t samples_before_ = 0;
  bool forced_ = false;             // this event's actions force the disk
  bool forgot_ = false;             // events were forgotten
  bool other_evaluations_ = false;  // were asked for at a restart
  std::vector<Ends> ends_before_;   // of each event of the journal
  std::map<TaskId, TaskEnd> ended_;
  std::set<BodyId> bodies_, unforced_, lost_;
  std::map<BodyId, TurnsStored> turns_;  // what is in bodies of turns
  std::set<BodyId> leases_;              // that were given
  // Of these a Staged came when it was no longer so.
  std::set<std::pair<WorkerId, Digest>> late_staged_;
  std::map<int64_t, std::vector<HandOver::Item>> batches_;
  std::set<int64_t> whole_;  // of these, those that were told to their end
  uint64_t formation_ = 0;   // the latest
  std::map<int64_t, Digest> evaluated_;
  int64_t fetched_from_ = 0, kept_payload_ = -1;  // what the trainer was told
};

}  // namespace tailrace::scheduler
