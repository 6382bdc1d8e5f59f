#include "tests/hosts/host.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/file_descriptor.h"
#include "kernels/base/check.h"
#include "tests/hosts/network_device.h"
#include "tests/hosts/system_failure.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// Checks a system call's return value.
int check_call(int value, std::string_view action, const fs::path& path) {
  if (value < 0) fail_with(errno, action, path.native());
  return value;
}

void mount_empty(const fs::path& folder, const char* options) {
  check_call(::mount("tailrace", folder.c_str(), "tmpfs", MS_NOSUID, options),
             "cannot mount a tmpfs over", folder);
}

// A place for a mount: an empty file or folder, like what `source` is.
void make_place(const fs::path& path, const fs::path& source) {
  if (fs::exists(path)) return;
  if (fs::is_directory(source)) {
    fs::create_directories(path);
  } else {
    fs::create_directories(path.parent_path());
    std::ofstream{path};
  }
}

void build_file_system(const HostOptions& options) {
  check_call(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), "cannot make private",
             "/");
  std::vector<FileDescriptor> shown;
  for (const fs::path& path : options.shown)
    shown.emplace_back(check_call(::open(path.c_str(), O_PATH | O_CLOEXEC), "cannot open", path));
  for (const fs::path& path : options.hidden) mount_empty(path, "mode=0755");
  mount_empty("/tmp", "mode=1777");
  if (fs::exists("/dev/shm")) mount_empty("/dev/shm", "mode=1777");
  for (size_t i = 0; i < shown.size(); ++i) {
    const fs::path source = fmt::format("/proc/self/fd/{}", shown[i].get());
    make_place(options.shown[i], source);
    check_call(
        ::mount(source.c_str(), options.shown[i].c_str(), nullptr, MS_BIND | MS_REC, nullptr),
        "cannot show", options.shown[i]);
  }
  // The folder that we come from may be hidden, and would be seen through ".".
  check_call(::chdir("/tmp"), "cannot enter", "/tmp");
}

// Router solicitations would be packets that no test has sent.
void turn_ipv6_off() {
  const fs::path path = "/proc/sys/net/ipv6/conf/default/disable_ipv6";
  if (!fs::exists(path)) return;
  const FileDescriptor file(
      check_call(::open(path.c_str(), O_WRONLY | O_CLOEXEC), "cannot open", path));
  check_call(static_cast<int>(::write(file.get(), "1", 1)), "cannot write", path);
}

// A fork that tells its parent, by an error number, how far it has come. The parent's end reads
// nothing when the child has begun another program.
class ChildReport {
 public:
  ChildReport() {
    int ends[2];
    check_call(::pipe2(ends, O_CLOEXEC), "cannot make", "a pipe");
    read_ = FileDescriptor(ends[0]);
    write_ = FileDescriptor(ends[1]);
  }
  // In the child. False: the parent is no more.
  bool send(int error) {
    read_.reset();
    return ::write(write_.get(), &error, sizeof error) == sizeof error;
  }
  // In the parent; waits.
  int receive() {
    write_.reset();
    int error = 0;
    while (::read(read_.get(), &error, sizeof error) < 0 && errno == EINTR) {
    }
    return error;
  }

 private:
  FileDescriptor read_, write_;
};

// Process 1 of the host. The kernel gives it what its parents have left, and it reaps them.
std::unique_ptr<HostProcess> start_init() {
  ChildReport report;
  const pid_t pid = check_call(::fork(), "cannot fork", "process 1");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::prctl(PR_SET_NAME, "host_init");
    ::signal(SIGCHLD, SIG_IGN);
    const bool mounted = ::mount("proc", "/proc", "proc", 0, nullptr) == 0;
    if (!report.send(mounted ? 0 : errno)) ::_exit(1);
    ::close_range(0, ~0U, 0);
    while (true) ::pause();
  }
  auto init = std::make_unique<HostProcess>(pid);
  if (const int error = report.receive()) fail_with(error, "cannot mount", "/proc");
  return init;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Before the additions, whose value counts where a name is given twice.
