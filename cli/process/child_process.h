// One child process: spawned, watched through a pidfd, killed when this dies.
//
// Thread: the one that spawned it, which must outlive it (PR_SET_PDEATHSIG watches the thread).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "core/base/file_descriptor.h"
#include "core/base/result.h"
#include "core/run/status_page.h"

namespace tailrace {

struct ExitStatus {
  int code = 0;    // when signal is 0
  int signal = 0;  // that killed it
  bool ok() const { return code == 0 && signal == 0; }
};
// "exit status 1", "killed by signal 15 (Terminated)"
std::string describe(const ExitStatus& status);

// Why a role makes no progress, as far as the kernel knows.
enum class Standstill : uint8_t {
  kSleeps,    // it waits for another thread, or for something that does not come
  kComputes,  // it runs
  kStopped,   // by a signal
  kDebugged,  // a debugger holds it
  kDisk,      // it is in the kernel, where no signal ends its wait
};
// The standstill of a process whose main thread plays the role. No signal ends one that has any
// thread in the kernel.
Standstill standstill_of(pid_t process);
// The standstill of one thread beside others, which say nothing about it.
Standstill standstill_of(pid_t process, pid_t thread);
std::string_view describe(Standstill standstill);
// A person holds it, or nothing could end its wait.
inline bool is_excused(Standstill standstill) {
  return standstill == Standstill::kDebugged || standstill == Standstill::kDisk;
}

class ChildProcess {
 public:
  // The descriptor of the child's status page, if it gets one; see StatusPage::adopt().
  static constexpr int kStatusDescriptor = 3;

  // stdin is empty; stdout and stderr are appended to `log`. A Failure when there are no processes
  // to be had or the log cannot be opened or is a pipe; a program that cannot be run exits with
  // 127. Borrows `page` for the call.
  static Result<ChildProcess> spawn(const std::vector<std::string>& command,
                                    const std::filesystem::path& log,
                                    const StatusPage* page = nullptr);
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
