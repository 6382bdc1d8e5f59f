#include "sandbox/plugin/host_process.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sandbox/plugin/message.h"

namespace tailrace::sandbox {
namespace {

constexpr int kControlFile = 3;  // in the host
// One that has closed its socket is about to end, and is looked for this often.
constexpr Time kLastWord = std::chrono::seconds(2), kTick = std::chrono::milliseconds(20);

}  // namespace

std::string how_ended(std::optional<int32_t> status) {
  if (!status) return "has ended";
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

bool ask_host(const HostProcess& host, const HostMessage& message, int file) {
  HostMessage asked = message;
  iovec data{&asked, sizeof asked};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr envelope{};
  envelope.msg_iov = &data;
  envelope.msg_iovlen = 1;
  if (file >= 0) {
    envelope.msg_control = room;
    envelope.msg_controllen = sizeof room;
    cmsghdr* header = CMSG_FIRSTHDR(&envelope);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &file, sizeof file);
  }
  return ::sendmsg(host.control.get(), &envelope, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof asked;
}

void end_host(HostProcess& host) {
  host.control.reset();
  if (host.pid <= 0) return;
  // It ends by itself at the end of its file, unless the library has made it deaf.
  ::kill(host.pid, SIGKILL);
  while (::waitpid(host.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  host.pid = 0;
}

Result<HostProcess> launch_host(const std::filesystem::path& library,
                                const std::filesystem::path& binary, Time patience,
                                const sigset_t& blocked, std::string& said) {
  auto sockets = socket_pair();
  if (!sockets) return sockets.failure();
  auto& [ours, theirs] = sockets.value();
  const std::string program = binary.string(), file = std::filesystem::absolute(library).string();
  const std::string control = std::to_string(kControlFile);
  const std::array<const char*, 5> arguments = {"tailrace", "plugin-host", control.c_str(),
                                                file.c_str(), nullptr};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), kControlFile);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  ::posix_spawnattr_setsigmask(&attributes, &blocked);
  HostProcess host;
  const int error = ::posix_spawn(&host.pid, program.c_str(), &actions, &attributes,
                                  const_cast<char* const*>(arguments.data()), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Failure{fmt::format("no process for the library: {}", ::strerror(error))};
  host.control = std::move(ours);
  theirs.reset();
  const auto end = receive_message(host.control.get(), kMostAnswer, patience, said);
  if (!end) return host;
  int status = 0;
  const bool late = *end == SocketEnd::kLate;
  // A process that closes its socket is about to end; one that goes on without it is killed.
  for (Time waited{}; !late && host.pid > 0 && waited < kLastWord; waited += kTick) {
    if (::waitpid(host.pid, &status, WNOHANG) == host.pid) {
      host.pid = 0;
    } else {
      std::this_thread::sleep_for(kTick);
    }
  }
  const bool goes_on = host.pid > 0;
  end_host(host);
  if (late)
    return Failure{fmt::format("it does not say what it has within {:g} s", seconds_of(patience))};
  if (goes_on) return Failure{"its process closed or spoiled its socket while it was loaded"};
  return Failure{"its process " + how_ended(status) + " while it was loaded; is the file whole?"};
}

}  // namespace tailrace::sandbox
