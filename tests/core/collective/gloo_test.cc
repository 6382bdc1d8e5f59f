#include "core/collective/gloo.h"

#include <bit>
#include <cmath>
#include <csignal>
#include <future>
#include <random>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

// Each rank on a thread of its own; what they return, in their order.
template <class Play>
auto play(int size, const Play& run, std::chrono::milliseconds timeout = 20s) {
  const TemporaryDirectory folder;
  std::vector<std::future<decltype(run(std::declval<Collective&>()))>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const auto group =
          join_ranks({.folder = folder.path(), .rank = rank, .size = size, .timeout = timeout});
      return run(*group);
    }));
  }
  std::vector<decltype(run(std::declval<Collective&>()))> results;
  for (auto& rank : ranks) results.push_back(rank.get());
  return results;
}

std::vector<float> values_of(int rank, size_t n) {
  std::mt19937 random(static_cast<unsigned>(rank));
  std::vector<float> values(n);
  for (float& v : values)
    v = std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 40) - 50);
  return values;
}

// ((0 + 1) + (2 + 3)) + ... of the ranks [begin, end).
float tree(const std::vector<std::vector<float>>& of, size_t k, size_t begin, size_t end) {
  if (end - begin == 1) return of[begin][k];
  const size_t half = std::bit_ceil(end - begin) / 2;
  return tree(of, k, begin, begin + half) + tree(of, k, begin + half, end);
}

TEST(Gloo, SumsInATreeOverTheRanksWithTheSameBitsOnEach) {
  for (const int size : {1, 2, 3, 4, 8}) {
    // Fewer values than ranks, parts of different sizes, and more than a piece.
    for (const size_t n : {size_t{1}, size_t{3}, size_t{1000}, size_t{2'500'001}}) {
      if (size > 4 && n > 1000) continue;
      std::vector<std::vector<float>> given;
      for (int rank = 0; rank < size; ++rank) given.push_back(values_of(rank, n));
      const auto sums = play(size, [&](Collective& ranks) {
        std::vector<float> values = given[static_cast<size_t>(ranks.rank())];
        ranks.sum(values);
        return values;
      });
      for (const auto& sum : sums) {
        for (size_t k = 0; k<n; k += n> 1000 ? 997 : 1)
          ASSERT_EQ(sum[k], tree(given, k, 0, given.size())) << size << " ranks, value " << k;
        ASSERT_EQ(sum, sums.front());
      }
    }
  }
}

