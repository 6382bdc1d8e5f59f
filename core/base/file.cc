#include "core/base/file.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/pulse.h"

namespace tailrace {
namespace {

std::string_view advice(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "; free some space or use another disk";
    case EFBIG:
      return "; raise the file size limit (ulimit -f) or use another disk";
    case EACCES:
    case EPERM:
    case EROFS:
      return "; check the permissions or use another folder";
    case ENAMETOOLONG:
      return "; choose a shorter one";
    case EMFILE:
    case ENFILE:
      return "; raise the limit of open files (ulimit -n)";
    default:
      return "";
  }
}

// Between the name of an AtomicFile and the pid of its writer.
constexpr std::string_view kUnfinished = ".unfinished.";

Failure failure(std::string_view action, const std::filesystem::path& path, int error) {
  return Failure{describe_errno(action, path, error)};
}

// A large tensor takes a slow disk minutes, and is written in pieces, so that it shows that it goes
// on.
constexpr size_t kTransfer = size_t{16} << 20;

// The bytes between two syncs: a slow disk takes them in a few seconds.
constexpr size_t kSyncedPiece = size_t{64} << 20;

// Returns 0 or an errno; takes from `bytes` what was written.
int write_all(int descriptor, std::string_view& bytes) {
  while (!bytes.empty()) {
    beat();
    ssize_t written = ::write(descriptor, bytes.data(), std::min(bytes.size(), kTransfer));
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

int64_t memory_bytes() {
  const auto pages = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES));
  return pages > 0 ? pages * ::sysconf(_SC_PAGESIZE) : std::numeric_limits<int64_t>::max();
}

// Another process with this number lives. Not this one: who had its number before is dead.
bool is_other_process(std::string_view number) {
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), pid);
  if (error != std::errc{} || pid <= 0 || pid == ::getpid()) return false;
  if (::kill(pid, 0) != 0 && errno != EPERM) return false;
  // A dead one has its number until its parent asks for its status, and the first process of a
  // container may never ask. Its state stands behind its name, which may hold anything.
  const auto stat = read_file(fmt::format("/proc/{}/stat", pid), 4096);
  const size_t name_end = stat ? stat.value().rfind(") ") : std::string::npos;
  return name_end == std::string::npos || stat.value()[name_end + 2] != 'Z';
}

}  // namespace

std::string describe_errno(std::string_view action, const std::filesystem::path& path, int error) {
  return fmt::format("cannot {} {}: {}{}", action, path.string(), std::strerror(error),
                     advice(error));
}

Result<FileDescriptor> open_to_read(const std::filesystem::path& path) {
  // O_NONBLOCK: to open a pipe would else wait for its writer, for ever if there is none. Files
  // know no such thing.
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) return failure("open", path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return failure("read", path, errno);
  if (S_ISDIR(status.st_mode)) return failure("read", path, EISDIR);
  if (!S_ISREG(status.st_mode))
    return Failure{
        fmt::format("cannot read {}: it is a pipe or a device, not a file", path.string())};
  return file;
}

Result<FileDescriptor> open_to_append(const std::filesystem::path& path) {
  FileDescriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644));
  const int error = errno;
  struct stat status {};
  // By name: a pipe that nobody reads was not opened.
  if (::stat(path.c_str(), &status) == 0 && S_ISFIFO(status.st_mode))
    return Failure{fmt::format("cannot write {}: it is a pipe, not a file", path.string())};
  if (!file.is_open()) return failure("open", path, error);
  // A device must not tell its writer to come again later.
  ::fcntl(file.get(), F_SETFL, O_APPEND);
  return file;
}

Result<std::string> read_file(const std::filesystem::path& path, int64_t max_bytes) {
  Result<FileDescriptor> opened = open_to_read(path);
  if (!opened) return opened.failure();
  const FileDescriptor file = std::move(opened).value();
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return failure("read", path, errno);
  const auto too_large = [&] {
    return Failure{
        fmt::format("cannot read {}: it is larger than {} bytes", path.string(), max_bytes)};
  };
  if (status.st_size > max_bytes) return too_large();
  // Before the memory is asked for: the system would give it, and kill somebody later.
  const int64_t memory = memory_bytes();
  if (status.st_size > memory)
    return Failure{fmt::format("cannot read {}: it has {} bytes, more than the machine's memory {}",
                               path.string(), status.st_size, memory)};

  std::string bytes;
  size_t used = 0;
  // One byte more than the size, so that the usual file needs no second read to see its end.
  bytes.resize(static_cast<size_t>(std::min<int64_t>(status.st_size, max_bytes)) + 1);
  while (true) {
    beat();
    ssize_t got = ::read(file.get(), bytes.data() + used, std::min(bytes.size() - used, kTransfer));
    if (got < 0) {
      if (errno == EINTR) continue;
      return failure("read", path, errno);
    }
    if (got == 0) break;
    used += static_cast<size_t>(got);
    if (static_cast<int64_t>(used) > max_bytes) return too_large();
    // Files of /proc say that they are empty, and some grow while they are read.
    if (used == bytes.size()) bytes.resize(bytes.size() * 2);
  }
  bytes.resize(used);
  return bytes;
}

