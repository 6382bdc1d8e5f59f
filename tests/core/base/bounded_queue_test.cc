#include "core/base/bounded_queue.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

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

TEST(BoundedQueue, CloseWakesThoseWhoWait) {
  BoundedQueue<int> full(1), empty(1);
  ASSERT_TRUE(full.push(0));
  std::jthread producer([&] { EXPECT_FALSE(full.push(1)); });
  std::jthread consumer([&] { EXPECT_FALSE(empty.pop()); });
  std::jthread patient([&] { EXPECT_FALSE(empty.pop_for(1h)); });
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
