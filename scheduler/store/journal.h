// What survives a kill: every event in the order it was decided on, and now and then a snapshot.
//
//   snapshot-000007.bin   a State, written atomically
//   journal-000007.log    the events since
//
// restore() = newest good snapshot + the events after it; decide() being pure, that is the state.
//
// When is it safe? Events are group-committed: the service appends all events of one batch of
// messages, commits once, and only then performs the actions and acknowledges the messages.
// commit() writes to the file (a killed process loses nothing that was acknowledged). With `sync`
// it also reaches the disk: asked for when the trainer is involved (a batch handed over, a
// publication, a checkpoint), because a machine that loses power must not remember a checkpoint and
// forget what it was trained on. Results of attempts alone are not worth an fsync each: what power
// loss takes is sampled again.
//
// Thread: one at a time (the service's).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "scheduler/state/event.h"
#include "scheduler/state/state.h"
#include "scheduler/store/record_file.h"

namespace tailrace::scheduler {

struct JournalEntry {
  Time now{};
  Event event;
  template <class V>
  void fields(V& visit) {
    visit(now, event);
  }
};

struct Restored {
  std::optional<State> state;      // nothing: a new run
  std::vector<std::string> notes;  // for the log: what a crash had cut
};

// A Failure: files are there, but none of the snapshots can be read, or another build wrote them.
Result<Restored> restore(const std::filesystem::path& directory);

// The entries of one journal file, in order; what a crash cut is left out and noted.
Result<std::vector<JournalEntry>> read_entries(const std::filesystem::path& file,
                                               std::vector<std::string>* notes);

class Journal {
 public:
  // Begins with a snapshot of `state` in a new pair of files; keeps the pair before it, in case the
  // new snapshot is damaged, and removes older ones.
  static Result<Journal> open(const std::filesystem::path& directory, const State& state,
                              int64_t segment_bytes);

  void append(const Event& event, Time now);
  // Writes what was appended. On a Failure (a full disk) nothing of it is in the file, and it is
  // kept: the caller may try again, and must not perform the actions before it succeeds.
  Result<void> commit(bool sync);
  // A new pair of files once the present one is large. Only with nothing uncommitted.
  Result<void> rotate_if_large(const State& state);

 private:
  Journal(std::filesystem::path directory, int64_t segment_bytes)
      : directory_(std::move(directory)), segment_bytes_(segment_bytes) {}
  Result<void> rotate(const State& state);

  std::filesystem::path directory_;
  int64_t segment_bytes_;
  int64_t number_ = 0;
  RecordFile file_;
  std::string pending_;
};

}  // namespace tailrace::scheduler