std::vector<std::string> environment_with(const std::vector<std::string>& additions) {
  std::vector<std::string> result;
  for (char** entry = ::environ; *entry != nullptr; ++entry) {
    const std::string text = *entry, name = text.substr(0, text.find('=') + 1);
    const bool is_replaced =
        name == "TMPDIR=" || std::any_of(additions.begin(), additions.end(), [&](auto& addition) {
          return addition.starts_with(name);
        });
    if (!is_replaced) result.push_back(text);
  }
  result.insert(result.end(), additions.begin(), additions.end());
  return result;
}

}  // namespace

void Host::Thread::run(const std::function<void()>& work) {
  // The message and not the exception itself: its counter of owners is in libstdc++, where the
  // thread sanitizer does not see that two threads agree on it.
  std::optional<std::string> failure;
  std::packaged_task<void()> task([&] {
    try {
      work();
    } catch (const std::exception& error) {
      failure = error.what();
    }
  });
  std::future<void> done = task.get_future();
  TR_CHECK(tasks_.push_for(task, std::chrono::minutes(10)), "the host's thread stands still");
  done.get();
  if (failure) throw std::runtime_error(*failure);
}

Host::Host(std::string name, const HostOptions& options) : name_(std::move(name)) {
  thread_.run([&] {
    check_call(::unshare(CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC),
               "cannot make namespaces for", name_);
    check_call(::sethostname(name_.data(), name_.size()), "cannot name", name_);
    turn_ipv6_off();
    raise_loopback();
    build_file_system(options);
    root_ = FileDescriptor(
        check_call(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC), "cannot open", "/"));
    init_ = start_init();
  });
}

HostProcess& Host::spawn(const std::vector<std::string>& arguments, const fs::path& output,
                         const std::vector<std::string>& environment) {
  TR_CHECK(!arguments.empty());
  const FileDescriptor input(
      check_call(::open("/dev/null", O_RDONLY | O_CLOEXEC), "cannot open", "/dev/null"));
  const FileDescriptor out(
      check_call(::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644),
                 "cannot write", output));
  std::vector<std::string> argument_texts = arguments;
  std::vector<std::string> environment_texts = environment_with(environment);
  const std::vector<char*> argv = pointers(argument_texts), envp = pointers(environment_texts);
  run_inside([&] {
    ChildReport report;
    const pid_t pid = check_call(::fork(), "cannot fork for", arguments[0]);
    if (pid == 0) {
      // Should the test be gone already, process 1 dies, and this with it.
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(input.get(), STDIN_FILENO);
      ::dup2(out.get(), STDOUT_FILENO);
      ::dup2(out.get(), STDERR_FILENO);
      ::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
      ::execvpe(argv[0], argv.data(), envp.data());
      report.send(errno);
      ::_exit(127);
    }
    processes_.push_back(std::make_unique<HostProcess>(pid, output));
    if (const int error = report.receive()) {
      processes_.pop_back();
      fail_with(error, fmt::format("host {} cannot run", name_), arguments[0]);
    }
  });
  return *processes_.back();
}

fs::path Host::outside(const fs::path& inside) const {
  TR_CHECK(inside.is_absolute(), "{}", inside.string());
  return fmt::format("/proc/{}/fd/{}{}", ::getpid(), root_.get(), inside.string());
}

bool Host::kill_inside(pid_t inside, int signal) {
  bool is_sent = false;
  run_inside([&] {
    // Only a process of the host knows its numbers.
    const pid_t pid = check_call(::fork(), "cannot fork for", "kill");
    if (pid == 0) ::_exit(::kill(inside, signal) == 0 ? 0 : 1);
    is_sent = HostProcess(pid).wait(std::chrono::minutes(1)) == 0;
  });
  return is_sent;
}

void Host::run_inside(const std::function<void()>& work) { thread_.run(work); }

std::optional<std::string> why_no_hosts(const std::string& congestion_control) {
  try {
    Host host("probe");
    host.run_inside([&] {
      open_link_device({.address = "10.77.0.1",
                        .peer = "10.77.0.2",
                        .mtu_bytes = 1500,
                        .congestion_control = congestion_control});
    });
    return std::nullopt;
  } catch (const std::exception& error) {
    return fmt::format("no hosts on this machine: {}", error.what());
  }
}

}  // namespace tailrace
