#include "tests/core/base/file_steps.h"

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tailrace {
namespace {

bool counts_steps = false;
AtStep what_at_step = AtStep::kGoOn;
int64_t named_step = 0, steps_taken = 0;

// What becomes of the step that begins.
AtStep next_step() {
  if (!counts_steps) return AtStep::kGoOn;
  ++steps_taken;
  if (what_at_step == AtStep::kKill && steps_taken == named_step) return AtStep::kKill;
  if (what_at_step == AtStep::kFull && steps_taken >= named_step) return AtStep::kFull;
  return AtStep::kGoOn;
}

[[noreturn]] void die() {
  ::kill(::getpid(), SIGKILL);
  std::abort();
}

// Of a step that takes no space.
void take_step() {
  if (next_step() == AtStep::kKill) die();
}

// False, and errno says so: there is no space.
bool take_space() {
  const AtStep what = next_step();
  if (what == AtStep::kKill) die();
  if (what == AtStep::kFull) errno = ENOSPC;
  return what != AtStep::kFull;
}

template <class Write>
ssize_t write_in_steps(size_t size, const Write& write) {
  const bool is_first_full = what_at_step == AtStep::kFull && steps_taken + 1 == named_step;
  const AtStep what = next_step();
  if (what == AtStep::kGoOn) return write(size);
  if (what == AtStep::kKill) {
    (void)write(size / 2);
    die();
  }
  if (is_first_full && size > 1) return write(size / 2);
  errno = ENOSPC;
  return -1;
}

int open_in_steps(int folder, const char* path, int flags, unsigned mode) {
  const bool is_new = (flags & O_CREAT) != 0 && ::faccessat(folder, path, F_OK, 0) != 0;
  if (is_new && !take_space()) return -1;
  return static_cast<int>(::syscall(SYS_openat, folder, path, flags, mode));
}

}  // namespace

FileSteps::FileSteps(AtStep what, int64_t step) {
  if (counts_steps) std::abort();
  what_at_step = what;
  named_step = step;
  steps_taken = 0;
  counts_steps = true;
}

FileSteps::~FileSteps() { counts_steps = false; }

int64_t FileSteps::count() const { return steps_taken; }

InChild run_and_kill(int64_t step, const std::function<bool()>& deed) {
  constexpr int kThrew = 3;
  const pid_t child = ::fork();
  if (child == 0) {
    int code = kThrew;
    {
      const FileSteps steps(AtStep::kKill, step);
      try {
        code = deed() ? 0 : 1;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "threw: %s\n", error.what());
      }
    }
    ::_exit(code);
  }
  int status = 0;
  while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (child < 0) std::abort();
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return {Ended::kKilled};
  if (!WIFEXITED(status)) return {Ended::kFailed, true};
  return {WEXITSTATUS(status) == 0 ? Ended::kDone : Ended::kFailed, WEXITSTATUS(status) == kThrew};
}

}  // namespace tailrace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const auto mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, unsigned) : 0u;
  va_end(rest);
  return tailrace::open_in_steps(AT_FDCWD, path, flags, mode);
}
ssize_t write(int file, const void* bytes, size_t size) {
  return tailrace::write_in_steps(size, [&](size_t part) {
    return static_cast<ssize_t>(::syscall(SYS_write, file, bytes, part));
  });
}
ssize_t pwrite(int file, const void* bytes, size_t size, off_t offset) {
  return tailrace::write_in_steps(size, [&](size_t part) {
    return static_cast<ssize_t>(::syscall(SYS_pwrite64, file, bytes, part, offset));
  });
}
int fsync(int) {
  tailrace::take_step();
  return 0;
}
int fdatasync(int) {
  tailrace::take_step();
  return 0;
}
int rename(const char* from, const char* to) noexcept {
  tailrace::take_step();
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int unlink(const char* path) noexcept {
  tailrace::take_step();
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  tailrace::take_step();
  return static_cast<int>(::syscall(SYS_unlinkat, folder, path, flags));
}
// Folders too, as the C library has it.
int remove(const char* path) noexcept {
  tailrace::take_step();
  if (::syscall(SYS_unlinkat, AT_FDCWD, path, 0) == 0) return 0;
  if (errno != EISDIR && errno != EPERM) return -1;
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
}
int link(const char* from, const char* to) noexcept {
  if (!tailrace::take_space()) return -1;
  return static_cast<int>(::syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int mkdir(const char* path, mode_t mode) noexcept {
  if (!tailrace::take_space()) return -1;
  return static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
int ftruncate(int file, off_t size) noexcept {
  tailrace::take_step();
  return static_cast<int>(::syscall(SYS_ftruncate, file, size));
}

}  // extern "C"
