// What a program starts ends with it, however it hides.
#include "sandbox/process/offspring.h"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/file.h"
#include "sandbox/process/process.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace::sandbox {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// A program whose child hides in each of these ways, and writes its id.
constexpr const char* kHider = R"(
import ctypes, os, resource, signal, sys, time
ways, path = sys.argv[1].split(","), sys.argv[2]

def new_session():
    try: os.setsid()
    except OSError: pass  # it leads one

def hide():
    if "session" in ways: new_session()
    if "dumpable" in ways: ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    if "limit" in ways: resource.setrlimit(resource.RLIMIT_RTTIME, (1 << 40, 1 << 40))
    with open(path + ".new", "w") as file: file.write(str(os.getpid()))
    os.rename(path + ".new", path)
    for number in (0, 1, 2): os.close(number)
    if "stopped" in ways: os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1000)

if "inner" in ways: hide()
if os.fork() == 0:
    if "session" in ways: new_session()
    if "twice" in ways and os.fork() != 0: os._exit(0)
    if "cleared" in ways:
        os.execve(sys.executable, [sys.executable, __file__, "inner," + sys.argv[1], path], {})
    hide()
while not os.path.exists(path): time.sleep(0.002)
if "stays" in ways: time.sleep(1000)
)";

class OffspringTest : public testing::Test {
 protected:
  OffspringTest() { std::ofstream(folder_.path() / "hider.py") << kHider; }
  fs::path file(const std::string& name) const { return folder_.path() / name; }
  std::unique_ptr<CommandProcess> start(const std::string& ways, const std::string& name) {
    auto process = CommandProcess::start(
        {.words = {"python3", file("hider.py").string(), ways, file(name).string()}});
    EXPECT_TRUE(process) << process.failure().message;
    return process ? std::move(process).value() : nullptr;
  }
  pid_t hidden(const std::string& name) const {
    for (const Time until = steady_now() + 20s; steady_now() < until;) {
      if (const auto text = read_file(file(name))) return std::stoi(text.value());
      std::this_thread::sleep_for(1ms);
    }
    ADD_FAILURE() << "it has not begun";
    return 0;
  }
  static std::string ending_of(CommandProcess& process) {
    pollfd ended{.fd = process.pidfd(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&ended, 1, 20'000), 1);
    return process.ending();
  }
  static int num_children() {
    int count = 0;
    for (const auto& thread : fs::directory_iterator("/proc/self/task")) {
      std::ifstream list(thread.path() / "children");
      for (pid_t pid = 0; list >> pid;) ++count;
    }
    return count;
  }
  static bool lives(pid_t pid) {
    const auto stat = read_file(fs::path("/proc") / std::to_string(pid) / "stat", 4096);
    return stat && stat.value().find(") Z") == std::string::npos;
  }
  static bool ends(pid_t pid) {
    for (const Time until = steady_now() + 10s; steady_now() < until;) {
      if (!lives(pid)) return true;
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }

  TemporaryDirectory folder_;
};

TEST_F(OffspringTest, EachWayToHideIsOfNoUse) {
  int number = 0;
  for (const std::string ways :
       {"session", "session,dumpable", "session,cleared", "session,cleared,dumpable",
        "session,twice", "session,twice,cleared,dumpable", "session,stopped", "twice"}) {
    for (const bool stays : {true, false}) {
      const std::string name = "pid" + std::to_string(number++);
      auto process = start(ways + (stays ? ",stays" : ""), name);
      ASSERT_NE(process, nullptr);
      const pid_t pid = hidden(name);
      ASSERT_GT(pid, 0);
      EXPECT_TRUE(lives(pid)) << ways;
      if (!stays) {
        EXPECT_EQ(ending_of(*process), CommandProcess::kGoodEnd);
      }
      process.reset();
      EXPECT_TRUE(ends(pid)) << ways << (stays ? ", killed" : ", ended");
    }
  }
}

TEST_F(OffspringTest, AFamilyMayLiveLongerThanItsProgram) {
  auto process = start("session,twice,cleared", "pid");
  Offspring::Family family = process->take_family();
  const pid_t pid = hidden("pid");
  EXPECT_EQ(ending_of(*process), CommandProcess::kGoodEnd);
  process.reset();
  EXPECT_TRUE(lives(pid));
  const auto living = family.living();
  EXPECT_EQ(living, std::vector{pid});
  EXPECT_EQ(family.end(), 0);
  EXPECT_TRUE(ends(pid));
}

// Nobody saw its parents, and it is in a session that nobody knows.
TEST_F(OffspringTest, OneOfManyThatHidesEndsWithItsOwnProgram) {
  auto other = start("stays,session,twice,cleared", "other");
  const pid_t of_other = hidden("other");
  auto process = start("session,twice,cleared,dumpable", "pid");
  const pid_t pid = hidden("pid");
  Offspring::Family family = process->take_family();
  EXPECT_EQ(ending_of(*process), CommandProcess::kGoodEnd);
  process.reset();
  EXPECT_EQ(family.living(), std::vector{pid});
  EXPECT_EQ(family.end(), 0);
  EXPECT_TRUE(ends(pid));
  EXPECT_TRUE(lives(of_other)) << "it is not this one's";
  other.reset();
  EXPECT_TRUE(ends(of_other));
}

// Where it has lowered that limit too, it is of one of those that lived then, and of no one else.
TEST_F(OffspringTest, WhoseItIsMayBeUnknownAndItEndsWithTheLastOfThem) {
  auto other = start("stays,session", "other");
  const pid_t of_other = hidden("other");
  auto process = start("session,twice,cleared,dumpable,limit", "pid");
  const pid_t pid = hidden("pid");
  Offspring::Family family = process->take_family();
  EXPECT_EQ(ending_of(*process), CommandProcess::kGoodEnd);
  process.reset();
  EXPECT_TRUE(family.living().empty()) << "it may be the other's";
  EXPECT_EQ(family.end(), 0);
  EXPECT_TRUE(lives(of_other)) << "it is not this one's";
  other.reset();
  EXPECT_TRUE(ends(pid));
  EXPECT_TRUE(ends(of_other));
}

TEST_F(OffspringTest, WhatThisProcessStartsItselfIsLeftAlone) {
  (void)Offspring::of_this_process();
  const pid_t own = ::fork();
  if (own == 0) {
    ::execl("/bin/sleep", "sleep", "1000", nullptr);
    ::_exit(1);
  }
  auto process = start("session,stays", "pid");
  const pid_t pid = hidden("pid");
  process.reset();
  Offspring::of_this_process().end_orphans();
  EXPECT_TRUE(ends(pid));
  EXPECT_TRUE(lives(own));
  ::kill(own, SIGKILL);
  int status = 0;
  EXPECT_EQ(::waitpid(own, &status, 0), own);
}

// As `env check` does.
TEST_F(OffspringTest, ACopyOfThisProcessHasItsOwn) {
  (void)Offspring::of_this_process();
  const pid_t copy = ::fork();
  if (copy == 0) {
    auto process = start("session,twice,cleared,dumpable,stays", "pid");
    const pid_t pid = hidden("pid");
    process.reset();
    ::_exit(pid > 0 && ends(pid) ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(copy, &status, 0), copy);
  EXPECT_EQ(status, 0);
}

// Orphans of a process of ours that was killed come here, and are nobody's.
TEST_F(OffspringTest, TheOrphansOfAProcessThatWasKilledAreFound) {
  (void)Offspring::of_this_process();
  const std::string command = "exec setsid python3 " + file("hider.py").string() +
                              " session,twice,cleared,stays " + file("pid").string();
  const pid_t worker = ::fork();
  if (worker == 0) {
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(1);
  }
  const pid_t pid = hidden("pid");
  ::kill(worker, SIGKILL);
  int status = 0;
  EXPECT_EQ(::waitpid(worker, &status, 0), worker);
  Offspring::of_this_process().end_orphans();
  EXPECT_TRUE(ends(pid));
}

TEST_F(OffspringTest, OrphansThatEndAreAwaited) {
  auto process = CommandProcess::start(
      {.words = {"sh", "-c",
                 "for i in 1 2 3 4 5; do setsid sh -c 'sleep 0.05 & :' ; done; echo a; "
                 "read line"}});
  ASSERT_TRUE(process);
  char byte = 0;
  while (::read(process.value()->out(), &byte, 1) != 1) std::this_thread::sleep_for(1ms);
  // Processes that have ended and are not awaited stay children, too.
  for (const Time until = steady_now() + 20s; num_children() > 1 && steady_now() < until;) {
    Offspring::of_this_process().look(Time{});
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(num_children(), 1) << "the program itself";
}

}  // namespace
}  // namespace tailrace::sandbox
