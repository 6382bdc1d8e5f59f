#include "core/base/number.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

TEST(Number, IsWholeAndFiniteOrNothing) {
  EXPECT_EQ(parse_number("0.5"), 0.5);
  EXPECT_EQ(parse_number("+4"), 4);
  EXPECT_EQ(parse_number("-1e-3"), -1e-3);
  for (const char* text : {"", "+", "+-1", "--1", " 1", "1 ", "1k", "0x10", "nan", "inf", "-inf",
                           "infinity", "1e999", "1,5"})
    EXPECT_FALSE(parse_number(text)) << text;
}

TEST(Number, IntegersDoNotWrapAround) {
  EXPECT_EQ(parse_integer("010"), 10);
  EXPECT_EQ(parse_integer("+7"), 7);
  EXPECT_EQ(parse_integer("-9223372036854775808"), INT64_MIN);
  for (const char* text : {"", "1.0", "1e3", "0x10", "9223372036854775808", "99999999999999999999"})
    EXPECT_FALSE(parse_integer(text)) << text;
}

TEST(Number, BooleansHaveTheSpellingsOfYaml) {
  for (const char* text : {"true", "True", "TRUE"}) EXPECT_EQ(parse_boolean(text), true) << text;
  for (const char* text : {"false", "False", "FALSE"})
    EXPECT_EQ(parse_boolean(text), false) << text;
  for (const char* text : {"", "1", "yes", "tRUE", "True "}) EXPECT_FALSE(parse_boolean(text));
}

}  // namespace
}  // namespace tailrace
