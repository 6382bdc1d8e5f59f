// The window is what a list would be from which the older attempt of a work is searched and erased.
#include "scheduler/state/attempt_window.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/random.h"
#include "scheduler/state/archive.h"

namespace tailrace::scheduler {
namespace {

using Attempt = AttemptWindow::Attempt;

std::deque<Attempt> list_of(const AttemptWindow& window) {
  std::deque<Attempt> all;
  window.visit_all([&](const Attempt& attempt) { all.push_back(attempt); });
  return all;
}

int64_t failing_workers(const std::deque<Attempt>& list, double share) {
  std::map<WorkerId, std::pair<int64_t, int64_t>> of;  // failed, all
  for (const Attempt& attempt : list) {
    auto& [failed, all] = of[attempt.worker];
    failed += attempt.outcome == Outcome::kEnvFailed;
    ++all;
  }
  return std::ranges::count_if(of, [&](const auto& worker) {
    return AttemptWindow::exceeds(share, worker.second.first, worker.second.second);
  });
}

TEST(AttemptWindow, HoldsWhatAListOfTheLastAttemptOfEachWorkHolds) {
  Rng rng(7);
  AttemptWindow window;
  std::deque<Attempt> list;
  int64_t most = 40;
  double share = 0.5;
  for (int i = 0; i < 20000; ++i) {
    // Mostly new ones, then for a while the same few again and again.
    const int64_t prompt = i % 4000 < 3000 ? i : rng.below(5);
    const Attempt attempt{.worker = fmt::format("w{}", rng.below(9)),
                          .work = {Lane::kTrain, {.prompt = prompt}},
                          .outcome = rng.chance(0.3) ? Outcome::kEnvFailed : Outcome::kFinished};
    if (i % 500 == 0) most = rng.below(100);
    window.add(attempt);
    window.keep(most);
    std::erase_if(list, [&](const Attempt& one) { return one.work == attempt.work; });
    list.push_back(attempt);
    while (std::ssize(list) > most) list.pop_front();
    ASSERT_EQ(window.size(), std::ssize(list));
    ASSERT_EQ(window.count(Outcome::kEnvFailed),
              std::ranges::count(list, Outcome::kEnvFailed, &Attempt::outcome));
    if (i % 700 == 0) share = 0.1 * static_cast<double>(rng.below(11));
    if (i % 50 != 0) continue;
    ASSERT_TRUE(window.consistent());  // as attempts have left it, then counted or not
    ASSERT_EQ(window.workers_above(Outcome::kEnvFailed, share), failing_workers(list, share));
    ASSERT_TRUE(window.consistent());
    ASSERT_EQ(list_of(window), list);
    // The bytes are those of the list, as archives have had them.
    ASSERT_EQ(to_bytes(window), to_bytes(list));
    const auto read = from_bytes<AttemptWindow>(to_bytes(window));
    ASSERT_TRUE(read && read->consistent());
    ASSERT_EQ(*read, window);
    AttemptWindow restored = *read;
    ASSERT_EQ(restored.workers_above(Outcome::kEnvFailed, share), failing_workers(list, share));
    const AttemptWindow copy = window;
    ASSERT_EQ(copy, window);
  }
}

}  // namespace
}  // namespace tailrace::scheduler
