#include "cli/view/lengths_section.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

using enum TimelineWhat;

TimelineRow step(int64_t number, const std::vector<int64_t>& tokens, int64_t staleness) {
  return {.what = kStep,
          .at = Time(100 * number),
          .from = Time(100 * number),
          .number = number,
          .trained = {.samples = std::ssize(tokens),
                      .truncated = 1,
                      .tokens = deciles_of(tokens),
                      .staleness = deciles_of({0, staleness})}};
}
TimelineRow discarded(const std::string& why, std::vector<TimelineRow::Sample> samples) {
  return {.what = kDiscarded, .end = why, .samples = std::move(samples)};
}

std::vector<TimelineRow> example() {
  return {discarded("filtered", {{.tokens = 4, .staleness = 0}, {.tokens = 6, .staleness = 1}}),
          discarded("surplus", {{}}), step(1, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 1),
          discarded("stale", {{.tokens = 90, .staleness = 3, .truncated = true}}),
          step(2, {10, 20}, 2)};
}

TEST(Lengths, WhatIsDiscardedBelongsToTheNextStep) {
  const auto steps = lengths_of(example());
  ASSERT_EQ(steps.size(), 2u);
  const Discards& first = steps.at(1).discarded;
  EXPECT_EQ(first.samples, 3);
  EXPECT_EQ(first.by_cause, (std::map<std::string, int64_t>{{"filtered", 2}, {"surplus", 1}}));
  EXPECT_EQ(first.tokens, (std::vector<int64_t>{4, 6})) << "of one it is not known any more";
  EXPECT_EQ(steps.at(2).discarded.truncated, 1);
  EXPECT_EQ(steps.at(2).trained.tokens.back(), 20);
}

TEST(Lengths, AStepOfAnAbandonedLineageIsForgotten) {
  auto rows = example();
  rows.push_back(step(1, {7}, 0));
  const auto steps = lengths_of(rows);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps.at(1).trained.samples, 1);
}

TEST(Lengths, TheSectionShowsDecilesOfBoth) {
  const std::string section = lengths_section(example());
  for (const char* part :
       {"13 samples were trained, 4 finished ones were discarded", "response tokens, by decile",
        "staleness in versions, by decile", "discarded samples", "response tokens, discarded",
        "discarded: 100 % at most 90", "<td>staleness, trained</td><td>13</td><td>0</td>"})
    EXPECT_NE(section.find(part), std::string::npos) << part << "\n" << section;
  EXPECT_EQ(section, lengths_section(example()));
  EXPECT_EQ(lengths_section({}), "");
  const std::string fresh = lengths_section(std::vector<TimelineRow>{step(1, {3}, 0)});
  EXPECT_EQ(fresh.find("staleness in versions"), std::string::npos) << "all 0 is no picture";
}

}  // namespace
}  // namespace tailrace
