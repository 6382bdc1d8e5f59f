// The process of a library (host.h), from outside: started, and ended.
//
// Thread: any; it dies with the thread that has started it.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <signal.h>
#include <sys/types.h>

#include "core/base/file_descriptor.h"
#include "core/base/result.h"
#include "core/base/time.h"
#include "sandbox/plugin/protocol.h"

namespace tailrace::sandbox {

// And our end of the socket to it.
struct HostProcess {
  FileDescriptor control;
  pid_t pid = 0;
};

// Starts a host, with `blocked` signals. The library's words about itself are read into `said`,
// within `patience`.
Result<HostProcess> launch_host(const std::filesystem::path& library,
                                const std::filesystem::path& binary, Time patience,
                                const sigset_t& blocked, std::string& said);
// With a file beside the message; -1: none. False: its socket is full, or it is gone, which who
// reads there hears of.
bool ask_host(const HostProcess& host, const HostMessage& message, int file);
// Kills it, and waits for its end.
void end_host(HostProcess& host);

Result<std::array<FileDescriptor, 2>> socket_pair();
// "was ended by signal 11 (Segmentation fault)", of what waitpid() gave; none: nobody knows.
std::string how_ended(std::optional<int32_t> status);

}  // namespace tailrace::sandbox
