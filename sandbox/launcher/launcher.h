// Runs a program that nobody has read: in processes of its own, isolated from this machine, under
// limits.
//
// It lives in namespaces of its own (user, pid, mount, network, ipc, host name, cgroup) as a user
// without rights. It sees /usr, /bin, /lib and the like read-only, a few devices, and a private
// empty working directory, its home, that is gone afterwards; no network (but for one port, if it
// is given one), no /proc, none of our files, variables or descriptors. A filter refuses the system
// calls that it has no business with.
// When its first process ends, at its deadline, and when the thread that waits for it dies, all
// that it has started is killed with it.
//
// What this is not: memory is limited for each process and not for all together, the use of cores
// by time alone, and a hole in the kernel is a way out. Kernels before 5.14 count the processes of
// the whole user against `processes`.
//
// Thread: any. The process is duplicated for a moment (as by fork), so the caller should not hold
// many gigabytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/base/result.h"
#include "core/base/time.h"

namespace tailrace::sandbox {

struct Program {
  std::vector<std::string> command;  // the first is a path; the working directory is its own
  std::vector<std::pair<std::string, std::string>> files;  // name, bytes: put there before
  std::string standard_input;
  std::vector<std::string> environment = {};  // "NAME=VALUE", beside what every program has
  // For a RunningProgram: 127.0.0.1:port inside is a server outside (take_listening), and the only
  // thing that it can reach; it may open TCP sockets over IPv4 then. 0: none.
  uint16_t port = 0;
};

struct ProgramLimits {
  Time wall = std::chrono::seconds(30);
  int64_t memory_bytes = int64_t{1} << 30;  // address space of each process
  int64_t disk_bytes = int64_t{64} << 20;   // of all its files; they lie in memory
  int64_t output_bytes = int64_t{1} << 20;  // of stdout, and of stderr
  int processes = 64;                       // and threads, at once; as many signals may wait
  int open_files = 256;                     // of each process
};

enum class ProgramEnding : uint8_t {
  kExited,      // its first process, with `code`
  kSignalled,   // its first process was killed by the signal `code`
  kOverTime,    // killed at its deadline
  kOverOutput,  // killed because it wrote too much
};

struct ProgramRun {
  ProgramEnding ending = ProgramEnding::kExited;
  int code = 0;
  std::string out = {}, err = {};  // as far as they were read, at most output_bytes each
  double seconds = 0;              // from its start to its end, by the clock on the wall
};

// A Failure when it could not be started, for whatever is not its own fault: this machine does not
// let us isolate (then the message says what to do; it is never run without), the command is not
// there, no processes or memory are to be had. Returns when nothing of the program is left, at
// most a few seconds after `limits.wall`.
Result<ProgramRun> run_program(const Program& program, const ProgramLimits& limits);

// A program that goes on while somebody writes to it and reads what it writes. It has no deadline
// of its own (`wall` bounds its time on the cores alone), and what it writes is not kept here.
//
// Thread: the one that started it, with which it dies.
class RunningProgram {
 public:
  // A Failure as of run_program(). `standard_input` is not read.
  static Result<RunningProgram> start(Program program, const ProgramLimits& limits);
  // Kills it, with all that it has started.
  ~RunningProgram();
  RunningProgram(RunningProgram&&) noexcept;
  RunningProgram& operator=(RunningProgram&&) = delete;

  // To write to it, and to read its stdout and stderr; none of them waits.
  int in() const { return in_.get(); }
  void close_in() { in_.reset(); }
  int out() const;
  int err() const;
  int pidfd() const;  // readable once nothing is left of it
  // The socket that listens at the program's port. It lives in the program's namespace, and whoever
  // holds it accepts the program's connections. None: it has no port, or the socket was taken.
  FileDescriptor take_listening() { return std::move(listening_); }
  // How it has ended, as waitpid() says it, once pidfd() is readable. A Failure: it never began.
  Result<int> ending() const;

 private:
  struct Inside;
  RunningProgram(std::unique_ptr<Inside> inside, FileDescriptor in);

  std::unique_ptr<Inside> inside_;
  FileDescriptor in_, listening_;
};

// The folder through which a program sees the file or folder `path`, whoever owns it; none: it does
// not see it. Links are followed; that a file has a second name elsewhere is not known.
std::optional<std::string> shown_through(const std::filesystem::path& path);

// Whether this machine lets us isolate, by trying: a Failure as of run_program().
Result<void> check_isolation();

}  // namespace tailrace::sandbox
