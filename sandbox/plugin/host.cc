#include "sandbox/plugin/host.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"
#include "sandbox/environment_source.h"
#include "sandbox/plugin/library.h"
#include "sandbox/plugin/message.h"
#include "sandbox/plugin/plugin_environment.h"
#include "sandbox/plugin/protocol.h"

namespace tailrace::sandbox {
namespace {

// Limits of one session: address space beside its host's, open files, the largest file.
constexpr rlim_t kSessionMemory = rlim_t{2} << 30, kSessionFiles = 256,
                 kSessionFileBytes = rlim_t{1} << 30;

template <class Type>
const Type* find(const std::vector<Type>& entries, const std::string& name) {
  for (const Type& entry : entries)
    if (entry.name == name) return &entry;
  return nullptr;
}

// One environment or reward, asked over a socket until that closes.
class Session {
 public:
  Session(std::shared_ptr<const PluginLibrary> library, int socket)
      : library_(std::move(library)), socket_(socket) {}
  ~Session() {
    if (reward_ != nullptr) reward_type_->destroy(reward_);
  }

  void serve() {
    std::string request;
    while (!receive_message(socket_, kMostRequest, std::nullopt, request)) {
      Packer answer;
      try {
        answer_to(request, answer);
      } catch (const std::exception& error) {
        answer = Packer().failure({error.what()});
      }
      if (send_message(socket_, answer.bytes(), std::nullopt)) return;
    }
  }

 private:
  void answer_to(const std::string& request, Packer& answer) {
    Unpacker asked(request);
    const auto kind = static_cast<SessionRequest>(asked.number<uint8_t>());
    switch (kind) {
      case SessionRequest::kEnvironment: {
        const std::string name = asked.text();
        const auto* entry = find(library_->environments(), name);
        if (entry == nullptr) throw UserError("there is no environment {}", name);
        environment_ = make_plugin_environment(library_, *entry, asked.settings());
        return pack(answer.success(), environment_->info());
      }
      case SessionRequest::kReward: {
        const std::string name = asked.text();
        const auto* entry = find(library_->rewards(), name);
        if (entry == nullptr) throw UserError("there is no reward {}", name);
        make_reward(*entry, asked.settings());
        answer.success();
        return;
      }
      case SessionRequest::kReset: {
        Task task{.seed = asked.number<uint64_t>()};
        task.data = asked.text();
        return give(first_step(environment().reset(task)), answer);
      }
      case SessionRequest::kStep:
        return give(environment().step(asked.text()), answer);
      case SessionRequest::kCut:
        return give(environment().cut(), answer);
      case SessionRequest::kClose:
        environment().close();
        answer.success();
        return;
      case SessionRequest::kSampleAction:
      case SessionRequest::kDemonstrate: {
        const auto random = asked.number<uint64_t>();
        const std::optional<std::string> text =
            kind == SessionRequest::kDemonstrate
                ? environment().demonstrate(random)
                : std::optional(environment().sample_action(random));
        answer.success().number(text.has_value()).text(text.value_or(""));
        return;
      }
      case SessionRequest::kScore: {
        const std::string evidence = asked.text();
        tr_score out{};
        out.size = sizeof out;
        const int32_t status = reward_type_->score(reward(), {evidence.data(), evidence.size()},
                                                   asked.number<int64_t>(), &out);
        if (status != TR_OK) return void(answer.failure(failure_of(status, out.reason)));
        answer.success().number(out.reward);
        return pack_metrics(answer, metrics_of(out.metrics, out.num_metrics));
      }
      case SessionRequest::kCheckRow: {
        const std::string row = asked.text();
        tr_text reason{};
        int32_t status = TR_OK;
        if (TR_HAS(reward_type_, check_row) && reward_type_->check_row != nullptr)
          status = reward_type_->check_row(reward(), {row.data(), row.size()}, &reason);
        if (status != TR_OK) return void(answer.failure(failure_of(status, reason)));
        answer.success();
        return;
      }
    }
    throw UserError("a request of kind {}, which this build does not have", static_cast<int>(kind));
  }

  static void give(const Result<StepResult>& result, Packer& answer) {
    if (!result) return void(answer.failure(result.failure()));
    pack(answer.success(), result.value());
  }

