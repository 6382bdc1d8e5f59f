// scripts/parquet_to_jsonl.py, with a stand-in for pyarrow that gives the rows of a table: the
// library is the user's, and no machine of ours must have it.
#include <cstdlib>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "core/base/file.h"
#include "core/text/dataset.h"
#include "core/text/decompress.h"
#include "core/text/row_file.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace::text {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStandIn = R"(
import datetime, decimal
class ParquetFile:
    def __init__(self, path): pass
    def __enter__(self): return self
    def __exit__(self, *error): pass
    class schema_arrow:
        names = ["prompt", "reward_model", "extra_info"]
    def iter_batches(self, batch_size, columns):
        class Batch:
            def __init__(self, rows): self.rows = rows
            def to_pylist(self): return self.rows
        for i in range(3):
            row = {"prompt": [{"role": "user", "content": "\u00fc %d" % i}],
                   "reward_model": {"style": "rule", "ground_truth": str(i)},
                   "extra_info": {"day": datetime.date(2026, 1, 2), "cost": decimal.Decimal("1.5"),
                                  "nan": float("nan"), "raw": b"\xff", "none": None}}
            yield Batch([{key: row[key] for key in columns or row}])
)";

// Two calls with other arguments in one column, and a schema, as Arrow gives them back.
constexpr const char* kCalls = R"(
class ParquetFile:
    def __init__(self, path): pass
    def __enter__(self): return self
    def __exit__(self, *error): pass
    class schema_arrow:
        names = ["messages", "tools"]
    def iter_batches(self, batch_size, columns):
        class Batch:
            def to_pylist(self):
                def row(**arguments):
                    call = {"id": None, "function": {"name": "f", "arguments": arguments}}
                    schema = {"properties": {"city": {"enum": None, "type": "string"}, "b": None}}
                    return {"messages": [{"role": "user", "content": "a", "tool_calls": None},
                                         {"role": "assistant", "tool_calls": [call]}],
                            "tools": [{"function": {"name": "f", "parameters": schema}}]}
                return [row(city="A", b=None), row(city=None, b={"c": None, "d": [None]})]
        yield Batch()
)";

class ParquetScript : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::system("python3 -c pass > /dev/null 2>&1") != 0) GTEST_SKIP() << "there is no python3";
    folder_.write("in.parquet", "PAR1");
  }
  // `modules`: where Python looks besides its own library, and without what is installed.
  int run(const std::string& arguments, const std::string& modules) {
    const std::string folder = folder_.path().string();
    const int status = std::system(("cd " + folder + " && PYTHONPATH=" + modules + " python3 -S " +
                                    (fs::path(TAILRACE_SOURCE_DIR) / kParquetScript).string() +
                                    " " + arguments + " > out 2>&1")
                                       .c_str());
    said_ = read_file(folder_ / "out").value();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  int run(const std::string& arguments) { return run_with(kStandIn, arguments); }
  int run_with(const char* stand_in, const std::string& arguments) {
    folder_.write("modules/pyarrow/__init__.py", "");
    folder_.write("modules/pyarrow/parquet.py", stand_in);
    return run(arguments, (folder_ / "modules").string());
  }

  TemporaryDirectory folder_;
  std::string said_;
};

TEST_F(ParquetScript, WritesRowsThatAreRead) {
  for (const char* name : {"rows.jsonl", "rows.jsonl.gz"}) {
    ASSERT_EQ(run(std::string("in.parquet ") + name), 0) << said_;
    EXPECT_NE(said_.find("3 rows"), std::string::npos) << said_;
    EXPECT_EQ(packing_of(read_file(folder_ / name).value()).has_value(),
              std::string(name).ends_with(".gz"));
    const auto rows = read_dataset(folder_ / name);
    ASSERT_EQ(rows.size(), 3u);
    const auto row = nlohmann::json::parse(rows[2].json);
    EXPECT_EQ(row.at("answer"), "2");
    EXPECT_EQ(row.at("prompt").at(0).at("content"), "\u00fc 2");
    EXPECT_EQ(row.at("extra_info").at("day"), "2026-01-02");
    EXPECT_EQ(row.at("extra_info").at("cost"), "1.5");
    EXPECT_EQ(row.at("extra_info").at("raw"), "/w==");
    EXPECT_TRUE(row.at("extra_info").at("nan").is_null());
    for (const char* told : {"numbers that are NaN or infinite, written as null: 3\n",
                             "values of bytes that are not UTF-8, written as base64: 3\n"})
      EXPECT_NE(said_.find(told), std::string::npos) << said_;
  }
  ASSERT_EQ(run("in.parquet some.jsonl --columns prompt"), 0) << said_;
  EXPECT_FALSE(
      nlohmann::json::parse(read_dataset(folder_ / "some.jsonl")[0].json).contains("reward_model"));
}

TEST_F(ParquetScript, TwoColumnsOfOneNameAreRefused) {
  std::string doubled = kStandIn;
  const std::string name = "\"extra_info\"]";
  doubled.replace(doubled.find(name), name.size(), "\"prompt\"]");
  EXPECT_EQ(run_with(doubled.c_str(), "in.parquet out.jsonl"), 1);
  EXPECT_NE(said_.find("there are several columns with the name prompt; rename all but one"),
            std::string::npos)
      << said_;
  EXPECT_FALSE(fs::exists(folder_ / "out.jsonl"));
}

TEST_F(ParquetScript, KeysThatAreNullInArgumentsAndToolsAreLeftOut) {
  ASSERT_EQ(run_with(kCalls, "in.parquet rows.jsonl"), 0) << said_;
  EXPECT_NE(said_.find("keys that are null in arguments or tools, left out: 7"), std::string::npos)
      << said_;
  const std::string lines = read_file(folder_ / "rows.jsonl").value();
  const size_t end = lines.find('\n');
  const auto first = nlohmann::json::parse(lines.substr(0, end)),
             second = nlohmann::json::parse(lines.substr(end));
  const auto arguments = [](const nlohmann::json& row) {
    return row.at("messages").at(1).at("tool_calls").at(0).at("function").at("arguments").dump();
  };
  EXPECT_EQ(arguments(first), R"({"city":"A"})");
  EXPECT_EQ(arguments(second), R"({"b":{"d":[null]}})");
  EXPECT_EQ(first.at("tools").at(0).at("function").at("parameters").dump(),
            R"({"properties":{"city":{"type":"string"}}})");
  EXPECT_TRUE(first.at("messages").at(0).at("tool_calls").is_null()) << "elsewhere they stay";
}

TEST_F(ParquetScript, SaysWhatIsMissingAndLeavesNothingBehind) {
  EXPECT_EQ(run("in.parquet out.jsonl", "/nonexistent"), 1);
  EXPECT_NE(said_.find("neither pyarrow nor pandas is installed"), std::string::npos) << said_;
  EXPECT_NE(said_.find("-m pip install pyarrow"), std::string::npos) << said_;
  EXPECT_EQ(run("in.parquet out.jsonl --columns prompt,reward"), 1);
  EXPECT_NE(said_.find("there is no column reward; the file has prompt, reward_model"),
            std::string::npos)
      << said_;
  EXPECT_EQ(run("none.parquet out.jsonl"), 1);
  EXPECT_NE(said_.find("none.parquet is no file"), std::string::npos) << said_;
  for (const auto& entry : fs::directory_iterator(folder_.path()))
    EXPECT_EQ(entry.path().filename().string().find("out.jsonl"), std::string::npos)
        << entry.path();
}

}  // namespace
}  // namespace tailrace::text
