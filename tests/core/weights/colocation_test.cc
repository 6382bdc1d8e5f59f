// Turns of a trainer and a rollout worker on one device.
#include "core/weights/colocation.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/memory.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

TEST(Colocation, TheTrainerHasTheFirstTurn) {
  Colocation turns({}, 0);
  turns.begin_training();  // it has it already
  EXPECT_FALSE(turns.try_sample());
  turns.end_training("a");
  EXPECT_TRUE(turns.try_sample());
  EXPECT_TRUE(turns.try_sample());  // it has it already
  EXPECT_TRUE(turns.holds("a"));
  EXPECT_FALSE(turns.holds("b"));
  EXPECT_FALSE(turns.is_wanted());
}

TEST(Colocation, TheTrainerWaitsForTheRolloutWorkerAndComesFirst) {
  Colocation turns({}, 0);
  turns.end_training("a");
  ASSERT_TRUE(turns.try_sample());
  std::atomic<bool> trains = false;
  std::jthread trainer([&] {
    turns.begin_training();
    trains = true;
  });
  while (!turns.is_wanted()) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(trains);
  turns.end_sampling();
  EXPECT_FALSE(turns.try_sample());
  trainer.join();
  EXPECT_TRUE(trains);
  EXPECT_FALSE(turns.is_wanted());
}

TEST(Colocation, NobodyWaitsForOneThatHasLeft) {
  {
    Colocation turns({}, 0);
    turns.end_training("a");
    ASSERT_TRUE(turns.try_sample());
    std::jthread rollout([&] { turns.leave(); });
    turns.begin_training();
  }
  Colocation turns({}, 0);
  std::jthread trainer([&] { turns.leave(); });
  EXPECT_EQ(turns.weights(), nullptr);
}

TEST(Colocation, RolesMakeTheirBuffersInOnePieceOfMemory) {
  Colocation turns({}, 1024);
  const int64_t held = Buffer::total_bytes();
  const auto make = [&] {
    const ArenaScope scope(turns.turn_memory());
    std::vector<Buffer> made;
    made.emplace_back(100);
    made.emplace_back(64);
    return made;
  };
  std::vector<Buffer> first = make(), second = make();
  EXPECT_EQ(first[0].data(), turns.turn_memory().data);
  EXPECT_EQ(first[1].data(), first[0].data() + 128);
  EXPECT_EQ(second[0].data(), first[0].data());
  EXPECT_EQ(Buffer::total_bytes(), held);
  Buffer moved = std::move(first[1]);
  EXPECT_EQ(moved.data(), second[1].data());
  first.clear();
  second.clear();
  EXPECT_EQ(Buffer::total_bytes(), held);
  // Outside of the scope nothing has changed.
  const Buffer own(64);
  EXPECT_EQ(Buffer::total_bytes(), held + 64);
}

}  // namespace
}  // namespace tailrace
