#include "scheduler/store/journal.h"

#include <map>
#include <system_error>

#include <xxhash.h>

#include "core/base/file.h"
#include "kernels/base/check.h"
#include "scheduler/decide/decide.h"
#include "scheduler/state/archive.h"

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

// magic, u32 format, u32 0, u64 checksum, bytes of the State
std::string pack_snapshot(const State& state) {
  const std::string bytes = to_bytes(state);
  std::string file(kSnapshotMagic);
  const uint32_t format[2] = {kArchiveFormat, 0};
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

Result<std::vector<JournalEntry>> read_entries(const fs::path& file,
                                               std::vector<std::string>* notes) {
  std::vector<JournalEntry> entries;
  bool readable = true;
  auto report = scan_records(
      file, kJournalKind, /*skip_damaged=*/false, [&](int64_t offset, std::string_view payload) {
        auto entry = readable ? from_bytes<JournalEntry>(payload) : std::nullopt;
        if (entry) return entries.push_back(*std::move(entry));
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
  if (notes != nullptr && !report.value().note.empty()) notes->push_back(report.value().note);
  return entries;
}

Result<Restored> restore(const fs::path& directory) {
  Restored restored;
  const auto found = snapshots(directory);
  if (found.empty()) return restored;
  int64_t from = -1;
  std::string reason;
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
  for (const auto& [number, path] : journals(directory)) {
    if (number < from) continue;
    auto entries = read_entries(path, &restored.notes);
    if (!entries) return entries.failure();
    for (const JournalEntry& entry : entries.value())
      (void)decide(*restored.state, entry.event, entry.now);
  }
  return restored;
}

Result<Journal> Journal::open(const fs::path& directory, const State& state,
                              int64_t segment_bytes) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return Failure{describe_errno("create", directory, error.value())};
  Journal journal(directory, segment_bytes);
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
  auto file = RecordFile::create(journal_path(directory_, next), kJournalKind);
  if (!file) {
    std::error_code ignored;
    fs::remove(snapshot_path(directory_, next), ignored);
    return file.failure();
  }
  file_ = std::move(file).value();
  if (auto synced = sync_directory(directory_); !synced) return synced.failure();
  for (const auto& files : {snapshots(directory_), journals(directory_)}) {
    for (const auto& [number, path] : files) {
      std::error_code ignored;
      if (number < number_) fs::remove(path, ignored);
    }
  }
  number_ = next;
  return {};
}

void Journal::append(const Event& event, Time now) {
  RecordFile::frame(to_bytes(JournalEntry{now, event}), pending_);
}

Result<void> Journal::commit(bool sync) {
  if (!pending_.empty()) {
    if (auto written = file_.append_framed(pending_); !written) return written.failure();
    pending_.clear();
  }
  if (sync) return file_.sync();
  return {};
}

Result<void> Journal::rotate_if_large(const State& state) {
  if (file_.bytes() < segment_bytes_) return {};
  return rotate(state);
}

}  // namespace tailrace::scheduler
