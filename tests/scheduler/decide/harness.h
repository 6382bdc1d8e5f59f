// Drives decide() step by step: every event is checked against the invariants, and answers are easy
// to give.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "scheduler/decide/decide.h"
#include "scheduler/state/archive.h"
#include "scheduler/state/describe.h"
#include "scheduler/state/expects.h"
#include "scheduler/state/invariants.h"

namespace tailrace::scheduler {

using std::chrono::seconds;

template <class T>
std::vector<T> only(const Actions& actions) {
  std::vector<T> found;
  for (const Action& action : actions) {
    if (const T* item = std::get_if<T>(&action)) found.push_back(*item);
  }
  return found;
}

inline std::string describe_all(const Actions& actions) {
  std::string text;
  for (const Action& action : actions) text += describe(action) + "\n";
  return text;
}

inline std::string digest_of(int64_t version, std::string_view lineage = "a") {
  return version < 0 ? "" : fmt::format("{}{}", lineage, version);
}
inline std::string master_of(int64_t version, std::string_view lineage = "a") {
  return version < 0 ? "" : fmt::format("master-{}{}", lineage, version);
}
inline Published published(int64_t version, std::string_view lineage = "a") {
  return {"t",
          0,
          version,
          digest_of(version, lineage),
          fmt::format("v{}.json", version),
          master_of(version, lineage)};
}
inline RolledBack rolled_back(int64_t version, std::string_view lineage = "a") {
  return {"t",
          0,
          version,
          digest_of(version, lineage),
          fmt::format("v{}.json", version),
          master_of(version, lineage)};
}
inline TrainerWants wants(int64_t step) { return {"t", 0, step}; }
inline Durable durable(int64_t version, int64_t oldest) { return {"t", 0, version, oldest}; }
inline Durable durable(int64_t version) { return durable(version, version); }  // the only one

struct Harness {
  State state;
  Time now{seconds(1)};
  uint64_t incarnations = 0;
  std::string transcript;  // each event with its time, and the actions that it gave

  // With a trainer that has no checkpoint yet, unless the test brings its own.
  explicit Harness(Config config, bool with_trainer = true) : state(std::move(config)) {
    if (with_trainer) add_trainer(-1);
  }

  Actions tell(const Event& event) {
    Actions actions = decide(state, event, now);
    transcript +=
        fmt::format("{:.3f} s  {}\n", std::chrono::duration<double>(now).count(), describe(event));
    for (const Action& action : actions) transcript += fmt::format("    -> {}\n", describe(action));
    const auto violation = find_violation(state);
    EXPECT_FALSE(violation) << *violation << "\nafter " << describe(event) << "\n"
                            << describe_all(actions);
    return actions;
  }

  // Time passes.
  Actions wait(Time time) {
    now += time;
    return tell(Tick{});
  }

  // A new process that trains, with a checkpoint of this version.
  Actions add_trainer(int64_t version, std::string_view lineage = "a") {
    tell(WorkerUp{.worker = "t", .role = Role::kTrainer, .incarnation = ++incarnations});
    return tell(rolled_back(version, lineage));
  }

  // A rollout worker that has installed whatever it was asked to.
  void add_rollout(const WorkerId& id, int64_t slots) {
    install_all(tell(WorkerUp{.worker = id, .slots = slots}));
  }
  void add_joined(const WorkerId& id, int64_t slots) {
    install_all(tell(WorkerUp{.worker = id, .slots = slots, .joined = true}));
  }
  void add_to_pool(const std::string& pool, const WorkerId& id, int64_t slots) {
    install_all(tell(WorkerUp{.worker = id, .slots = slots, .site = {.pool = pool}}));
  }
  void install_all(const Actions& actions) {
    for (const Stage& install : only<Stage>(actions)) tell_installed(install);
  }
  // It has staged it and, if it was told to, switched.
  Actions tell_installed(const Stage& stage) {
    Actions all = tell(Staged{stage.worker, stage.policy, stage.version, stage.digest});
    for (const Switch& change : only<Switch>(all)) {
      if (change.worker != stage.worker) continue;
      for (const Action& action : tell_switched(change)) all.push_back(action);
      break;
    }
    return all;
  }
  Actions tell_switched(const Switch& change) {
    return tell(Installed{change.worker, change.policy, change.version, change.digest});
  }
  // Whatever is asked for is done.
  Actions install_open() {
    Actions all;
    for (const auto& [id, worker] : HashedMap(state.workers)) {
      if (!is_asked(worker)) continue;
      const Install& install = *worker.install;
      const Stage stage{id, worker.session, worker.policy, install.version, install.digest, ""};
      for (const Action& action : tell_installed(stage)) all.push_back(action);
    }
    return all;
  }

