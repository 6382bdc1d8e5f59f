#include "scheduler/state/mode.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace tailrace::scheduler {
namespace {

TEST(Ratio, IsTheSimplestNearby) {
  EXPECT_EQ(to_ratio(0), (Ratio{0, 1}));
  EXPECT_EQ(to_ratio(0.5), (Ratio{1, 2}));
  EXPECT_EQ(to_ratio(1.25), (Ratio{5, 4}));
  EXPECT_EQ(to_ratio(0.333), (Ratio{1, 3}));
  EXPECT_EQ(to_ratio(0.12), (Ratio{3, 25}));
  EXPECT_EQ(to_ratio(2), (Ratio{2, 1}));
  EXPECT_EQ(to_ratio(0.001), (Ratio{1, 667}));
}

TEST(Ratio, OfWholeGroupsIsRoundedDown) {
  EXPECT_EQ((Ratio{5, 4}).of(7), 8);
  EXPECT_EQ((Ratio{5, 4}).of(1), 1);
  EXPECT_EQ((Ratio{1, 2}).rounded_up(), 1);
  EXPECT_EQ((Ratio{2, 1}).rounded_up(), 2);
}

TEST(ModeOptions, APresetHasItsPapersValues) {
  EXPECT_EQ(ModeOptions::preset(ModeName::kSync).mode(), Mode{});
  const Mode tail = ModeOptions::preset(ModeName::kTailBatching).mode();
  EXPECT_EQ(tail.launch_prompts, (Ratio{5, 4}));
  EXPECT_EQ(tail.launch_members, (Ratio{5, 4}));
  EXPECT_FALSE(tail.off_policy());
  const Mode partial = ModeOptions::preset(ModeName::kPartial).mode();
  EXPECT_EQ(partial.launch_prompts, (Ratio{2, 1}));
  EXPECT_EQ(partial.max_staleness, 5);
  EXPECT_TRUE(partial.off_policy());
  ModeOptions half = ModeOptions::preset(ModeName::kAsync);
  half.ahead = 0.5;
  EXPECT_EQ(half.mode().ahead, (Ratio{1, 2}));
  EXPECT_EQ(half.mode().max_staleness, 1 + 2);  // an episode lasts while weights change
  half.on_stale = OnStale::kWait;
  EXPECT_EQ(half.mode().max_staleness, 1);
}

// Each with the key that a person has to change.
TEST(Mode, WhatCouldStandStillIsRefused) {
  const auto refused = [](const Mode& mode) {
    try {
      mode.validate();
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const Ratio two{2, 1};
  EXPECT_NE(refused({.launch_prompts = two}).find("scheduler.launch_prompts_ratio"),
            std::string::npos);
  EXPECT_NE(refused({.tail = TailPolicy::kDiscard}).find("scheduler.tail"), std::string::npos);
  EXPECT_NE(refused({.ahead = two, .max_staleness = 1, .on_stale = OnStale::kWait})
                .find("scheduler.max_staleness=2"),
            std::string::npos);
  EXPECT_EQ(refused({.ahead = two, .max_staleness = 2, .on_stale = OnStale::kWait}), "");
  EXPECT_NE(refused({.ahead = two, .max_staleness = 1}).find("scheduler.max_staleness=2"),
            std::string::npos);
  EXPECT_EQ(refused({.ahead = two, .max_staleness = 1, .on_stale = OnStale::kDrop}), "");
  EXPECT_NE(refused({.ahead = {1, 1}, .max_staleness = 0, .on_stale = OnStale::kDrop})
                .find("scheduler.max_staleness=1"),
            std::string::npos);
  EXPECT_NE(refused({.ahead = {1, 2}, .max_staleness = 0, .on_stale = OnStale::kDrop})
                .find("scheduler.max_staleness=1"),
            std::string::npos);
  EXPECT_EQ(refused({.max_staleness = 0, .on_stale = OnStale::kDrop}), "");
  const Mode kept{.launch_prompts = two,
                  .tail = TailPolicy::kKeep,
                  .max_staleness = 1,
                  .on_stale = OnStale::kWait};
  EXPECT_EQ(refused(kept), "");
  Mode both = kept;
  both.ahead = {1, 2};
  EXPECT_NE(refused(both).find("scheduler.on_stale"), std::string::npos);
  Mode too_tight = kept;
  too_tight.max_staleness = 0;
  EXPECT_NE(refused(too_tight).find("scheduler.max_staleness"), std::string::npos);
}

TEST(Mode, SaysWhoGoesFirst) {
  const auto says = [](const Mode& mode) {
    const std::vector<std::string> lines = describe(mode, 4, 2);
    return std::ranges::count_if(
        lines, [](const std::string& line) { return line.find("goes first") != line.npos; });
  };
  EXPECT_EQ(says({}), 0);
  EXPECT_EQ(says({.dispatch_order = DispatchOrder::kLongestFirst}), 1);
}

}  // namespace
}  // namespace tailrace::scheduler
