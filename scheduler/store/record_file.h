// Append-only files of checksummed records, for the journal and the store of bodies.
//
//   file    "TRREC\0\0\0", u32 kind, u32 format, u32 law (0: none), u32 after (0: none), then
//           records
//   record  u32 mark, u32 payload bytes, u64 XXH3-64 of the payload, payload
//
// A kill can cut the last record; a disk can damage any. Reading says which bytes it left out.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/file_descriptor.h"
#include "core/base/result.h"

namespace tailrace::scheduler {

class RecordFile {
 public:
  static constexpr int64_t kFileHeaderBytes = 24;
  static constexpr int64_t kRecordHeaderBytes = 16;
  static constexpr int64_t kMaxPayloadBytes = int64_t{1} << 31;

  RecordFile() = default;

  // A new file; one of that name must not exist. `law`: under which its records were written, where
  // that matters to who reads them. `after`: mark_of_end() of the file whose records they go on
  // from.
  static Result<RecordFile> create(const std::filesystem::path& path, uint32_t kind,
                                   uint32_t law = 0, uint32_t after = 0);
  static uint32_t mark_of_end(int64_t bytes) { return static_cast<uint32_t>(bytes); }

  // The offset of the record. All of it or a Failure that leaves the file as it was (a full disk).
  Result<int64_t> append(std::string_view payload);
  // Several records with one write.
  Result<void> append_framed(std::string_view framed);
  static void frame(std::string_view payload, std::string& out);

  Result<void> sync();
  int64_t bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }
  bool is_open() const { return file_.is_open(); }
  // It is what lies under its name. Somebody may have removed or replaced it: what is written to it
  // then can never be read back.
  bool is_in_place() const;

 private:
  Result<void> write(std::string_view bytes);

  std::filesystem::path path_;
  FileDescriptor file_;
  int64_t bytes_ = 0;
};

// The findings of reading a file besides good records; empty: nothing.
struct ScanReport {
  uint32_t law = 0, after = 0;  // of the header
  std::string note;             // for the log: what was dropped and why
};

// Calls `use(offset, payload)` for each record in order. A record whose checksum does not fit is
// skipped when the next one follows it, and otherwise ends the reading. A Failure: not such a file
// at all, or unreadable.
Result<ScanReport> scan_records(
    const std::filesystem::path& path, uint32_t kind, bool skip_damaged,
    const std::function<void(int64_t offset, std::string_view payload)>& use);

// 7 for "snapshot-000007.bin" with prefix "snapshot-" and suffix ".bin"; nothing: not such a file.
std::optional<int64_t> file_number(const std::filesystem::path& path, std::string_view prefix,
                                   std::string_view suffix);

// Records that another process wrote to the file reach the disk.
Result<void> sync_records(const std::filesystem::path& path);

// One record, its checksum verified.
Result<std::string> read_record(const std::filesystem::path& path, int64_t offset);

}  // namespace tailrace::scheduler
