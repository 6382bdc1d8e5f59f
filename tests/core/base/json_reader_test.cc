#include "core/base/json_reader.h"

#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/json_row.h"
#include "core/base/json_text.h"

namespace tailrace {
namespace {

std::string list_of(int64_t count, const std::function<std::string(int64_t)>& item) {
  std::string text = "[";
  for (int64_t i = 0; i < count; ++i) text += (i > 0 ? "," : "") + item(i);
  return text + "]";
}

std::string object_of(int64_t count, const std::function<std::string(int64_t)>& member) {
  std::string text = list_of(count, member);
  text.front() = '{';
  text.back() = '}';
  return text;
}

// Texts of n parts, of the shapes that cost n^2 in other parsers or easily could.
struct JsonShape {
  const char* name;
  std::function<std::string(int64_t)> text;
};
const std::vector<JsonShape>& json_shapes() {
  static const std::vector<JsonShape> kShapes = {
      {"empty objects", [](int64_t n) { return list_of(n, [](int64_t) { return "{}"; }); }},
      {"objects", [](int64_t n) { return list_of(n, [](int64_t) { return R"({"a":{"b":1}})"; }); }},
      {"empty lists", [](int64_t n) { return list_of(n, [](int64_t) { return "[]"; }); }},
      {"numbers",
       [](int64_t n) { return list_of(n, [](int64_t i) { return std::to_string(i); }); }},
      {"keys of one object",
       [](int64_t n) {
         return object_of(n, [](int64_t i) { return fmt::format("\"key {}\":{{}}", i); });
       }},
      {"wide objects",
       [](int64_t n) {
         return list_of(n / 100, [](int64_t) {
           return object_of(100, [](int64_t i) { return fmt::format("\"k{}\":[]", i); });
         });
       }},
      {"one key", [](int64_t n) { return object_of(n, [](int64_t) { return "\"a\":{}"; }); }},
      {"a long string",
       [](int64_t n) { return "\"" + std::string(static_cast<size_t>(n), 'x') + "\""; }},
  };
  return kShapes;
}

// Sixteen times the text takes little more than sixteen times the work: n log n of the keys.
TEST(JsonReader, ItsWorkGrowsWithTheLengthOfTheText) {
  for (const JsonShape& shape : json_shapes()) {
    const std::string small = shape.text(2'000), large = shape.text(32'000);
    for (const bool ordered : {false, true}) {
      const auto steps = [&](const std::string& text) {
        return ordered ? read_ordered_json(text, {}).num_steps : read_json(text, {}).num_steps;
      };
      EXPECT_LE(steps(large), 26 * steps(small)) << shape.name;
      EXPECT_LE(steps(large), 20 * std::ssize(large)) << shape.name;
    }
  }
}

// Whoever compares each with all before it does not come to the end of these in a test's time.
TEST(JsonReader, ReadsVeryManyObjectsAndKeys) {
  constexpr int64_t kMany = 300'000;
  const auto objects = parse_json_row(R"({"x":)" + json_shapes()[0].text(kMany) + "}");
  ASSERT_TRUE(objects.ok()) << objects.failure().message;
  EXPECT_EQ(std::ssize(objects.value().at("x")), kMany);
  const std::string keys = json_shapes()[4].text(kMany);
  EXPECT_EQ(std::ssize(parse_ordered_json(keys)), kMany);
  EXPECT_EQ(std::ssize(parse_json(keys)), kMany);
  EXPECT_FALSE(read_json(keys, {.refuses_doubled_keys = true}).fault);
}

TEST(JsonReader, ReadsWhatTheLibraryReads) {
  const std::vector<std::string> texts = {
      "null", "true", "-3", "18446744073709551615", "1.5e300", "\"a\\u00e9\\n\"", "[]", "{}",
      R"([1,[2,{"z":3,"a":[4,{}]}],"x",null])", R"({"z":{"y":1,"b":2},"a":[{"z":1},{"z":2}]})",
      // Where a key is there twice the last one counts.
      R"({"a":1,"b":2,"a":3})", R"({"a":{"x":1},"b":{"c":1,"c":[2],"c":{"d":4}},"e":5})",
      R"({"0":0,"1":1,"2":2,"3":3,"4":4,"5":5,"6":6,"7":7,"2":8,"8":8,"2":9,"0":{"2":1}})",
      // None of these is JSON.
      "", "{", "[1,]", "{\"a\"}", "{\"a\":1}}", "[1] [2]", "nul", "01", "\"\x01\"", "\"\xff\"",
      "[1e999]", "{\"a\":1,,}", "'a'"};
  for (const std::string& text : texts) {
    const auto theirs = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    const auto ordered = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    EXPECT_EQ(parse_json(text).is_discarded(), theirs.is_discarded()) << text;
    EXPECT_EQ(json_text(parse_json(text)), json_text(theirs)) << text;
    EXPECT_EQ(json_text(parse_ordered_json(text)), json_text(ordered)) << text;
  }
}

TEST(JsonReader, StopsAtTheFirstLimitThatIsPassed) {
  const auto fault = [](const std::string& text, const JsonLimits& limits) {
    const auto reading = read_ordered_json(text, limits);
    EXPECT_EQ(reading.value.is_discarded(), reading.fault.has_value());
    return reading.fault ? reading.fault->what : "";
  };
  EXPECT_EQ(fault("[1,2,3]", {.max_values = 4}), "");
  EXPECT_EQ(fault("[1,2,3,4]", {.max_values = 4}), "too large: it has more than 4 values");
  EXPECT_EQ(fault("[[],[[]]]", {.max_depth = 3}), "");
  EXPECT_EQ(fault("[[],[[[]]]]", {.max_depth = 3}), "nested more than 3 deep");
  EXPECT_EQ(fault(R"({"a":1,"b":{"c":1}})", {.max_keys = 2}), "");
  EXPECT_EQ(fault(R"({"a":1,"b":2,"c":3})", {.max_keys = 2}),
            "too wide: an object has more than 2 keys");
  EXPECT_EQ(fault("[1]  ", {.max_bytes = 4}), "too large: it has 5 bytes; at most 4 are read");
  // What stands behind the limit is not read.
  const auto reading = read_json("[1,2,3,4," + std::string(1'000'000, '['), {.max_values = 3});
  EXPECT_EQ(reading.fault->what, "too large: it has more than 3 values");
  EXPECT_LE(reading.num_steps, 4);
  // The limits that nobody has asked for are those of a stack.
  EXPECT_TRUE(parse_json(std::string(600, '[') + std::string(600, ']')).is_discarded());
  EXPECT_FALSE(parse_json(std::string(400, '[') + std::string(400, ']')).is_discarded());
}

TEST(JsonReader, TheFirstKeyThatIsThereTwiceIsNamed) {
  const JsonLimits strict{.refuses_doubled_keys = true};
  const auto doubled = [&](const std::string& text) {
    const auto ordered = read_ordered_json(text, strict);
    return ordered.fault ? ordered.fault->what : "";
  };
  EXPECT_EQ(doubled(R"([{"a":1,"b":2},{"a":1}])"), "");
  EXPECT_EQ(doubled(R"({"a":1,"b":2,"b":3,"a":4})"), "ambiguous: it has \"b\" twice");
  EXPECT_EQ(doubled(R"({"a":{"x":1,"x":1},"a":2})"), "ambiguous: it has \"x\" twice");
  EXPECT_EQ(doubled(R"([{"\u0061":1,"a":2}])"), "ambiguous: it has \"a\" twice")
      << "by what they mean";
  const auto many = [](int64_t twice) {
    return object_of(
        100, [twice](int64_t i) { return fmt::format("\"k{}\":0", i == twice ? i - 7 : i); });
  };
  EXPECT_EQ(doubled(many(-1)), "");
  EXPECT_EQ(doubled(many(50)), "ambiguous: it has \"k43\" twice");
}

TEST(JsonReader, SaysWhichWholeNumberIsTooLong) {
  EXPECT_EQ(read_json("[1, 1.5e300, 18446744073709551615]", {}).wide_integer, "");
  EXPECT_EQ(read_json("[1, -9223372036854775809, 1e400]", {}).wide_integer, "-9223372036854775809");
}

}  // namespace
}  // namespace tailrace
