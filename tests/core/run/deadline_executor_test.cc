#include "core/run/deadline_executor.h"

#include <atomic>
#include <cstdlib>
#include <future>
#include <stdexcept>
#include <system_error>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/core/base/test_clock.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

using Executor = DeadlineExecutor<int>;

// Collects until `count` answers have come, by id.
std::vector<Executor::Answer> collect(Executor& executor, size_t count) {
  std::vector<Executor::Answer> answers;
  while (answers.size() < count) {
    for (Executor::Answer& answer : executor.collect(10ms, /*all=*/true))
      answers.push_back(std::move(answer));
  }
  std::ranges::sort(answers, {}, &Executor::Answer::id);
  return answers;
}

TEST(DeadlineExecutor, AnswersEachCallAndMakesExceptionsFailures) {
  TestClock clock;
  Executor executor("the oracle", 2, 1s, clock);
  std::atomic<bool> closed = false;
  Executor::Call unheard(5, [&closed]() -> Result<int> {
    closed = true;
    throw std::runtime_error("nobody hears it");
  });
  unheard.is_answered = false;
  executor.hand_over({{1, [] { return 41; }},
                      {2, []() -> Result<int> { return Failure{"no idea"}; }},
                      {3, []() -> Result<int> { throw std::runtime_error("ouch"); }},
                      {4, []() -> Result<int> { throw 5; }},
                      unheard});
  EXPECT_EQ(executor.num_unanswered(), 4);
  auto answers = collect(executor, 4);
  EXPECT_EQ(answers[0].result.value(), 41);
  EXPECT_EQ(answers[1].result.failure().message, "no idea");
  EXPECT_EQ(answers[2].result.failure().message, "the oracle threw: ouch");
  EXPECT_EQ(answers[3].result.failure().message,
            "the oracle threw something that is no std::exception");
  EXPECT_EQ(executor.num_unanswered(), 0);
  while (!closed) std::this_thread::yield();
}

// In a process of its own, which ends by itself, aborts or hangs.
[[noreturn]] void run_out_of_threads() {
  ::alarm(60);
  const rlimit few{rlim_t{400} << 20, rlim_t{400} << 20};  // of address space: their stacks
  ::setrlimit(RLIMIT_AS, &few);
  TestClock clock;
  try {
    Executor executor("the oracle", 1000, 1s, clock);
  } catch (const std::system_error&) {
    std::_Exit(7);
  }
  std::_Exit(0);
}

TEST(DeadlineExecutorDeathTest, LeavesNobodyBehindWhenTheSystemHasNoMoreThreads) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's shadow has more address space than the limit of this test";
#endif
  EXPECT_EXIT(run_out_of_threads(), testing::ExitedWithCode(7), "");
}

TEST(DeadlineExecutor, AbandonsWhatIsLateAndReplacesItsThread) {
  TestClock clock;
  std::promise<void> release;
  auto begun = std::make_shared<std::promise<void>>();
  {
    Executor executor("the oracle", 1, 5s, clock);
    executor.hand_over({{1,
                         [begun, released = release.get_future().share()] {
                           begun->set_value();
                           released.wait();
                           return 1;
                         }},
                        {2, [] { return 2; }}});
    begun->get_future().wait();
    EXPECT_TRUE(executor.collect({}, /*all=*/false).empty());
    clock.advance(5s);
    auto answers = collect(executor, 2);
    EXPECT_TRUE(answers[0].abandoned);
    EXPECT_EQ(answers[0].result.failure().message,
              "the oracle did not answer within its deadline of 5 s");
    EXPECT_EQ(answers[1].result.value(), 2);
    EXPECT_EQ(executor.num_abandoned(), 1);
  }  // and does not wait for it
  release.set_value();
}

