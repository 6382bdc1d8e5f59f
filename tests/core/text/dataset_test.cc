#include "core/text/dataset.h"

#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace::text {
namespace {

class Dataset : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& text) {
    return folder_.write("dataset_test.jsonl", text);
  }
  std::string error_of(const std::string& text) {
    try {
      read_dataset(write(text), "prompt");
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  }
  TemporaryDirectory folder_;
};

TEST_F(Dataset, ReadsRowsAndSkipsBlankLines) {
  auto rows =
      read_dataset(write("{\"prompt\": \"a\", \"n\": 1}\r\n\n  \n{\"prompt\": \"b\"}"), "prompt");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].json, "{\"prompt\": \"a\", \"n\": 1}");
  EXPECT_EQ(rows[1].json, "{\"prompt\": \"b\"}");
}

TEST_F(Dataset, ThePromptMayBeAListOfMessages) {
  const std::string messages = R"([{"role":"system","content":"s"},{"role":"user","content":"u"}])";
  auto rows = read_dataset(write("{\"q\": " + messages + "}\n"), "q");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(nlohmann::json::parse(rows[0].json).at("prompt"), nlohmann::json::parse(messages));
  for (const char* list : {"[]", "[1]", "[{\"content\": \"x\"}]", "[{\"role\": 1}]"})
    EXPECT_NE(error_of("{\"prompt\": " + std::string(list) + "}")
                  .find(":1: \"prompt\" is a list, but not of messages"),
              std::string::npos)
        << list;
}

TEST_F(Dataset, ThePromptMayHaveAnotherKey) {
  auto rows = read_dataset(write("{\"question\": \"2 + 2\", \"answer\": 4}\n"), "question");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].json, R"({"question":"2 + 2","answer":4,"prompt":"2 + 2"})");
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
  EXPECT_THROW(read_dataset("/nonexistent/rows.jsonl", "prompt"), UserError);
}

// Whoever writes it again, as evidence for a verifier, would run out of stack.
TEST_F(Dataset, RefusesARowThatIsNestedTooDeep) {
  const std::string deep = std::string(300'000, '[') + std::string(300'000, ']');
  try {
    read_dataset(write("{\"prompt\": \"a\", \"x\": " + deep + "}\n"), "prompt");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find(":1: the line is nested more than 100 deep"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tailrace::text
