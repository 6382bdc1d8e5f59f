#include "sandbox/process/process.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/file_descriptor.h"
#include "sandbox/launcher/launcher.h"

namespace tailrace::sandbox {
namespace {

namespace fs = std::filesystem;

// Python keeps what it prints to a pipe until it ends, and people do not think of that.
constexpr const char* kUnbuffered = "PYTHONUNBUFFERED=1";

// The limits of an isolated program. It lives as long as the run.
constexpr Time kIsolatedWall = std::chrono::hours(24 * 365);
constexpr int64_t kIsolatedMemory = int64_t{2} << 30;
constexpr int64_t kMostScriptBytes = int64_t{16} << 20;

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status))
    return fmt::format("was ended by signal {} ({})", WTERMSIG(status),
                       ::strsignal(WTERMSIG(status)));
  return fmt::format("has ended with status {}", WEXITSTATUS(status));
}

struct PipeEnds {
  FileDescriptor read, write;
};

// Above the descriptors that the program will have, so that none lies where another belongs.
std::optional<PipeEnds> open_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  const FileDescriptor read(ends[0]), write(ends[1]);
  PipeEnds pipe{FileDescriptor(::fcntl(read.get(), F_DUPFD_CLOEXEC, 3)),
                FileDescriptor(::fcntl(write.get(), F_DUPFD_CLOEXEC, 3))};
  if (!pipe.read.is_open() || !pipe.write.is_open()) return std::nullopt;
  return pipe;
}

void never_wait(const FileDescriptor& file) { (void)::fcntl(file.get(), F_SETFL, O_NONBLOCK); }

// The child of a fork in a process with threads: system calls on what was prepared, and no more.
[[noreturn]] void become_program(pid_t parent, const char* path, const char* folder,
                                 char* const* arguments, char* const* environment,
                                 const int (&files)[3], int report, uint64_t mark) {
  // Nobody else can join its session: by that what it has started is known (offspring.h).
  ::setsid();
  Offspring::bear(mark);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  // Signals that we ignore or block would stay so.
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  for (int i = 0; i < 3; ++i) ::dup2(files[i], i);
  ::syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC);
  if (folder == nullptr || ::chdir(folder) == 0) ::execve(path, arguments, environment);
  const int error = errno;
  (void)!::write(report, &error, sizeof error);
  ::_exit(127);
}

class OwnProcess final : public CommandProcess {
 public:
  ~OwnProcess() override {
    if (pid_ <= 0) return;
    // Its group is its own until it is waited for, so nobody else is hit.
    ::kill(-pid_, SIGKILL);
    ::kill(pid_, SIGKILL);
    if (!has_ended_) wait();
  }

