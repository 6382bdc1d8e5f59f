#include "kernels/base/thread_pool.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

namespace tailrace {
namespace {

class ThreadPoolOfSize : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolOfSize, CoversEveryIndexOnce) {
  ThreadPool pool(GetParam());
  for (int64_t count : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
    pool.run(count, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
    });
    for (auto& v : visits) EXPECT_EQ(v.load(), 1);
  }
}

TEST_P(ThreadPoolOfSize, ShowsTheCallerAllWritesOfManyShortLoops) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> values(97, 0);  // plain memory: the sanitizer would see a race
  for (int round = 0; round < 2000; ++round) {
    pool.run(97, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] += i;
    });
  }
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], 2000 * static_cast<int64_t>(i));
}

// Whichever thread runs a range: what is computed in it may then depend on its ends.
TEST_P(ThreadPoolOfSize, CutsALoopInTheSameRangesEachTime) {
  const int64_t n = GetParam();
  ThreadPool pool(GetParam());
  for (const int64_t count : {1, 7, 97}) {
    for (int round = 0; round < 200; ++round) {
      std::vector<std::atomic<int64_t>> end_of(static_cast<size_t>(count));
      pool.run(count, [&](int64_t begin, int64_t end) {
        // Some threads come late, and others take their ranges.
        if ((begin + round) % 3 == 0) ::sched_yield();
        end_of[static_cast<size_t>(begin)] = end;
      });
      for (int64_t i = 0; i < n; ++i) {
        const int64_t begin = count * i / n, end = count * (i + 1) / n;
        if (begin < end) {
          ASSERT_EQ(end_of[static_cast<size_t>(begin)].load(), end);
        }
      }
    }
  }
}

// tests/cli counts them by this name.
TEST_P(ThreadPoolOfSize, NamesItsThreads) {
  const auto named = [] {
    int count = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      std::ifstream(task.path() / "comm") >> name;
      count += name == "tr-compute";
    }
    return count;
  };
  const ThreadPool pool(GetParam());
  // A thread names itself when it first runs.
  for (int i = 0; i < 2000 && named() < GetParam() - 1; ++i) ::usleep(5000);
  EXPECT_EQ(named(), GetParam() - 1);
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolOfSize, testing::Values(1, 2, 3, 5));

TEST(ThreadPool, ParallelForKeepsPiecesAtLeastAsLongAsTheGrain) {
  ThreadPool pool(4);
  Stream stream;
  stream.pool = &pool;
  std::atomic<int> pieces = 0;
  std::atomic<int64_t> shortest = 1000;
  parallel_for(stream, 100, 40, [&](int64_t begin, int64_t end) {
    ++pieces;
    int64_t seen = shortest;
    while (end - begin < seen && !shortest.compare_exchange_weak(seen, end - begin)) {
    }
  });
  EXPECT_EQ(pieces, 2);
  EXPECT_GE(shortest, 40);
}

TEST(ThreadPool, ParallelForWithoutAPoolRunsInline) {
  int calls = 0;
  parallel_for(Stream{}, 5, 1, [&](int64_t begin, int64_t end) {
    ++calls;
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 5);
  });
  parallel_for(Stream{}, 0, 1, [&](int64_t, int64_t) { ++calls; });
  EXPECT_EQ(calls, 1);
}

// In a process of its own, which ends by itself, aborts or hangs.
[[noreturn]] void run_out_of_threads() {
  ::alarm(60);
  const rlimit few{rlim_t{400} << 20, rlim_t{400} << 20};  // of address space: their stacks
  ::setrlimit(RLIMIT_AS, &few);
  try {
    ThreadPool pool(1000);
  } catch (const std::system_error&) {
    std::_Exit(7);
  }
  std::_Exit(0);
}

TEST(ThreadPoolDeathTest, LeavesNobodyBehindWhenTheSystemHasNoMoreThreads) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's shadow has more address space than the limit of this test";
#endif
  EXPECT_EXIT(run_out_of_threads(), testing::ExitedWithCode(7), "");
}

TEST(ThreadPoolDeathTest, RefusesZeroThreads) { EXPECT_DEATH(ThreadPool(0), "num_threads=0"); }

}  // namespace
}  // namespace tailrace
