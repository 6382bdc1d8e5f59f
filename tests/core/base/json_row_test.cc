#include "core/base/json_row.h"

#include <fmt/format.h>
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

TEST(JsonRow, KeepsTheOrderOfItsKeys) {
  const std::string line = R"({"z":1,"a":{"y":2,"b":3}})";
  EXPECT_EQ(parse_json_row(line).value().dump(), line);
}

TEST(JsonRow, AFieldIsJsonOrItsText) {
  const auto row =
      parse_json_row(R"({"list": [{"b": 1, "a": "x"}], "text": "[{\"b\": 1}]", "null": null})")
          .value();
  EXPECT_EQ(json_of_field(row, "list"), R"([{"b":1,"a":"x"}])");
  EXPECT_EQ(json_of_field(row, "text"), R"([{"b": 1}])");
  EXPECT_EQ(json_of_field(row, "null"), "");
  EXPECT_EQ(json_of_field(row, "none"), "");
}

// They have other digits as floats, and a person would look for them in vain.
TEST(JsonRow, KeepsIntegersOf64BitsAndRefusesLargerOnes) {
  const std::string kept =
      R"({"a":18446744073709551615,"b":[-9223372036854775808],"c":"99999999999999999999"})";
  EXPECT_EQ(parse_json_row(kept).value().dump(), kept);
  EXPECT_EQ(fault(R"({"\"": "1\\", "a": 1e300, "b": -0.12345678901234567890123, "c": -0})"), "");
  EXPECT_EQ(fault(R"({"id": [1, 18446744073709551616]})"),
            "too precise: the integer 18446744073709551616 has more than 64 bits; write it as a "
            "text");
  EXPECT_EQ(fault(R"({"id": -9223372036854775809})"),
            "too precise: the integer -9223372036854775809 has more than 64 bits; write it as a "
            "text");
}

TEST(JsonRow, IsNotWide) {
  const auto wide = [](int keys) {
    std::string row = "{";
    for (int i = 0; i < keys; ++i) row += fmt::format("{}\"k{}\": 1", i > 0 ? ", " : "", i);
    return row + "}";
  };
  EXPECT_EQ(fault(wide(10'000)), "");
  EXPECT_EQ(fault(wide(10'001)), "too wide: an object has more than 10000 keys");
  EXPECT_EQ(fault("{\"a\": [" + wide(300'000) + "]}"),
            "too wide: an object has more than 10000 keys");
}

}  // namespace
}  // namespace tailrace
