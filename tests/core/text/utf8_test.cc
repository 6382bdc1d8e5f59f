#include "core/text/utf8.h"

#include <gtest/gtest.h>

namespace tailrace::text {
namespace {

TEST(FirstNonUtf8, IsWhereABrokenSequenceStarts) {
  EXPECT_EQ(first_non_utf8("a\u00fcb"), std::string_view::npos);
  EXPECT_EQ(first_non_utf8("a\u00fc\xff"), 3u);
  EXPECT_EQ(first_non_utf8("ab\xe2\x82"), 2u);
}

}  // namespace
}  // namespace tailrace::text
