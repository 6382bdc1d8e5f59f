// The public headers are compiled by people who have nothing of ours but these headers: they
// include each other and the standard library, and nothing else.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// The table of include/README.md: which header may include which. A header that is not here is
// one that nobody decided to publish.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"tailrace/abi.h", {}},
    {"tailrace/library.h", {"tailrace/abi.h"}},
    {"tailrace/env.h", {"tailrace/library.h"}},
    {"tailrace/reward.h", {"tailrace/library.h"}},
};

// Of C in abi.h, of C++17 in the others. A name with a slash or a .h belongs to somebody else.
bool is_standard(const std::string& header, const std::string& included) {
  static const std::set<std::string> c = {"stddef.h", "stdint.h"};
  static const std::set<std::string> later = {
      "barrier", "bit",      "compare", "concepts",        "coroutine", "format",     "latch",
      "numbers", "ranges",   "span",    "source_location", "semaphore", "stop_token", "syncstream",
      "version", "expected", "print",   "generator",       "mdspan",    "flat_map",   "flat_set"};
  if (header == "tailrace/abi.h") return c.contains(included);
  return std::regex_match(included, std::regex("[a-z_]+")) && !later.contains(included);
}

TEST(PublicHeaders, IncludeNothingButEachOtherAndTheStandardLibrary) {
  const fs::path root = fs::path(TAILRACE_SOURCE_DIR) / "include";
  const std::regex include(R"re(^\s*#\s*include\s*(.)([^>"]*))re");
  std::set<std::string> seen;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file() || entry.path().extension() == ".md") continue;
    const std::string header = fs::relative(entry.path(), root).string();
    ASSERT_TRUE(kMayInclude.contains(header)) << header << " is not in the table of include/";
    seen.insert(header);
    std::ifstream file(entry.path());
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      std::smatch found;
      if (!std::regex_search(line, found, include)) continue;
      const bool is_ours = found[1] == "\"" && kMayInclude.at(header).contains(found[2]);
      const bool is_of_the_library = found[1] == "<" && is_standard(header, found[2]);
      EXPECT_TRUE(is_ours || is_of_the_library)
          << header << ":" << number << " may not have: " << line;
    }
  }
  EXPECT_EQ(seen.size(), kMayInclude.size());
}

}  // namespace
}  // namespace tailrace
