#include "sandbox/launcher/launcher.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/file_descriptor.h"
#include "core/base/join_texts.h"
#include "core/base/time.h"
#include "sandbox/launcher/isolated_process.h"
#include "sandbox/launcher/patience.h"
#include "sandbox/launcher/system_call_filter.h"

namespace tailrace::sandbox {
namespace {

using Clock = Patience::Clock;

// A setting of the kernel that forbids user namespaces at one value.
struct Sysctl {
  const char *name, *file, *forbidding, *allowing;
};
constexpr Sysctl kSysctls[] = {
    {"user.max_user_namespaces", "/proc/sys/user/max_user_namespaces", "0", "10000"},
    {"kernel.unprivileged_userns_clone", "/proc/sys/kernel/unprivileged_userns_clone", "0", "1"},
    {"kernel.apparmor_restrict_unprivileged_userns",
     "/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "0"}};

bool forbids(const Sysctl& sysctl) {
  const FileDescriptor file(::open(sysctl.file, O_RDONLY | O_CLOEXEC));
  char text[16];
  const ssize_t size = file.is_open() ? ::read(file.get(), text, sizeof text) : 0;
  return size > 0 &&
         std::string_view(text, static_cast<size_t>(size)).substr(0, size - 1) == sysctl.forbidding;
}

// Advice where isolation is not permitted: the settings that are to blame, or all of them.
std::string way_to_namespaces() {
  std::vector<std::string> here, known;
  for (const Sysctl& sysctl : kSysctls) {
    known.push_back(fmt::format("{}={}", sysctl.name, sysctl.allowing));
    if (forbids(sysctl)) here.push_back(known.back());
  }
  if (!here.empty()) return fmt::format("Try sysctl -w {}", join_texts(here, " "));
  return fmt::format(
      "In a container, allow them (docker run --security-opt seccomp=unconfined --security-opt "
      "apparmor=unconfined); elsewhere see sysctl {}",
      join_texts(known, ", "));
}

bool is_refusal(int error) {
  return error == EPERM || error == EACCES || error == ENOSPC || error == EUSERS;
}

std::string advice(int error) {
  if (error == EMFILE) return ". Raise the limit of open files (ulimit -n)";
  if (!is_refusal(error) && error != ENOSYS && error != EINVAL) return "";
  return fmt::format(
      ". Programs are only run isolated, which takes Linux 5.12 or later and user namespaces. {}",
      way_to_namespaces());
}

Failure cannot(const std::string& what, int error) {
  return Failure{fmt::format("cannot {}: {}{}", what, std::strerror(error), advice(error))};
}

// The kernel has told the clone of a process by this that there shall be no such namespaces.
Failure forbidden(int error) {
  return Failure{fmt::format(
      "this kernel forbids user namespaces ({}), and programs are only run isolated, in one of "
      "their own. {}",
      std::strerror(error), way_to_namespaces())};
}

Failure failure_of(const IsolationReport& report, const Program& program) {
  switch (report.step) {
    case IsolationStep::kDescriptors:
      return cannot("give an isolated process its descriptors", report.error);
    case IsolationStep::kIds:
      return cannot("give an isolated process its user", report.error);
    case IsolationStep::kMounts:
      return cannot("mount a root for an isolated process", report.error);
    case IsolationStep::kSystemFiles:
      return cannot("show an isolated process the system's files", report.error);
    case IsolationStep::kDevices:
      return cannot("show an isolated process its devices", report.error);
    case IsolationStep::kPrivateRoot:
      return cannot("change the root of an isolated process", report.error);
    case IsolationStep::kPort:
      return cannot("give an isolated process its port", report.error);
    case IsolationStep::kFilter:
      return cannot("filter the system calls of an isolated process", report.error);
    case IsolationStep::kFiles:
      return Failure{fmt::format("cannot put the program's files into its working directory: {}",
                                 std::strerror(report.error))};
    case IsolationStep::kLimits:
      return Failure{fmt::format("cannot limit the program: {}", std::strerror(report.error))};
    case IsolationStep::kCommand:
      return Failure{fmt::format("cannot run {} in isolation, which sees /usr, /bin and /lib: {}",
                                 program.command[0], std::strerror(report.error))};
    default:
      return Failure{
          fmt::format("cannot start the program's process: {}", std::strerror(report.error))};
  }
}

struct Pipe {
  FileDescriptor read, write;
};

std::optional<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

// Where the inside reports: each report is whole, and a descriptor may come with it.
std::optional<Pipe> make_report_socket() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return std::nullopt;
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

// A file in memory that nobody can change any more.
std::optional<FileDescriptor> sealed_file(std::string_view bytes) {
  FileDescriptor file(::memfd_create("stdin", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.is_open() || !write_all(file.get(), bytes) || ::lseek(file.get(), 0, SEEK_SET) != 0 ||
      ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL))
    return std::nullopt;
  return file;
}

std::vector<std::pair<int, rlimit>> rlimits_of(const ProgramLimits& limits) {
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(limits.wall).count();
  const std::pair<int, int64_t> wanted[] = {
      {RLIMIT_AS, limits.memory_bytes},
      {RLIMIT_FSIZE, limits.disk_bytes},
      {RLIMIT_NPROC, limits.processes},
      {RLIMIT_NOFILE, limits.open_files},
      {RLIMIT_CPU, seconds + 1},
      {RLIMIT_CORE, 0},
      // Signals that wait, and timers, which the kernel counts for our user as well: one each.
      {RLIMIT_SIGPENDING, limits.processes},
      {RLIMIT_MSGQUEUE, 0}};
  std::vector<std::pair<int, rlimit>> result;
  for (const auto& [resource, most] : wanted) {
    rlimit own{};
    ::getrlimit(static_cast<__rlimit_resource>(resource), &own);
    // No more than we have: nobody may raise it.
    const auto value = std::min(static_cast<rlim_t>(most), own.rlim_max);
    result.emplace_back(resource, rlimit{value, value});
  }
  return result;
}

bool write_proc(pid_t pid, const char* name, const std::string& text) {
  const FileDescriptor file(
      ::open(fmt::format("/proc/{}/{}", pid, name).c_str(), O_WRONLY | O_CLOEXEC));
  return file.is_open() && ::write(file.get(), text.data(), text.size()) == std::ssize(text);
}

// Inside it is nobody, outside whoever has the least rights that we may give: the kernel does not
// limit the number of root's processes.
bool map_ids(pid_t pid) {
  const auto map = [&](const char* name, uint32_t own) {
    return (own == 0 && write_proc(pid, name, fmt::format("{0} {0} 1", kInnerId))) ||
           write_proc(pid, name, fmt::format("{} {} 1", kInnerId, own));
  };
  // The kernel takes a gid_map from who is not root only after this word (user_namespaces(7)).
  return write_proc(pid, "setgroups", "deny") && map("gid_map", ::getegid()) &&
         map("uid_map", ::geteuid());
}

// As poll() wants it: rounded up, and never negative, which would mean for ever.
int milliseconds_of(Time time) {
  return static_cast<int>(
      std::max<int64_t>(std::chrono::ceil<std::chrono::milliseconds>(time).count(), 0));
}

// A stream of the program, of which at most `limit` bytes are kept.
struct Stream {
  FileDescriptor pipe;
  std::string& bytes;
  int64_t limit;
  bool is_over = false;

  // Reads all that is there; the pipe is closed at its end.
  void read() {
    char piece[1 << 16];
    while (pipe.is_open() && !is_over) {
      const ssize_t count = ::read(pipe.get(), piece, sizeof piece);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) return;
      if (count <= 0) return pipe.reset();
      // More than the limit is read from the pipe and not kept: the byte beyond it is what tells
      // that the program is over it.
      const auto room = static_cast<size_t>(limit) - bytes.size();
      bytes.append(piece, std::min(room, static_cast<size_t>(count)));
      is_over = static_cast<size_t>(count) > room;
    }
  }
};

}  // namespace

// The first process of an isolated one's namespace. With it everything in there ends.
class IsolatedInit {
 public:
  explicit IsolatedInit(int pidfd) : pidfd_(pidfd) {}
  ~IsolatedInit() {
    kill();
    // A process that the kernel does not let die within the time is left to it.
    pollfd end = {.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
    ::poll(&end, 1, milliseconds_of(Patience::kEnd));
    siginfo_t info{};
    ::waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, WEXITED | WNOHANG | __WALL);
  }
  IsolatedInit(const IsolatedInit&) = delete;

