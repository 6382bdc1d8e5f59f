// A short run for the tests of the journal, and how it gets there.
#pragma once

#include <vector>

#include "scheduler/store/journal.h"
#include "tests/scheduler/decide/harness.h"
#include "tests/scheduler/store/files.h"

namespace tailrace::scheduler {

// The events of a short run with something of everything.
inline std::vector<JournalEntry> make_run(const State& start) {
  std::vector<JournalEntry> entries;
  State state = start;
  Time now{seconds(5)};
  const auto tell = [&](const Event& event) {
    now += seconds(1);
    Actions actions = decide(state, event, now);
    entries.push_back({now, event, digest_of(actions)});
    return actions;
  };
  (void)tell(WorkerUp{.worker = "w0", .slots = 8});
  (void)tell(WorkerUp{.worker = "t", .role = Role::kTrainer});
  (void)tell(rolled_back(-1));
  (void)tell(TrainingStage{"t", 0, 1, 2, "sft"});
  (void)tell(published(0));
  for (int64_t step = 1; step <= 3; ++step) {
    const std::string digest = digest_of(step - 1);
    (void)tell(StageProgress{"w0", 0, step - 1, digest, 10, 100});
    // A second later it is asked again.
    (void)tell(InstallFailed{"w0", 0, step - 1, digest, "link down", InstallCause::kSource});
    (void)tell(Tick{});
    (void)tell(Staged{"w0", 0, step - 1, digest});
    const Actions granted = tell(Installed{"w0", 0, step - 1, digest});
    for (const Grant& grant : only<Grant>(granted)) {
      AttemptResult result;
      result.worker = "w0";
      result.lease = grant.lease;
      result.reward = 0.5 * grant.lease.member.member;
      (void)tell(result);
    }
    (void)tell(wants(step));
    (void)tell(published(step));
    (void)tell(durable(step - 1));
  }
  return entries;
}

// As the service does: decided on, then written.
inline void append(Journal& journal, State& state, const JournalEntry& entry) {
  journal.append(entry.event, entry.now, decide(state, entry.event, entry.now));
  ASSERT_TRUE(journal.commit(false));
}

inline State replay(State state, const std::vector<JournalEntry>& entries, size_t count) {
  for (size_t i = 0; i < count; ++i) (void)decide(state, entries[i].event, entries[i].now);
  return state;
}

}  // namespace tailrace::scheduler
