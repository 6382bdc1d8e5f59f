// docs/adapters.md, step by step: its config as it is printed, its commands as they are written.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>

#include "core/base/file.h"
#include "core/run/metrics.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/examples/page_blocks.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

TEST(AdaptersPage, TrainsAnAdapterAndTakesItInAndOut) {
  const TemporaryDirectory folder;
  const fs::path here = folder / "here", bin = folder / "bin";
  for (const auto& path : {here / "tests", bin}) fs::create_directories(path);
  fs::create_symlink(TAILRACE_BINARY, bin / "tailrace");
  fs::create_symlink(fs::path(TAILRACE_SOURCE_DIR) / "configs", here / "configs");
  fs::create_symlink(fs::path(TAILRACE_SOURCE_DIR) / "tests/data", here / "tests/data");
  std::map<std::string, std::string> said;
  for (const PageBlock& block :
       blocks_of(read_file(TAILRACE_SOURCE_DIR "/docs/adapters.md").value())) {
    if (block.language == "yaml") {
      std::ofstream(here / "adapter.yaml") << block.text;
      continue;
    }
    ASSERT_EQ(block.language, "bash") << block.text;
    std::istringstream lines(block.text);
    for (std::string line; std::getline(lines, line);) {
      const std::string command = "cd " + here.string() + " && PATH=" + bin.string() +
                                  ":$PATH timeout -k 5 200 " + line + " > " +
                                  (folder / "said").string() + " 2>&1";
      const int status = std::system(command.c_str());
      said[line] = read_file(folder / "said").value();
      ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << line << "\n" << said[line];
    }
  }
  EXPECT_EQ(said.size(), 7u);
  const auto rows = read_metrics(here / "run" / "metrics.jsonl");
  ASSERT_TRUE(rows) << rows.failure().message;
  double first = -1, last = -1, most_mismatch = 0;
  int64_t compared = 0;
  for (const MetricsRow& row : rows.value()) {
    if (const double* value = row.find("eval/success")) {
      if (first < 0) first = *value;
      last = *value;
    }
    if (const double* value = row.find("mismatch/max_logprob_diff")) {
      ++compared;
      most_mismatch = std::max(most_mismatch, *value);
    }
  }
  EXPECT_GT(last, first + 0.1);
  EXPECT_EQ(compared, 8);
  EXPECT_EQ(most_mismatch, 0);
  // One policy in two forms, greedily.
  std::string beside, merged;
  for (const auto& [line, text] : said) {
    if (line.find("generate --model run/") != std::string::npos) beside = text;
    if (line.find("generate --model merged") != std::string::npos) merged = text;
  }
  EXPECT_GT(beside.size(), 10u);
  EXPECT_EQ(beside, merged);
}

}  // namespace
}  // namespace tailrace
