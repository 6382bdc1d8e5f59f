#include "rollout/gateway/reading_pool.h"

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/core/base/test_clock.h"

namespace tailrace::gateway {
namespace {

using namespace std::chrono_literals;
using Taken = ReadingPool::Taken;

// A call that is read until it is let go.
class Held {
 public:
  std::function<void()> read() {
    return [this] {
      begun_.set_value();
      (void)may_end_.get_future().wait_for(20s);
    };
  }
  void wait_until_begun() {
    EXPECT_EQ(begun_.get_future().wait_for(20s), std::future_status::ready);
  }
  void let_go() { may_end_.set_value(); }

 private:
  std::promise<void> begun_, may_end_;
};

class ReadingPoolTest : public ::testing::Test {
 protected:
  static constexpr int64_t kLong = 1'000'000, kShort = 10;

  Taken post(int session, int64_t num_bytes, std::function<void()> read) {
    return pool_->post(&sessions_.at(static_cast<size_t>(session)),
                       "call of " + std::to_string(session), num_bytes, std::move(read));
  }
  // Runs one and waits for it.
  void run(int session, int64_t num_bytes = kShort) {
    std::promise<void> done;
    ASSERT_EQ(post(session, num_bytes, [&] { done.set_value(); }), Taken::kYes);
    EXPECT_EQ(done.get_future().wait_for(20s), std::future_status::ready);
  }