  void make_reward(const PluginLibrary::RewardEntry& entry, const EnvironmentSettings& settings) {
    const PluginValues values(settings);
    tr_text reason{};
    reward_type_ = entry.type;
    const int32_t status =
        entry.type->create(&library_->host(), values.data(), values.size(), &reward_, &reason);
    if (status != TR_OK || reward_ == nullptr)
      throw UserError("reward {}: {}", entry.name,
                      failure_of(status == TR_OK ? TR_FAILED : status, reason).message);
  }

  LibraryEnvironment& environment() {
    if (!environment_) throw UserError("the session has no environment");
    return *environment_;
  }
  tr_reward* reward() {
    if (reward_ == nullptr) throw UserError("the session has no reward");
    return reward_;
  }

  const std::shared_ptr<const PluginLibrary> library_;
  const int socket_;
  std::unique_ptr<LibraryEnvironment> environment_;
  const tr_reward_type* reward_type_ = nullptr;
  tr_reward* reward_ = nullptr;
};

void limit(__rlimit_resource resource, rlim_t most) {
  const rlimit both{most, most};
  (void)::setrlimit(resource, &both);
}

// The bytes mapped already, here and by the library, not by the session. 0: they cannot be read.
uint64_t address_space() {
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0;
  file >> pages;
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// The child of a session; does not return.
[[noreturn]] void play_session(const std::shared_ptr<const PluginLibrary>& library, int control,
                               int socket, pid_t host) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != host) ::_exit(1);
  ::close(control);
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_AS, address_space() + kSessionMemory);
  limit(RLIMIT_NOFILE, kSessionFiles);
  limit(RLIMIT_FSIZE, kSessionFileBytes);
  Session(library, socket).serve();
  ::_exit(0);
}

// With one file beside it; -1: none came.
ssize_t receive_request(int control, void* to, size_t bytes, int& file) {
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))];
  iovec data{to, bytes};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  ssize_t got;
  do got = ::recvmsg(control, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  file = -1;
  const cmsghdr* header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS)
    std::memcpy(&file, CMSG_DATA(header), sizeof file);
  return got;
}

template <class Entry>
std::vector<Declaration> facts_of(const std::vector<Entry>& entries) {
  return {entries.begin(), entries.end()};
}

// Processes that sessions have forked and left behind come to the host, as their subreaper.
void end_orphans(const std::unordered_map<uint64_t, pid_t>& sessions) {
  const std::string self = std::to_string(::getpid());
  std::ifstream list("/proc/" + self + "/task/" + self + "/children");
  for (pid_t pid = 0; list >> pid;) {
    const auto is_it = [pid](const auto& entry) { return entry.second == pid; };
    if (std::ranges::any_of(sessions, is_it)) continue;
    ::kill(pid, SIGKILL);
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

}  // namespace

int run_plugin_host(int control, const std::filesystem::path& file) {
  // It has no use without whoever started it.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The output of a library goes where its user's log is.
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  std::shared_ptr<const PluginLibrary> library;
  Packer answer;
  try {
    library = PluginLibrary::load(file);
    answer.success();
    pack(answer, facts_of(library->environments()));
    pack(answer, facts_of(library->rewards()));
  } catch (const std::exception& error) {
    answer = Packer().failure({error.what()});
  }
  if (send_message(control, answer.bytes(), std::nullopt) || library == nullptr) return 1;
  // Its signals are its own business; ours are as they were.
  const pid_t self = ::getpid();
  (void)::prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::unordered_map<uint64_t, pid_t> sessions;
  while (true) {
    HostMessage asked;
    int socket = -1;
    if (receive_request(control, &asked, sizeof asked, socket) != sizeof asked) return 0;
    if (asked.request == HostRequest::kOpen) {
      const pid_t pid = ::fork();
      if (pid == 0) play_session(library, control, socket, self);
      asked.value = pid < 0 ? -errno : 0;
      if (pid > 0) {
        ::setpgid(pid, pid);  // whoever comes first
        sessions[asked.session] = pid;
      }
    } else if (const auto at = sessions.find(asked.session); at != sessions.end()) {
      // Nobody has its number until it is waited for here, so no other process is hit.
      ::kill(-at->second, SIGKILL);
      ::kill(at->second, SIGKILL);
      while (::waitpid(at->second, &asked.value, 0) < 0 && errno == EINTR) {
      }
      sessions.erase(at);
      end_orphans(sessions);
    }
    if (socket >= 0) ::close(socket);
    if (::send(control, &asked, sizeof asked, MSG_NOSIGNAL) != sizeof asked) return 0;
  }
}

}  // namespace tailrace::sandbox
