#include "scheduler/store/journal.h"

#include <map>
#include <system_error>

#include <fmt/ranges.h>
#include <xxhash.h>

#include "core/base/file.h"
#include "kernels/base/check.h"
#include "scheduler/decide/decide.h"
#include "scheduler/state/archive.h"
#include "scheduler/state/describe.h"

namespace tailrace::scheduler {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kJournalKind = 1;
constexpr std::string_view kSnapshotMagic{"TRSNAP\0\0", 8};

fs::path snapshot_path(const fs::path& directory, int64_t number) {
  return directory / fmt::format("snapshot-{:06}.bin", number);
}
fs::path journal_path(const fs::path& directory, int64_t number) {
  return directory / fmt::format("journal-{:06}.log", number);
}

// magic, u32 format, u32 law, u64 checksum, bytes of the State
std::string pack_snapshot(const State& state) {
  const std::string bytes = to_bytes(state);
  std::string file(kSnapshotMagic);
  const uint32_t format[2] = {kArchiveFormat, kLawVersion};
  const uint64_t checksum = XXH3_64bits(bytes.data(), bytes.size());
  file.append(reinterpret_cast<const char*>(format), sizeof(format));
  file.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  return file + bytes;
}

Result<State> read_snapshot(const fs::path& path) {
  constexpr size_t kHeader = 24;
  auto file = read_file(path);
  if (!file) return file.failure();
  const std::string& bytes = file.value();
  if (bytes.size() < kHeader || std::string_view(bytes).substr(0, 8) != kSnapshotMagic) {
    return Failure{path.string() + " is not a snapshot, or was cut"};
  }
  uint32_t format = 0;
  uint64_t checksum = 0;
  std::memcpy(&format, bytes.data() + 8, sizeof(format));
  std::memcpy(&checksum, bytes.data() + 16, sizeof(checksum));
  // The law's number is not looked at: a snapshot alone crosses laws (law 13.2), not formats (law
  // 13.4).
  if (format != kArchiveFormat) {
    return Failure{fmt::format(
        "{} has format {}, this build reads {}. Continue the run with the build that began it",
        path.string(), format, kArchiveFormat)};
  }
  const std::string_view body = std::string_view(bytes).substr(kHeader);
  if (XXH3_64bits(body.data(), body.size()) != checksum)
    return Failure{path.string() + " is damaged"};
  auto state = from_bytes<State>(body);
  if (!state) return Failure{path.string() + " is damaged"};
  return *std::move(state);
}

std::map<int64_t, fs::path> list(const fs::path& directory, std::string_view prefix,
                                 std::string_view suffix) {
  std::map<int64_t, fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (const auto number = file_number(entry.path(), prefix, suffix))
      files[*number] = entry.path();
  }
  return files;
}
std::map<int64_t, fs::path> snapshots(const fs::path& directory) {
  return list(directory, "snapshot-", ".bin");
}
std::map<int64_t, fs::path> journals(const fs::path& directory) {
  return list(directory, "journal-", ".log");
}

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
        if (entry) return journal.entries.push_back(*std::move(entry));
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
      restored.notes.push_back(reason + "; using the one before it");
      continue;
    }
    restored.state = std::move(state).value();
    from = it->first;
  }
  if (!restored.state) return Failure{"no snapshot of this run can be read: " + reason};
  int64_t last = from - 1;
  for (const auto& [number, path] : journals(directory)) {
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
    auto journal = read_journal(path, &restored.notes);
    if (!journal) return journal.failure();
    if (auto replayed = replay(path, journal.value(), *restored.state); !replayed) {
      if (restored.notes.empty()) return replayed.failure();
      // No wonder that they do not fit: say so, or a person would look for another build.
      return Failure{fmt::format(
          "{} is damaged: {}.\n       What is left does not fit together: {}", directory.string(),
          fmt::join(restored.notes, "; "), replayed.failure().message)};
    }
  }
  return restored;
}

Result<Journal> Journal::open(const fs::path& directory, const State& state, Options options) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return Failure{describe_errno("create", directory, error.value())};
  Journal journal(directory, options);
  // Of both kinds: a kill may have left a snapshot without its journal.
  for (const auto& files : {snapshots(directory), journals(directory)}) {
    if (!files.empty()) journal.number_ = std::max(journal.number_, files.rbegin()->first);
  }
  if (auto rotated = journal.rotate(state); !rotated) return rotated.failure();
  return journal;
}

Result<void> Journal::rotate(const State& state) {
  TR_CHECK(pending_.empty(), "{} bytes of events are not committed", pending_.size());
  const int64_t next = number_ + 1;
  // The snapshot first: if we die before the journal is there, it is an empty journal.
  if (auto written = write_file_atomic(snapshot_path(directory_, next), pack_snapshot(state));
      !written) {
    return written.failure();
  }
  auto file = RecordFile::create(journal_path(directory_, next), kJournalKind, kLawVersion);
  if (!file) {
    // It must not stay: a restore would begin with it and never see the events that go on in the
    // old file.
    std::error_code ignored;
    fs::remove(snapshot_path(directory_, next), ignored);
    return file.failure();
  }
  file_ = std::move(file).value();
  if (auto synced = sync_directory(directory_); !synced) return synced.failure();
  for (const auto& files : {snapshots(directory_), journals(directory_)}) {
    for (const auto& [number, path] : files) {
      std::error_code ignored;
      // `number_` is the pair before the new one: it stays in case the new snapshot is damaged.
      if (number < number_ && !options_.archive) fs::remove(path, ignored);
    }
  }
  number_ = next;
  return {};
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
  if (sync) return file_.sync();
  return {};
}

}  // namespace tailrace::scheduler
