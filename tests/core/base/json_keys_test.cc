#include "core/base/json_keys.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

TEST(DuplicateKey, IsTheFirstOfAnyObject) {
  EXPECT_EQ(duplicate_key(R"({"a": 1, "b": {"a": 2}, "c": [{"a": 1}, {"a": 1}]})"), "");
  EXPECT_EQ(duplicate_key(R"({"a": 1, "b": 2, "a": 1})"), "a");
  EXPECT_EQ(duplicate_key(R"({"a": {"x": 1, "x": 1}, "a": 2})"), "x");
  EXPECT_EQ(duplicate_key(R"([{"\u0061": 1, "a": 2}])"), "a");  // by what they mean
  EXPECT_EQ(duplicate_key(R"({"a": 1, "a")"), "");              // no JSON
}

}  // namespace
}  // namespace tailrace
