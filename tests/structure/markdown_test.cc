// Keeps the pages readable in a terminal and in a diff: lines of Markdown have at most 100 columns.
// Tables and code cannot be broken, and the target of a link counts for nothing.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxColumns = 100;

// Every page that is ours: those of the root, and all below the folders of the map.
std::vector<fs::path> find_pages() {
  const fs::path root = TAILRACE_SOURCE_DIR;
  std::vector<fs::path> pages;
  auto add = [&](const fs::path& path) {
    if (path.extension() == ".md") pages.push_back(path);
  };
  for (const auto& entry : fs::directory_iterator(root)) add(entry.path());
  for (const char* top : {"kernels", "core", "sandbox", "reward", "rollout", "trainer", "scheduler",
                          "cli", "configs", "tests", "bench", "docs", "include", "examples"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) add(entry.path());
  }
  return pages;
}

// Characters, not bytes: those that continue one in UTF-8 do not count.
size_t count_columns(const std::string& line) {
  return std::ranges::count_if(line, [](unsigned char byte) { return (byte & 0xC0) != 0x80; });
}

// The numbers of the lines that are too long, from 1.
std::vector<int> find_long_lines(std::istream& page) {
  static const std::regex target(R"(\]\([^)]*\)|https?://\S+)");
  std::vector<int> found;
  bool in_code = false;
  std::string line;
  for (int number = 1; std::getline(page, line); ++number) {
    const size_t begin = std::min(line.find_first_not_of(' '), line.size());
    if (line.compare(begin, 3, "```") == 0) in_code = !in_code;
    if (in_code || line.compare(begin, 1, "|") == 0) continue;
    // Most lines are short as they stand; only the others are worth an expression.
    if (count_columns(line) <= kMaxColumns) continue;
    if (count_columns(std::regex_replace(line, target, "]")) > kMaxColumns) found.push_back(number);
  }
  return found;
}

TEST(Markdown, LinesHaveAtMostAHundredColumns) {
  const auto pages = find_pages();
  EXPECT_GT(pages.size(), 20u);
  for (const fs::path& path : pages) {
    std::ifstream page(path);
    for (const int number : find_long_lines(page)) {
      ADD_FAILURE() << fs::relative(path, TAILRACE_SOURCE_DIR).string() << ":" << number
                    << ": more than " << kMaxColumns << " columns; break the line";
    }
  }
}

TEST(Markdown, OnlyProseIsMeasured) {
  const std::string wide(101, 'x');
  std::istringstream page(wide + "\n| " + wide + " |\n```\n" + wide + "\n```\n[a](" + wide +
                          ") b\n- https://a.b/" + wide + "\n" + wide + " [a](b)\n");
  EXPECT_EQ(find_long_lines(page), (std::vector<int>{1, 8}));
  std::string umlauts;
  for (int i = 0; i < 100; ++i) umlauts += "ü";
  std::istringstream other(umlauts + "\n" + umlauts + "x\n");
  EXPECT_EQ(find_long_lines(other), std::vector<int>{2});
}

}  // namespace
}  // namespace tailrace
