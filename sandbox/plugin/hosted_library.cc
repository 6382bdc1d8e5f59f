#include "sandbox/plugin/hosted_library.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "sandbox/plugin/plugin_environment.h"
#include "sandbox/plugin/protocol.h"

namespace tailrace::sandbox {
namespace {

constexpr int kControlFile = 3;  // in the host
// A fork, or a kill and its wait.
constexpr Time kHostAnswers = std::chrono::seconds(10);

std::string how_ended(std::optional<int32_t> status) {
  if (!status) return "was ended with the process of its library";
  if (WIFSIGNALED(*status))
    return fmt::format("was ended by signal {} ({})", WTERMSIG(*status),
                       ::strsignal(WTERMSIG(*status)));
  return fmt::format("has ended with status {}", WEXITSTATUS(*status));
}

Result<std::array<FileDescriptor, 2>> socket_pair() {
  int files[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, files) != 0)
    return Failure{fmt::format("no socket for the process of a library: {}", ::strerror(errno))};
  std::array<FileDescriptor, 2> both;
  both[0] = FileDescriptor(files[0]);
  both[1] = FileDescriptor(files[1]);
  return both;
}

std::vector<HostedLibrary::Entry> unpack_entries(Unpacker& said) {
  std::vector<HostedLibrary::Entry> entries;
  for (uint64_t left = said.count(); left > 0 && said.ok(); --left) {
    HostedLibrary::Entry& entry = entries.emplace_back();
    entry.name = said.text();
    entry.help = said.text();
    for (uint64_t more = said.count(); more > 0 && said.ok(); --more) {
      Setting& setting = entry.settings.emplace_back();
      setting.name = said.text();
      setting.help = said.text();
      setting.type = static_cast<SettingType>(said.number<uint8_t>());
      const bool has_fallback = said.number<bool>();
      std::string fallback = said.text();
      if (has_fallback) setting.fallback = std::move(fallback);
      setting.min = said.number<double>();
      setting.max = said.number<double>();
      for (uint64_t choices = said.count(); choices > 0 && said.ok(); --choices)
        setting.choices.push_back(said.text());
    }
  }
  return entries;
}

}  // namespace

std::shared_ptr<HostedLibrary> HostedLibrary::start(const std::filesystem::path& file,
                                                    const std::filesystem::path& program,
                                                    Time patience) {
  // Here and not in the host alone: its message would name the same file less plainly.
  if (!std::filesystem::exists(file))
    throw UserError("{}: not found. A library is built as examples/maze shows.", file.string());
  std::shared_ptr<HostedLibrary> library(new HostedLibrary(file, program, patience));
  std::string said;
  {
    MutexLock lock(library->mutex_);
    if (auto launched = library->launch(said); !launched)
      throw UserError("{}: {}", file.string(), launched.failure().message);
  }
  library->describe(said);
  return library;
}

HostedLibrary::~HostedLibrary() {
  MutexLock lock(mutex_);
  stop();
}

void HostedLibrary::stop() {
  control_.reset();
  if (host_ <= 0) return;
  // It ends by itself at the end of its file, unless the library has made it deaf.
  ::kill(host_, SIGKILL);
  while (::waitpid(host_, nullptr, 0) < 0 && errno == EINTR) {
  }
  host_ = 0;
}

Result<void> HostedLibrary::launch(std::string& said) {
  stop();
  auto sockets = socket_pair();
  if (!sockets) return sockets.failure();
  auto& [ours, theirs] = sockets.value();
  const std::string program = program_.string(), file = std::filesystem::absolute(file_).string();
  const std::string control = std::to_string(kControlFile);
  const std::array<const char*, 5> arguments = {"tailrace", "plugin-host", control.c_str(),
                                                file.c_str(), nullptr};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), kControlFile);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  pid_t host = 0;
  const int error = ::posix_spawn(&host, program.c_str(), &actions, nullptr,
                                  const_cast<char* const*>(arguments.data()), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Failure{fmt::format("no process for the library: {}", ::strerror(error))};
  host_ = host;
  control_ = std::move(ours);
  theirs.reset();
  const auto end = receive_message(control_.get(), kMostAnswer, patience_, said);
  if (!end) return {};
  int status = 0;
  const bool late = *end == SocketEnd::kLate;
  if (!late && ::waitpid(host_, &status, 0) == host_) host_ = 0;
  stop();
  if (late)
    return Failure{fmt::format("it does not say what it has within {:g} s", seconds_of(patience_))};
  return Failure{"its process " + how_ended(status) + " while it was loaded"};
}

