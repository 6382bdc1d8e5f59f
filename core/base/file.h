// Whole files and lines: read, write atomically, append. Messages name the path and the system's
// reason.
//
// Thread: any for the functions; one at a time for each object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/file_descriptor.h"
#include "core/base/result.h"

namespace tailrace {

// "cannot write runs/a/x: No space left on device", with what to try where that is known.
std::string describe_errno(std::string_view action, const std::filesystem::path& path, int error);

// A file that is there, to be read. A Failure when it is missing, unreadable, or no regular file: a
// folder, a pipe, which may never end or begin, a device, which may give bytes for ever.
Result<FileDescriptor> open_to_read(const std::filesystem::path& path);

// A file to append to, made where there is none. A Failure when it cannot be written, or is a pipe:
// its writer waits for somebody who reads. A device, such as a terminal, may be meant.
Result<FileDescriptor> open_to_append(const std::filesystem::path& path);

// The whole file. A Failure as of open_to_read(), or when it is larger than `max_bytes` or than the
// machine's memory.
Result<std::string> read_file(const std::filesystem::path& path,
                              int64_t max_bytes = int64_t{1} << 40);

// A file that is written piece by piece (a model does not fit in memory twice) and appears whole or
// not at all: after a crash it is the old or the new one, never a part. Without commit(), or after
// a Failure, nothing is left behind.
class AtomicFile {
 public:
  // PATH.unfinished.PID. Not `durable`: what a power cut takes is noticed and made again, so that
  // nobody waits for the disk.
  static Result<AtomicFile> create(const std::filesystem::path& path, bool durable = true);
  ~AtomicFile();
  AtomicFile(AtomicFile&&) noexcept = default;

  // Reaches the disk in pieces, so that commit() never waits for gigabytes at once.
  Result<void> write(std::string_view bytes);
  // Over bytes that write() has written: a head that says what came behind it.
  Result<void> rewrite(int64_t offset, std::string_view bytes);
  // Fsyncs, renames it over `path`, fsyncs the directory; the last call.
  Result<void> commit();

 private:
  AtomicFile() = default;

  FileDescriptor descriptor_;
  std::filesystem::path path_, temporary_;
  size_t unsynced_ = 0;  // bytes
  bool durable_ = true;
};

// Removes what AtomicFiles of processes that were killed have left in `directory` (not below it).
// What lives keeps its own: a report may be written there at any time. Only when nobody in this
// process writes there.
void remove_unfinished(const std::filesystem::path& directory);

// All of it in one AtomicFile.
Result<void> write_file_atomic(const std::filesystem::path& path, std::string_view bytes);

// Makes a rename or a new entry in `directory` durable.
Result<void> sync_directory(const std::filesystem::path& directory);

// Appends whole records with one write each, so that a crash can cut only the last.
class AppendFile {
 public:
  static Result<AppendFile> open(const std::filesystem::path& path);

  // All of `bytes`, or a Failure and none of them (a full disk): what was written is taken back.
  Result<void> append(std::string_view bytes);
  Result<void> sync();
  bool is_open() const { return descriptor_.is_open(); }

 private:
  FileDescriptor descriptor_;
  std::filesystem::path path_;
};

// All of `bytes` at `offset` of a file that is open. False: it ends before, or the system refuses,
// as errno says.
[[nodiscard]] bool read_at(const FileDescriptor& file, int64_t offset, std::span<std::byte> bytes);
[[nodiscard]] bool write_at(const FileDescriptor& file, int64_t offset,
                            std::span<const std::byte> bytes);

// The lines of a text, numbered from 1, without their ends ("\n" or "\r\n"). Borrows the text.
class LineReader {
 public:
  explicit LineReader(std::string_view text) : rest_(text) {}

  struct Line {
    int64_t number = 0;
    std::string_view text;
    bool complete = false;  // ended by a newline; the last line of a file cut by a crash is not
  };
  std::optional<Line> next();
  std::string_view rest() const { return rest_; }  // what next() has not given yet

 private:
  std::string_view rest_;
  int64_t number_ = 0;
};

}  // namespace tailrace