TEST(Gloo, BroadcastsAndGathersBytesOfAnySize) {
  const auto seen = play(3, [](Collective& ranks) {
    std::vector<std::byte> common(5, std::byte(ranks.rank()));
    if (ranks.rank() == 0) std::ranges::fill(common, std::byte(42));
    ranks.broadcast(common);
    EXPECT_EQ(common, std::vector<std::byte>(5, std::byte(42)));
    // Rank 0 has nothing to say.
    const std::vector<std::byte> own(static_cast<size_t>(ranks.rank() * 70'000),
                                     std::byte(ranks.rank()));
    return ranks.gather(own);
  });
  for (const auto& all : seen) {
    ASSERT_EQ(all.size(), 3u);
    for (size_t rank = 0; rank < 3; ++rank)
      EXPECT_EQ(all[rank], std::vector<std::byte>(rank * 70'000, std::byte(rank)));
  }
}

TEST(Gloo, OneThatDoesNotComeIsLostAtTheDeadline) {
  const TemporaryDirectory folder;
  EXPECT_THROW((void)join_ranks({.folder = folder.path(), .rank = 0, .size = 2, .timeout = 300ms}),
               RankLost);
}

TEST(Gloo, OneThatStandsStillIsLostAtTheDeadlineAndTheGroupWithIt) {
  std::promise<void> over;
  const std::shared_future<void> wait = over.get_future().share();
  (void)play(
      2,
      [&](Collective& ranks) {
        if (ranks.rank() == 1) return wait.get(), 0;
        std::vector<float> values(10, 1.0f);
        EXPECT_THROW(ranks.sum(values), RankLost);
        EXPECT_THROW(ranks.broadcast(std::as_writable_bytes(std::span(values))), RankLost);
        over.set_value();
        return 0;
      },
      500ms);
}

// The deadline is beyond that of the test.
TEST(Gloo, OneThatIsKilledIsNoticedAtOnce) {
  const TemporaryDirectory folder;
  const pid_t child = ::fork();
  if (child == 0) {
    const auto group =
        join_ranks({.folder = folder.path(), .rank = 1, .size = 2, .timeout = 3600s});
    std::vector<float> values(100'000, 1.0f);
    for (;;) group->sum(values);
  }
  const auto group = join_ranks({.folder = folder.path(), .rank = 0, .size = 2, .timeout = 3600s});
  std::vector<float> values(100'000, 1.0f);
  group->sum(values);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_THROW(for (;;) group->sum(values), RankLost);
  ::waitpid(child, nullptr, 0);
}

// It waits for a rank that lives and computes: only the others' connections tell.
TEST(Gloo, OneThatIsKilledIsNoticedByWhoWaitsForAnother) {
  const TemporaryDirectory folder;
  const auto join = [&](int rank) {
    return join_ranks({.folder = folder.path(), .rank = rank, .size = 3, .timeout = 3600s});
  };
  std::vector<pid_t> children;
  for (const int rank : {0, 1}) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    const auto group = join(rank);
    for (;;) ::pause();
  }
  const auto group = join(2);
  ASSERT_EQ(::kill(children[1], SIGKILL), 0);
  std::vector<std::byte> bytes(8);
  EXPECT_THROW(group->broadcast(bytes), RankLost);
  ::kill(children[0], SIGKILL);
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
}

// It has been heard by nobody when the rank that said it is done.
TEST(Gloo, WhatOneSaidBeforeItWentIsHeard) {
  const TemporaryDirectory folder;
  const auto join = [&](int rank) {
    return join_ranks({.folder = folder.path(), .rank = rank, .size = 2, .timeout = 60s});
  };
  // More than the other side of a connection takes before it is read, and less than both sides.
  std::vector<std::byte> bytes(size_t{400} << 10, std::byte(42));
  const pid_t child = ::fork();
  if (child == 0) {
    std::vector<std::byte> heard(bytes.size());
    try {
      join(1)->broadcast(heard);
    } catch (const RankLost&) {
      std::_Exit(1);
    }
    std::_Exit(heard == bytes ? 0 : 2);
  }
  auto group = join(0);
  std::this_thread::sleep_for(200ms);  // it waits to read by then
  ::kill(child, SIGSTOP);
  group->broadcast(bytes);
  const auto waker = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(300ms);
    ::kill(child, SIGCONT);
  });
  group.reset();
  waker.wait();
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// A message is half sent, or half read. The deadline is beyond that of the test.
TEST(Gloo, OneThatIsKilledInTheMiddleOfAMessageIsNoticedToo) {
  for (const int own : {0, 1}) {
    const TemporaryDirectory folder;
    const auto join = [&](int rank) {
      return join_ranks({.folder = folder.path(), .rank = rank, .size = 2, .timeout = 3600s});
    };
    // More than a connection holds.
    std::vector<std::byte> bytes(size_t{256} << 20);
    const pid_t child = ::fork();
    if (child == 0) {
      join(1 - own)->broadcast(bytes);
      std::_Exit(0);
    }
    const auto group = join(own);
    // It waits to read by then, or is in the middle of what it sends.
    if (own == 0) std::this_thread::sleep_for(200ms);
    ::kill(child, SIGSTOP);
    const auto killer = std::async(std::launch::async, [&] {
      std::this_thread::sleep_for(200ms);
      ::kill(child, SIGKILL);
    });
    EXPECT_THROW(group->broadcast(bytes), RankLost) << own;
    ::waitpid(child, nullptr, 0);
  }
}

}  // namespace
}  // namespace tailrace