Result<AtomicFile> AtomicFile::create(const std::filesystem::path& path, bool durable) {
  AtomicFile file;
  file.durable_ = durable;
  file.path_ = file.temporary_ = path;
  // The pid keeps two processes apart that write one file.
  file.temporary_ += fmt::format("{}{}", kUnfinished, ::getpid());
  // A file that a dead process of the same pid left is removed; a link that somebody put there is
  // never followed.
  ::unlink(file.temporary_.c_str());
  file.descriptor_ = FileDescriptor(
      ::open(file.temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.descriptor_.is_open()) return failure("write", path, errno);
  return file;
}

AtomicFile::~AtomicFile() {
  // commit() closes it, so an open one was given up.
  if (descriptor_.is_open()) ::unlink(temporary_.c_str());
}

Result<void> AtomicFile::write(std::string_view bytes) {
  TR_CHECK(descriptor_.is_open());
  while (!bytes.empty()) {
    std::string_view piece = bytes.substr(0, kSyncedPiece - unsynced_);
    bytes.remove_prefix(piece.size());
    unsynced_ = durable_ ? unsynced_ + piece.size() : 0;
    if (int error = write_all(descriptor_.get(), piece)) return failure("write", path_, error);
    if (unsynced_ < kSyncedPiece) continue;
    unsynced_ = 0;
    beat();
    if (::fdatasync(descriptor_.get()) != 0) return failure("write", path_, errno);
  }
  return {};
}

Result<void> AtomicFile::rewrite(int64_t offset, std::string_view bytes) {
  TR_CHECK(descriptor_.is_open());
  if (!write_at(descriptor_, offset, std::as_bytes(std::span(bytes))))
    return failure("write", path_, errno);
  return {};
}

Result<void> AtomicFile::commit() {
  TR_CHECK(descriptor_.is_open());
  // Before the rename: else a power cut could leave the name on a file without its bytes.
  int error = !durable_ || ::fsync(descriptor_.get()) == 0 ? 0 : errno;
  // Network file systems say at close() that a write has failed.
  if (::close(descriptor_.release()) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(temporary_.c_str(), path_.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(temporary_.c_str());
    return failure("write", path_, error);
  }
  if (!durable_) return {};
  return sync_directory(path_.has_parent_path() ? path_.parent_path() : ".");
}

void remove_unfinished(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> unfinished;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    const size_t mark = name.rfind(kUnfinished);
    if (mark == std::string::npos || mark == 0) continue;
    const std::string pid = name.substr(mark + kUnfinished.size());
    if (pid.empty() || pid.find_first_not_of("0123456789") != std::string::npos) continue;
    if (is_other_process(pid)) continue;
    if (std::filesystem::is_regular_file(entry.symlink_status(ignored)))
      unfinished.push_back(entry.path());
  }
  // Collected first: what a listing shows of entries that go meanwhile is not said anywhere.
  for (const auto& path : unfinished) std::filesystem::remove(path, ignored);
}

Result<void> write_file_atomic(const std::filesystem::path& path, std::string_view bytes) {
  // The rename below would take the place of a device.
  std::error_code ignored;
  const auto there = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there))
    return Failure{fmt::format("cannot write {}: it is no regular file", path.string())};
  Result<AtomicFile> file = AtomicFile::create(path);
  if (!file) return file.failure();
  if (Result<void> written = file.value().write(bytes); !written) return written;
  return file.value().commit();
}

Result<void> sync_directory(const std::filesystem::path& directory) {
  FileDescriptor file(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file.is_open()) return failure("open", directory, errno);
  // Some file systems (overlays, network mounts) cannot sync a directory and say EINVAL.
  if (::fsync(file.get()) != 0 && errno != EINVAL) return failure("sync", directory, errno);
  return {};
}

Result<AppendFile> AppendFile::open(const std::filesystem::path& path) {
  Result<FileDescriptor> opened = open_to_append(path);
  if (!opened) return opened.failure();
  AppendFile file;
  file.path_ = path;
  file.descriptor_ = std::move(opened).value();
  return file;
}

Result<void> AppendFile::append(std::string_view bytes) {
  TR_CHECK(is_open());
  std::string_view rest = bytes;
  int error = write_all(descriptor_.get(), rest);
  if (error == 0) return {};
  // Takes back a part that was written before the disk was full; a device or a pipe cannot, and
  // says so.
  struct stat status {};
  auto written = static_cast<off_t>(bytes.size() - rest.size());
  if (written > 0 && ::fstat(descriptor_.get(), &status) == 0 &&
      ::ftruncate(descriptor_.get(), status.st_size - written) != 0)
    return Failure{fmt::format("{} (and a part of the last record stays)",
                               describe_errno("write", path_, error))};
  return failure("write", path_, error);
}

Result<void> AppendFile::sync() {
  TR_CHECK(is_open());
  if (::fsync(descriptor_.get()) != 0) return failure("sync", path_, errno);
  return {};
}

bool read_at(const FileDescriptor& file, int64_t offset, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(file.get(), bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += count;
  }
  return true;
}

bool write_at(const FileDescriptor& file, int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(file.get(), bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += count;
  }
  return true;
}

std::optional<LineReader::Line> LineReader::next() {
  beat();  // whoever reads lines parses them
  if (rest_.empty()) return std::nullopt;
  size_t end = rest_.find('\n');
  Line line;
  line.number = ++number_;
  line.complete = end != std::string_view::npos;
  line.text = rest_.substr(0, end);
  rest_.remove_prefix(line.complete ? end + 1 : rest_.size());
  if (!line.text.empty() && line.text.back() == '\r') line.text.remove_suffix(1);
  return line;
}

}  // namespace tailrace
