// When the first attempts of a launch say that none will ever work.
#include "scheduler/service/first_attempts.h"

#include <gtest/gtest.h>

namespace tailrace::scheduler {
namespace {

using namespace std::chrono_literals;

class FirstAttemptsTest : public testing::Test {
 protected:
  FirstAttemptsTest() { state_.workers["w0"].role = Role::kRollout; }
  // The attempts of a task, one after the other; what is said about the last.
  std::string fail(int count, int64_t prompt = 0, const std::string& worker = "w0",
                   Outcome outcome = Outcome::kEnvFailed) {
    std::string said;
    for (int i = 0; i < count && said.empty(); ++i) {
      LeaseId lease;
      lease.member.prompt = prompt;
      lease.attempt = i + 1;
      said = first_.look(state_,
                         {.worker = worker,
                          .lease = lease,
                          .outcome = outcome,
                          .reward = {},
                          .reason = "no such tool"},
                         now_);
    }
    return said;
  }

  State state_;
  Time now_{100s};
  FirstAttempts first_;
};

TEST_F(FirstAttemptsTest, TwelveThatFailAreEnough) {
  EXPECT_EQ(fail(6, 0), "");
  EXPECT_EQ(fail(5, 1), "");
  EXPECT_EQ(fail(1, 1),
            "all of the first 12 attempts ended as env_failed; the last one: no such tool");
  EXPECT_EQ(fail(50, 2), "") << "it is told once";
}

TEST_F(FirstAttemptsTest, OneSampleIsHope) {
  EXPECT_EQ(fail(11, 0), "");
  EXPECT_EQ(fail(1, 1, "w0", Outcome::kFinished), "");
  EXPECT_EQ(fail(100, 2), "");
}

TEST_F(FirstAttemptsTest, WhatIsLostOrAbortedSaysNothing) {
  for (int64_t prompt = 0; prompt < 9; ++prompt) {
    EXPECT_EQ(fail(5, prompt, "w0", Outcome::kAborted), "");
    EXPECT_EQ(fail(1, prompt), "");
  }
}

TEST_F(FirstAttemptsTest, OneTaskMayBeTheOnlyBrokenOneForAMinute) {
  EXPECT_EQ(fail(40, 0), "");
  now_ += 59s;
  EXPECT_EQ(fail(1, 0), "");
  now_ += 1s;
  EXPECT_NE(fail(1, 0), "");
}

TEST_F(FirstAttemptsTest, WhoeverStillPlaysIsWaitedFor) {
  for (int64_t prompt = 100; prompt < 130; ++prompt) {
    WorkId work;
    work.member.prompt = prompt;
    state_.leases.add(work, {.worker = "w0", .deadline = 500s});
  }
  EXPECT_EQ(fail(10, 0), "");
  EXPECT_EQ(fail(5, 1), "");
  EXPECT_NE(fail(1, 2), "") << "more than half as many have failed as play";
}

TEST_F(FirstAttemptsTest, OneBadWorkerSaysNothingAboutTheOthers) {
  for (const char* other : {"w1", "w2", "w3"}) state_.workers[other].role = Role::kRollout;
  EXPECT_EQ(fail(20, 0, "w0"), "");
  EXPECT_EQ(fail(20, 1, "w1"), "");
  EXPECT_NE(fail(1, 2, "w2"), "");
}

// A large run has less work than workers, or some of them are not up.
TEST_F(FirstAttemptsTest, WorkersWithoutWorkAreWaitedForAMinute) {
  for (int i = 1; i < 64; ++i) state_.workers["w" + std::to_string(i)].role = Role::kRollout;
  state_.workers["w3"].leased = 1;
  EXPECT_EQ(fail(20, 0, "w0"), "");
  EXPECT_EQ(fail(20, 1, "w1"), "");
  now_ += 59s;
  EXPECT_EQ(fail(1, 2, "w1"), "");
  now_ += 1s;
  EXPECT_NE(fail(1, 2, "w0"), "");
}

TEST_F(FirstAttemptsTest, WorkersThatPlayAreWaitedForLonger) {
  for (int i = 1; i < 64; ++i) {
    state_.workers["w" + std::to_string(i)].role = Role::kRollout;
    state_.workers["w" + std::to_string(i)].leased = 1;
  }
  EXPECT_EQ(fail(20, 0, "w0"), "");
  EXPECT_EQ(fail(20, 1, "w1"), "");
  now_ += 3600s;
  EXPECT_EQ(fail(20, 2, "w1"), "") << "others may do better";
  for (int i = 2; i < 32; ++i) EXPECT_EQ(fail(1, 3, "w" + std::to_string(i)), "");
  EXPECT_NE(fail(1, 3, "w32"), "");
}

TEST_F(FirstAttemptsTest, OneBadWorkerEndsNoRunOfSeveralHoweverLong) {
  state_.workers["w1"].role = Role::kRollout;
  EXPECT_EQ(fail(20, 0), "");
  now_ += 3600s;
  EXPECT_EQ(fail(20, 1), "");
}

TEST_F(FirstAttemptsTest, ARunWithoutABreakerGoesOn) {
  state_.config.breaker.window = 0;
  EXPECT_EQ(fail(50, 0), "");
  EXPECT_EQ(fail(50, 1), "");
}

}  // namespace
}  // namespace tailrace::scheduler
