#include "cli/process/child_process.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/file.h"

namespace tailrace {
namespace {

constexpr int kCannotRun = 127;

// In the child, between fork and exec: async-signal-safe calls only.
[[noreturn]] void become(char* const* arguments, int log, int page, pid_t parent) {
  // A group of its own: a terminal's Ctrl-C reaches the supervisor alone, which passes it on in
  // order.
  ::setpgid(0, 0);
  // However the supervisor ends, no worker stays behind.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kCannotRun);  // it died before the line above
  // Masks and ignored signals are inherited through exec: the supervisor's would make a worker
  // deaf.
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_DFL);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  // Behind the others: `log` may have this number, and is not wanted any more. A duplicate is not
  // closed by exec; one that has its number already is no duplicate.
  if (page >= 0 && page != ChildProcess::kStatusDescriptor) {
    ::dup2(page, ChildProcess::kStatusDescriptor);
  } else if (page >= 0) {
    ::fcntl(page, F_SETFD, 0);
  }
  ::execv(arguments[0], arguments);
  constexpr char message[] = "cannot run the program\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, message, sizeof message - 1);
  ::_exit(kCannotRun);
}

std::filesystem::path tasks_of(pid_t process) { return fmt::format("/proc/{}/task", process); }

// The state letter of a thread's stat, which stands behind the name; the name may hold anything.
char state_letter(const std::filesystem::path& stat) {
  const auto text = read_file(stat, 4096);
  const size_t name_end = text ? text.value().rfind(") ") : std::string::npos;
  return name_end == std::string::npos ? '?' : text.value()[name_end + 2];
}

// Another process traces it: a debugger, or strace.
bool is_traced(const std::filesystem::path& thread) {
  const auto text = read_file(thread / "status", 1 << 16);
  if (!text) return false;
  constexpr std::string_view kTracer = "TracerPid:\t";
  const size_t at = text.value().find(kTracer);
  return at != std::string::npos && text.value()[at + kTracer.size()] != '0';
}

}  // namespace

Standstill standstill_of(pid_t process, pid_t thread) {
  const std::filesystem::path task = tasks_of(process) / fmt::to_string(thread);
  if (is_traced(task)) return Standstill::kDebugged;
  switch (state_letter(task / "stat")) {
    case 'T':
      return Standstill::kStopped;
    case 'D':
      return Standstill::kDisk;
    case 'R':
      return Standstill::kComputes;
    default:
      return Standstill::kSleeps;
  }
}

Standstill standstill_of(pid_t process) {
  const Standstill main_thread = standstill_of(process, process);
  if (main_thread == Standstill::kDebugged || main_thread == Standstill::kStopped)
    return main_thread;
  std::error_code error;  // threads come and go
  for (const auto& thread : std::filesystem::directory_iterator(tasks_of(process), error)) {
    if (state_letter(thread.path() / "stat") == 'D') return Standstill::kDisk;
  }
  return main_thread;
}

std::string_view describe(Standstill standstill) {
  switch (standstill) {
    case Standstill::kSleeps:
      return "its threads wait for something that does not come";
    case Standstill::kComputes:
      return "it computes, and no piece of work gets done";
    case Standstill::kStopped:
      return "a signal has stopped it";
    case Standstill::kDebugged:
      return "a debugger holds it";
    case Standstill::kDisk:
      return "it waits for a disk or a file system";
  }
  return "";  // not reached
}

std::string describe(const ExitStatus& status) {
  if (status.signal == 0) return fmt::format("exit status {}", status.code);
  // Nobody else says that it was the kernel.
  return fmt::format("killed by signal {} ({}){}", status.signal, ::strsignal(status.signal),
                     status.signal == SIGKILL ? ", perhaps for lack of memory" : "");
}

Result<ChildProcess> ChildProcess::spawn(const std::vector<std::string>& command,
                                         const std::filesystem::path& log, const StatusPage* page) {
  TR_CHECK(!command.empty());
  const Result<FileDescriptor> log_file = open_to_append(log);
  if (!log_file) return log_file.failure();
  std::vector<char*> arguments;
  for (const std::string& argument : command)
    arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  // Asked before the fork: the child compares it with its parent, to see whether that is dead
  // already.
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return Failure{describe_errno("start", command[0], errno)};
  if (pid == 0)
    become(arguments.data(), log_file.value().get(), page != nullptr ? page->descriptor() : -1,
           parent);
  // A descriptor for the event loop: SIGCHLD would need a handler for the whole process. glibc
  // wraps the call from 2.36 on.
  FileDescriptor descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  ChildProcess child(pid, std::move(descriptor));
  if (!child.descriptor_.is_open()) return Failure{describe_errno("watch", command[0], errno)};
  return child;
}

ChildProcess::ChildProcess(pid_t pid, FileDescriptor descriptor)
    : pid_(pid), descriptor_(std::move(descriptor)) {}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), descriptor_(std::move(other.descriptor_)) {}

ChildProcess::~ChildProcess() {
  // Reaped already: its number may belong to somebody else by now.
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void ChildProcess::send_signal(int signal) {
  if (pid_ > 0) ::kill(pid_, signal);
}

std::optional<ExitStatus> ChildProcess::try_reap() {
  int status = 0;
  if (pid_ < 0 || ::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  pid_ = -1;
  if (WIFSIGNALED(status)) return ExitStatus{0, WTERMSIG(status)};
  return ExitStatus{WEXITSTATUS(status), 0};
}

}  // namespace tailrace
