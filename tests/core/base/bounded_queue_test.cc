#include "core/base/bounded_queue.h"

#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

namespace tailrace {
namespace {

using namespace std::chrono_literals;

TEST(BoundedQueue, GivesItemsInOrder) {
  BoundedQueue<std::unique_ptr<int>> queue(3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(queue.push(std::make_unique<int>(i)));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(**queue.pop(), i);
  EXPECT_FALSE(queue.try_pop());
}

TEST(BoundedQueue, TurnsAwayWhatDoesNotFitAndLeavesItWithTheCaller) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  auto first = std::make_unique<int>(1), second = std::make_unique<int>(2);
  EXPECT_TRUE(queue.try_push(first));
  EXPECT_FALSE(queue.try_push(second));
  ASSERT_TRUE(second);
  EXPECT_EQ(*second, 2);
}

TEST(BoundedQueue, MakesAProducerWaitUntilThereIsRoom) {
  BoundedQueue<int> queue(2);
  std::atomic<int> pushed = 0;
  std::jthread producer([&] {
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(queue.push(i));
      ++pushed;
    }
  });
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(*queue.pop(), i);
    EXPECT_LE(pushed, i + 4);  // taken, two inside, one between push and count
  }
}

TEST(BoundedQueue, CloseDrainsWhatIsInsideAndRefusesMore) {
  BoundedQueue<int> queue(4);
  ASSERT_TRUE(queue.push(1));
  ASSERT_TRUE(queue.push(2));
  queue.close();
  EXPECT_FALSE(queue.push(3));
  EXPECT_FALSE(queue.drained());
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(queue.pop_for(1h), 2);
  EXPECT_EQ(queue.pop(), std::nullopt);
  EXPECT_TRUE(queue.drained());
}

// Returns once the thread of this id sleeps, as one that waits for a condition does.
void wait_until_asleep(const std::atomic<pid_t>& thread) {
  while (true) {
    std::string path = "/proc/self/task/" + std::to_string(thread) + "/stat", skipped, state;
    std::ifstream stat(path);
    while (stat >> skipped && skipped.back() != ')') {
    }
    if (stat >> state && state == "S") return;
    std::this_thread::yield();
  }
}

TEST(BoundedQueue, CloseWakesThoseWhoWait) {
  BoundedQueue<int> full(1), empty(1);
  ASSERT_TRUE(full.push(0));
  std::atomic<pid_t> ids[3] = {};
  std::jthread producer([&] {
    ids[0] = ::gettid();
    EXPECT_FALSE(full.push(1));
  });
  std::jthread consumer([&] {
    ids[1] = ::gettid();
    EXPECT_FALSE(empty.pop());
  });
  std::jthread patient([&] {
    ids[2] = ::gettid();
    EXPECT_FALSE(empty.pop_for(1h));
  });
  for (const auto& id : ids) wait_until_asleep(id);
  full.close();
  empty.close();
}

TEST(BoundedQueue, PopForGivesUp) {
  BoundedQueue<int> queue(1);
  EXPECT_EQ(queue.pop_for(1ms), std::nullopt);
  EXPECT_FALSE(queue.drained());
}

}  // namespace
}  // namespace tailrace
