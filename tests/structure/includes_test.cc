// Keeps the map of the design true: who may include whom, no rings, heavy libraries behind .cc
// files.
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// Each place may include itself and these. A place is a folder, or a file without its extension:
// the workers alone know the wire, so that what a GPU build needs does not drag in ZeroMQ.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"kernels/base", {}},
    {"kernels", {"kernels/base"}},
    {"kernels/ref", {"kernels/base", "kernels"}},
    {"kernels/cpu", {"kernels/base", "kernels"}},
    {"kernels/dispatch", {"kernels/base", "kernels", "kernels/cpu"}},
    {"core", {"core/base", "kernels/base"}},
    {"core/base", {"kernels/base"}},
    {"core/text", {"core", "core/base", "kernels/base"}},
    {"core/trajectory", {"core", "core/base", "kernels/base"}},
    {"core/model", {"core/base", "kernels", "kernels/base"}},
    {"core/weights", {"core", "core/base", "core/model", "core/trajectory", "kernels/base"}},
    {"core/wire", {"core", "core/base", "core/trajectory", "kernels/base"}},
    {"sandbox", {"core", "core/base", "core/text", "kernels/base"}},
    {"reward", {"core", "core/base", "core/trajectory", "sandbox", "kernels/base"}},
    {"reward/worker", {"core/base", "core/trajectory", "core/wire", "kernels/base", "reward"}},
    {"rollout",
     {"core", "core/base", "core/text", "core/trajectory", "core/model", "core/weights", "kernels",
      "kernels/base", "sandbox"}},
    {"rollout/worker",
     {"core", "core/base", "core/text", "core/trajectory", "core/model", "core/wire",
      "core/weights", "kernels", "kernels/base", "sandbox", "rollout"}},
    {"trainer",
     {"core", "core/base", "core/text", "core/trajectory", "core/model", "core/weights", "kernels",
      "kernels/base"}},
    {"trainer/worker",
     {"core", "core/base", "core/text", "core/trajectory", "core/model", "core/wire",
      "core/weights", "kernels", "kernels/base", "trainer"}},
    {"scheduler", {"core", "core/base", "core/trajectory", "core/wire", "kernels/base"}},
    {"cli",
     {"core", "core/base", "core/text", "core/trajectory", "core/model", "core/wire",
      "core/weights", "kernels", "kernels/base", "sandbox", "reward", "reward/worker", "rollout",
      "rollout/worker", "trainer", "trainer/worker", "scheduler"}},
};

// Libraries and the only places that may name them.
const std::vector<std::pair<std::string, std::set<std::string>>> kLibraries = {
    {"zmq", {"core/wire"}},
    {"flatbuffers/", {"core/wire"}},
    {"messages_generated", {"core/wire"}},
    {"boost/asio", {"cli"}},
    {"CLI/", {"cli"}},
    {"yaml-cpp/", {"core/base"}},
    {"spdlog/", {"core/base"}},
    {"pcre2", {"core/text"}},
};

struct Include {
  std::string target;
  int line;
  bool quoted;
};

std::map<std::string, std::vector<Include>> read_tree() {
  const fs::path root = TAILRACE_SOURCE_DIR;
  const std::regex pattern(R"re(^\s*#\s*include\s*([<"])([^>"]+)[>"])re");
  std::map<std::string, std::vector<Include>> tree;
  for (const char* top :
       {"kernels", "core", "sandbox", "reward", "rollout", "trainer", "scheduler", "cli"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      auto extension = entry.path().extension();
      if (extension != ".h" && extension != ".cc" && extension != ".cu" && extension != ".cuh")
        continue;
      auto& includes = tree[fs::relative(entry.path(), root).string()];
      std::ifstream file(entry.path());
      std::string line;
      for (int number = 1; std::getline(file, line); ++number) {
        std::smatch match;
        if (std::regex_search(line, match, pattern))
          includes.push_back({match[2], number, match[1] == "\""});
      }
    }
  }
  return tree;
}

// The longest place of the map that holds the file ("sandbox/envs/x.h" belongs to "sandbox",
// "rollout/worker.h" to "rollout/worker").
std::string place_of(const std::string& file) {
  for (fs::path path = fs::path(file).replace_extension(); !path.empty();
       path = path.parent_path()) {
    if (kMayInclude.contains(path.string())) return path.string();
  }
  return "";
}

TEST(Structure, IncludesGoDownwardsOnly) {
  auto tree = read_tree();
  ASSERT_GT(tree.size(), 20u);
  for (const auto& [file, includes] : tree) {
    std::string from = place_of(file);
    ASSERT_NE(from, "") << file << " is in no place of the map";
    for (const auto& include : includes) {
      if (!include.quoted || !tree.contains(include.target)) continue;
      std::string to = place_of(include.target);
      EXPECT_TRUE(to == from || kMayInclude.at(from).contains(to))
          << file << ":" << include.line << ": " << from << " may not include " << include.target;
    }
  }
}

TEST(Structure, QuotedIncludesArePathsFromTheRoot) {
  for (const auto& [file, includes] : read_tree()) {
    for (const auto& include : includes) {
      if (!include.quoted || include.target.find("generated") != std::string::npos) continue;
      EXPECT_TRUE(fs::exists(fs::path(TAILRACE_SOURCE_DIR) / include.target))
          << file << ":" << include.line << ": " << include.target
          << " is not a path from the root";
    }
  }
}

TEST(Structure, FilesFormNoRing) {
  auto tree = read_tree();
  std::map<std::string, int> state;  // 1: on the stack, 2: done
  std::function<void(const std::string&, std::string)> visit = [&](const std::string& file,
                                                                   std::string trail) {
    state[file] = 1;
    for (const auto& include : tree[file]) {
      if (!tree.contains(include.target)) continue;
      EXPECT_NE(state[include.target], 1) << "ring: " << trail << " -> " << include.target;
      if (state[include.target] == 0) visit(include.target, trail + " -> " + include.target);
    }
    state[file] = 2;
  };
  std::vector<std::string> files;
  for (const auto& [file, includes] : tree) files.push_back(file);
  for (const auto& file : files) {
    if (state[file] == 0) visit(file, file);
  }
}

TEST(Structure, HeavyLibrariesStayInTheirPlacesAndOutOfHeaders) {
  for (const auto& [file, includes] : read_tree()) {
    for (const auto& include : includes) {
      for (const auto& [library, places] : kLibraries) {
        if (include.target.rfind(library, 0) != 0) continue;
        EXPECT_TRUE(places.contains(place_of(file)))
            << file << ":" << include.line << " includes " << include.target;
        bool header = fs::path(file).extension() == ".h";
        EXPECT_FALSE(header && library != "CLI/")
            << file << ": keep " << include.target << " in a .cc file";
      }
    }
  }
}

TEST(Structure, HeadersBeginWithAPurposeAndAreIncludedOnce) {
  for (const auto& [name, includes] : read_tree()) {
    if (fs::path(name).extension() != ".h") continue;
    std::ifstream file(fs::path(TAILRACE_SOURCE_DIR) / name);
    std::string first, line;
    std::getline(file, first);
    EXPECT_EQ(first.rfind("//", 0), 0u) << name << " does not begin with its purpose";
    bool once = false;
    while (std::getline(file, line)) once = once || line == "#pragma once";
    EXPECT_TRUE(once) << name << " lacks #pragma once";
  }
}

}  // namespace
}  // namespace tailrace
