// A library in processes of its own (host.h): nothing that it does there hangs or crashes this one.
//
// A session is a process that plays one environment or scores with one reward, fresh for each.
// Each call has a deadline; who misses it is killed, with all that it has forked. A process that
// ends is named with the call that it ended in.
//
// Thread: any. A session is used by one thread at a time.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <sys/types.h>

#include "core/base/file_descriptor.h"
#include "core/base/result.h"
#include "core/base/time.h"
#include "kernels/base/mutex.h"
#include "sandbox/environment.h"
#include "sandbox/plugin/message.h"
#include "sandbox/plugin/settings_schema.h"

namespace tailrace::sandbox {

class HostedLibrary;

class HostedSession {
 public:
  HostedSession(std::shared_ptr<HostedLibrary> library, FileDescriptor socket, pid_t pid)
      : library_(std::move(library)), socket_(std::move(socket)), pid_(pid) {}
  HostedSession(const HostedSession&) = delete;
  ~HostedSession();

  // The answer behind its first byte. `call`: "step()", for messages.
  Result<std::string> call(const Packer& request, Time timeout, const char* call);
  bool is_alive() const { return pid_ > 0; }

 private:
  // Kills it, and all that it has forked; how it had ended by then.
  std::string end();

  std::shared_ptr<HostedLibrary> library_;
  FileDescriptor socket_;
  pid_t pid_ = 0;  // 0: it has ended
};

class HostedLibrary : public std::enable_shared_from_this<HostedLibrary> {
 public:
  struct Entry {
    std::string name, help;
    SettingsSchema settings;
  };

  // `program`: this build's tailrace. Throws UserError: what the library says at its start, or that
  // it says nothing within `patience`.
  static std::shared_ptr<HostedLibrary> start(
      const std::filesystem::path& file, const std::filesystem::path& program = "/proc/self/exe",
      Time patience = std::chrono::seconds(30));
  ~HostedLibrary();
  HostedLibrary(const HostedLibrary&) = delete;

  const std::filesystem::path& file() const { return file_; }
  const std::vector<Entry>& environments() const { return environments_; }
  const std::vector<Entry>& rewards() const { return rewards_; }

  // A process of its own, which has made nothing yet.
  Result<std::unique_ptr<HostedSession>> open();

 private:
  friend class HostedSession;
  HostedLibrary(std::filesystem::path file, std::filesystem::path program, Time patience)
      : file_(std::move(file)), program_(std::move(program)), patience_(patience) {}

  // The process of the library; what it says of itself is read into `said`.
  Result<void> launch(std::string& said) TR_REQUIRES(mutex_);
  void stop() TR_REQUIRES(mutex_);
  void describe(const std::string& said);
  // The host's answer to a request, with a file beside it; nothing: it is gone.
  std::optional<int32_t> ask(int32_t request, int32_t pid, int file) TR_REQUIRES(mutex_);
  // How a session has ended, once it is dead.
  std::optional<int32_t> release(pid_t pid);

  const std::filesystem::path file_, program_;
  const Time patience_;
  std::vector<Entry> environments_, rewards_;
  Mutex mutex_;
  FileDescriptor control_ TR_GUARDED_BY(mutex_);
  pid_t host_ TR_GUARDED_BY(mutex_) = 0;
};

// An environment of a library in a process of its own, which is there from reset() on. Each call
// has `timeout`. `settings` as complete_settings() gives them.
std::unique_ptr<Environment> make_hosted_environment(std::shared_ptr<HostedLibrary> library,
                                                     const std::string& name,
                                                     const EnvironmentSettings& settings,
                                                     Time timeout);

}  // namespace tailrace::sandbox
