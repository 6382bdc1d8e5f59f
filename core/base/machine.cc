#include "core/base/machine.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <sstream>

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "core/base/file.h"

namespace tailrace {
namespace {

std::string read_or_empty(const std::filesystem::path& path) {
  auto text = read_file(path, 1 << 20);
  return text ? std::move(text).value() : std::string();
}

// The text after "NAME:" up to the end of its line, trimmed.
std::string field_of(const std::string& text, std::string_view name) {
  size_t at = text.find(name);
  if (at == std::string::npos) return "";
  size_t begin = text.find(':', at);
  if (begin == std::string::npos) return "";
  begin = text.find_first_not_of(" \t", begin + 1);
  return begin == std::string::npos ? "" : text.substr(begin, text.find('\n', begin) - begin);
}

int64_t kilobytes_of(const std::string& text, std::string_view name) {
  return std::atoll(field_of(text, name).c_str()) * 1024;
}

// "max 100000" or "200000 100000" -> cores, 0 without a quota.
int cgroup_cores() {
  // cgroup v2, where a container sees its own group at this path; quotas of v1 are not read.
  std::istringstream quota(read_or_empty("/sys/fs/cgroup/cpu.max"));
  double allowed = 0, period = 0;
  if (!(quota >> allowed >> period) || period <= 0) return 0;
  // Rounded up: 1.5 cores are shared by two threads.
  return std::max(1, static_cast<int>((allowed + period - 1) / period));
}

}  // namespace

int num_usable_cores() {
  cpu_set_t cores;
  // A cpu_set_t holds 1024 cores; where the kernel has more the call fails.
  int count = ::sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
  if (int quota = cgroup_cores()) count = std::min(count, quota);
  return std::max(1, count);
}

MemoryFacts memory_facts() {
  MemoryFacts facts;
  std::string meminfo = read_or_empty("/proc/meminfo");
  facts.total_bytes = kilobytes_of(meminfo, "MemTotal");
  facts.available_bytes = kilobytes_of(meminfo, "MemAvailable");
  const CgroupMemory group = cgroup_memory();
  // v1 says a number beyond any machine where there is no limit.
  if (group.limit_bytes > 0 && group.limit_bytes < facts.total_bytes) {
    facts.cgroup_limit_bytes = group.limit_bytes;
    // Not 0, which would say that nobody knows.
    facts.available_bytes =
        std::min(facts.available_bytes, std::max<int64_t>(1, group.limit_bytes - group.used_bytes));
  }
  return facts;
}

CgroupMemory cgroup_memory(const std::filesystem::path& root) {
  struct Files {
    const char *limit, *used, *stat;
  };
  for (const Files& files : {Files{"memory.max", "memory.current", "memory.stat"},
                             Files{"memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes",
                                   "memory/memory.stat"}}) {
    // Without a limit v2 says "max", which reads as 0.
    const int64_t limit = std::atoll(read_or_empty(root / files.limit).c_str());
    if (limit <= 0) continue;
    int64_t used = std::atoll(read_or_empty(root / files.used).c_str());
    // A run that has just written its weights would else seem to fill its group.
    std::istringstream stat(read_or_empty(root / files.stat));
    std::string name;
    for (int64_t bytes = 0; stat >> name >> bytes;)
      if (name == "active_file" || name == "inactive_file") used -= bytes;
    return {limit, std::max<int64_t>(0, used)};
  }
  return {};
}

DiskFacts disk_facts(const std::filesystem::path& path) {
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0) return {};
  auto unit = static_cast<int64_t>(status.f_frsize);
  return {static_cast<int64_t>(status.f_blocks) * unit,
          static_cast<int64_t>(status.f_bavail) * unit};
}

CpuFacts cpu_facts(const std::filesystem::path& cpuinfo) {
  CpuFacts facts;
  const std::string text = read_or_empty(cpuinfo);
  // The first processor's entries stand for all.
  facts.name = field_of(text, "model name");
  std::string all = field_of(text, "flags");
  // ARM's processors have numbers for a name.
  const std::string part = field_of(text, "CPU part");
  if (facts.name.empty() && !part.empty()) {
    facts.name =
        fmt::format("ARM part {} of implementer {}", part, field_of(text, "CPU implementer"));
    all = field_of(text, "Features");
  }
  const std::vector<std::string> known = {
      "sse4_2",   "avx",         "avx2",        "fma",      "f16c",     "avx512f", "avx512bw",
      "avx512vl", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "asimd",   "asimdhp",
      "asimddp",  "bf16",        "i8mm",        "sve",      "sve2"};
  std::istringstream flags(all);
  std::string flag;
  while (flags >> flag)
    if (std::find(known.begin(), known.end(), flag) != known.end()) facts.features.push_back(flag);
  return facts;
}

std::string nvidia_driver_version() {
  std::string text = read_or_empty("/proc/driver/nvidia/version");
  std::istringstream words(text.substr(0, text.find('\n')));
  std::string word;
  while (words >> word)
    if (!word.empty() && word[0] >= '0' && word[0] <= '9' && word.find('.') != std::string::npos)
      return word;
  return "";
}

std::vector<std::pair<std::string, std::string>> limit_facts() {
  std::vector<std::pair<std::string, std::string>> facts;
  auto add = [&](std::string name, auto resource) {
    rlimit limit{};
    if (::getrlimit(resource, &limit) != 0) return;
    facts.emplace_back(
        name, limit.rlim_cur == RLIM_INFINITY ? "unlimited" : fmt::format("{}", limit.rlim_cur));
  };
  add("open_files", RLIMIT_NOFILE);
  add("processes", RLIMIT_NPROC);
  add("file_size_bytes", RLIMIT_FSIZE);
  add("locked_memory_bytes", RLIMIT_MEMLOCK);
  add("stack_bytes", RLIMIT_STACK);
  add("address_space_bytes", RLIMIT_AS);
  return facts;
}

int64_t files_left() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return std::numeric_limits<int64_t>::max();
  std::error_code error;
  std::filesystem::directory_iterator open("/proc/self/fd", error);
  // To look takes one as well.
  if (error == std::errc::too_many_files_open) return 0;
  int64_t left = static_cast<int64_t>(limit.rlim_cur) + (error ? 0 : 1);
  for (const auto& file : open) {
    // The limit is one of numbers: what was opened before it was lowered takes none of them.
    const auto number = std::strtoull(file.path().filename().c_str(), nullptr, 10);
    if (number < limit.rlim_cur) --left;
  }
  return std::max<int64_t>(0, left);
}

std::string machine_line() {
  const std::string cpu = cpu_facts().name;
  const int cores = num_usable_cores();
  const MemoryFacts memory = memory_facts();
  const int64_t limit = memory.cgroup_limit_bytes;
  return fmt::format("{}, {} core{}, {}", cpu.empty() ? "unknown CPU" : cpu, cores,
                     cores == 1 ? "" : "s", format_bytes(limit > 0 ? limit : memory.total_bytes));
}

std::string format_bytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace tailrace
