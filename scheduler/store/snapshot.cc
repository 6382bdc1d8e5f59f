#include "scheduler/store/snapshot.h"

#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <xxhash.h>

#include "core/base/file.h"
#include "scheduler/decide/decide.h"
#include "scheduler/state/archive.h"
#include "scheduler/store/record_file.h"

namespace tailrace::scheduler {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSnapshotMagic{"TRSNAP\0\0", 8};
// Magic (8 bytes), format (4), law (4) and the checksum of the State behind it (8).
constexpr size_t kHeader = 24;

std::string pack(const State& state) {
  const std::string bytes = to_bytes(state);
  std::string file;
  file.reserve(kHeader + bytes.size());
  file = kSnapshotMagic;
  const uint32_t format[2] = {kArchiveFormat, kLawVersion};
  const uint64_t checksum = XXH3_64bits(bytes.data(), bytes.size());
  file.append(reinterpret_cast<const char*>(format), sizeof(format));
  file.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  return file += bytes;
}

// The file, of which the State begins at kHeader.
Result<std::string> read_proved(const fs::path& path) {
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
  if (XXH3_64bits(bytes.data() + kHeader, bytes.size() - kHeader) != checksum)
    return Failure{path.string() + " is damaged"};
  return file;
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

}  // namespace

fs::path snapshot_path(const fs::path& directory, int64_t number) {
  return directory / fmt::format("snapshot-{:06}.bin", number);
}
fs::path journal_path(const fs::path& directory, int64_t number) {
  return directory / fmt::format("journal-{:06}.log", number);
}

std::map<int64_t, fs::path> snapshots(const fs::path& directory) {
  return list(directory, "snapshot-", ".bin");
}
std::map<int64_t, fs::path> journals(const fs::path& directory) {
  return list(directory, "journal-", ".log");
}

Result<void> write_snapshot(const fs::path& path, const State& state) {
  if (auto written = write_file_atomic(path, pack(state)); !written) return written;
  // Read back before older snapshots and events are removed for it: nothing else could restore the
  // run.
  auto proved = read_proved(path);
  if (proved) return {};
  // It must not stay: a restore would begin with it, or be told of a damage that is none.
  std::error_code ignored;
  fs::remove(path, ignored);
  return proved.failure();
}

Result<State> read_snapshot(const fs::path& path) {
  auto file = read_proved(path);
  if (!file) return file.failure();
  auto state = from_bytes<State>(std::string_view(file.value()).substr(kHeader));
  if (!state) return Failure{path.string() + " is damaged"};
  return *std::move(state);
}

void remove_before(const fs::path& directory, int64_t number) {
  const auto found = snapshots(directory);
  const auto newest = found.lower_bound(number);
  if (newest == found.begin()) return;
  // Not simply the pair before: a kill may have left that one without a snapshot.
  const int64_t kept = std::prev(newest)->first;
  for (const auto& files : {found, journals(directory)}) {
    for (const auto& [old, path] : files) {
      std::error_code ignored;
      if (old < kept) fs::remove(path, ignored);
    }
  }
}

}  // namespace tailrace::scheduler
