// docs/weights.md, step by step: its commands as they are written, and of what they say the parts
// that no machine changes.
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>

#include "core/base/file.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/examples/page_blocks.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// The words of a text but for digests and numbers, which follow from the instruction set.
std::set<std::string> words_of(const std::string& text) {
  std::istringstream parts(text);
  std::set<std::string> words;
  for (std::string part; parts >> part;) {
    while (!part.empty() && (part.back() == ',' || part.back() == ':')) part.pop_back();
    const bool is_digest =
        part.size() == 32 && part.find_first_not_of("0123456789abcdef") == part.npos;
    const bool is_number = part.find_first_not_of("0123456789.") == part.npos;
    if (!is_digest && !is_number) words.insert(part);
  }
  return words;
}

TEST(WeightsPage, ListsProvesExportsAndCompares) {
  const TemporaryDirectory folder;
  const fs::path here = folder / "here", bin = folder / "bin";
  for (const auto& path : {here / "tests", bin}) fs::create_directories(path);
  fs::create_symlink(TAILRACE_BINARY, bin / "tailrace");
  fs::create_symlink(fs::path(TAILRACE_SOURCE_DIR) / "configs", here / "configs");
  fs::create_symlink(fs::path(TAILRACE_SOURCE_DIR) / "tests/data", here / "tests/data");
  std::string said;
  int commands = 0, outputs = 0;
  for (const PageBlock& block :
       blocks_of(read_file(TAILRACE_SOURCE_DIR "/docs/weights.md").value())) {
    if (block.language.empty()) {
      // What samples follows from the instruction set too.
      if (block.text.find("Lily") == std::string::npos)
        EXPECT_EQ(words_of(block.text), words_of(said));
      ++outputs;
      continue;
    }
    ASSERT_EQ(block.language, "bash") << block.text;
    said.clear();
    std::istringstream lines(block.text);
    for (std::string line; std::getline(lines, line); ++commands) {
      const std::string command = "cd " + here.string() + " && PATH=" + bin.string() +
                                  ":$PATH timeout -k 5 200 " + line + " > " +
                                  (folder / "said").string() + " 2>&1";
      const int status = std::system(command.c_str());
      const std::string words = read_file(folder / "said").value();
      ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << line << "\n" << words;
      said += words;
    }
  }
  EXPECT_EQ(commands, 7);
  EXPECT_EQ(outputs, 4);
}

}  // namespace
}  // namespace tailrace
