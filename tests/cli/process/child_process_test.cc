#include "cli/process/child_process.h"

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// clone() by the name that the thread sanitizer does not replace: it takes the child for a fork,
// and what follows for races.
extern "C" int __clone(int (*child)(void*), void* stack_end, int flags, void* argument, ...);

namespace tailrace {
namespace {

using namespace std::chrono_literals;

// A thread of this process that does `work`, with its number.
class NumberedThread {
 public:
  template <class Work>
  explicit NumberedThread(Work work)
      : thread_([this, work](std::stop_token stop) {
          id_ = ::gettid();
          work(stop);
        }) {}
  Standstill standstill() const { return standstill_of(::getpid(), id_); }
  bool comes_to(Standstill state) const {
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    while (id_ == 0 || standstill() != state) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(1ms);
    }
    return true;
  }

 private:
  std::atomic<pid_t> id_ = 0;
  std::jthread thread_;  // last: it uses what is above
};

// What a child does that borrows its maker's memory until it ends.
int wait_for_byte(void* pipe) {
  char byte;
  ::syscall(SYS_read, *static_cast<int*>(pipe), &byte, 1);
  return 0;
}

TEST(Standstill, OfAThreadIsItsOwn) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  std::atomic<bool> go_on = false;
  const NumberedThread sleeps([&](std::stop_token) { go_on.wait(false); });
  const NumberedThread computes([](std::stop_token stop) {
    while (!stop.stop_requested()) {
    }
  });
  EXPECT_TRUE(sleeps.comes_to(Standstill::kSleeps));
  EXPECT_TRUE(computes.comes_to(Standstill::kComputes));
  EXPECT_NE(standstill_of(::getpid()), Standstill::kDisk);
  {
    // A parent that lends its memory waits in the kernel as for a disk.
    alignas(16) static std::array<std::byte, 64 << 10> stack;
    const NumberedThread in_kernel([&](std::stop_token) {
      const pid_t child = __clone(wait_for_byte, stack.data() + stack.size(),
                                  CLONE_VFORK | CLONE_VM | SIGCHLD, &pipe[0]);
      ::waitpid(child, nullptr, 0);
    });
    EXPECT_TRUE(in_kernel.comes_to(Standstill::kDisk));
    EXPECT_EQ(sleeps.standstill(), Standstill::kSleeps);
    EXPECT_EQ(computes.standstill(), Standstill::kComputes);
    // No signal would end the process.
    EXPECT_EQ(standstill_of(::getpid()), Standstill::kDisk);
    EXPECT_EQ(::write(pipe[1], "x", 1), 1);
  }
  go_on = true;
  go_on.notify_all();
  for (int end : pipe) ::close(end);
}

}  // namespace
}  // namespace tailrace