void HostedLibrary::describe(const std::string& said) {
  Unpacker answer(said);
  if (answer.number<uint8_t>() != 1) throw UserError("{}", answer.text());
  environments_ = unpack_entries(answer);
  rewards_ = unpack_entries(answer);
  if (!answer.whole())
    throw UserError("{}: its process says what this build does not read", file_.string());
}

std::optional<int32_t> HostedLibrary::ask(int32_t request, int32_t pid, int file) {
  if (!control_.is_open()) return std::nullopt;
  int32_t asked[2] = {request, pid};
  iovec data{asked, sizeof asked};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (file >= 0) {
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &file, sizeof file);
  }
  int32_t answer = -1;
  if (::sendmsg(control_.get(), &message, MSG_NOSIGNAL) == sizeof asked) {
    timeval patience{
        .tv_sec = std::chrono::duration_cast<std::chrono::seconds>(kHostAnswers).count(),
        .tv_usec = 0};
    ::setsockopt(control_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (::recv(control_.get(), &answer, sizeof answer, MSG_WAITALL) == sizeof answer) return answer;
  }
  // Deaf or gone: its sessions go with it.
  stop();
  return std::nullopt;
}

std::optional<int32_t> HostedLibrary::release(pid_t pid) {
  MutexLock lock(mutex_);
  return ask(static_cast<int32_t>(HostRequest::kGone), pid, -1);
}

Result<std::unique_ptr<HostedSession>> HostedLibrary::open() {
  auto sockets = socket_pair();
  if (!sockets) return sockets.failure();
  auto& [ours, theirs] = sockets.value();
  MutexLock lock(mutex_);
  std::optional<int32_t> pid = ask(static_cast<int32_t>(HostRequest::kOpen), 0, theirs.get());
  if (!pid) {
    // Once more with a new host: the last one may have ended since.
    std::string said;
    if (auto launched = launch(said); !launched)
      return Failure{fmt::format("{}: {}", file_.string(), launched.failure().message)};
    pid = ask(static_cast<int32_t>(HostRequest::kOpen), 0, theirs.get());
  }
  if (!pid || *pid <= 0)
    return Failure{fmt::format("{}: there is no process for a session", file_.string())};
  return std::make_unique<HostedSession>(shared_from_this(), std::move(ours), *pid);
}

HostedSession::~HostedSession() {
  if (pid_ > 0) (void)end();
}

std::string HostedSession::end() {
  socket_.reset();
  return how_ended(library_->release(std::exchange(pid_, 0)));
}

Result<std::string> HostedSession::call(const Packer& request, Time timeout, const char* call) {
  if (pid_ <= 0) return Failure{fmt::format("its process has ended before {}", call)};
  const Time begin = steady_now();
  std::string answer;
  std::optional<SocketEnd> failed = send_message(socket_.get(), request.bytes(), timeout);
  if (!failed) {
    const Time spent = steady_now() - begin;
    failed =
        receive_message(socket_.get(), kMostAnswer, std::max(Time{0}, timeout - spent), answer);
  }
  if (!failed && answer.empty()) failed = SocketEnd::kMalformed;
  if (failed) {
    const std::string ended = end();
    switch (*failed) {
      case SocketEnd::kLate:
        return Failure{fmt::format("{} did not return within {:g} s, and its process was killed",
                                   call, seconds_of(timeout))};
      case SocketEnd::kClosed:
        return Failure{fmt::format("its process {} in {}", ended, call)};
      case SocketEnd::kMalformed:
        return Failure{
            fmt::format("its process answers {} with what is no answer, and was killed", call)};
    }
  }
  Unpacker read(answer);
  if (read.number<uint8_t>() == 1) return answer.substr(1);
  return read.failure();
}