  int pidfd() const { return pidfd_.get(); }
  void kill() { ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0); }

 private:
  FileDescriptor pidfd_;
};

// The part of an isolated process that stays with us.
struct StartedProgram {
  std::unique_ptr<IsolatedInit> init;
  FileDescriptor go;                // its end tells the process of ours
  FileDescriptor out, err, report;  // to read, without waiting
};

namespace {

Failure no_pipe() { return cannot("open a pipe to a program", errno); }

Result<StartedProgram> start(const Program& program, const ProgramLimits& limits,
                             const FileDescriptor& input) {
  auto out = make_pipe(), err = make_pipe(), report = make_report_socket(), go = make_pipe();
  if (!out || !err || !report || !go) return no_pipe();
  for (const Pipe* pipe : {&*out, &*err, &*report}) ::fcntl(pipe->read.get(), F_SETFL, O_NONBLOCK);

  std::vector<char*> arguments;
  for (const std::string& argument : program.command)
    arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  // Written anew: our own environment may hold keys, which are no business of a program.
  std::vector<const char*> environment = {"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp",
                                          "LANG=C.UTF-8"};
  for (const std::string& variable : program.environment) environment.push_back(variable.c_str());
  environment.push_back(nullptr);
  std::vector<IsolatedFile> files;
  for (const auto& [name, bytes] : program.files) files.push_back({name.c_str(), bytes});
  // Also empty files take memory of the kernel, so that their number is bounded as well.
  const std::string disk = fmt::format("size={},nr_inodes=4096,mode=755", limits.disk_bytes);
  const auto rlimits = rlimits_of(limits);
  const IsolationPlan plan{.arguments = arguments.data(),
                           .environment = const_cast<char* const*>(environment.data()),
                           .files = files,
                           .disk = disk.c_str(),
                           .limits = rlimits,
                           .filter = system_call_filter({.allows_tcp = program.port != 0}),
                           .input = input.get(),
                           .out = out->write.get(),
                           .err = err->write.get(),
                           .report = report->write.get(),
                           .port = program.port,
                           .go = go->read.get()};

  // No handler of ours may run in the copy.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  int pidfd = -1;
  const pid_t pid = start_isolated(plan, pidfd);
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0)
    return is_refusal(error) ? forbidden(error) : cannot("start an isolated process", error);
  auto init = std::make_unique<IsolatedInit>(pidfd);
  if (!map_ids(pid)) return cannot("map the user of an isolated process", errno);
  // Whatever has become of the process: both ends are open here, and there is room.
  TR_CHECK(write_all(go->write.get(), "!"));
  return StartedProgram{.init = std::move(init),
                        .go = std::move(go->write),
                        .out = std::move(out->read),
                        .err = std::move(err->read),
                        .report = std::move(report->read)};
}

// Waits for a program, and ends it where it is over its limits.
class Watch {
 public:
  Watch(const Program& program, const ProgramLimits& limits, StartedProgram started)
      : program_(program),
        started_(std::move(started)),
        streams_{Stream{std::move(started_.out), run_.out, limits.output_bytes},
                 Stream{std::move(started_.err), run_.err, limits.output_bytes}},
        patience_(limits.wall, Clock::now()) {}

