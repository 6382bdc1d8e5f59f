#include "cli/view/log_tail.h"

#include <fstream>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tailrace
