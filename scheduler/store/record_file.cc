#include "scheduler/store/record_file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/base/file.h"
#include "kernels/base/check.h"
#include "kernels/base/pulse.h"
#include "scheduler/state/archive.h"

namespace tailrace::scheduler {
namespace {

constexpr std::string_view kMagic{"TRREC\0\0\0", 8};
// Begins each record, so that a scan can tell whether another record begins where a damaged one
// says that it ends.
constexpr uint32_t kMark = 0x43455254;  // "TREC"

struct RecordHeader {
  uint32_t mark = kMark;
  uint32_t size = 0;
  uint64_t checksum = 0;
};
static_assert(sizeof(RecordHeader) == RecordFile::kRecordHeaderBytes);

template <class T>
void put(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

Failure failure(std::string_view action, const std::filesystem::path& path) {
  return Failure{describe_errno(action, path, errno)};
}

// All `size` bytes at `offset`, or an error in errno (EIO for a short file).
bool read_fully(int file, void* out, size_t size, int64_t offset) {
  auto* bytes = static_cast<char*>(out);
  while (size > 0) {
    const ssize_t got = ::pread(file, bytes, size, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = EIO;
    if (got <= 0) return false;
    bytes += got, offset += got, size -= static_cast<size_t>(got);
  }
  return true;
}

std::optional<std::string> record_at(int file, int64_t offset, int64_t file_bytes,
                                     RecordHeader& header) {
  if (offset + RecordFile::kRecordHeaderBytes > file_bytes) return std::nullopt;
  if (!read_fully(file, &header, sizeof(header), offset) || header.mark != kMark) {
    // Tells the scan that the length beside it cannot be believed either.
    header.mark = 0;
    return std::nullopt;
  }
  // A size is believed only as far as the file has bytes: a damaged one allocates no more than
  // that.
  const int64_t begin = offset + RecordFile::kRecordHeaderBytes;
  if (begin + header.size > file_bytes) return std::nullopt;
  std::string payload(header.size, '\0');
  if (!read_fully(file, payload.data(), payload.size(), begin)) return std::nullopt;
  if (XXH3_64bits(payload.data(), payload.size()) != header.checksum) return std::nullopt;
  return payload;
}

// Whether a record begins at `offset`, or the file ends there.
bool joins(int file, int64_t offset, int64_t file_bytes) {
  uint32_t mark = 0;
  return offset == file_bytes || (offset + RecordFile::kRecordHeaderBytes <= file_bytes &&
                                  read_fully(file, &mark, sizeof(mark), offset) && mark == kMark);
}

}  // namespace

Result<RecordFile> RecordFile::create(const std::filesystem::path& path, uint32_t kind,
                                      uint32_t law, uint32_t after) {
  RecordFile record_file;
  record_file.path_ = path;
  // Never a file that is there: its tail may be cut, and what is behind a cut is not read.
  record_file.file_ =
      FileDescriptor(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644));
  if (!record_file.file_.is_open()) return failure("create", path);
  std::string header(kMagic);
  put(header, kind);
  put(header, kArchiveFormat);
  put(header, law);
  put(header, after);
  if (auto written = record_file.write(header); !written) return written.failure();
  return record_file;
}

// On a failure what was written of `bytes` is cut off again.
Result<void> RecordFile::write(std::string_view bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    // At the offset that we count and not behind the end of the file: what a failed write has left
    // is then written over by the next one.
    const ssize_t wrote = ::pwrite(file_.get(), bytes.data() + done, bytes.size() - done,
                                   bytes_ + static_cast<int64_t>(done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      const Failure reason = failure("write", path_);
      // Half a record in the middle would hide all that comes after it.
      if (::ftruncate(file_.get(), bytes_) != 0) {
        return Failure{reason.message + "; and the part that was written cannot be cut off again"};
      }
      return reason;
    }
    done += static_cast<size_t>(wrote);
  }
  bytes_ += static_cast<int64_t>(bytes.size());
  return {};
}

void RecordFile::frame(std::string_view payload, std::string& out) {
  TR_CHECK(static_cast<int64_t>(payload.size()) < kMaxPayloadBytes, "a record of {} bytes",
           payload.size());
  put(out, RecordHeader{kMark, static_cast<uint32_t>(payload.size()),
                        XXH3_64bits(payload.data(), payload.size())});
  out.append(payload);
}

Result<void> RecordFile::append_framed(std::string_view framed) { return write(framed); }

Result<int64_t> RecordFile::append(std::string_view payload) {
  const int64_t offset = bytes_;
  std::string framed;
  framed.reserve(payload.size() + kRecordHeaderBytes);
  frame(payload, framed);
  if (auto written = write(framed); !written) return written.failure();
  return offset;
}

bool RecordFile::is_in_place() const {
  // A file that was removed, or that another one has replaced, still takes bytes by its descriptor,
  // and nobody would find them.
  struct stat ours {
  }, there{};
  return ::fstat(file_.get(), &ours) == 0 && ::stat(path_.c_str(), &there) == 0 &&
         ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

Result<void> RecordFile::sync() {
  // The length of the file goes along; other metadata nobody reads.
  if (::fdatasync(file_.get()) != 0) return failure("sync", path_);
  return {};
}

Result<ScanReport> scan_records(const std::filesystem::path& path, uint32_t kind, bool skip_damaged,
                                const std::function<void(int64_t, std::string_view)>& use) {
  const Result<FileDescriptor> opened = open_to_read(path);
  if (!opened) return opened.failure();
  const FileDescriptor& file = opened.value();
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return failure("read", path);
  const int64_t file_bytes = info.st_size;
  if (file_bytes < RecordFile::kFileHeaderBytes) {
    return ScanReport{
        .law = 0,
        .after = 0,
        .note = fmt::format("{} was cut in its header: nothing in it", path.string())};
  }
  char header[RecordFile::kFileHeaderBytes];
  if (!read_fully(file.get(), header, sizeof(header), 0)) return failure("read", path);
  // A power loss may keep the size of a file and not its first page.
  if (std::ranges::all_of(header, [](char byte) { return byte == 0; })) {
    return ScanReport{
        .law = 0,
        .after = 0,
        .note = fmt::format("{} never reached the disk: nothing in it", path.string())};
  }
  // The order in which create() writes them: kind, format, law, and the mark of where the file
  // before ended.
  uint32_t found[4];
  std::memcpy(found, header + 8, sizeof(found));
  if (std::string_view(header, 8) != kMagic || found[0] != kind) {
    return Failure{fmt::format("{} is not a file of this kind", path.string())};
  }
  if (found[1] != kArchiveFormat) {
    return Failure{fmt::format(
        "{} has format {}, this build reads {}. Continue the run with the build that began it",
        path.string(), found[1], kArchiveFormat)};
  }

  ScanReport report{.law = found[2], .after = found[3], .note = {}};
  int64_t damaged = 0;
  for (int64_t offset = RecordFile::kFileHeaderBytes; offset < file_bytes;) {
    beat();
    RecordHeader record;
    const auto payload = record_at(file.get(), offset, file_bytes, record);
    const int64_t next = offset + RecordFile::kRecordHeaderBytes + record.size;
    // A damaged record's length is believed when another record begins where it ends.
    if (payload) {
      use(offset, *payload);
    } else if (skip_damaged && record.mark == kMark && next < file_bytes &&
               joins(file.get(), next, file_bytes)) {
      ++damaged;
    } else {
      report.note = fmt::format("{}: dropped the last {} bytes, cut or damaged at offset {}",
                                path.string(), file_bytes - offset, offset);
      break;
    }
    offset = next;
  }
  if (damaged > 0) {
    report.note += fmt::format("{}{}: skipped {} damaged records", report.note.empty() ? "" : "; ",
                               path.string(), damaged);
  }
  return report;
}

std::optional<int64_t> file_number(const std::filesystem::path& path, std::string_view prefix,
                                   std::string_view suffix) {
  const std::string file = path.filename().string();
  if (!file.starts_with(prefix) || !file.ends_with(suffix)) return std::nullopt;
  int64_t number = 0;
  for (const char c : file.substr(prefix.size(), file.size() - prefix.size() - suffix.size())) {
    // The folder may hold files of others: a name with more digits must not overflow.
    if (c < '0' || c > '9' || number > 1'000'000'000) return std::nullopt;
    number = number * 10 + (c - '0');
  }
  return number;
}

Result<void> sync_records(const std::filesystem::path& path) {
  const Result<FileDescriptor> opened = open_to_read(path);
  if (!opened) return opened.failure();
  const FileDescriptor& file = opened.value();
  if (::fdatasync(file.get()) != 0) return failure("sync", path);
  return {};
}

Result<std::string> read_record(const std::filesystem::path& path, int64_t offset) {
  const Result<FileDescriptor> opened = open_to_read(path);
  if (!opened) return opened.failure();
  const FileDescriptor& file = opened.value();
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return failure("read", path);
  RecordHeader header;
  auto payload = record_at(file.get(), offset, info.st_size, header);
  if (!payload) return Failure{fmt::format("{} is damaged at offset {}", path.string(), offset)};
  return *std::move(payload);
}

}  // namespace tailrace::scheduler
