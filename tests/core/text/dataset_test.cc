#include "core/text/dataset.h"

#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace::text {
namespace {

class Dataset : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& text) {
    return folder_.write("dataset_test.jsonl", text);
  }
  std::string error_of(const std::string& text, const ColumnMap& columns = {}) {
    try {
      read_dataset(write(text), columns);
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  }
  TemporaryDirectory folder_;
};

TEST_F(Dataset, ReadsRowsAndSkipsBlankLines) {
  auto rows = read_dataset(write("{\"prompt\": \"a\", \"n\": 1}\r\n\n  \n{\"prompt\": \"b\"}"));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].json, "{\"prompt\": \"a\", \"n\": 1}");
  EXPECT_EQ(rows[1].json, "{\"prompt\": \"b\"}");
}

TEST_F(Dataset, ThePromptMayBeAListOfMessages) {
  const std::string messages = R"([{"role":"system","content":"s"},{"role":"user","content":"u"}])";
  auto rows = read_dataset(write("{\"q\": " + messages + "}\n"), {{"prompt", "q"}});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(nlohmann::json::parse(rows[0].json).at("prompt"), nlohmann::json::parse(messages));
  for (const char* list : {"[]", "[1]", "[{\"content\": \"x\"}]", "[{\"role\": 1}]"})
    EXPECT_NE(error_of("{\"prompt\": " + std::string(list) + "}")
                  .find(":1: \"prompt\" is a list, but not of messages"),
              std::string::npos)
        << list;
}

TEST_F(Dataset, WhatAMessageSaysIsText) {
  const auto prompt = [](const std::string& content) {
    return R"({"prompt": [{"role": "user", "content": )" + content + "}]}";
  };
  const auto rows = read_dataset(
      write(prompt(R"([{"type": "text", "text": "a"}])") + "\n" + prompt("\"b\"") + "\n"));
  EXPECT_EQ(rows.at(0).json, R"({"prompt":[{"role":"user","content":"a"}]})");
  EXPECT_EQ(rows.at(1).json, prompt("\"b\"")) << "byte for byte";
  EXPECT_NE(error_of(prompt("\"a\"") + "\n" + prompt("null"))
                .find("dataset_test.jsonl:2: message 1 (user) has no content"),
            std::string::npos);
  EXPECT_NE(error_of(prompt(R"([{"type": "image_url", "image_url": {"url": "x"}}])"))
                .find(":1: the content of message 1 (user) is the part {\"type\":\"image_url\""),
            std::string::npos);
}

// Parquet gives each call, and each schema, the keys of all of them.
TEST_F(Dataset, KeysThatAreNullInArgumentsAndToolsAreLeftOut) {
  const std::string call =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "",
          "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1, "b": null}}}]},
          {"role": "tool", "content": "2", "name": null}],
          "tools": [{"function": {"name": "f", "parameters": {"enum": null}}}], "answer": null})";
  std::string line = call;
  std::erase(line, '\n');
  const auto rows = read_dataset(write(line + "\n{\"prompt\": \"a\", \"meta\": {\"b\": null}}"));
  EXPECT_EQ(rows.at(0).nulls, 2);
  const auto row = nlohmann::ordered_json::parse(rows[0].json);
  EXPECT_EQ(row.at("prompt").dump(),
            R"([{"role":"user","content":"a"},{"role":"assistant","content":"","tool_calls":)"
            R"([{"function":{"name":"f","arguments":{"a":1}}}]},)"
            R"({"role":"tool","content":"2","name":null}])");
  EXPECT_EQ(row.at("tools").dump(), R"([{"function":{"name":"f","parameters":{}}}])");
  EXPECT_EQ(rows.at(1).nulls, 0);
  EXPECT_EQ(rows[1].json, "{\"prompt\": \"a\", \"meta\": {\"b\": null}}");
}

TEST_F(Dataset, ThePromptMayHaveAnotherKey) {
  auto rows =
      read_dataset(write("{\"question\": \"2 + 2\", \"answer\": 4}\n"), {{"prompt", "question"}});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].json, R"({"question":"2 + 2","answer":4,"prompt":"2 + 2"})");
}

// As verl, SkyRL, ROLL and TRL write them; what they call otherwise stays beside our names.
TEST_F(Dataset, ReadsTheColumnsOfOtherFrameworks) {
  const std::string chat = R"([{"role":"user","content":"2 + 2"}])";
  const auto row_of = [&](const std::string& line) {
    const auto rows = read_dataset(write(line + "\n"));
    EXPECT_EQ(rows.size(), 1u);
    return nlohmann::json::parse(rows.at(0).json);
  };
  const auto verl = row_of(R"({"data_source":"gsm8k","prompt":)" + chat +
                           R"(,"ability":"math","reward_model":{"style":"rule",)"
                           R"("ground_truth":"4"},"extra_info":{"index":7}})");
  EXPECT_EQ(verl.at("answer"), "4");
  EXPECT_EQ(verl.at("prompt"), nlohmann::json::parse(chat));
  EXPECT_EQ(verl.at("extra_info").at("index"), 7);
  EXPECT_EQ(verl.at("data_source"), "gsm8k");
  const auto skyrl =
      row_of(R"({"prompt":)" + chat + R"(,"reward_spec":{"method":"rule","ground_truth":4}})");
  EXPECT_EQ(skyrl.at("answer"), 4);
  const auto roll = row_of(R"({"id":"1","messages":)" + chat +
                           R"(,"tag":"math","difficulty":0.5,"ground_truth":"4"})");
  EXPECT_EQ(roll.at("prompt"), nlohmann::json::parse(chat));
  EXPECT_EQ(roll.at("answer"), "4");
  EXPECT_EQ(roll.at("difficulty"), 0.5);
  // Its chat may be the text of a list, and a prompt that is null is none.
  const auto text = row_of(R"({"id":"1","prompt":null,"messages":)" + nlohmann::json(chat).dump() +
                           R"(,"test_cases":"[]"})");
  EXPECT_EQ(text.at("prompt"), nlohmann::json::parse(chat));
  EXPECT_FALSE(text.contains("answer"));
  // An answer that is there stays.
  EXPECT_EQ(row_of(R"({"prompt":"a","answer":"1","ground_truth":"2"})").at("answer"), "1");
  EXPECT_EQ(row_of(R"({"prompt":"a","answer":null,"ground_truth":"2"})").at("answer"), "2");
}

