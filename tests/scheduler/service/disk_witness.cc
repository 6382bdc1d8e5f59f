#include "tests/scheduler/service/disk_witness.h"

#include <atomic>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// Plain values: read by whoever calls the system, also before and after the witness lives.
std::atomic<DiskWitness*> witness{nullptr};
std::string watched_root;  // the root, with a slash
int notes = -1;            // a file that all processes append to, a line with each write
std::string notes_path;

bool is_watched(const std::string& path) {
  return witness.load() != nullptr && path.starts_with(watched_root);
}

void note(const std::string& line) {
  const std::string whole = line + "\n";
  if (::write(notes, whole.data(), whole.size()) != std::ssize(whole)) std::abort();
}

// What is done to the disk and its note are one, and an image lies before or after both, in
// whichever process and thread. An image may be taken inside.
class Moment {
 public:
  Moment() {
    if (depth++ > 0) return;
    lock = ::open(notes_path.c_str(), O_RDONLY | O_CLOEXEC);  // flock() is for each open()
    if (lock < 0 || ::flock(lock, LOCK_EX) != 0) std::abort();
  }
  ~Moment() {
    if (--depth == 0) ::close(lock);
  }
  Moment(const Moment&) = delete;

 private:
  static thread_local int depth, lock;
};
thread_local int Moment::depth = 0;
thread_local int Moment::lock = -1;

void tell(std::function<void(const fs::path&)> DiskWitness::*what, const fs::path& path) {
  DiskWitness& listener = *witness.load();
  if (listener.*what) (listener.*what)(path);
}

// Empty: it is not watched.
std::string watched_path(int file) {
  std::error_code error;
  const std::string path = fs::read_symlink(fmt::format("/proc/self/fd/{}", file), error);
  return !error && is_watched(path) ? path : "";
}

// True: noted, and no need to disturb the disk.
bool note_sync(int file) {
  const std::string path = watched_path(file);
  if (path.empty()) return false;
  tell(&DiskWitness::before_sync, path);
  const Moment moment;
  struct stat info {};
  if (::fstat(file, &info) != 0) return false;
  if (!S_ISDIR(info.st_mode)) {
    note(fmt::format("file {} {}", info.st_size, path));
    tell(&DiskWitness::on_sync, path);
    return true;
  }
  std::error_code error;
  std::string line = "folder " + path;
  for (const auto& entry : fs::directory_iterator(path, error))
    line += " " + entry.path().filename().string();
  note(line);
  tell(&DiskWitness::on_sync, path);
  return true;
}

// What a reader of the notes knows.
struct OnDisk {
  std::map<std::string, int64_t> bytes;
  std::map<std::string, std::set<std::string>> names;  // of a folder

  void forget(const std::string& path) {
    bytes.erase(path);
    names[fs::path(path).parent_path()].erase(fs::path(path).filename());
  }
};

OnDisk read_notes() {
  OnDisk disk;
  std::ifstream file(notes_path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string what, path, other;
    words >> what;
    if (what == "file") {
      int64_t size = 0;
      words >> size >> path;
      disk.bytes[path] = size;
    } else if (what == "folder") {
      words >> path;
      disk.names[path].clear();
      while (words >> other) disk.names[path].insert(other);
    } else if (what == "renamed") {
      words >> path >> other;
      const auto size = disk.bytes.find(path);
      if (size != disk.bytes.end()) disk.bytes[other] = size->second;
      disk.bytes.erase(path);
    } else if (what == "removed") {
      words >> path;
      disk.forget(path);
    }
  }
  return disk;
}

}  // namespace

DiskWitness::DiskWitness(const fs::path& root, const fs::path& notes_file) : root_(root) {
  watched_root = root.string() + "/";
  notes_path = notes_file;
  notes = ::open(notes_file.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
  EXPECT_GE(notes, 0);
  witness = this;
}

DiskWitness::~DiskWitness() {
  witness = nullptr;
  ::close(notes);
}

void DiskWitness::write_image(const fs::path& image,
                              std::initializer_list<const char*> names) const {
  const Moment moment;
  const OnDisk disk = read_notes();
  for (const char* name : names) {
    const fs::path from = root_ / name, to = image / name;
    fs::create_directories(to);
    const auto known = disk.names.find(from);
    if (known == disk.names.end()) continue;
    for (const std::string& file : known->second) {
      std::error_code error;
      fs::copy_file(from / file, to / file, error);
      if (error) continue;  // gone since
      const auto size = disk.bytes.find(from / file);
      fs::resize_file(to / file,
                      size == disk.bytes.end() ? 0 : static_cast<uintmax_t>(size->second), error);
      EXPECT_FALSE(error) << file << ": " << error.message();
    }
  }
}

}  // namespace tailrace

extern "C" {

int fsync(int file) {
  return tailrace::note_sync(file) ? 0 : static_cast<int>(::syscall(SYS_fsync, file));
}
int fdatasync(int file) {
  return tailrace::note_sync(file) ? 0 : static_cast<int>(::syscall(SYS_fdatasync, file));
}
ssize_t pread(int file, void* to, size_t size, off_t offset) {
  const tailrace::DiskWitness* witness = tailrace::witness.load();
  if (witness != nullptr && witness->on_read) {
    const std::string path = tailrace::watched_path(file);
    if (!path.empty()) witness->on_read(path);
  }
  return ::syscall(SYS_pread64, file, to, size, offset);
}
int rename(const char* from, const char* to) noexcept {
  const auto act = [&] {
    return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
  };
  if (!tailrace::is_watched(from)) return act();
  const tailrace::Moment moment;
  const int result = act();
  if (result == 0) tailrace::note(fmt::format("renamed {} {}", from, to));
  return result;
}
// Folders too, as the C library has it.
int remove(const char* path) noexcept {
  const auto act = [&] {
    if (::syscall(SYS_unlinkat, AT_FDCWD, path, 0) == 0) return 0;
    if (errno != EISDIR && errno != EPERM) return -1;
    return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
  };
  struct stat info {};
  if (!tailrace::is_watched(path) || ::lstat(path, &info) != 0 || S_ISDIR(info.st_mode))
    return act();
  const tailrace::Moment moment;
  tailrace::note(fmt::format("removed {}", path));
  const auto& witness = *tailrace::witness.load();
  if (witness.on_remove) witness.on_remove(path);
  return act();
}

}  // extern "C"
