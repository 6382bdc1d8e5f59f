// One child process: spawned, watched through a pidfd, killed when this dies.
//
// Thread: the one that spawned it, which must outlive it (PR_SET_PDEATHSIG watches the thread).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "core/base/file_descriptor.h"
#include "core/base/result.h"

namespace tailrace {

struct ExitStatus {
  int code = 0;    // when signal is 0
  int signal = 0;  // that killed it
  bool ok() const { return code == 0 && signal == 0; }
};
std::string describe(const ExitStatus& status);  // "exit status 1", "killed by signal 9 (Killed)"

class ChildProcess {
 public:
  // stdin is empty; stdout and stderr are appended to `log`. A Failure when there are no processes
  // to be had or the log cannot be opened; a program that cannot be run exits with 127.
  static Result<ChildProcess> spawn(const std::vector<std::string>& command,
                                    const std::filesystem::path& log);
  ~ChildProcess();
  ChildProcess(ChildProcess&&) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  pid_t pid() const { return pid_; }
  int descriptor() const { return descriptor_.get(); }  // readable once it has ended
  void send_signal(int signal);
  // Its status if it has ended; from then on it is nobody.
  std::optional<ExitStatus> try_reap();

 private:
  ChildProcess(pid_t pid, FileDescriptor descriptor);
  pid_t pid_ = -1;
  FileDescriptor descriptor_;
};

}  // namespace tailrace
