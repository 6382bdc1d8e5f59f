// A child process of a test, in the namespaces of a Host. It is killed and reaped with the object.
//
// Thread: one at a time.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include <sys/types.h>

#include "core/base/file_descriptor.h"

namespace tailrace {

class HostProcess {
 public:
  // `pid` is a child of this process that nobody else waits for.
  explicit HostProcess(pid_t pid, std::filesystem::path output = {});
  ~HostProcess();
  HostProcess(const HostProcess&) = delete;

  // The number that this test knows it by; inside its host it has another.
  pid_t pid() const { return pid_; }

  // The exit code, or 128 + the signal that ended it; nothing when it still runs after `timeout`.
  std::optional<int> wait(std::chrono::milliseconds timeout);
  bool is_running() { return !wait(std::chrono::milliseconds(0)); }
  void kill(int signal);  // no effect on a process that has ended

  // Standard output and error so far.
  std::string output() const;

 private:
  void reap();

  const pid_t pid_;
  const std::filesystem::path output_;
  FileDescriptor pid_fd_;
  std::optional<int> status_;
};

}  // namespace tailrace
