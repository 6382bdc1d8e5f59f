// Answers that decide() would else search for at every event: where there is room, who has to
// install or prove itself, and whose deadline is next. All of it follows from workers, their
// health and the clock, so it is kept beside them, never archived, and made anew when a state is
// read.
//
// It knows no State: touch() and make_index() (touch.h) say what it says of a worker, and each
// worker keeps what was said of it.
//
// With it an event costs what it touches, however many workers and members there are (law 14.5).
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "core/base/fields.h"
#include "core/base/ids.h"
#include "core/base/time.h"

namespace tailrace::scheduler {

// Rollout workers of a policy that may stand in for each other (law 1.5). Without a name: those
// that were put into none.
struct PoolId {
  PolicyId policy = 0;
  std::string name;
  TR_FIELDS(PoolId, policy, name);
  friend auto operator<=>(const PoolId&, const PoolId&) = default;
};

// A worker with room. The best first: without faults, with most room, by name.
struct Seat {
  bool has_faults = false;
  int64_t room = 0;
  WorkerId worker;
  friend bool operator==(const Seat&, const Seat&) = default;
  friend std::strong_ordering operator<=>(const Seat& a, const Seat& b) {
    if (a.has_faults != b.has_faults) return a.has_faults <=> b.has_faults;
    if (a.room != b.room) return b.room <=> a.room;
    return a.worker <=> b.worker;
  }
};
using Seats = std::set<Seat>;

// The next word about weights to a rollout worker (law 9.6). Forget: what it was asked for has
// gone with its lineage, and it needs nothing else.
enum class InstallStep : uint8_t { kNone, kStage, kSwitch, kForget };

class Index {
 public:
  // The load of a rollout worker that is connected, moves and has no faults: what it can hold and
  // holds; or all of these of a pool, or of a policy, together.
  struct Load {
    int64_t slots = 0, leased = 0;
    int64_t installing = 0;  // workers
    void add(const Load& other, int64_t sign = 1);
    friend bool operator==(const Load&, const Load&) = default;
  };
  // Workers that sample by one version.
  struct Open {
    int64_t workers = 0;  // also those without room
    Seats seats;
    friend bool operator==(const Open&, const Open&) = default;
  };
  struct Pool {
    Load load;
    std::map<int64_t, int64_t> sizes;  // how many of them have so many slots
    std::map<int64_t, Open> versions;  // without those that no worker samples by
    friend bool operator==(const Pool&, const Pool&) = default;
  };

  // The facts about one worker.
  struct Entry {
    bool samples = false;            // a rollout worker
    PoolId pool;                     // of a rollout worker
    std::optional<int64_t> version;  // that it may sample by: it has a seat, as long as it has room
    bool verifies = false;           // a reward worker: the same
    bool has_faults = false;
    int64_t room = 0;
    std::optional<Load> load;
    InstallStep step = InstallStep::kNone;
    bool stuck = false, proving = false;
    std::optional<Time> deadline, wake;
    bool plain =
        false;  // a lease more or less is less or more room, and load: nothing else of this
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  // `then`: what was said of it last; an empty one of a worker that is new.
  void set(const WorkerId& id, const Entry& then, const Entry& now);
  // The same of a plain worker that has `count` leases more: `entry` follows.
  void add_leases(const WorkerId& id, Entry& entry, int64_t count);

  // Without empty ones.
  const std::map<PoolId, Pool>& pools() const { return pools_; }
  const Pool& pool(const PoolId& id) const;
  // The number of seats of rollout workers.
  int64_t num_seats() const { return num_seats_; }
  const Seats& rewards() const { return rewards_; }
  // All pools of a policy together.
  const Load& load_of(PolicyId policy) const;
  // Rollout workers that have a step of an install to make: by policy.
  const std::map<PolicyId, std::set<WorkerId>>& behind() const { return behind_; }
  // Workers that are known, whatever their state: rollout workers of a pool, those of a policy, and
  // reward workers.
  int64_t num_samplers(const PoolId& pool) const;
  int64_t num_samplers(PolicyId policy) const;
  int64_t num_verifiers() const { return num_verifiers_; }
  // Workers that stand still and hold work.
  const std::set<WorkerId>& stuck() const { return stuck_; }
  // Rollout workers with room that are to prove themselves after a quarantine (law 7.3).
  const std::set<WorkerId>& proving() const { return proving_; }
  // Deadlines of absences and installs; and when the next quarantine or rest (StageRest) ends.
  const std::set<std::pair<Time, WorkerId>>& deadlines() const { return deadlines_; }
  const std::set<std::pair<Time, WorkerId>>& wakes() const { return wakes_; }

  friend bool operator==(const Index&, const Index&) = default;

 private:
  void add_seat(const WorkerId& id, const Entry& entry);
  void drop_seat(const WorkerId& id, const Entry& entry);
  void add_load(const Entry& entry, int64_t sign);
  void add_sampler(const Entry& entry, int64_t sign);

  std::map<PoolId, Pool> pools_;
  std::map<PolicyId, Load> loads_;            // of all pools of a policy
  std::map<PoolId, int64_t> samplers_;        // without empty ones
  std::map<PolicyId, int64_t> all_samplers_;  // the same, of all pools of a policy
  int64_t num_verifiers_ = 0;
  int64_t num_seats_ = 0;
  Seats rewards_;
  std::map<PolicyId, std::set<WorkerId>> behind_;
  std::set<WorkerId> stuck_, proving_;
  std::set<std::pair<Time, WorkerId>> deadlines_, wakes_;
};

}  // namespace tailrace::scheduler
