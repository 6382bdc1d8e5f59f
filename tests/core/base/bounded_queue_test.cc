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
  for (int i = 0; i < 3; ++i) {
    auto item = std::make_unique<int>(i);
    EXPECT_TRUE(queue.push_for(item, 1h));
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(**queue.pop(), i);
}

TEST(BoundedQueue, TurnsAwayWhatDoesNotFitAndLeavesItWithTheCaller) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  auto first = std::make_unique<int>(1), second = std::make_unique<int>(2);
  EXPECT_TRUE(queue.push_for(first, 1ms));
  EXPECT_FALSE(queue.push_for(second, 1ms));
  ASSERT_TRUE(second);
  EXPECT_EQ(*second, 2);
}

TEST(BoundedQueue, BoundsTheWeightOfWhatIsInside) {
  BoundedQueue<int> queue(100, /*max_weight=*/10);
  int item = 0;
  EXPECT_TRUE(queue.push_for(item, 1ms, 6));
  EXPECT_TRUE(queue.push_for(item, 1ms, 4));
  EXPECT_FALSE(queue.push_for(item, 1ms, 1));
  EXPECT_TRUE(queue.push_for(item, 1ms, 0));
  ASSERT_TRUE(queue.pop());
  EXPECT_TRUE(queue.push_for(item, 1ms, 6));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(queue.pop());
  EXPECT_TRUE(queue.push_for(item, 1ms, 1000)) << "what is too heavy goes alone, and not never";
  EXPECT_FALSE(queue.push_for(item, 1ms, 1));
}

TEST(BoundedQueue, MakesAProducerWaitUntilThereIsRoom) {
  BoundedQueue<int> queue(2);
  std::atomic<int> pushed = 0;
  std::jthread producer([&] {
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(queue.push_for(i, 1h));
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
  int items[] = {1, 2, 3};
  ASSERT_TRUE(queue.push_for(items[0], 1h));
  ASSERT_TRUE(queue.push_for(items[1], 1h));
  queue.close();
  EXPECT_FALSE(queue.push_for(items[2], 1h));
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(queue.pop(), 2);
  EXPECT_EQ(queue.pop(), std::nullopt);
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
  int item = 0;
  ASSERT_TRUE(full.push_for(item, 1h));
  std::atomic<pid_t> ids[2] = {};
  std::jthread producer([&] {
    ids[0] = ::gettid();
    EXPECT_FALSE(full.push_for(item, 1h));
  });
  std::jthread consumer([&] {
    ids[1] = ::gettid();
    EXPECT_FALSE(empty.pop());
  });
  for (const auto& id : ids) wait_until_asleep(id);
  full.close();
  empty.close();
}

}  // namespace
}  // namespace tailrace
