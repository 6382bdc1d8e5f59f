#include "core/base/excerpt.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

TEST(Excerpt, IsTheWholeOfAShortTextAndTheBeginningOfALongOne) {
  EXPECT_EQ(excerpt(""), "");
  EXPECT_EQ(excerpt(std::string(100, 'a')), std::string(100, 'a'));
  EXPECT_EQ(excerpt(std::string(101, 'a')), std::string(100, 'a') + "...");
  EXPECT_EQ(excerpt("a\x1b"), "a\\x1b");
}

TEST(Excerpt, CutsNoCharacter) {
  for (const size_t before : {96, 97, 98, 99, 100}) {
    const std::string text = std::string(before, 'a') + "\U0001F600" + std::string(200, 'b');
    const std::string begin = excerpt(text);
    EXPECT_EQ(begin.find("\\x"), std::string::npos) << begin;
    EXPECT_TRUE(begin.starts_with(std::string(before, 'a')));
    EXPECT_TRUE(begin.ends_with("...")) << begin;
  }
}

}  // namespace
}  // namespace tailrace
