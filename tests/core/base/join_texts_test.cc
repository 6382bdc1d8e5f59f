#include "core/base/join_texts.h"

#include <vector>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

TEST(JoinTexts, PutsTheSeparatorBetweenTexts) {
  EXPECT_EQ(join_texts(std::vector<std::string>{}, ", "), "");
  EXPECT_EQ(join_texts(std::vector<std::string>{"a"}, ", "), "a");
  EXPECT_EQ(join_texts(std::vector<std::string>{"", "b", ""}, ", "), ", b, ");
  EXPECT_EQ(join_texts(std::vector<std::string_view>{"a", "b"}, " or "), "a or b");
  EXPECT_EQ(join_texts(std::set<std::string>{"b", "a"}, "{}"), "a{}b");
}

}  // namespace
}  // namespace tailrace
