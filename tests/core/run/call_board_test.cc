#include "core/run/call_board.h"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/run/deadline_executor.h"
#include "core/run/status_page.h"

namespace tailrace {
namespace {

// What is read of a process that did this.
template <class Do>
std::string described(const Do& act) {
  auto page = StatusPage::create();
  EXPECT_TRUE(page);
  const pid_t child = ::fork();
  if (child == 0) {
    const CallBoardScope scope(page.value().calls());
    act();
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return page.value().calls()->describe();
}

TEST(CallBoard, SaysInWhichCallAProcessHasDied) {
  EXPECT_EQ(described([] {
              const CallMark mark("step()", "maze (libmaze.so)", 17);
              ::raise(SIGKILL);
            }),
            "step() of maze (libmaze.so), task seed 17");
  EXPECT_EQ(described([] {
              const CallMark mark("score()", "way (libmaze.so)", "{\"turns\":5,\n\"said\":1}");
              ::_exit(7);
            }),
            "score() of way (libmaze.so), given {\"turns\":5, \"said\":1}");
  EXPECT_EQ(described([] {
              const CallMark mark("create()", "maze (libmaze.so)", "");
              ::raise(SIGKILL);
            }),
            "create() of maze (libmaze.so)");
}

TEST(CallBoard, SaysNothingBehindACall) {
  EXPECT_EQ(described([] {
              { const CallMark mark("step()", "maze (libmaze.so)", 17); }
              ::raise(SIGKILL);
            }),
            "");
}

TEST(CallBoard, CutsWhatIsTooLong) {
  EXPECT_EQ(
      described([] {
        const std::string x(1000, 'x');
        const CallMark mark(x, x, x);
        ::raise(SIGKILL);
      }),
      std::string(15, 'x') + " of " + std::string(63, 'x') + ", given " + std::string(79, 'x'));
}

TEST(CallBoard, WhereNobodyIsBoundAMarkDoesNothing) {
  const CallMark mark("step()", "maze (libmaze.so)", 17);
  EXPECT_EQ(bound_call_board(), nullptr);
}

// A thread each: their own, one that hangs, and one that ends the process.
TEST(CallBoard, OfSeveralThreadsNamesTheOneThatHasDiedWhereThatIsKnown) {
  const auto die_beside_another = [](bool noted) {
    return described([noted] {
      std::atomic<bool> is_in = false;
      std::thread other([&is_in, board = bound_call_board()] {
        const CallBoardScope scope(board);
        const CallMark mark("step()", "maze (libmaze.so)", 1);
        is_in = true;
        ::pause();
      });
      while (!is_in) std::this_thread::yield();
      const CallMark mark("step()", "maze (libmaze.so)", 2);
      if (noted) CallBoard::note_crash();
      ::raise(SIGKILL);
      other.join();
    });
  };
  EXPECT_EQ(die_beside_another(true), "step() of maze (libmaze.so), task seed 2");
  EXPECT_EQ(die_beside_another(false),
            "step() of maze (libmaze.so), task seed 2; or in step() of maze (libmaze.so), task "
            "seed 1");
}

// Ours, and not that of a library that another thread is in meanwhile.
TEST(CallBoard, AThreadThatDiesOutsideOfACallIsNotAttributedToOne) {
  EXPECT_EQ(described([] {
              std::atomic<bool> is_in = false;
              std::thread other([&is_in, board = bound_call_board()] {
                const CallBoardScope scope(board);
                const CallMark mark("step()", "maze (libmaze.so)", 1);
                is_in = true;
                ::pause();
              });
              while (!is_in) std::this_thread::yield();
              CallBoard::note_crash();
              ::raise(SIGKILL);
              other.join();
            }),
            "");
}

TEST(CallBoard, ThreadsOfAnExecutorAreBoundAndGiveTheirRowsBack) {
  auto page = StatusPage::create();
  ASSERT_TRUE(page);
  const auto board = page.value().calls();
  SteadyClock clock;
  const CallBoardScope scope(board);
  for (size_t i = 0; i < 2 * CallBoard::kRows; ++i) {
    DeadlineExecutor<std::string> executor("it", 1, std::chrono::seconds(60), clock);
    executor.hand_over({{1, [&]() -> Result<std::string> {
                           const CallMark mark("step()", "maze (libmaze.so)", 3);
                           return board->describe();
                         }}});
    const auto answers = executor.collect(std::chrono::seconds(60), /*all=*/true);
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(answers[0].result.value(), "step() of maze (libmaze.so), task seed 3");
  }
  EXPECT_EQ(board->describe(), "");
}

// A call that nobody could end may outlast the page of the process.
TEST(CallBoard, OutlivesItsPageWhileAThreadIsBoundToIt) {
  std::atomic<bool> is_gone = false;
  auto page = std::make_unique<StatusPage>(StatusPage::create().value());
  std::thread late([&is_gone, board = page->calls()] {
    const CallBoardScope scope(board);
    const CallMark mark("step()", "maze (libmaze.so)", 3);
    while (!is_gone) std::this_thread::yield();
  });
  page.reset();
  is_gone = true;
  late.join();
}

}  // namespace
}  // namespace tailrace
