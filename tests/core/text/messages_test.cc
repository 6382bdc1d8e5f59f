#include "core/text/messages.h"

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace tailrace::text {
namespace {

using nlohmann::ordered_json;

constexpr const char* kCall = R"("tool_calls": [{"function": {"name": "f", "arguments": {}}}])";

std::string fault_of(const std::string& message) {
  ordered_json list = ordered_json::parse("[" + message + "]");
  const auto changed = make_texts(list);
  return changed ? "" : changed.failure().message;
}

TEST(Messages, PartsOfTextAreJoined) {
  ordered_json list = ordered_json::parse(
      R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}]},
          {"role": "assistant", "content": "c"}])");
  EXPECT_TRUE(make_texts(list).value());
  EXPECT_EQ(list[0].at("content"), "a b");
  EXPECT_EQ(list[1].at("content"), "c");
  EXPECT_FALSE(make_texts(list).value());
}

TEST(Messages, OnlyACallOfToolsMayHaveNoContent) {
  EXPECT_EQ(fault_of(R"({"role": "assistant", "content": null, )" + std::string(kCall) + "}"), "");
  EXPECT_EQ(fault_of(R"({"role": "assistant", )" + std::string(kCall) + "}"), "");
  for (const std::string& message :
       {std::string(R"({"role": "assistant", "content": null})"),
        std::string(R"({"role": "assistant", "content": null, "tool_calls": []})"),
        std::string(R"({"role": "assistant"})"),
        R"({"role": "user", "content": null, )" + std::string(kCall) + "}"})
    EXPECT_NE(fault_of(message).find(") has no content, which only an assistant with tool_calls"),
              std::string::npos)
        << message;
}

TEST(Messages, OtherContentIsNamed) {
  EXPECT_EQ(fault_of(R"({"role": "tool", "content": {"temperature": 3}})"),
            R"(the content of message 1 (tool) is {"temperature":3}; it must be a text)");
  EXPECT_EQ(fault_of(R"({"role": "user", "content": 3})"),
            "the content of message 1 (user) is 3; it must be a text");
  EXPECT_EQ(fault_of(R"({"role": "user", "content": []})"),
            "the content of message 1 (user) is []; it must be a text");
  for (const char* part :
       {R"({"type": "image_url", "image_url": {"url": "x"}})", R"({"type": "image"})",
        R"({"type": "text"})", R"({"text": "a"})", R"("a")"}) {
    const std::string fault =
        fault_of(R"({"role": "user", "content": [{"type": "text", "text": "a"}, )" +
                 std::string(part) + "]}");
    EXPECT_NE(fault.find("is the part " + ordered_json::parse(part).dump()), std::string::npos)
        << fault;
    EXPECT_NE(fault.find("(no images)"), std::string::npos) << fault;
  }
}

TEST(Messages, CallsThatAreNoCallsAreNamed) {
  const auto fault_of_call = [](const std::string& calls) {
    return fault_of(R"({"role": "user", "content": "a"}, {"role": "assistant", "content": "", )" +
                    calls + "}");
  };
  const std::string where = "message 2 (assistant): its ";
  EXPECT_EQ(fault_of_call(R"("tool_calls": [{"name": "f", "arguments": "{}"}, null])"),
            where + R"(call 2 is null; it must be an object with a function ({"name", )"
                    R"("arguments"}))");
  EXPECT_EQ(fault_of_call(R"("tool_calls": [{"function": {"name": "f", "arguments": null}}])"),
            where +
                "call 1 is one with the arguments null; they must be an object or the text of "
                "one. Write {} for none");
  for (const char* calls :
       {R"("tool_calls": [{"name": "f", "arguments": [1]}])", R"("tool_calls": {"name": "f"})",
        R"("tool_calls": [{"function": "f"}])", R"("tool_calls": "f")", R"("tool_calls": [[]])",
        R"("function_call": {"name": "f", "arguments": 3})", R"("function_call": "f")"})
    EXPECT_TRUE(fault_of_call(calls).starts_with(where)) << calls;
  for (const char* calls :
       {R"("tool_calls": null, "function_call": null)", R"("tool_calls": [])",
        R"("tool_calls": [{"function": null, "name": "f", "arguments": {"a": null}}])",
        R"("tool_calls": [{"name": "f"}])", R"("function_call": {"name": "f", "arguments": "a"})"})
    EXPECT_EQ(fault_of_call(calls), "") << calls;
}

TEST(Messages, NullKeysOfArgumentsAreLeftOut) {
  ordered_json list = ordered_json::parse(
      R"([{"role": "user", "content": "a", "name": null},
          {"role": "assistant", "content": null, "tool_calls": [
            {"id": null, "function": {"name": "f", "arguments": {"a": null, "b": 1, "c": null}}},
            {"name": "f", "arguments": {"d": {"e": null}}},
            {"function": {"name": "f", "arguments": "{\"a\": null}"}}, null]},
          {"role": "assistant", "content": null,
           "function_call": {"name": "f", "arguments": {"a": [{"b": null}, null]}}},
          {"role": "assistant", "content": "b", "tool_calls": null, "function_call": null}])");
  EXPECT_EQ(leave_out_nulls(list), 4);
  EXPECT_EQ(list[1]["tool_calls"][0].dump(),
            R"({"id":null,"function":{"name":"f","arguments":{"b":1}}})");
  EXPECT_EQ(list[1]["tool_calls"][1]["arguments"].dump(), R"({"d":{}})");
  EXPECT_EQ(list[2]["function_call"]["arguments"].dump(), R"({"a":[{},null]})");
  EXPECT_TRUE(list[0].contains("name"));
  EXPECT_EQ(leave_out_nulls(list), 0);
  ordered_json tools = ordered_json::parse(R"([{"a": {"b": null, "enum": [null]}}, null])");
  EXPECT_EQ(leave_out_nulls_of_tools(tools), 1);
  EXPECT_EQ(tools.dump(), R"([{"a":{"enum":[null]}},null])");
}

}  // namespace
}  // namespace tailrace::text
