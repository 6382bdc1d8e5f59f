#include "scheduler/store/journal.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <xxhash.h>

#include "core/base/file.h"
#include "core/base/join_texts.h"
#include "core/run/run_directory.h"
#include "kernels/base/check.h"
#include "scheduler/decide/decide.h"
#include "scheduler/state/archive.h"
#include "scheduler/state/describe.h"
#include "scheduler/store/snapshot.h"

namespace tailrace::scheduler {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kJournalKind = 1;

}  // namespace

uint64_t digest_of(const Actions& actions) {
  const std::string bytes = to_bytes(actions);
  return XXH3_64bits(bytes.data(), bytes.size());
}

Result<JournalFile> read_journal(const fs::path& file, std::vector<std::string>* notes) {
  JournalFile journal;
  bool readable = true;
  // None is skipped: events after a missing one were decided in another state.
  auto report = scan_records(
      file, kJournalKind, /*skip_damaged=*/false, [&](int64_t offset, std::string_view payload) {
        auto entry = readable ? from_bytes<JournalEntry>(payload) : std::nullopt;
        if (entry) {
          journal.bytes = offset + RecordFile::kRecordHeaderBytes + std::ssize(payload);
          return journal.entries.push_back(*std::move(entry));
        }
        // Its checksum fits, so another build wrote it under our format number. What follows rests
        // on it.
        if (readable && notes != nullptr) {
          notes->push_back(fmt::format(
              "{}: the event at offset {} cannot be read; it and all after it are dropped",
              file.string(), offset));
        }
        readable = false;
      });
  if (!report) return report.failure();
  journal.law = report.value().law;
  journal.after = report.value().after;
  // A header that is there is of a law.
  if (journal.law != 0) journal.bytes = std::max(journal.bytes, RecordFile::kFileHeaderBytes);
  if (notes != nullptr && !report.value().note.empty()) notes->push_back(report.value().note);
  return journal;
}

namespace {

// Applies the events of one file. A Failure: they were decided otherwise than this build decides.
Result<void> replay(const fs::path& path, const JournalFile& journal, State& state) {
  // A file without events was decided under no law: this is what a clean stop leaves.
  if (journal.entries.empty()) return {};
  if (journal.law != kLawVersion) {
    return Failure{fmt::format(
        "{} holds {} events that were decided under law {}; this build has law {} and would decide "
        "otherwise. Let the build that wrote them continue the run and stop it with Ctrl-C, which "
        "leaves a snapshot; that can be continued here",
        path.string(), journal.entries.size(), journal.law, kLawVersion)};
  }
  for (size_t i = 0; i < journal.entries.size(); ++i) {
    const JournalEntry& entry = journal.entries[i];
    // Every event is checked, at the price of a digest: a build that decides otherwise must not go
    // on from a state that never was.
    const Actions actions = decide(state, entry.event, entry.now);
    if (digest_of(actions) == entry.actions) continue;
    return Failure{fmt::format(
        "{}: event {} ({}) gives other actions than when it was decided, although the law has the "
        "same number. Continue the run with the build that began it",
        path.string(), i + 1, describe(entry.event))};
  }
  return {};
}

// Remains of several files do not fit together. No wonder where one of them is damaged: say
// so, or a person would look for another build.
Failure misfit(const fs::path& directory, const std::vector<std::string>& notes,
               const std::string& why) {
  if (notes.empty()) return Failure{why};
  return Failure{fmt::format("{} is damaged: {}.\n       What is left does not fit together: {}",
                             directory.string(), join_texts(notes, "; "), why)};
}

}  // namespace

