#include "tests/hosts/host_process.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/file.h"
#include "kernels/base/check.h"

namespace tailrace {

HostProcess::HostProcess(pid_t pid, std::filesystem::path output)
    : pid_(pid),
      output_(std::move(output)),
      pid_fd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {
  TR_CHECK(pid_fd_.is_open(), "no pidfd of process {}: errno {}", pid, errno);
}

HostProcess::~HostProcess() {
  kill(SIGKILL);
  if (!status_) reap();
}

std::optional<int> HostProcess::wait(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!status_) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd ended{pid_fd_.get(), POLLIN, 0};
    const int count = ::poll(&ended, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (count > 0) reap();
    if (count == 0) break;  // below 0: a signal came in between
  }
  return status_;
}

void HostProcess::kill(int signal) {
  if (!status_) ::syscall(SYS_pidfd_send_signal, pid_fd_.get(), signal, nullptr, 0);
}

std::string HostProcess::output() const { return read_file(output_).value(); }

void HostProcess::reap() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0) TR_CHECK(errno == EINTR, "errno {}", errno);
  status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace tailrace
