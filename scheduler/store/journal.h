// The files that survive a kill: every event in the order it was decided on, and now and then a
// snapshot (law 13).
//
//   snapshot-000007.bin   a State, written atomically
//   journal-000007.log    the events since, each with a digest of the actions that decide() gave
//
// restore() = newest good snapshot + the events after it, of one file or several; decide() being
// pure, that is the state. It is so only under the law that the events were decided under
// (kLawVersion), so both files carry its number, and the digests tell when a build decides
// otherwise although it says the same number. A snapshot alone crosses laws: a run that was stopped
// cleanly has nothing else.
//
// A snapshot is written while events go on: at the cut they turn to the new pair's file, and until
// its snapshot is there the files before lead to the same state. A file says where the one before
// it ended, so that events which did not reach the disk before a power loss are missed.
//
// When is it safe? Events are group-committed: the service appends all events of one batch of
// messages, commits once, and only then performs the actions and acknowledges the messages.
// commit() writes to the file: a killed process loses nothing that was acknowledged. With `sync` it
// also reaches the disk, which actions ask for (needs_disk()), not events: a machine that loses
// power must not forget what the trainer was given, nor remember a body that was deleted. Results
// of attempts alone are not worth an fsync each: what power loss takes is sampled again.
//
// Thread: one at a time (the service's).
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "scheduler/state/action.h"
#include "scheduler/state/event.h"
#include "scheduler/state/state.h"
#include "scheduler/store/record_file.h"
#include "scheduler/store/snapshot_writer.h"

namespace tailrace::scheduler {

struct JournalEntry {
  Time now{};
  Event event;
  uint64_t actions = 0;  // digest_of() what decide() gave
  template <class V>
  void fields(V& visit) {
    visit(now, event, actions);
  }
};

// XXH3-64 of their bytes.
uint64_t digest_of(const Actions& actions);

struct Restored {
  std::optional<State> state;      // nothing: a new run
  std::vector<std::string> notes;  // for the log: what a crash had cut
  // Notes that tell of events that are gone: the file, the place, and why. The state is the one
  // before them. The record that a living scheduler is just writing looks the same.
  std::vector<std::string> lost;
  // Events that a power loss has left without those before them: to be renamed before a journal is
  // opened. Empty: none.
  std::filesystem::path left_out;
};

// A Failure: files are there, but none of the snapshots can be read, another build wrote them, or
// the events were decided under another law.
Result<Restored> restore(const std::filesystem::path& directory);

struct JournalFile {
  uint32_t law = 0;
  uint32_t after = 0;                 // RecordFile::mark_of_end() of the file before; 0: not said
  int64_t bytes = 0;                  // up to the end of the last entry
  std::vector<JournalEntry> entries;  // in order; what a crash cut is left out and noted
};
Result<JournalFile> read_journal(const std::filesystem::path& file,
                                 std::vector<std::string>* notes);

class Journal {
 public:
  struct Options {
    int64_t segment_bytes = int64_t{16} << 20;  // a new pair of files begins after so many
    bool archive = false;                       // keeps every pair: the run can be replayed whole
    // With a disk that takes nothing of a snapshot; then it is named.
    std::chrono::milliseconds patience{40'000};
  };
  // Begins with a snapshot of `state` in a new pair of files; keeps the snapshot before it and the
  // events since that one, in case the new snapshot is damaged, and removes what is older.
  static Result<Journal> open(const std::filesystem::path& directory, const State& state,
                              Options options);

  void append(const Event& event, Time now, const Actions& actions);
  // Writes what was appended. On a Failure (a full disk) nothing of it is in the file, and it is
  // kept: the caller may try again, and must not perform the actions before it succeeds. `sync`
  // only with all bodies on the disk that they count on.
  Result<void> commit(bool sync);

  // A new pair of files is due, and the snapshot before is written.
  bool is_due() const {
    return file_.bytes() >= options_.segment_bytes && !waiting_ && writer_->idle();
  }
  // Begins it with a copy of `state`: events go on at once in the new file. The snapshot is written
  // meanwhile, but not before bodies_are_on_disk(): it must not remember what the store has
  // forgotten. Only when due, with nothing uncommitted.
  Result<void> cut(const State& state);
  // All bodies that the state counted on at the cut are on disk. Does nothing where no cut waits.
  void bodies_are_on_disk();
  // The state of the snapshot's writing: a Failure when the disk did not take it, or stands
  // still. The events are all there. Wants to be called every now and then.
  Result<void> look() { return writer_->look(); }

  // Begins a new pair with a snapshot of `state` on the disk before it returns, as a clean end
  // does. Only with nothing uncommitted, and all bodies on the disk.
  Result<void> rotate(const State& state);

 private:
  Journal(std::filesystem::path directory, Options options)
      : directory_(std::move(directory)),
        options_(options),
        writer_(std::make_unique<SnapshotWriter>(directory_, options.archive, options.patience)) {}

  std::filesystem::path directory_;
  Options options_;
  int64_t number_ = 0;
  RecordFile file_;
  std::string pending_;
  std::optional<SnapshotWriter::Job> waiting_;  // for its bodies
  std::unique_ptr<SnapshotWriter> writer_;
};

}  // namespace tailrace::scheduler