Result<Restored> restore(const fs::path& directory) {
  Restored restored;
  const auto found = snapshots(directory);
  // Each journal has had one before it.
  if (found.empty() && !journals(directory).empty())
    return Failure{fmt::format(
        "the snapshots in {} are gone, and without them its events say nothing. Put them back, or "
        "start a new run directory",
        directory.string())};
  if (found.empty()) return restored;
  int64_t from = -1;
  std::string reason;
  // The newest that reads well. With an older one the events of two files lead to the same state.
  for (auto it = found.rbegin(); it != found.rend() && !restored.state; ++it) {
    auto state = read_snapshot(it->second);
    if (!state) {
      reason = state.failure().message;
      restored.notes.push_back(
          fmt::format("snapshot{}{}; the one before it is used", kPassedOver, reason));
      continue;
    }
    restored.state = std::move(state).value();
    from = it->first;
  }
  if (!restored.state) return Failure{"no snapshot of this run can be read: " + reason};
  int64_t last = from - 1, end = 0;  // of the file before, and where its events end
  const auto files = journals(directory);
  for (const auto& [number, path] : files) {
    if (number < from) continue;
    // A snapshot that a kill left alone has an empty journal. Without either, events are gone, and
    // those after them would be replayed on another state than theirs.
    for (int64_t missing = last + 1; missing < number; ++missing) {
      if (!found.contains(missing))
        return Failure{
            fmt::format("{} is missing, but {} is there: put it back, or start a new run "
                        "directory",
                        journal_path(directory, missing).string(), path.string())};
    }
    last = number;
    const auto lose = [&restored](const std::string& note) {
      restored.notes.push_back(note);
      restored.lost.push_back(note);
    };
    std::vector<std::string> unread;
    auto journal = read_journal(path, &unread);
    if (!journal) return journal.failure();
    std::ranges::for_each(unread, lose);
    const uint32_t after = journal.value().after;
    if (number > from && after != 0 && after != RecordFile::mark_of_end(end)) {
      const std::string why =
          fmt::format("the events of {} go on from others that are gone", path.string());
      // Only the newest pair may be without its snapshot, and until the events before it have
      // reached the disk, nothing rests on its own.
      if (found.contains(number) || number != files.rbegin()->first)
        return misfit(directory, restored.notes, why);
      lose(why + " and are left out");
      restored.left_out = path;
      break;
    }
    end = journal.value().bytes;
    if (auto replayed = replay(path, journal.value(), *restored.state); !replayed)
      return misfit(directory, restored.notes, replayed.failure().message);
  }
  return restored;
}

Result<Journal> Journal::open(const fs::path& directory, const State& state, Options options) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return Failure{describe_errno("create", directory, error.value())};
  Journal journal(directory, options);
  // Files of both kinds count: a kill may have left a snapshot without its journal.
  for (const auto& files : {snapshots(directory), journals(directory)}) {
    if (!files.empty()) journal.number_ = std::max(journal.number_, files.rbegin()->first);
  }
  // Law 13.1: a start begins a pair of its own, so that no event of this build stands behind those
  // of another.
  if (auto rotated = journal.rotate(state); !rotated) return rotated.failure();
  return journal;
}

Result<void> Journal::rotate(const State& state) {
  TR_CHECK(pending_.empty(), "{} bytes of events are not committed", pending_.size());
  // The callers have synced the store, so a snapshot that cut() has left waiting for its bodies may
  // be written. One is written at a time (law 13.1).
  bodies_are_on_disk();
  if (auto written = writer_->wait(); !written) return written;
  const int64_t next = number_ + 1;
  // The snapshot first: if we die before the journal is there, it is an empty journal.
  if (auto written = write_snapshot(snapshot_path(directory_, next), state); !written)
    return written;
  auto file = RecordFile::create(journal_path(directory_, next), kJournalKind, kLawVersion);
  if (!file) {
    // It must not stay: a restore would begin with it and never see the events that go on in the
    // old file.
    std::error_code ignored;
    fs::remove(snapshot_path(directory_, next), ignored);
    return file.failure();
  }
  file_ = std::move(file).value();
  number_ = next;
  if (auto synced = sync_directory(directory_); !synced) return synced;
  if (!options_.archive) remove_before(directory_, number_);
  return {};
}

Result<void> Journal::cut(const State& state) {
  TR_CHECK(pending_.empty(), "{} bytes of events are not committed", pending_.size());
  TR_CHECK(!waiting_ && writer_->idle(), "a snapshot is still being written");
  const fs::path path = journal_path(directory_, number_ + 1);
  auto file =
      RecordFile::create(path, kJournalKind, kLawVersion, RecordFile::mark_of_end(file_.bytes()));
  if (!file) {
    std::error_code ignored;
    fs::remove(path, ignored);
    return file.failure();
  }
  ++number_;
  // A copy costs less than the bytes, and the rest is done beside us.
  waiting_ = SnapshotWriter::Job{.number = number_,
                                 .state = std::make_unique<const State>(state),
                                 .left = std::exchange(file_, std::move(file).value())};
  return {};
}

void Journal::bodies_are_on_disk() {
  if (waiting_) writer_->begin(*std::exchange(waiting_, std::nullopt));
}

void Journal::append(const Event& event, Time now, const Actions& actions) {
  RecordFile::frame(to_bytes(JournalEntry{now, event, digest_of(actions)}), pending_);
}

Result<void> Journal::commit(bool sync) {
  if (!pending_.empty()) {
    if (auto written = file_.append_framed(pending_); !written) return written.failure();
    // Only now: a write that failed is tried again, with all of it.
    pending_.clear();
  }
  if (!sync) return {};
  // With `sync` the service has synced the store just before (law 12.2).
  bodies_are_on_disk();
  // These events say nothing without those before them.
  if (auto synced = writer_->wait_for_events(); !synced) return synced;
  return file_.sync();
}

}  // namespace tailrace::scheduler
