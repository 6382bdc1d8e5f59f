// docs/plugins.md, step by step: its files as they are printed, its commands as they are written,
// from an empty folder to an agent that has learned.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>

#include "core/base/file.h"
#include "core/run/metrics.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/examples/page_blocks.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

TEST(PluginPage, LeadsFromAnEmptyFolderToALearnedAgent) {
  const TemporaryDirectory folder;
  const fs::path home = folder / "home", here = folder / "echo", bin = folder / "bin";
  for (const auto& path : {home, here, bin}) fs::create_directories(path);
  fs::create_symlink(TAILRACE_BINARY, bin / "tailrace");
  const std::string page = read_file(TAILRACE_SOURCE_DIR "/docs/plugins.md").value();
  const std::map<std::string, std::string> files = {
      {"cpp", "echo.cc"}, {"cmake", "CMakeLists.txt"}, {"yaml", "train.yaml"}};
  int commands = 0;
  for (const PageBlock& block : blocks_of(page)) {
    if (const auto file = files.find(block.language); file != files.end()) {
      std::ofstream(here / file->second) << block.text;
      continue;
    }
    ASSERT_EQ(block.language, "bash") << block.text;
    std::istringstream lines(block.text);
    for (std::string line; std::getline(lines, line);) {
      ++commands;
      // The tree is configured already, and its build has another name in other presets.
      if (line == "cmake --preset release") continue;
      const std::string build = fs::path(TAILRACE_BINARY).parent_path().string();
      if (line.starts_with("cmake --install build "))
        line.replace(line.find(" build "), 7, " " + build + " ");
      const std::string command = "cd " + here.string() + " && HOME=" + home.string() +
                                  " PATH=" + bin.string() + ":$PATH timeout -k 5 200 bash -c '" +
                                  line + "' > " + (folder / "said").string() + " 2>&1";
      const int status = std::system(command.c_str());
      ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << line << "\n"
          << read_file(folder / "said").value();
    }
  }
  EXPECT_EQ(commands, 6);
  const auto rows = read_metrics(here / "run" / "metrics.jsonl");
  ASSERT_TRUE(rows) << rows.failure().message;
  std::vector<double> success;
  for (const MetricsRow& row : rows.value())
    if (const double* value = row.find("eval/success")) success.push_back(*value);
  ASSERT_EQ(success.size(), 4u);
  EXPECT_LT(success.front(), 0.6);
  EXPECT_GT(success.back(), 0.9);
}

}  // namespace
}  // namespace tailrace
