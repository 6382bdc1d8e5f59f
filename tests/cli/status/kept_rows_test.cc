#include "cli/status/kept_rows.h"

#include <algorithm>
#include <cstdlib>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

struct Kept {
  std::vector<int64_t> trained, evaluated;
};

Kept kept(const KeptRows& rows, size_t bytes = size_t{1} << 30) {
  Kept found;
  int64_t before = -1;
  for (const std::string& line : rows.lines(bytes)) {
    const auto row = parse_metrics_row(line);
    EXPECT_TRUE(row);
    const bool is_evaluation = row.value().find("eval/success") != nullptr;
    (is_evaluation ? found.evaluated : found.trained).push_back(row.value().step);
    // An evaluation stands behind the step that it is about.
    EXPECT_GE(row.value().step, before);
    before = row.value().step;
  }
  return found;
}

KeptRows rows_of(int64_t steps, int64_t every) {
  KeptRows rows;
  for (int64_t step = 1; step <= steps; ++step) {
    rows.add(
        {.step = step, .version = step - 1, .unix_seconds = 1, .values = {{"reward/mean", 1}}});
    if (step % every == 0)
      rows.add({.step = step, .version = step, .unix_seconds = 1, .values = {{"eval/success", 1}}});
  }
  return rows;
}

TEST(KeptRows, OfAShortRunAreAll) {
  const Kept found = kept(rows_of(700, 10));
  EXPECT_EQ(found.trained.size(), 700u);
  EXPECT_EQ(found.evaluated.size(), 70u);
  EXPECT_TRUE(KeptRows().lines(100).empty());
}

// However evaluations and steps lie to each other: a stride over all rows would meet one kind
// alone.
TEST(KeptRows, OfALongRunAreSomeOfEachKind) {
  for (const int64_t steps : {1000, 1001, 1002, 2001, 9500, 100'000}) {
    for (const int64_t every : {1, 5, 10}) {
      const Kept found = kept(rows_of(steps, every));
      for (const auto& [some, of] :
           {std::pair(found.trained, steps), std::pair(found.evaluated, steps / every)}) {
        EXPECT_LE(std::ssize(some), 1001) << steps << " " << every;
        EXPECT_GE(std::ssize(some), std::min<int64_t>(of, 500)) << steps << " " << every;
        // Evenly, but for the last.
        for (size_t i = 2; i + 1 < some.size(); ++i)
          EXPECT_EQ(some[i] - some[i - 1], some[i - 1] - some[i - 2]);
      }
      EXPECT_EQ(found.trained.back(), steps);
      EXPECT_EQ(found.evaluated.back(), steps / every * every);
    }
  }
}

TEST(KeptRows, FitIntoWhatIsThere) {
  const KeptRows rows = rows_of(900, 10);
  for (const size_t bytes : {1u, 1000u, 20'000u}) {
    size_t size = 0;
    const auto lines = rows.lines(bytes);
    for (const std::string& line : lines) size += line.size() + 1;
    EXPECT_TRUE(size <= bytes || lines.size() == 1) << bytes;
    EXPECT_EQ(parse_metrics_row(lines.back()).value().step, 900);
  }
}

}  // namespace
}  // namespace tailrace
