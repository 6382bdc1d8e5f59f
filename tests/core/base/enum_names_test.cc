#include "core/base/enum_names.h"

#include <gtest/gtest.h>

#include "core/run/log.h"
#include "tests/core/base/enum_contract.h"

namespace tailrace {
namespace {

enum class Colour : uint8_t { kRed, kDarkGreen };
constexpr auto enum_names(Colour) {
  using enum Colour;
  return name_table<Colour>({{kRed, "red"}, {kDarkGreen, "dark_green"}});
}

enum class Nameless : uint8_t { kOne };

TEST(EnumNames, NameTheirEnumerators) {
  EXPECT_EQ(name_of(Colour::kRed), "red");
  EXPECT_EQ(name_of(Colour::kDarkGreen), "dark_green");
  static_assert(NamedEnum<Colour> && !NamedEnum<Nameless> && !NamedEnum<int>);
}

TEST(EnumNames, GiveTheirEnumerators) {
  EXPECT_EQ(value_of<Colour>("red"), Colour::kRed);
  EXPECT_EQ(value_of<Colour>("dark_green"), Colour::kDarkGreen);
  for (const char* other : {"", "Red", "red ", "dark"}) EXPECT_FALSE(value_of<Colour>(other));
}

TEST(EnumNames, TheContractCountsEnumerators) {
  EXPECT_EQ(num_enumerators<Colour>(), 2);
  EXPECT_EQ(num_enumerators<Nameless>(), 1);
}

TEST(EnumNames, AreComplete) {
  check_enum_names<Colour>();
  check_enum_names<LogLevel>();
  EXPECT_EQ(static_cast<int>(kEnumNames<Resume>.size()), num_enumerators<Resume>());
}

}  // namespace
}  // namespace tailrace