  static Result<std::unique_ptr<CommandProcess>> start(const CommandStart& command) {
    const auto program = find_program(command);
    if (!program) return program.failure();
    auto in = open_pipe(), out = open_pipe(), err = open_pipe(), report = open_pipe();
    if (!in || !out || !err || !report) return cannot_start(command, errno);
    std::vector<char*> arguments, environment;
    for (const std::string& word : command.words)
      arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    for (char** variable = environ; *variable != nullptr; ++variable)
      environment.push_back(*variable);
    // Programs take the first or the last of two variables with one name: only one is given.
    for (const std::string& variable : command.variables) {
      const size_t name = variable.find('=') + 1;
      std::erase_if(environment, [&](const char* ours) {
        return std::string_view(ours).substr(0, name) == std::string_view(variable).substr(0, name);
      });
      environment.push_back(const_cast<char*>(variable.c_str()));
    }
    environment.push_back(const_cast<char*>(kUnbuffered));
    environment.push_back(nullptr);
    const int files[] = {in->read.get(), out->write.get(), err->write.get()};
    const pid_t self = ::getpid();
    int error = 0;
    auto [pid, family] = Offspring::of_this_process().start([&](uint64_t mark) {
      const pid_t child = ::fork();
      if (child == 0)
        become_program(self, program.value().c_str(),
                       command.folder.empty() ? nullptr : command.folder.c_str(), arguments.data(),
                       environment.data(), files, report->write.get(), mark);
      error = errno;
      return child;
    });
    if (pid < 0) return cannot_start(command, error);
    auto process = std::make_unique<OwnProcess>();
    process->pid_ = pid;
    process->family_ = std::move(family);
    process->pidfd_ = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!process->pidfd_.is_open()) return cannot_start(command, errno);
    report->write.reset();
    error = 0;
    ssize_t said;
    do said = ::read(report->read.get(), &error, sizeof error);
    while (said < 0 && errno == EINTR);
    if (said == sizeof error) return cannot_start(command, error);
    process->in_ = std::move(in->write);
    process->out_ = std::move(out->read);
    process->err_ = std::move(err->read);
    for (const FileDescriptor* file : {&process->in_, &process->out_, &process->err_})
      never_wait(*file);
    return std::unique_ptr<CommandProcess>(std::move(process));
  }

  int in() const override { return in_.get(); }
  void close_in() override { in_.reset(); }
  int out() const override { return out_.get(); }
  int err() const override { return err_.get(); }
  int pidfd() const override { return pidfd_.get(); }
  std::string ending() override {
    if (!has_ended_) {
      ::kill(-pid_, SIGKILL);  // what it has left behind
      wait();
    }
    return how_it_ended(status_);
  }
  Offspring::Family take_family() override { return std::move(family_); }

 private:
  static Failure cannot_start(const CommandStart& command, int error) {
    return {fmt::format("cannot start '{}': {}", shown(command), ::strerror(error))};
  }

  void wait() {
    status_ = Offspring::of_this_process().wait(pid_);
    has_ended_ = true;
    pid_ = 0;
  }

  Offspring::Family family_ = {};
  pid_t pid_ = 0;
  int status_ = 0;
  bool has_ended_ = false;
  FileDescriptor in_, out_, err_, pidfd_;
};

class IsolatedCommand final : public CommandProcess {
 public:
  explicit IsolatedCommand(RunningProgram program) : program_(std::move(program)) {}

  // The files of the run are put into its working directory, under their last names.
  static Result<std::unique_ptr<CommandProcess>> start(const CommandStart& command) {
    Program program{.command = command.words,
                    .files = command.files,
                    .standard_input = {},
                    .environment = command.variables,
                    .port = command.port};
    program.environment.emplace_back(kUnbuffered);
    for (const size_t i : run_files(command.words)) {
      const fs::path file(command.words[i]);
      auto text = read_file(file, kMostScriptBytes);
      if (!text) return text.failure();
      const std::string name = file.filename().string();
      for (const auto& [taken, bytes] : program.files)
        if (taken == name)
          return Failure{
              fmt::format("two files of '{}' are called {}, and in a sandbox they lie in "
                          "one folder",
                          shown(command), name)};
      program.files.emplace_back(name, std::move(text).value());
      program.command[i] = i == 0 ? "/tmp/" + name : name;
    }
    if (program.command[0] == command.words[0]) {
      const auto found = find_program(command);
      if (!found) return found.failure();
      program.command[0] = found.value().string();
    }
    auto running = RunningProgram::start(std::move(program),
                                         {.wall = kIsolatedWall, .memory_bytes = kIsolatedMemory});
    if (!running) return running.failure();
    return std::unique_ptr<CommandProcess>(
        std::make_unique<IsolatedCommand>(std::move(running).value()));
  }

  int in() const override { return program_.in(); }
  void close_in() override { program_.close_in(); }
  int out() const override { return program_.out(); }
  int err() const override { return program_.err(); }
  int pidfd() const override { return program_.pidfd(); }
  FileDescriptor take_listening() override { return program_.take_listening(); }
  std::string ending() override {
    const auto status = program_.ending();
    return status ? how_it_ended(status.value()) : status.failure().message;
  }

 private:
  RunningProgram program_;
};

}  // namespace

Result<std::unique_ptr<CommandProcess>> CommandProcess::start(const CommandStart& command) {
  if (const auto same = check_files(command); !same) return same.failure();
  return command.is_isolated ? IsolatedCommand::start(command) : OwnProcess::start(command);
}

void leave_signals_to_others() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace tailrace::sandbox
