// What decide() would else search for at every event: where there is room, who has to install, and
// which deadline of a worker is next. All of it follows from workers, their health and the clock,
// so it is kept beside them, never archived, and made anew when a state is read.
//
// It knows no State: touch() and make_index() (state.h) say what it says of a worker.
//
// With it an event costs what it touches, however many workers and members there are (law 14.5).
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/base/ids.h"
#include "core/base/time.h"

namespace tailrace::scheduler {

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

class Index {
 public:
  // The rollout workers of a policy that are connected and have no faults, together.
  struct Pool {
    int64_t slots = 0, leased = 0;
    int64_t installing = 0;  // workers
    friend bool operator==(const Pool&, const Pool&) = default;
  };

  // What is said of one worker.
  struct Entry {
    std::optional<std::pair<std::pair<PolicyId, int64_t>, Seat>> rollout;
    std::optional<Seat> reward;
    std::optional<std::pair<PolicyId, Pool>> part;
    std::optional<PolicyId> behind;
    std::optional<Time> deadline, quarantine_end;
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  void set(const WorkerId& id, Entry entry);
  void erase(const WorkerId& id);

  // By policy and the version that they hold; without empty ones.
  const std::map<std::pair<PolicyId, int64_t>, Seats>& rollouts() const { return rollouts_; }
  const Seats& rewards() const { return rewards_; }
  Pool pool(PolicyId policy) const;
  // Rollout workers that should install, and can: by policy.
  const std::map<PolicyId, std::set<WorkerId>>& behind() const { return behind_; }
  // Of absences and installs; and the ends of quarantines that lie ahead, of workers that are here.
  const std::set<std::pair<Time, WorkerId>>& deadlines() const { return deadlines_; }
  const std::set<std::pair<Time, WorkerId>>& quarantine_ends() const { return quarantine_ends_; }

  friend bool operator==(const Index&, const Index&) = default;

 private:
  std::map<WorkerId, Entry> entries_;
  std::map<std::pair<PolicyId, int64_t>, Seats> rollouts_;
  Seats rewards_;
  std::map<PolicyId, Pool> pools_;
  std::map<PolicyId, std::set<WorkerId>> behind_;
  std::set<std::pair<Time, WorkerId>> deadlines_, quarantine_ends_;
};

}  // namespace tailrace::scheduler
