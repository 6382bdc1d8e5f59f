#include "cli/view/wrapped.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

TEST(Wrapped, BreaksBeforeTheWordThatGoesBeyondTheColumns) {
  EXPECT_EQ(wrapped("all is well", "note: "), "note: all is well\n");
  const std::string half(46, 'a'), rest(45, 'b'), wide(120, 'c');
  EXPECT_EQ(wrapped(half + " " + rest + " d", "note: "), "note: " + half + " " + rest + " d\n")
      << "100";
  EXPECT_EQ(wrapped(half + " " + rest + " de f", "note: "),
            "note: " + half + " " + rest + "\n      de f\n");
  EXPECT_EQ(wrapped(wide + " d", "note: "), "note: " + wide + "\n      d\n");
}

}  // namespace
}  // namespace tailrace
