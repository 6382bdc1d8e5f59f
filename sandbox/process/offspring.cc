#include "sandbox/process/offspring.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/file_descriptor.h"
#include "core/base/unique_number.h"

namespace tailrace::sandbox {
namespace {

using namespace std::chrono_literals;

constexpr Time kLongestEnd = 2s, kBetweenKills = 2ms;
// Marks are limits in microseconds: from 35 years on, and below what means none.
constexpr rlim_t kLeastMark = rlim_t{1} << 50, kMostMark = rlim_t{1} << 62;

bool lists_children() {
  const std::string own = fmt::format("/proc/self/task/{}/children", ::gettid());
  return ::access(own.c_str(), R_OK) == 0;
}

// Awaits a child that has ended; of one that has not, nothing becomes.
void reap(pid_t child) { (void)::waitpid(child, nullptr, WNOHANG | __WALL); }

}  // namespace

Offspring& Offspring::of_this_process() {
  // The copy in a process that has forked itself begins anew: it has none of those children.
  static std::atomic<Offspring*> only = nullptr;
  Offspring* known = only.load();
  if (known != nullptr && known->self_ == ::getpid()) return *known;
  auto made = std::unique_ptr<Offspring>(new Offspring);
  if (only.compare_exchange_strong(known, made.get())) return *made.release();
  return *known;
}

Offspring::Offspring() : self_(::getpid()), session_(::getsid(0)) {
  (void)::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

// As /proc has them; its `stat` may be read of every process.
std::vector<Offspring::Process> Offspring::processes() {
  std::vector<Process> all;
  DIR* const folder = ::opendir("/proc");
  if (folder == nullptr) return all;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string_view name = entry->d_name;
    Process process;
    if (std::from_chars(name.data(), name.data() + name.size(), process.pid).ec != std::errc())
      continue;
    const FileDescriptor file(
        ::openat(::dirfd(folder), (std::string(name) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
    char text[1024];
    const ssize_t size = file.is_open() ? ::read(file.get(), text, sizeof text - 1) : -1;
    if (size <= 0) continue;  // it has ended meanwhile
    text[size] = '\0';
    // Behind its name, which may hold anything.
    const std::string_view line(text, static_cast<size_t>(size));
    const size_t end = line.rfind(") ");
    char state = 0;
    unsigned long long started = 0;
    if (end == line.npos ||
        std::sscanf(text + end + 2,
                    "%c %d %*d %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
                    &state, &process.parent, &process.session, &started) != 4)
      continue;
    process.started = started;
    process.has_ended = state == 'Z' || state == 'X';
    all.push_back(process);
  }
  ::closedir(folder);
  return all;
}

// A program that has ended leaves what it has started to us. Mostly there is nothing, and then the
// table of all processes, which may be long, need not be read.
bool Offspring::has_orphans() const {
  DIR* const threads = ::opendir("/proc/self/task");
  if (threads == nullptr) return true;
  bool found = false;
  while (const dirent* entry = ::readdir(threads)) {
    if (entry->d_name[0] == '.') continue;
    std::ifstream list(fmt::format("/proc/self/task/{}/children", entry->d_name));
    // The thread has ended, or the kernel lists no children.
    if (!list) found = found || !lists_children();
    for (pid_t pid = 0; list >> pid;)
      found = found || (!programs_.contains(pid) && ::getsid(pid) != session_);
  }
  ::closedir(threads);
  return found;
}

// How many are nobody's, which it kills.
int Offspring::scan() {
  const std::vector<Process> all = processes();
  std::map<pid_t, const Process*> by_id;
  for (const Process& process : all) by_id[process.pid] = &process;
  // The owners of each process, by its id; an empty set: it is nobody's.
  std::map<pid_t, Owners> found;
  const auto owners_of = [&](const auto& self, const Process& process, int depth) -> Owners {
    if (process.pid == self_ || depth == 0) return {};
    if (const auto at = programs_.find(process.pid); at != programs_.end())
      return {{at->second}, true};
    if (const auto at = found.find(process.pid); at != found.end()) return at->second;
    Owners owners;
    const auto known = owned_.find({process.pid, process.started});
    const auto session = sessions_.find(process.session);
    const auto parent = by_id.find(process.parent);
    if (known != owned_.end() && known->second.is_sure) {
      owners = known->second;
    } else if (session != sessions_.end()) {
      owners = {{session->second}, true};
    } else if (known != owned_.end() || process.parent == self_) {
      // Its parent was not seen. Of ours there is none in another session but programs.
      if (const auto family = marked_family(process.pid))
        owners = {{*family}, true};
      else if (known != owned_.end())
        owners = known->second;
      else if (process.session != session_)
        owners = {families_, families_.size() == 1};
    } else if (parent != by_id.end()) {
      owners = self(self, *parent->second, depth - 1);
    }
    found[process.pid] = owners;
    return owners;
  };
  // A chain of parents is as long as the table; the bound is for one that changed while it was
  // read.
  constexpr int kMostParents = 10'000;
  std::map<Key, Owners> owned;
  int num_killed = 0;
  for (const Process& process : all) {
    if (process.pid == self_ || programs_.contains(process.pid)) continue;
    Owners owners = owners_of(owners_of, process, kMostParents);
    const bool is_orphan = process.parent == self_ && process.session != session_;
    if (process.has_ended) {
      if (is_orphan) reap(process.pid);
      continue;
    }
    if (!owners.families.empty()) {
      owned[{process.pid, process.started}] = std::move(owners);
    } else if (is_orphan) {
      ::kill(process.pid, SIGKILL);  // awaited at the next look
      ++num_killed;
    }
  }
  owned_ = std::move(owned);
  return num_killed;
}

// 0: our own limit leaves no room.
uint64_t Offspring::draw_mark() const {
  rlimit own{};
  if (::getrlimit(RLIMIT_RTTIME, &own) != 0) return 0;
  const rlim_t most = std::min(own.rlim_max, kMostMark);
  if (most < 2 * kLeastMark) return 0;
  // Also another one than those of processes that we and our parents have started elsewhere.
  return kLeastMark + unique_number() % (most - kLeastMark);
}

std::optional<uint64_t> Offspring::marked_family(pid_t pid) const {
  rlimit its{};
  if (::prlimit(pid, RLIMIT_RTTIME, nullptr, &its) != 0) return std::nullopt;
  const auto at = marks_.find(its.rlim_max);
  if (at == marks_.end()) return std::nullopt;
  return at->second;
}

void Offspring::bear(uint64_t mark) {
  const rlimit limit{mark, mark};
  if (mark != 0) (void)::setrlimit(RLIMIT_RTTIME, &limit);
}

std::pair<pid_t, Offspring::Family> Offspring::start(
    const std::function<pid_t(uint64_t mark)>& fork) {
  // Under the lock: until it is known as a program it would be taken for an orphan.
  MutexLock lock(mutex_);
  const uint64_t mark = draw_mark();
  const pid_t pid = fork(mark);
  if (pid < 0) return {pid, Family()};
  const uint64_t family = ++last_family_;
  if (mark != 0) marks_[mark] = family;
  programs_[pid] = family;
  sessions_[pid] = family;
  families_.insert(family);
  return {pid, Family(family)};
}

int Offspring::wait(pid_t program) {
  siginfo_t ignored{};
  while (::waitid(P_PID, static_cast<id_t>(program), &ignored, WEXITED | WNOWAIT) < 0 &&
         errno == EINTR) {
  }
  // Its id may be another's as soon as it is waited for.
  MutexLock lock(mutex_);
  int status = 0;
  while (::waitpid(program, &status, 0) < 0 && errno == EINTR) {
  }
  programs_.erase(program);
  return status;
}

std::vector<pid_t> Offspring::living(uint64_t family) {
  MutexLock lock(mutex_);
  std::vector<pid_t> pids;
  if (!has_orphans()) return pids;
  (void)scan();
  for (const auto& [key, owners] : owned_)
    if (owners.is_sure && owners.families.contains(family)) pids.push_back(key.first);
  return pids;
}

int Offspring::end(uint64_t family) {
  int left = 0;
  for (const Time begun = steady_now();;) {
    {
      MutexLock lock(mutex_);
      const bool may_live = has_orphans();
      if (may_live) (void)scan();
      left = 0;
      for (const auto& [key, owners] : owned_) {
        if (!may_live || owners.families != std::set{family}) continue;
        ++left;
        ::kill(key.first, SIGKILL);
        reap(key.first);  // where it is a child of ours, now or at the next look
      }
      if (left == 0 || steady_now() - begun > kLongestEnd) {
        families_.erase(family);
        const auto is_its = [&](const auto& entry) { return entry.second == family; };
        std::erase_if(sessions_, is_its);
        std::erase_if(marks_, is_its);
        // Processes that may be another's have one owner less.
        for (auto& [key, owners] : owned_) owners.families.erase(family);
        break;
      }
    }
    std::this_thread::sleep_for(kBetweenKills);
  }
  return left;
}

void Offspring::look(Time interval) {
  MutexLock lock(mutex_);
  const Time now = steady_now();
  if (now - looked_ < interval) return;
  looked_ = now;
  (void)scan();
}

void Offspring::end_orphans() {
  for (const Time begun = steady_now(); steady_now() - begun < kLongestEnd;) {
    {
      MutexLock lock(mutex_);
      if (scan() == 0) return;
    }
    std::this_thread::sleep_for(kBetweenKills);
  }
}

std::vector<pid_t> Offspring::Family::living() const {
  return number_ == 0 ? std::vector<pid_t>() : of_this_process().living(number_);
}

int Offspring::Family::end() {
  const uint64_t number = std::exchange(number_, 0);
  return number == 0 ? 0 : of_this_process().end(number);
}

}  // namespace tailrace::sandbox
