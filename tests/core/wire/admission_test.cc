#include "core/wire/admission.h"

#include <chrono>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace tailrace::wire {
namespace {

using Answer = Admission::Answer;
using namespace std::chrono_literals;

constexpr Time kPace = 5s;

TEST(Admission, ANameBelongsToItsNewestProcess) {
  Admission admission(kPace);
  EXPECT_EQ(admission.ask("a", 1, 1, 0s), Answer::kBegin);
  EXPECT_EQ(admission.ask("a", 1, 1, 0s), Answer::kAgain);
  EXPECT_EQ(admission.ask("a", 1, 2, 0s), Answer::kBegin);
  EXPECT_EQ(admission.ask("a", 1, 1, 0s), Answer::kOld);
  EXPECT_EQ(admission.ask("a", 2, 1, 0s), Answer::kBegin);
  EXPECT_EQ(admission.ask("a", 1, 3, 0s), Answer::kReplaced);
  admission.on_end("a");
  EXPECT_EQ(admission.ask("a", 2, 1, 0s), Answer::kBegin) << "its session is gone";
}

TEST(Admission, AFloodOfNamesGrowsNothingAndDisplacesNobody) {
  Admission admission(kPace);
  ASSERT_EQ(admission.ask("rollout-0", 1, 1, 0s), Answer::kBegin);
  int64_t begun = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::string name = fmt::format("flood-{}", i);
    if (admission.ask(name, 1, 1, i * 1ms) != Answer::kBegin) continue;
    ++begun;
    admission.on_end(name);
  }
  EXPECT_EQ(admission.num_names(), kMaxWorkers);
  EXPECT_NEAR(static_cast<double>(begun), kMaxWorkers + 100.0 / 5, 2)
      << "a first lot, then one in each period";
  EXPECT_EQ(admission.ask("rollout-0", 1, 1, 100s), Answer::kAgain);
  EXPECT_EQ(admission.ask("rollout-0", 2, 1, 100s), Answer::kBegin) << "a restart is no new name";
}

TEST(Admission, WithoutRoomANewNameWaitsUntilAnotherHasGone) {
  Admission admission(kPace);
  for (int i = 0; i < kMaxWorkers; ++i)
    ASSERT_EQ(admission.ask(fmt::format("{}", i), 1, 1, 0s), Answer::kBegin);
  EXPECT_EQ(admission.ask("new", 1, 1, 60s), Answer::kRefused);
  admission.on_end("7");
  admission.on_end("3");
  EXPECT_EQ(admission.ask("new", 1, 1, 120s), Answer::kBegin);
  EXPECT_EQ(admission.ask("3", 1, 2, 120s), Answer::kBegin)
      << "the one that went first is forgotten";
}

TEST(Admission, ProcessesThatTakeEachOthersNameAreKeptToAPace) {
  Admission admission(kPace);
  int64_t begun = 0;
  for (uint64_t i = 1; i <= 100'000; ++i)
    begun += admission.ask("a", i, 1, static_cast<int64_t>(i) * 1ms) == Answer::kBegin;
  EXPECT_NEAR(static_cast<double>(begun), 32 + 100.0 / 5, 1);
}

}  // namespace
}  // namespace tailrace::wire