  static Grant grant_of(const WorkId& work, const Lease& lease) {
    return {.worker = lease.worker,
            .session = 0,
            .lease = {work.member, lease.attempt},
            .lane = work.lane,
            .version = 0};
  }

  AttemptResult result(const Grant& grant, std::optional<double> reward) const {
    const auto version = state.workers.at(grant.worker).version;
    return {.worker = grant.worker,
            .lease = grant.lease,
            .lane = grant.lane,
            .outcome = Outcome::kFinished,
            .tokens = 5,
            .min_version = version,
            .max_version = version,
            .reward = reward,
            .needs_verifier = !reward,
            .reason = ""};
  }
  AttemptResult failure(const Grant& grant, Outcome outcome) const {
    AttemptResult failed = result(grant, std::nullopt);
    failed.outcome = outcome;
    failed.needs_verifier = false;
    failed.reason = "broken on purpose";
    return failed;
  }

  // Answers grants, and the grants that follow, with reward = member index (never zero signal).
  void answer_all(const Actions& first) {
    std::vector<Grant> open = only<Grant>(first);
    while (!open.empty()) {
      const Grant grant = open.back();
      open.pop_back();
      if (!expects_result(state, grant.worker, grant.lane, grant.lease)) continue;
      for (const Grant& next : only<Grant>(tell(result(grant, grant.lease.member.member))))
        open.push_back(next);
    }
  }
  void answer_running() {
    Actions grants;
    for (const auto& [work, lease] : state.leases.in_order()) {
      if (lease.kind == LeaseKind::kGenerate) {
        grants.push_back(grant_of(work, lease));
      }
    }
    answer_all(grants);
  }

  Policy& policy() { return state.policies.at(0); }
  int64_t count(Place place) {
    int64_t sum = 0;
    for (const auto& [id, task] : policy().tasks) sum += task.place == place;
    return sum;
  }
};

// The running grants of a prompt, in the order of its members.
inline std::vector<Grant> grants_of(const Harness& h, int64_t prompt, int32_t dataset = 0) {
  std::vector<Grant> grants;
  for (const auto& [work, lease] : h.state.leases.in_order()) {
    if (work.lane == Lane::kTrain && work.member.prompt == prompt && work.member.dataset == dataset)
      grants.push_back(Harness::grant_of(work, lease));
  }
  return grants;
}

// Version `version` is out, and the workers that are asked to install it have done so.
inline Actions publish(Harness& h, int64_t version, std::string_view lineage = "a") {
  Actions all = h.tell(published(version, lineage));
  for (const Stage& install : only<Stage>(all)) {
    for (const Action& action : h.tell_installed(install)) all.push_back(action);
  }
  return all;
}

inline Harness started(Config config, int64_t slots = 256) {
  Harness h(std::move(config));
  h.add_rollout("w0", slots);
  publish(h, 0);
  return h;
}

// All that runs is answered, and the step is trained.
inline void train_step(Harness& h, int64_t step, std::string_view lineage = "a") {
  h.answer_running();
  EXPECT_EQ(only<HandOver>(h.tell(wants(step))).size(), 1u);
  publish(h, step, lineage);
}

inline Config small_config(int64_t prompts, int64_t members) {
  Config config;
  config.datasets = {DatasetConfig{.prompts_per_step = prompts}};
  config.group_size = members;
  config.steps = 100;
  return config;
}

}  // namespace tailrace::scheduler
