#include "rollout/agent/marked_processes.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <thread>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/printable.h"
#include "core/base/time.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr Time kLongest = 2s;
constexpr size_t kMostCommandBytes = 4096;

bool has_mark(std::string_view environment, std::string_view mark) {
  const std::string wanted = std::string(kMarkVariable) + "=" + std::string(mark);
  for (size_t at = 0; at < environment.size();) {
    if (environment.substr(at).starts_with(wanted)) return true;
    const size_t end = environment.find('\0', at);
    if (end == environment.npos) break;
    at = end + 1;
  }
  return false;
}

}  // namespace

std::string mark_of(const fs::path& folder) {
  const fs::path whole = fs::absolute(folder).lexically_normal();
  std::error_code ignored;  // whoever works there is told of it
  fs::create_directories(whole.parent_path(), ignored);
  struct stat facts {};
  if (::stat(whole.parent_path().c_str(), &facts) != 0) facts = {};
  return fmt::format("{}-{}:{}/", facts.st_dev, facts.st_ino, whole.string());
}

std::vector<pid_t> marked_processes(const std::string& mark) {
  std::vector<pid_t> found;
  std::error_code error;
  for (auto at = fs::directory_iterator("/proc", error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc()) continue;
    if (pid == ::getpid()) continue;
    // The file of another user's process cannot be read, and that of an ended process is empty.
    std::ifstream file(at->path() / "environ", std::ios::binary);
    const std::string environment((std::istreambuf_iterator<char>(file)), {});
    if (has_mark(environment, mark)) found.push_back(pid);
  }
  return found;
}

std::string command_line_of(pid_t pid) {
  const fs::path process = fs::path("/proc") / std::to_string(pid);
  std::ifstream file(process / "cmdline", std::ios::binary);
  std::string words(kMostCommandBytes, '\0');
  file.read(words.data(), std::ssize(words));
  words.resize(static_cast<size_t>(file.gcount()));
  while (!words.empty() && words.back() == '\0') words.pop_back();
  for (const char separator : {'\0', '\n'}) std::ranges::replace(words, separator, ' ');
  if (words.empty()) std::getline(std::ifstream(process / "comm"), words);
  return shown_name(words);
}

int end_marked_processes(const std::string& mark) {
  const Time begun = steady_now();
  int count = 0;
  for (auto left = marked_processes(mark); !left.empty() && steady_now() - begun < kLongest;
       left = marked_processes(mark)) {
    if (count == 0) count = static_cast<int>(left.size());
    for (const pid_t pid : left) ::kill(pid, SIGKILL);
    std::this_thread::sleep_for(5ms);
  }
  return count;
}

}  // namespace tailrace
