// The facts of this machine: cores, memory, disk, limits. Zero or empty where it does not say.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace tailrace {

// Cores that this process may run on (affinity and the cgroup's quota, rounded up), at least 1.
int num_usable_cores();

struct MemoryFacts {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;     // without swapping; no more than the cgroup leaves
  int64_t cgroup_limit_bytes = 0;  // 0: none
};
MemoryFacts memory_facts();

// The memory of this process's cgroup, where a container sees it (v2 or v1).
struct CgroupMemory {
  int64_t limit_bytes = 0;  // 0: none
  int64_t used_bytes = 0;   // without what is only cached of files, which gives way
};
CgroupMemory cgroup_memory(const std::filesystem::path& root = "/sys/fs/cgroup");

struct DiskFacts {
  int64_t total_bytes = 0, available_bytes = 0;
};
DiskFacts disk_facts(const std::filesystem::path& path);

struct CpuFacts {
  std::string name;
  std::vector<std::string> features;  // "avx2", "fma", "asimd", ...: those that kernels can use
};
CpuFacts cpu_facts(const std::filesystem::path& cpuinfo = "/proc/cpuinfo");

// The version of the kernel's NVIDIA driver, from its own file; empty: there is none.
std::string nvidia_driver_version();

// Name, soft limit ("unlimited" or a number).
std::vector<std::pair<std::string, std::string>> limit_facts();

// How many files this process may still open (ulimit -n).
int64_t files_left();

// "Intel Xeon E5, 4 cores, 15.6 GiB": what this process may use of its machine.
std::string machine_line();

// "1.5 GiB".
std::string format_bytes(int64_t bytes);

}  // namespace tailrace
