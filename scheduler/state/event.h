// What decide() is told: ids, lengths, version spans, rewards and times; never a token or a weight.
//
// A worker id names one worker of the run ("rollout-0"). Each new session of it begins with
// worker_up, which voids whatever was leased to it before. Versions count from 0; step n trains on
// version n - 1 and publishes version n.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/digest.h"
#include "core/base/ids.h"
#include "core/trajectory/outcome.h"
#include "scheduler/state/config.h"

namespace tailrace::scheduler {

enum class WorkerRole : uint8_t { kRollout, kReward, kTrainer };

// A new session. Leases of an older one are void: lost, when the process is another
// (`incarnation`); merely given again, when the same process lost its connection.
struct WorkerUp {
  WorkerId worker;
  WorkerRole role = WorkerRole::kRollout;
  PolicyId policy = 0;
  uint64_t incarnation = 0;
  int64_t slots = 1;
  template <class V>
  void fields(V& visit) {
    visit(worker, role, policy, incarnation, slots);
  }
  friend bool operator==(const WorkerUp&, const WorkerUp&) = default;
};

// Silent too long, or said goodbye. A trainer's means `trainer_lost` for its policy.
struct WorkerDown {
  WorkerId worker;
  template <class V>
  void fields(V& visit) {
    visit(worker);
  }
  friend bool operator==(const WorkerDown&, const WorkerDown&) = default;
};

// Time passes: leases and installs expire.
struct Tick {
  template <class V>
  void fields(V&) {}
  friend bool operator==(const Tick&, const Tick&) = default;
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
  std::string reason;  // why it failed, for the breaker
  template <class V>
  void fields(V& visit) {
    visit(worker, lease, lane, outcome, tokens, min_version, max_version, reward, needs_verifier,
          reason);
  }
  friend bool operator==(const AttemptResult&, const AttemptResult&) = default;
};

// A verifier has spoken, or failed (no reward).
struct Reward {
  WorkerId worker;
  LeaseId lease;
  Lane lane = Lane::kTrain;
  int32_t verify_attempt = 0;
  std::optional<double> reward;
  std::string reason;
  template <class V>
  void fields(V& visit) {
    visit(worker, lease, lane, verify_attempt, reward, reason);
  }
  friend bool operator==(const Reward&, const Reward&) = default;
};

// The worker holds these weights and has proved their digest.
struct Installed {
  WorkerId worker;
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;
  template <class V>
  void fields(V& visit) {
    visit(worker, policy, version, digest);
  }
  friend bool operator==(const Installed&, const Installed&) = default;
};

// The trainer asks for the batch of step `step` (published version + 1). Asked again, it gets the
// same list.
struct TrainerWants {
  PolicyId policy = 0;
  int64_t step = 0;
  template <class V>
  void fields(V& visit) {
    visit(policy, step);
  }
  friend bool operator==(const TrainerWants&, const TrainerWants&) = default;
};

struct Published {
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;
  std::string manifest;  // opaque here; comes back in Install
  template <class V>
  void fields(V& visit) {
    visit(policy, version, digest, manifest);
  }
  friend bool operator==(const Published&, const Published&) = default;
};

// A checkpoint of this version is on disk: what it consumed is never asked for again.
struct Durable {
  PolicyId policy = 0;
  int64_t version = 0;
  template <class V>
  void fields(V& visit) {
    visit(policy, version);
  }
  friend bool operator==(const Durable&, const Durable&) = default;
};

// For a driver that knows the loss of a trainer other than by its worker_down; the service does not
// send it. Credit stays taken, and the next trainer gets the same lists.
struct TrainerLost {
  PolicyId policy = 0;
  template <class V>
  void fields(V& visit) {
    visit(policy);
  }
  friend bool operator==(const TrainerLost&, const TrainerLost&) = default;
};

// A trainer came up and says which weights it holds. The published version with its digest: nothing
// to do. An older one: that checkpoint is the truth now. -1: it has none.
struct RolledBack {
  PolicyId policy = 0;
  int64_t version = 0;
  Digest digest;
  std::string manifest;
  // Of its process; 0: unknown. A process never loses versions, so an older one from the same
  // process is a message that was sent again because the scheduler died before it could acknowledge
  // it.
  uint64_t incarnation = 0;
  template <class V>
  void fields(V& visit) {
    visit(policy, version, digest, manifest, incarnation);
  }
  friend bool operator==(const RolledBack&, const RolledBack&) = default;
};

// The scheduler came back from its journal: every outstanding action is given again.
struct Restarted {
  std::optional<Config> config;  // new rules, if the person changed them (same domains)
  // False: all connections went with the process. Leases are void, uncounted, and nobody is given
  // anything before a new worker_up.
  bool connections_kept = true;
  template <class V>
  void fields(V& visit) {
    visit(config, connections_kept);
  }
  friend bool operator==(const Restarted&, const Restarted&) = default;
};

// A person wants the run to end now. It can be continued: `restarted` withdraws the wish.
struct StopRequested {
  template <class V>
  void fields(V&) {}
  friend bool operator==(const StopRequested&, const StopRequested&) = default;
};

// The worker could not install what it was asked to. It is asked again soon, a few times.
struct InstallFailed {
  WorkerId worker;
  PolicyId policy = 0;
  int64_t version = 0;
  std::string reason;
  template <class V>
  void fields(V& visit) {
    visit(worker, policy, version, reason);
  }
  friend bool operator==(const InstallFailed&, const InstallFailed&) = default;
};

// After a loss of power the store misses bodies that the journal remembers: their groups are
// launched again.
struct BodiesLost {
  std::vector<BodyId> bodies;
  template <class V>
  void fields(V& visit) {
    visit(bodies);
  }
  friend bool operator==(const BodiesLost&, const BodiesLost&) = default;
};

// The order is part of the journal's format: append only.
using Event = std::variant<WorkerUp, WorkerDown, Tick, AttemptResult, Reward, Installed,
                           TrainerWants, Published, Durable, TrainerLost, RolledBack, Restarted,
                           StopRequested, InstallFailed, BodiesLost>;

// For log lines and failing tests: "published v3 9f2c", "tick".
std::string describe(const Event& event);

}  // namespace tailrace::scheduler
