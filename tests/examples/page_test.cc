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
#include "core/base/metrics.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

struct Block {
  std::string language, text;
};

std::vector<Block> blocks_of(const std::string& page) {
  std::vector<Block> blocks;
  for (size_t at = page.find("```"); at != std::string::npos; at = page.find("```", at)) {
    const size_t line = page.find('\n', at), end = page.find("\n```", line);
    blocks.push_back({page.substr(at + 3, line - at - 3), page.substr(line + 1, end - line)});
    at = end + 4;
  }
  return blocks;
}

TEST(PluginPage, LeadsFromAnEmptyFolderToALearnedAgent) {
  const TemporaryDirectory folder;
  const fs::path home = folder / "home", here = folder / "echo", bin = folder / "bin";
  for (const auto& path : {home, here, bin}) fs::create_directories(path);
  fs::create_symlink(TAILRACE_BINARY, bin / "tailrace");
  const std::string page = read_file(TAILRACE_SOURCE_DIR "/docs/plugins.md").value();
  const std::map<std::string, std::string> files = {
      {"cpp", "echo.cc"}, {"cmake", "CMakeLists.txt"}, {"yaml", "train.yaml"}};
  int commands = 0;
  for (const Block& block : blocks_of(page)) {
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
