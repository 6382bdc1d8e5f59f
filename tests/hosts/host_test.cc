#include "tests/hosts/host.h"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/file_descriptor.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/hosts/hosts_test_suite.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using HostTest = HostsTest;

// What a shell of the host says; its exit code must be 0.
std::string shell(Host& host, const std::string& script) {
  const TemporaryDirectory folder;
  HostProcess& process = host.spawn({"/bin/sh", "-c", script}, folder / "output");
  EXPECT_EQ(process.wait(60s), 0) << process.output();
  return process.output();
}

// Whether the process of `pid_fd` ends, which it has once it is a zombie: who reaps it may be slow.
bool ends(const FileDescriptor& pid_fd) {
  pollfd ended{pid_fd.get(), POLLIN, 0};
  return ::poll(&ended, 1, 30'000) == 1;
}

// The processes of the host that `pid` is of: those that share its process namespace. They can be
// asked about when they are gone.
std::vector<FileDescriptor> processes_beside(pid_t pid) {
  const fs::path space = fs::read_symlink(fmt::format("/proc/{}/ns/pid", pid));
  std::vector<FileDescriptor> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    std::error_code no_process;
    if (name.find_first_not_of("0123456789") != name.npos ||
        fs::read_symlink(entry.path() / "ns/pid", no_process) != space)
      continue;
    found.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, std::stoi(name), 0)));
  }
  return found;
}

// A process with a child, in the host.
const std::vector<std::string> kParent = {"/bin/sh", "-c",
                                          "sleep 1000 & echo started; exec sleep 1000"};
void wait_for_start(const HostProcess& process) {
  while (process.output() != "started\n") std::this_thread::sleep_for(1ms);
}

TEST_F(HostTest, HiddenFoldersAreEmptyInsideAndUntouchedOutside) {
  // Not below /tmp, which is hidden anyway.
  const fs::path folder = fs::path(TAILRACE_BINARY).parent_path() / "host_test_hidden";
  fs::create_directories(folder);
  std::ofstream(folder / "secret") << "outside";
  const fs::path before = fs::current_path();
  fs::current_path(folder);
  {
    Host host("a", {.hidden = {folder}});
    EXPECT_EQ(shell(host, "ls -A '" + folder.string() + "'"), "");
    shell(host, "echo inside > '" + folder.string() + "/secret'");
    EXPECT_EQ(read_file(host.outside(folder / "secret")).value(), "inside\n");
    EXPECT_EQ(read_file(folder / "secret").value(), "outside");
    // By way of a process of the test, whose folders are not hidden.
    EXPECT_EQ(shell(host, "ls -d /proc/" + std::to_string(::getpid()) + " 2>&1 || true")
                      .find("No such file") == std::string::npos,
              false);
  }
  EXPECT_EQ(read_file(folder / "secret").value(), "outside");
  fs::current_path(before);
  fs::remove_all(folder);
}

TEST_F(HostTest, TmpIsEachHostsOwn) {
  const TemporaryDirectory folder;  // in /tmp
  folder.write("file", "outside");
  Host a("a", {.shown = {folder / "file"}}), b("b");
  EXPECT_EQ(shell(a, "cat '" + (folder / "file").string() + "'"), "outside");
  EXPECT_EQ(shell(b, "ls -A /tmp /dev/shm"), "/dev/shm:\n\n/tmp:\n");
  const std::string made = "/tmp/tailrace_host_test_made";
  EXPECT_EQ(shell(a, "echo here > " + made + "; pwd"), "/tmp\n");
  EXPECT_EQ(read_file(a.outside(made)).value(), "here\n");
  EXPECT_FALSE(fs::exists(b.outside(made)));
  EXPECT_FALSE(fs::exists(made));
}

TEST_F(HostTest, HasANameProcessesAndAnEnvironmentOfItsOwn) {
  Host host("alpha");
  EXPECT_EQ(shell(host, "uname -n"), "alpha\n");
  EXPECT_EQ(shell(host, "tr '\\0' ' ' < /proc/1/comm"), "host_init\n");
  const TemporaryDirectory folder;
  HostProcess& process =
      host.spawn({"/bin/sh", "-c", "echo $WORD; exit 7"}, folder / "output", {"WORD=said"});
  EXPECT_EQ(process.wait(60s), 7);
  EXPECT_FALSE(process.is_running());
  EXPECT_EQ(process.output(), "said\n");
}

TEST_F(HostTest, ProcessesAreKilledByEitherNumber) {
  const TemporaryDirectory folder;
  Host host("a");
  HostProcess& first = host.spawn({"/bin/sleep", "1000"}, folder / "first");
  EXPECT_TRUE(first.is_running());
  first.kill(SIGTERM);
  EXPECT_EQ(first.wait(60s), 128 + SIGTERM);
  HostProcess& second = host.spawn({"/bin/sleep", "1000"}, folder / "second");
  const pid_t inside = std::stoi(shell(host,
                                       "for p in /proc/[0-9]*; do read -r name < $p/comm; "
                                       "[ $name = sleep ] && echo ${p#/proc/}; done; true"));
  EXPECT_NE(inside, second.pid());
  EXPECT_TRUE(host.kill_inside(inside, SIGKILL));
  EXPECT_EQ(second.wait(60s), 128 + SIGKILL);
  EXPECT_FALSE(host.kill_inside(inside, SIGKILL));
}

TEST_F(HostTest, ChildrenAndGrandchildrenDieWithTheirHost) {
  const TemporaryDirectory folder;
  auto host = std::make_unique<Host>("a");
  const HostProcess& child = host->spawn(kParent, folder / "output");
  wait_for_start(child);
  const std::vector<FileDescriptor> processes = processes_beside(child.pid());
  EXPECT_EQ(processes.size(), 3u);  // with process 1
  host.reset();
  for (const FileDescriptor& process : processes) EXPECT_TRUE(ends(process));
}

TEST_F(HostTest, ChildrenAndGrandchildrenDieWithATestThatIsKilled) {
  const TemporaryDirectory folder;
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t test = ::fork();
  if (test == 0) {
    Host host("a");
    const HostProcess& child = host.spawn(kParent, folder / "output");
    wait_for_start(child);
    const pid_t pid = child.pid();
    if (::write(pipe[1], &pid, sizeof pid) != sizeof pid) ::_exit(1);
    while (true) ::pause();
  }
  pid_t pid = 0;
  ASSERT_EQ(::read(pipe[0], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
  const std::vector<FileDescriptor> processes = processes_beside(pid);
  EXPECT_EQ(processes.size(), 3u);
  HostProcess(test).kill(SIGKILL);
  for (const FileDescriptor& process : processes) EXPECT_TRUE(ends(process));
  for (int end : pipe) ::close(end);
}

TEST_F(HostTest, SaysWhatItCannotDo) {
  const TemporaryDirectory folder;
  Host host("alpha");
  try {
    host.spawn({"/no/such/program"}, folder / "output");
    ADD_FAILURE();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "host alpha cannot run /no/such/program: No such file or directory");
  }
  const auto reason = why_no_hosts("vega");
  ASSERT_TRUE(reason);
  EXPECT_EQ(*reason,
            "no hosts on this machine: cannot use the congestion control vega: Invalid argument");
}

}  // namespace
}  // namespace tailrace