// What is begun elsewhere holds no thread, and its answer is worked on here.
TEST(DeadlineExecutor, BeginsCallsElsewhereAndFollowsTheirAnswers) {
  TestClock clock;
  Executor executor("the oracle", 1, 5s, clock);
  std::vector<std::function<void(Result<int>)>> begun;
  std::vector<Executor::Call> calls;
  for (int64_t id = 0; id < 10; ++id) {
    Executor::Call call;
    call.id = id;
    call.begin = [&begun](auto answer) { begun.push_back(std::move(answer)); };
    call.then = [](Result<int>& answer) {
      if (answer) answer = answer.value() + 1;
    };
    calls.push_back(std::move(call));
  }
  executor.hand_over(std::move(calls));
  ASSERT_EQ(begun.size(), 10u);
  // Far past the deadline of calls that run here.
  clock.advance(1min);
  EXPECT_TRUE(executor.collect(0us, /*all=*/false).empty());
  std::thread elsewhere([&] {
    for (size_t i = 0; i < 9; ++i) begun[i](static_cast<int>(i));
    begun[9](Failure{"no idea"});
  });
  const auto answers = collect(executor, 10);
  elsewhere.join();
  for (int i = 0; i < 9; ++i) EXPECT_EQ(answers[static_cast<size_t>(i)].result.value(), i + 1);
  EXPECT_EQ(answers[0].seconds, 60);
  EXPECT_EQ(answers[9].result.failure().message, "no idea");
  EXPECT_EQ(executor.num_unanswered(), 0);
}

// The answer of a call whose executor is gone goes nowhere.
TEST(DeadlineExecutor, IsOutlivedByWhatWasBegun) {
  TestClock clock;
  std::function<void(Result<int>)> begun;
  {
    Executor executor("the oracle", 1, 5s, clock);
    Executor::Call call;
    call.begin = [&begun](auto answer) { begun = std::move(answer); };
    call.then = [](Result<int>&) { FAIL() << "it may touch what is gone"; };
    executor.hand_over({call});
  }
  begun(1);
}

// More calls hang than it replaces threads for; once they return, it works as before.
TEST(DeadlineExecutor, RecoversFromManyCallsThatHung) {
  TestClock clock;
  std::promise<void> release;
  const auto released = release.get_future().share();
  std::atomic<int> begun = 0;
  Executor executor("the oracle", 2, 5s, clock);
  int64_t id = 0;
  for (int hung = 0; hung < 70; hung += 2) {
    for (int i = 0; i < 2; ++i)
      executor.hand_over({{id++, [&begun, released] {
                             ++begun;
                             released.wait();
                             return 1;
                           }}});
    const auto until = std::chrono::steady_clock::now() + 5s;
    while (begun < hung + 2 && hung < 64 && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
    clock.advance(10s);
    (void)executor.collect(0us, /*all=*/false);
  }
  release.set_value();
  std::vector<Executor::Call> calls;
  for (int i = 0; i < 10; ++i) calls.push_back({1000 + i, [] { return 7; }});
  executor.hand_over(std::move(calls));
  int64_t answered = 0;
  const auto until = std::chrono::steady_clock::now() + 30s;
  while (answered < 10 && std::chrono::steady_clock::now() < until)
    for (const auto& answer : executor.collect(10ms, /*all=*/false))
      answered += answer.id >= 1000 && answer.result.ok();
  EXPECT_EQ(answered, 10);
}

// What it owns may block when it is destroyed.
TEST(DeadlineExecutor, DoesNotWaitForWhatADroppedCallOwns) {
  TestClock clock;
  struct Slow {
    ~Slow() { std::this_thread::sleep_for(3s); }
  };
  std::promise<void> release;
  const auto released = release.get_future().share();
  auto begin = std::chrono::steady_clock::now();
  {
    Executor executor("the oracle", 1, 100ms, clock);
    executor.hand_over({{1, [released] { return released.wait(), 1; }}});
    executor.hand_over({{2, [slow = std::make_shared<Slow>()] { return 2; }}});
    begin = std::chrono::steady_clock::now();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2s);
  release.set_value();
  std::this_thread::sleep_for(4s);  // so that no thread is left
}

}  // namespace
}  // namespace tailrace