  Result<ProgramRun> run() {
    for (bool is_gone = false; !is_gone;) {
      // Output that is read after the process was gone is the last of all.
      is_gone = wait();
      if (const auto failed = hear_reports()) return *failed;
      read_output();
      if (is_gone || Clock::now() < patience_.until()) continue;
      if (!begun_)
        return Failure{"an isolated process was not ready in time; is the machine overloaded?"};
      if (patience_.is_ending()) return Failure{"a program does not die: the kernel holds it"};
      kill_as(ProgramEnding::kOverTime);
    }
    if (!begun_) return Failure{"an isolated process was killed before it began"};
    return ending();
  }

 private:
  // True: nothing is left of it.
  bool wait() {
    pollfd wanted[] = {{started_.init->pidfd(), POLLIN, 0},
                       {started_.report.get(), POLLIN, 0},
                       {streams_[0].pipe.get(), POLLIN, 0},
                       {streams_[1].pipe.get(), POLLIN, 0}};
    ::poll(wanted, std::size(wanted), milliseconds_of(patience_.until() - Clock::now()));
    return (wanted[0].revents & POLLIN) != 0;
  }

  // A Failure when the inside says that it could not go on.
  std::optional<Failure> hear_reports() {
    IsolationReport said;
    while (started_.report.is_open()) {
      const ssize_t count = ::read(started_.report.get(), &said, sizeof said);
      // Its end is closed: nothing more is said, and to poll it would return at once for ever.
      if (count == 0) started_.report.reset();
      if (count != sizeof said) break;
      if (said.step == IsolationStep::kStarted) {
        begun_ = Clock::now();
        patience_.begin(*begun_);
      } else if (said.step == IsolationStep::kEnded) {
        ended_ = said;
        patience_.end(Clock::now());
      } else {
        return failure_of(said, program_);
      }
    }
    return std::nullopt;
  }

  void read_output() {
    for (Stream& stream : streams_) {
      stream.read();
      if (stream.is_over) kill_as(ProgramEnding::kOverOutput);
    }
  }

  void kill_as(ProgramEnding ending) {
    if (is_killed_) return;
    is_killed_ = true;
    run_.ending = ending;
    started_.init->kill();
    patience_.end(Clock::now());
    for (Stream& stream : streams_) stream.pipe.reset();
  }

