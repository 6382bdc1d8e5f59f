#include "cli/view/log_tail.h"

#include <chrono>
#include <fstream>

#include <gtest/gtest.h>

#include "core/base/clock.h"
#include "sandbox/process/start_progress.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

using Lines = std::vector<std::string>;

TEST(LogTail, GivesEachWholeLineOnceFromWhereItBegan) {
  const TemporaryDirectory folder;
  const std::filesystem::path file = folder / "trainer-0.log";
  const auto append = [&](const std::string& text) { std::ofstream(file, std::ios::app) << text; };
  EXPECT_EQ(LogTail(file).poll(), Lines{});
  append("of an earlier launch\n");
  LogTail tail(file);
  EXPECT_EQ(tail.poll(), Lines{});
  append("a\nb");
  EXPECT_EQ(tail.poll(), Lines{"a"});
  append("c\n\n");
  EXPECT_EQ(tail.poll(), (Lines{"bc", ""}));
  EXPECT_EQ(tail.poll(), Lines{});
  std::ofstream(file) << "d\n";  // cut
  EXPECT_EQ(tail.poll(), Lines{"d"});
  std::filesystem::remove(file);
  EXPECT_EQ(tail.poll(), Lines{});
}

TEST(LogTail, ALineWithoutAnEndIsLeftOut) {
  const TemporaryDirectory folder;
  const std::filesystem::path file = folder / "trainer-0.log";
  LogTail tail(file);
  std::ofstream(file) << std::string(3 << 20, 'x') << "\nnext\n";
  Lines found;
  for (int i = 0; i < 5; ++i)
    for (std::string& line : tail.poll()) found.push_back(std::move(line));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[1], "next");
}

TEST(LogTail, WhatAPersonIsToldIsOfFewKinds) {
  EXPECT_EQ(
      note_of("trainer-0", "trainer-0: warning: the state of step 4 was passed over: cut off"),
      "note: trainer-0: the state of step 4 was passed over: cut off");
  sandbox::StartProgress starts;
  const Time asked = steady_now();
  const auto slow = starts.look(asked + std::chrono::minutes(1), asked, 2, 8);
  ASSERT_TRUE(slow);
  EXPECT_EQ(note_of("rollout-0", "python3 env.py: " + *slow),
            "note: rollout-0: python3 env.py: 2 of 8 processes have started");
  EXPECT_FALSE(note_of("rollout-0", "rollout-0: warning: something else"));
  EXPECT_FALSE(note_of("rollout-0", "KeyError: 'answer'"));
}

}  // namespace
}  // namespace tailrace
