#include "core/base/printable.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

TEST(Printable, LeavesTextAndShowsWhatWouldActOnATerminal) {
  EXPECT_EQ(printable("Z\u00fcrich \u2192 \U0001F600\n  x"), "Z\u00fcrich \u2192 \U0001F600\n  x");
  EXPECT_EQ(printable("a\x1b[31mred\x07\r\t\x7f"), "a\\x1b[31mred\\x07\\x0d\\x09\\x7f");
  EXPECT_EQ(printable(std::string_view("\0b", 2)), "\\x00b");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\xc2\\x9b"
            "31m")
      << "CSI of eight bits";
  EXPECT_EQ(printable("\xff\xe2\x82z"), "\\xff\\xe2\\x82z");
}

TEST(Shortened, KeepsWholeCharactersOfTheBeginning) {
  EXPECT_EQ(shortened("abc", 3), "abc");
  EXPECT_EQ(shortened("abcd", 3), "abc...");
  EXPECT_EQ(shortened("a\u6f22b", 4), "a\u6f22...");
  EXPECT_EQ(shortened("a\u6f22b", 3), "a...");
  EXPECT_EQ(shortened("abc", 0), "...");
  // No character at all.
  EXPECT_EQ(shortened(std::string(9, '\x80'), 5), "\x80\x80...");
}

TEST(ShownName, IsWhatATerminalShowsOfTheBeginning) {
  EXPECT_EQ(shown_name("a\x1b"), "a\\x1b");
  EXPECT_EQ(shown_name(std::string(101, 'a')), std::string(100, 'a') + "...");
}

}  // namespace
}  // namespace tailrace
