#include "core/base/json_row.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace tailrace {
namespace {

std::string fault(const std::string& line) {
  const auto row = parse_json_row(line);
  return row ? "" : row.failure().message;
}

TEST(JsonRow, IsAnObject) {
  const auto row = parse_json_row(R"({"a": {"x": 1}, "b": [{"x": 2}, {"x": 3}], "x": 4})");
  ASSERT_TRUE(row.ok()) << row.failure().message;
  EXPECT_EQ(row.value()["b"][1]["x"], 3);
  EXPECT_EQ(fault("{}"), "");
  for (const char* broken : {"", "{", "hello", "{\"a\": 1} {}"})
    EXPECT_EQ(fault(broken), "not valid JSON") << broken;
  for (const char* other : {"[1]", "3", "null", "\"a\""})
    EXPECT_EQ(fault(other), "not a JSON object") << other;
}

// A parser keeps the last of them and says nothing.
TEST(JsonRow, RefusesAFieldThatIsThereTwice) {
  EXPECT_EQ(fault(R"({"answer": 4, "b": 1, "answer": 5})"), "ambiguous: it has \"answer\" twice");
  EXPECT_EQ(fault(R"({"a": 4, "\u0061": 4})"), "ambiguous: it has \"a\" twice");
  EXPECT_EQ(fault(R"({"tests": [{"in": 1}, {"in": 1, "out": 2, "out": 3}]})"),
            "ambiguous: it has \"out\" twice");
  EXPECT_EQ(fault(R"({"a": {"b": {"c": 1}}, "d": {"b": {"c": 1}}, "b": {"c": 1, "c": 1}})"),
            "ambiguous: it has \"c\" twice");
}

TEST(JsonRow, IsNotDeep) {
  const auto nested = [](size_t depth) {
    return "{\"a\": " + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_EQ(fault(nested(99)), "");
  EXPECT_EQ(fault(nested(300'000)), "nested more than 100 deep");
}

}  // namespace
}  // namespace tailrace
