#include "core/base/json_file.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

TEST(ReadJsonObject, ReadsAnObject) {
  TemporaryDirectory folder;
  EXPECT_EQ(read_json_object(folder.write("a.json", "{\"a\": [1]}"))["a"][0], 1);
}

TEST(ReadJsonObject, NamesLineAndColumnOfAMistake) {
  TemporaryDirectory folder;
  auto error = [&](const std::string& text) {
    auto path = folder.write("a.json", text);
    try {
      read_json_object(path, 1000);
    } catch (const UserError& mistake) {
      std::string message = mistake.what();
      EXPECT_EQ(message.find("json.exception"), std::string::npos) << message;
      return message.substr(message.find("a.json"));
    }
    return std::string("(no error)");
  };
  EXPECT_EQ(error("{\n  \"a\": 1,\n  \"b\": x\n}").substr(0, 22), "a.json:3:8: not JSON: ");
  EXPECT_EQ(error("x").substr(0, 22), "a.json:1:1: not JSON: ");
  EXPECT_EQ(error("{\"a\": 1\n").substr(0, 22), "a.json:2:1: not JSON: ");
  EXPECT_EQ(error("[1]"), "a.json: not a JSON object");
  EXPECT_EQ(error(R"({"a": {"model": 1, "b": 2, "model": 1}})"),
            "a.json: an object has the key \"model\" twice, and programs take one or the other. "
            "Remove one of them.");
  EXPECT_EQ(error(R"({"a": {"a": 1}, "b": {"a": 1}})"), "(no error)");
  EXPECT_NE(error("{\"a\": \"" + std::string(2000, 'x') + "\"}").find("a.json"), std::string::npos);
}

}  // namespace
}  // namespace tailrace
