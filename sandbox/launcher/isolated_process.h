// The inside of the launcher: what happens between the start of an isolated process and that of
// its program. See launcher.h.
//
// The process is a copy of one that may have other threads, which may have held any lock: here are
// system calls on what was prepared before, and nothing else (no allocation, no library function).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include <sys/resource.h>
#include <sys/types.h>

struct sock_filter;

namespace tailrace::sandbox {

struct IsolatedFile {
  const char* name;
  std::string_view bytes;
};

// The plan lies in the process that asks for it; everything is borrowed from there.
struct IsolationPlan {
  char* const* arguments = nullptr;    // the first is the path; null at the end
  char* const* environment = nullptr;  // null at the end
  std::span<const IsolatedFile> files;
  const char* disk = nullptr;  // options of the working directory's tmpfs
  std::span<const std::pair<int, rlimit>> limits;
  std::span<const sock_filter> filter;
  int input = -1, out = -1, err = -1;  // of the program
  int report = -1;                     // a socket where IsolationReports are written to
  uint16_t port = 0;  // of 127.0.0.1: its listening socket goes with kStarted; 0: no network
  int go = -1;        // gives one byte once the ids are mapped, then an end of file
};

// A folder of the machine that a program sees, and its place inside; what the machine lacks
// is left out. `/etc` holds what only this machine should know, but for this one, which commands
// need, and ld.so.cache.
struct ShownFolder {
  const char *source, *target;  // the target relative to the root
};
constexpr ShownFolder kShownFolders[] = {{"/usr", "usr"},
                                         {"/bin", "bin"},
                                         {"/sbin", "sbin"},
                                         {"/lib", "lib"},
                                         {"/lib32", "lib32"},
                                         {"/lib64", "lib64"},
                                         {"/nix/store", "nix/store"},
                                         {"/etc/alternatives", "etc/alternatives"}};

// The user and group inside.
constexpr uid_t kInnerId = 65534;

enum class IsolationStep : int32_t {
  kStarted,  // the program begins now
  kEnded,    // it has; the rest is gone with the process that reports it
  // The step that has failed:
  kDescriptors,
  kIds,
  kMounts,
  kSystemFiles,
  kDevices,
  kPrivateRoot,
  kFiles,
  kProcess,
  kLimits,
  kFilter,
  kCommand,
  kPort,
};

struct IsolationReport {
  IsolationStep step = IsolationStep::kStarted;
  int32_t error = 0;        // errno of what has failed
  int32_t wait_status = 0;  // at kEnded
  int64_t nanoseconds = 0;  // at kEnded: from start to end
};

// A process in namespaces of its own, the first of its pid namespace, which plays init there; its
// signals are all blocked. Returns its id, or -1 with errno; its pidfd goes to `pidfd`. The calling
// thread has blocked all signals.
pid_t start_isolated(const IsolationPlan& plan, int& pidfd);

}  // namespace tailrace::sandbox