  TestClock clock_;
  std::array<int, 8> sessions_{};
  std::optional<ReadingPool> pool_{std::in_place,
                                   ReadingLimits{.short_bytes = 10'000,
                                                 .session_bytes = 3 * kLong,
                                                 .all_bytes = 5 * kLong,
                                                 .call_bytes = 1,
                                                 .long_threads = 1},
                                   clock_};
};

TEST_F(ReadingPoolTest, ShortCallsAreReadWhileLongOnesAre) {
  Held held;
  ASSERT_EQ(post(0, kLong, held.read()), Taken::kYes);
  held.wait_until_begun();
  ASSERT_EQ(post(1, kLong, [] {}), Taken::kYes);  // waits for the one thread of long calls
  for (int i = 0; i < 100; ++i) run(2 + i % 3);
  held.let_go();
  run(1);  // behind its long one
}

TEST_F(ReadingPoolTest, TheCallsOfASessionAreReadInTheirOrderOneAtATime) {
  std::vector<int> order;  // without a lock: one at a time
  std::promise<void> done;
  for (int i = 0; i < 300; ++i)
    ASSERT_EQ(post(0, i % 3 == 0 ? 20'000 : kShort,
                   [&, i] {
                     order.push_back(i);
                     if (i == 299) done.set_value();
                   }),
              Taken::kYes);
  ASSERT_EQ(done.get_future().wait_for(20s), std::future_status::ready);
  std::vector<int> expected(300);
  for (int i = 0; i < 300; ++i) expected[static_cast<size_t>(i)] = i;
  EXPECT_EQ(order, expected);
}

TEST_F(ReadingPoolTest, SessionsTakeTurns) {
  Held held;
  ASSERT_EQ(post(0, kLong, held.read()), Taken::kYes);
  held.wait_until_begun();
  std::string order;
  std::promise<void> done;
  for (const int session : {0, 0, 1, 1, 2})
    ASSERT_EQ(post(session, 800'000,
                   [&, session] {
                     order += static_cast<char>('0' + session);
                     if (order.size() == 5) done.set_value();
                   }),
              Taken::kYes);
  held.let_go();
  ASSERT_EQ(done.get_future().wait_for(20s), std::future_status::ready);
  EXPECT_EQ(order, "12010");
}

TEST_F(ReadingPoolTest, WhatWaitsIsBounded) {
  Held held;
  ASSERT_EQ(post(0, kLong, held.read()), Taken::kYes);
  held.wait_until_begun();
  EXPECT_EQ(post(0, kLong, [] {}), Taken::kYes);
  EXPECT_EQ(post(0, kLong, [] {}), Taken::kYes);
  EXPECT_EQ(post(0, kLong, [] {}), Taken::kSessionIsFull);
  EXPECT_EQ(post(1, kLong, [] {}), Taken::kYes) << "another one is not hindered";
  EXPECT_EQ(post(1, kLong, [] {}), Taken::kYes);
  EXPECT_EQ(post(2, 2 * kLong, [] {}), Taken::kIsFull);
  held.let_go();
  run(0);
  run(1);
  run(2, 4 * kLong);
}

TEST_F(ReadingPoolTest, NamesTheCallThatIsReadForLongest) {
  EXPECT_FALSE(pool_->oldest());
  Held first, second;
  ASSERT_EQ(post(0, kLong, first.read()), Taken::kYes);
  first.wait_until_begun();
  const Time since = clock_.now();
  clock_.advance(3s);
  ASSERT_EQ(post(1, kShort, second.read()), Taken::kYes);
  second.wait_until_begun();
  ASSERT_EQ(post(0, kShort, [] {}), Taken::kYes);
  const auto held = pool_->oldest();
  ASSERT_TRUE(held);
  EXPECT_EQ(held->what, "call of 0");
  EXPECT_EQ(held->num_bytes, kLong);
  EXPECT_EQ(held->since, since);
  EXPECT_EQ(held->num_waiting, 1);
  first.let_go();
  second.let_go();
  run(0);
}

TEST_F(ReadingPoolTest, LongCallsAreReadTogetherAsLongAsTheirBytesAreFew) {
  pool_.emplace(ReadingLimits{.short_bytes = 10'000, .long_bytes = 2 * kLong, .long_threads = 3},
                clock_);
  Held first, second, third;
  std::atomic<bool> has_ended = false;
  ASSERT_EQ(post(0, kLong,
                 [&, read = first.read()] {
                   read();
                   has_ended = true;
                 }),
            Taken::kYes);
  ASSERT_EQ(post(1, kLong, second.read()), Taken::kYes);
  first.wait_until_begun();
  second.wait_until_begun();
  EXPECT_FALSE(has_ended) << "they are read side by side";
  // There is a thread for it, which reads short ones meanwhile.
  std::atomic<bool> has_begun = false;
  ASSERT_EQ(post(2, 3 * kLong,
                 [&, read = third.read()] {
                   has_begun = true;
                   read();
                 }),
            Taken::kYes);
  for (int i = 0; i < 100; ++i) run(3 + i % 3);
  EXPECT_FALSE(has_begun);
  first.let_go();
  run(0);
  EXPECT_FALSE(has_begun) << "it would be too much beside the second one";
  second.let_go();
  third.wait_until_begun();
  third.let_go();
  run(2);
}

TEST(HeldTeller, TellsEverLessOften) {
  HeldTeller teller;
  HeldCall held{.what = "POST /v1/completions of agent a (episode 7)",
                .num_bytes = 3'000'000,
                .since = 100s,
                .num_waiting = 3};
  EXPECT_FALSE(teller.look(std::nullopt, 100s));
  EXPECT_FALSE(teller.look(held, 104s));
  EXPECT_EQ(teller.look(held, 106s),
            "POST /v1/completions of agent a (episode 7) (3000000 bytes) is being read for 6 s; 3 "
            "other calls wait");
  EXPECT_FALSE(teller.look(held, 111s));
  EXPECT_TRUE(teller.look(held, 112s));
  held.since = 112s;  // another one
  EXPECT_FALSE(teller.look(held, 113s));
  EXPECT_TRUE(teller.look(held, 117s));
}

TEST_F(ReadingPoolTest, DropsWhatWaitsWhenItEnds) {
  Held held;
  const auto alive = std::make_shared<int>();
  ASSERT_EQ(post(0, kLong, held.read()), Taken::kYes);
  held.wait_until_begun();
  ASSERT_EQ(post(0, kLong, [alive] {}), Taken::kYes);
  std::thread lets_go([&] { held.let_go(); });
  pool_.reset();
  lets_go.join();
  EXPECT_EQ(alive.use_count(), 1);
}

}  // namespace
}  // namespace tailrace::gateway