  ProgramRun ending() {
    run_.seconds = ended_ ? seconds_of(std::chrono::nanoseconds(ended_->nanoseconds))
                          : seconds_of(Clock::now() - *begun_);
    if (is_killed_) return std::move(run_);
    // Without a word about its end, init itself was killed: there is no memory, or somebody did it.
    const int status = ended_ ? ended_->wait_status : SIGKILL;
    run_.ending = WIFSIGNALED(status) ? ProgramEnding::kSignalled : ProgramEnding::kExited;
    run_.code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
    return std::move(run_);
  }

  const Program& program_;
  StartedProgram started_;
  ProgramRun run_;
  Stream streams_[2];
  Patience patience_;
  std::optional<Clock::time_point> begun_;
  std::optional<IsolationReport> ended_;
  bool is_killed_ = false;
};

}  // namespace

Result<ProgramRun> run_program(const Program& program, const ProgramLimits& limits) {
  TR_CHECK(!program.command.empty());
  const auto input = sealed_file(program.standard_input);
  if (!input) return no_pipe();
  Result<StartedProgram> started = start(program, limits, *input);
  if (!started) return started.failure();
  return Watch(program, limits, std::move(started).value()).run();
}

namespace {

// A report with the descriptor that came with it, if one did. False: there is none.
bool hear(int file, IsolationReport& said, FileDescriptor& descriptor) {
  iovec bytes{.iov_base = &said, .iov_len = sizeof said};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(file, &message, MSG_CMSG_CLOEXEC) != sizeof said) return false;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(header), sizeof number);
    descriptor = FileDescriptor(number);
  }
  return true;
}

}  // namespace

struct RunningProgram::Inside {
  Program program;
  StartedProgram started;
};

RunningProgram::RunningProgram(std::unique_ptr<Inside> inside, FileDescriptor in)
    : inside_(std::move(inside)), in_(std::move(in)) {}
RunningProgram::RunningProgram(RunningProgram&&) noexcept = default;
RunningProgram::~RunningProgram() = default;

Result<RunningProgram> RunningProgram::start(Program program, const ProgramLimits& limits) {
  TR_CHECK(!program.command.empty());
  auto input = make_pipe();
  if (!input) return no_pipe();
  ::fcntl(input->write.get(), F_SETFL, O_NONBLOCK);
  Result<StartedProgram> started = sandbox::start(program, limits, input->read);
  if (!started) return started.failure();
  RunningProgram running(std::make_unique<Inside>(std::move(program), std::move(started).value()),
                         std::move(input->write));
  // Its room is set up before anybody writes to it, so that what is wrong with that is said here.
  pollfd report = {running.inside_->started.report.get(), POLLIN, 0};
  if (::poll(&report, 1, milliseconds_of(Patience::kSetUp)) != 1)
    return Failure{"an isolated process was not ready in time; is the machine overloaded?"};
  IsolationReport said;
  if (!hear(report.fd, said, running.listening_))
    return Failure{"an isolated process was killed before it began"};
  const Program& inside = running.inside_->program;
  if (said.step != IsolationStep::kStarted) return failure_of(said, inside);
  // The kernel leaves it out where we may have no more descriptors.
  if (inside.port != 0 && !running.listening_.is_open())
    return cannot("take over the port of an isolated process", EMFILE);
  return running;
}

int RunningProgram::out() const { return inside_->started.out.get(); }
int RunningProgram::err() const { return inside_->started.err.get(); }
int RunningProgram::pidfd() const { return inside_->started.init->pidfd(); }

Result<int> RunningProgram::ending() const {
  IsolationReport said;
  while (::read(inside_->started.report.get(), &said, sizeof said) == sizeof said) {
    if (said.step == IsolationStep::kEnded) return said.wait_status;
    if (said.step != IsolationStep::kStarted) return failure_of(said, inside_->program);
  }
  return SIGKILL;  // init itself was killed
}

std::optional<std::string> shown_through(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  // A path that is not there yet is resolved as far as it exists.
  const auto real = [](const fs::path& name) {
    std::error_code error;
    const fs::path found = fs::weakly_canonical(fs::absolute(name, error), error);
    return error ? name.lexically_normal() : found;
  };
  const fs::path wanted = real(path);
  for (const ShownFolder& shown : kShownFolders) {
    const fs::path folder = real(shown.source);
    if (std::ranges::mismatch(folder, wanted).in1 == folder.end()) return shown.source;
  }
  return std::nullopt;
}

Result<void> check_isolation() {
  const Result<ProgramRun> run =
      run_program({.command = {"/usr/bin/env", "true"}, .files = {}, .standard_input = {}},
                  {.wall = Patience::kSetUp});
  return run ? Result<void>() : run.failure();
}

}  // namespace tailrace::sandbox
