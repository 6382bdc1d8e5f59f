#include "core/base/deadline_executor.h"

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
  executor.hand_over({{.id = 1, .run = [] { return 41; }},
                      {.id = 2, .run = []() -> Result<int> { return Failure{"no idea"}; }},
                      {.id = 3, .run = []() -> Result<int> { throw std::runtime_error("ouch"); }},
                      {.id = 4, .run = []() -> Result<int> { throw 5; }},
                      {.run = [&closed]() -> Result<int> {
                         closed = true;
                         throw std::runtime_error("nobody hears it");
                       },
                       .is_answered = false}});
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
    executor.hand_over({{.id = 1,
                         .run =
                             [begun, released = release.get_future().share()] {
                               begun->set_value();
                               released.wait();
                               return 1;
                             }},
                        {.id = 2, .run = [] { return 2; }}});
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

}  // namespace
}  // namespace tailrace