namespace {

// What an environment says about itself depends on its settings alone, and asking takes a process.
const EnvironmentInfo& info_of(HostedLibrary& library, const std::string& name,
                               const Packer& create, Time timeout) {
  static Mutex mutex;
  static std::map<std::pair<std::string, std::string>, EnvironmentInfo> known;
  MutexLock lock(mutex);
  const auto key = std::pair(library.file().string(), create.bytes());
  if (const auto found = known.find(key); found != known.end()) return found->second;
  auto session = library.open();
  if (!session) throw UserError("{}", session.failure().message);
  const auto said = session.value()->call(create, timeout, "create()");
  if (!said) throw UserError("environment {}: {}", name, said.failure().message);
  Unpacker answer(said.value());
  EnvironmentInfo info = unpack_info(answer);
  if (!answer.whole()) throw UserError("environment {}: it says what nobody reads", name);
  return known.emplace(key, std::move(info)).first->second;
}

class HostedEnvironment final : public LibraryEnvironment {
 public:
  HostedEnvironment(std::shared_ptr<HostedLibrary> library, const std::string& name,
                    const EnvironmentSettings& settings, Time timeout)
      : library_(std::move(library)), timeout_(timeout) {
    create_.number(static_cast<uint8_t>(SessionRequest::kEnvironment))
        .text(name)
        .settings(settings);
    info_ = info_of(*library_, name, create_, timeout_);
  }

  const EnvironmentInfo& info() const override { return info_; }

  Result<Observation> reset(const Task& task) override {
    if (auto made = make(); !made) return made.failure();
    Packer request = ask(SessionRequest::kReset);
    auto result = step_of(request.number(task.seed).text(task.data), "reset()");
    if (!result) return result.failure();
    return std::move(result).value().observation;
  }
  Result<StepResult> step(const std::string& action) override {
    Packer request = ask(SessionRequest::kStep);
    return step_of(request.text(action), "step()");
  }
  Result<StepResult> cut() override { return step_of(ask(SessionRequest::kCut), "cut()"); }
  void close() override {
    if (session_) (void)session_->call(ask(SessionRequest::kClose), timeout_, "close()");
    session_.reset();
  }
  std::optional<std::string> demonstrate(uint64_t random) override {
    return text_of(SessionRequest::kDemonstrate, random, "demonstrate()");
  }
  std::string sample_action(uint64_t random) override {
    return text_of(SessionRequest::kSampleAction, random, "sample_action()").value_or("");
  }

 private:
  static Packer ask(SessionRequest kind) {
    Packer request;
    request.number(static_cast<uint8_t>(kind));
    return request;
  }

  // A process that was never used, for each episode.
  Result<void> make() {
    session_.reset();
    auto opened = library_->open();
    if (!opened) return opened.failure();
    session_ = std::move(opened).value();
    auto made = session_->call(create_, timeout_, "create()");
    if (!made) return made.failure();
    return {};
  }

  Result<StepResult> step_of(const Packer& request, const char* call) {
    if (!session_) return Failure{fmt::format("a call out of order: {} before reset()", call)};
    auto said = session_->call(request, timeout_, call);
    if (!said) return said.failure();
    Unpacker answer(said.value());
    StepResult result = unpack_step(answer);
    if (answer.whole()) return result;
    session_.reset();
    return Failure{fmt::format("its process answers {} with what is no answer", call)};
  }

  std::optional<std::string> text_of(SessionRequest kind, uint64_t random, const char* call) {
    Packer request = ask(kind);
    request.number(random);
    if (!session_ && !make()) return std::nullopt;
    auto said = session_->call(request, timeout_, call);
    if (!said) return std::nullopt;
    Unpacker answer(said.value());
    const bool is_offered = answer.number<bool>();
    std::string text = answer.text();
    if (!is_offered || !answer.whole()) return std::nullopt;
    return text;
  }

  const std::shared_ptr<HostedLibrary> library_;
  const Time timeout_;
  Packer create_;
  EnvironmentInfo info_;
  std::unique_ptr<HostedSession> session_;
};

}  // namespace

std::unique_ptr<Environment> make_hosted_environment(std::shared_ptr<HostedLibrary> library,
                                                     const std::string& name,
                                                     const EnvironmentSettings& settings,
                                                     Time timeout) {
  return std::make_unique<HostedEnvironment>(std::move(library), name, settings, timeout);
}

}  // namespace tailrace::sandbox
