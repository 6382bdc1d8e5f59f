#include "tests/golden/golden.h"

#include <csignal>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace tailrace {
namespace {

bool updating = false;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

bool updating_golden() { return updating; }

std::filesystem::path golden_path(std::string_view name) {
  return std::filesystem::path(TAILRACE_SOURCE_DIR) / "tests/golden" / name;
}

void expect_golden(std::string_view name, const std::string& text) {
  const std::filesystem::path path = golden_path(name);
  if (updating) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream file(path, std::ios::binary);
    file << text;
    EXPECT_TRUE(file.flush()) << "cannot write " << path;
    return;
  }
  std::ifstream file(path, std::ios::binary);
  const std::string wanted{std::istreambuf_iterator<char>(file), {}};
  if (file && wanted == text) return;
  const std::string renew = "If it is right, `make update-golden` keeps it.";
  if (!file) {
    ADD_FAILURE() << "there is no tests/golden/" << name << ". " << renew << "\n" << text;
    return;
  }
  // The difference that EXPECT_EQ shows, without the two whole texts before it.
  ADD_FAILURE() << "tests/golden/" << name << " has other text. " << renew
                << "\n--- golden\n+++ now\n"
                << testing::internal::edit_distance::CreateUnifiedDiff(lines_of(wanted),
                                                                       lines_of(text));
}

}  // namespace tailrace

// main() of every test binary.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--update-golden") {
      fmt::print(stderr,
                 "error: unknown option {}; besides GoogleTest's there is --update-golden\n",
                 argv[i]);
      return 2;
    }
    tailrace::updating = true;
  }
  // A pipe whose reader is gone is an error to whoever writes, and a failure with a line: the
  // signal would end all tests without a word.
  ::signal(SIGPIPE, SIG_IGN);
  return RUN_ALL_TESTS();
}
