// Which system calls a program under isolation may make (seccomp): all but a list. What it is
// refused are further namespaces and mounts, sockets that are not local, other processes' memory,
// memory that belongs to no process (memfd, System V), keys, modules, clocks, and interfaces with a
// long history of holes (bpf, io_uring, perf).
//
// Thread: any.
#pragma once

#include <span>

struct sock_filter;

namespace tailrace::sandbox {

struct FilterOptions {
  bool allows_tcp = false;  // over IPv4, beside the sockets that are local
};

// Lives as long as the process. A refused call fails with EPERM, or with ENOSYS where programs know
// another way without it; a call of another instruction set than ours kills.
std::span<const sock_filter> system_call_filter(FilterOptions options = {});

}  // namespace tailrace::sandbox