// docs/data.md: the rows of its `number`th block of JSON.
std::string rows_of_page(size_t number) {
  const std::string page =
      tailrace::read_file(std::filesystem::path(TAILRACE_SOURCE_DIR) / "docs/data.md").value();
  const std::string fence = "```json\n";
  size_t begin = page.find(fence);
  for (size_t i = 0; i < number && begin != std::string::npos; ++i)
    begin = page.find(fence, begin + fence.size());
  if (begin == std::string::npos) return "";
  begin += fence.size();
  return page.substr(begin, page.find("```", begin) - begin);
}

TEST_F(Dataset, ReadsTheRowsOfItsPage) {
  const auto expect_rows = [&](size_t block, size_t number, const ColumnMap& columns) {
    const auto rows = read_dataset(write(rows_of_page(block)), columns);
    EXPECT_EQ(rows.size(), number);
    for (const DatasetRow& row : rows) {
      const auto json = nlohmann::json::parse(row.json);
      EXPECT_EQ(json.at("answer"), "4") << row.json;
      const auto& prompt = json.at("prompt");
      EXPECT_EQ(prompt.is_array() ? prompt.at(0).at("content") : prompt, "What is 2 + 2?");
    }
  };
  expect_rows(0, 5, {});
  expect_rows(1, 1, {{"prompt", "question"}, {"answer", "meta.solution"}});
}

TEST_F(Dataset, AMapNamesOtherColumnsAndThoseOfObjects) {
  const std::string line =
      R"({"question":"q","meta":{"gold":"8","a.b":1},"answer":"the long one","x.y":"dotted"})";
  const auto rows = read_dataset(
      write(line + "\n"),
      {{"prompt", "question"}, {"answer", "meta.gold"}, {"n", "meta.a.b"}, {"z", "x.y"}});
  const auto row = nlohmann::json::parse(rows.at(0).json);
  EXPECT_EQ(row.at("prompt"), "q");
  EXPECT_EQ(row.at("answer"), "8");
  EXPECT_EQ(row.at("n"), 1);
  EXPECT_EQ(row.at("z"), "dotted");
  EXPECT_NE(
      error_of(line, {{"prompt", "question"}, {"answer", "meta.golden"}})
          .find(":1: there is no \"meta.golden\", which columns names for \"answer\"; the row "
                "has question, meta, answer, x.y"),
      std::string::npos);
  EXPECT_NE(error_of(line).find("there is no \"prompt\"; the row has question, meta, answer, x.y "
                                "(columns: {prompt: THEIRS} names another column)"),
            std::string::npos);
}

TEST_F(Dataset, AChatThatTheAssistantEndsIsNoPrompt) {
  EXPECT_NE(error_of(R"({"messages":[{"role":"user","content":"a"},)"
                     R"({"role":"assistant","content":"b"}]})")
                .find(":1: \"messages\" ends with an answer of the assistant"),
            std::string::npos);
  for (const char* messages : {"[]", "3", "\"x\"", "\"[]\"", "[1]"})
    EXPECT_NE(error_of("{\"messages\": " + std::string(messages) + "}")
                  .find("\"messages\" is not a list of messages"),
              std::string::npos)
        << messages;
}

TEST_F(Dataset, NamesTheLineOfEachMistake) {
  const std::string good = "{\"prompt\": \"a\"}\n";
  EXPECT_NE(
      error_of(good + "{\"prompt\": ").find("dataset_test.jsonl:2: the line is not valid JSON"),
      std::string::npos);
  EXPECT_NE(error_of(good + "\n[1]").find(":3: the line is not a JSON object"), std::string::npos);
  EXPECT_NE(error_of("{\"text\": 1}").find(":1: there is no \"prompt\""), std::string::npos);
  EXPECT_NE(error_of("{\"prompt\": 1}").find("is not a string"), std::string::npos);
  EXPECT_NE(error_of(good + "{\"prompt\": \"a\", \"answer\": 1, \"answer\": 2}")
                .find(":2: the line is ambiguous: it has \"answer\" twice; each line must be"),
            std::string::npos);
  EXPECT_NE(error_of("{\"prompt\": \"\xFF\"}").find("not UTF-8"), std::string::npos);
}

TEST_F(Dataset, RefusesAFileThatIsNotThere) {
  EXPECT_THROW(read_dataset("/nonexistent/rows.jsonl"), UserError);
}

// Whoever writes it again, as evidence for a verifier, would run out of stack.
TEST_F(Dataset, RefusesARowThatIsNestedTooDeep) {
  const std::string deep = std::string(300'000, '[') + std::string(300'000, ']');
  try {
    read_dataset(write("{\"prompt\": \"a\", \"x\": " + deep + "}\n"));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find(":1: the line is nested more than 100 deep"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tailrace::text
