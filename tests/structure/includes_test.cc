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

// Libraries and the only places that may name them.
const std::vector<std::pair<std::string, std::set<std::string>>> kLibraries = {
    {"zmq", {"core/wire"}},
    {"flatbuffers/", {"core/wire"}},
    {"gloo/", {"core/collective"}},
    {"messages_generated", {"core/wire"}},
    {"boost/asio", {"cli/process", "core/http"}},
    {"boost/beast", {"core/http"}},
    {"CLI/", {"core/config"}},
    {"yaml-cpp/", {"core/config"}},
    {"spdlog/", {"core/run"}},
    {"pcre2", {"core/text", "core/model"}},
    {"utf8proc", {"core/text"}},
    {"zlib", {"core/text"}},
    {"zstd", {"core/text", "core/weights"}},
    {"cuda_runtime", {"kernels/cuda"}},
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

// The table of docs/design.md, section 4: each room may include itself, kernels/base, and these.
std::map<std::string, std::set<std::string>> read_map() {
  std::map<std::string, std::set<std::string>> map;
  std::ifstream file(fs::path(TAILRACE_SOURCE_DIR) / "docs/design.md");
  const std::regex row(R"(^\| `([a-z/]+)` \| .* \| ?(.*)\|$)");
  // `room`, or `prefix/`{`room`, `room`}
  const std::regex entry(R"(`([a-z/]+)`(?:\{([^}]*)\})?)"), name(R"(`([a-z]+)`)");
  using Matches = std::sregex_iterator;
  for (std::string line; std::getline(file, line);) {
    std::smatch found;
    if (!std::regex_match(line, found, row)) continue;
    auto& rooms = map[found[1]];
    const std::string cell = found[2];
    for (Matches it(cell.begin(), cell.end(), entry), end; it != end; ++it) {
      const std::string prefix = (*it)[1], names = (*it)[2];
      if (names.empty()) rooms.insert(prefix);
      for (Matches inner(names.begin(), names.end(), name); inner != end; ++inner)
        rooms.insert(prefix + (*inner)[1].str());
    }
  }
  return map;
}

std::string folder_of(const std::string& file) { return fs::path(file).parent_path().string(); }

TEST(Structure, FoldersIncludeWhatTheMapAllowsAndTheMapAllowsNothingElse) {
  const auto tree = read_tree();
  const auto map = read_map();
  std::map<std::string, std::set<std::string>> used;
  for (const auto& [file, includes] : tree) {
    const std::string from = folder_of(file);
    ASSERT_TRUE(map.contains(from)) << file << " is in no room of docs/design.md, section 4";
    used[from];
    for (const auto& include : includes) {
      // Generated headers are in no folder of the map.
      if (!include.quoted || !tree.contains(include.target)) continue;
      const std::string to = folder_of(include.target);
      if (to == from || to == "kernels/base") continue;
      used[from].insert(to);
      EXPECT_TRUE(map.at(from).contains(to))
          << file << ":" << include.line << ": " << from << " may not include " << include.target;
    }
  }
  for (const auto& [room, allowed] : map) {
    ASSERT_TRUE(used.contains(room)) << room << " of docs/design.md, section 4, does not exist";
    for (const std::string& other : allowed)
      EXPECT_TRUE(used.at(room).contains(other))
          << "docs/design.md lets " << room << " include " << other << ", and nothing there does";
  }
}

TEST(Structure, QuotedIncludesArePathsFromTheRoot) {
  for (const auto& [file, includes] : read_tree()) {
    for (const auto& include : includes) {
      if (!include.quoted || include.target.find("generated") != std::string::npos) continue;
      // The public headers are named as those who install them name them.
      const fs::path root = fs::path(TAILRACE_SOURCE_DIR) /
                            (include.target.starts_with("tailrace/") ? "include" : "");
      EXPECT_TRUE(fs::exists(root / include.target))
          << file << ":" << include.line << ": " << include.target
          << " is not a path from the root";
    }
  }
}

TEST(Structure, NothingIncludesTestsOrBenches) {
  for (const auto& [file, includes] : read_tree()) {
    for (const auto& include : includes) {
      EXPECT_FALSE(include.target.starts_with("tests/") || include.target.starts_with("bench/"))
          << file << ":" << include.line << " includes " << include.target;
    }
  }
}

using Graph = std::map<std::string, std::set<std::string>>;

// Reports every ring that a walk through the graph meets.
void expect_no_ring(const Graph& graph, const char* of) {
  // Depth first: a node that is met again on the way to it closes a ring.
  std::map<std::string, int> state;  // 1: on the way, 2: done
  std::function<void(const std::string&, const std::string&)> visit =
      [&](const std::string& node, const std::string& trail) {
        state[node] = 1;
        for (const std::string& next : graph.at(node)) {
          EXPECT_NE(state[next], 1) << "ring of " << of << ": " << trail << " -> " << next;
          if (state[next] == 0) visit(next, trail + " -> " + next);
        }
        state[node] = 2;
      };
  for (const auto& [node, to] : graph) {
    if (state[node] == 0) visit(node, node);
  }
}

// What `name` says of two files that include each other, as a graph.
Graph graph_by(const std::function<std::string(const std::string&)>& name) {
  const auto tree = read_tree();
  Graph graph;
  for (const auto& [file, includes] : tree) {
    auto& to = graph[name(file)];
    for (const auto& include : includes) {
      if (tree.contains(include.target) && name(include.target) != name(file))
        to.insert(name(include.target));
    }
  }
  return graph;
}

// A unit is x.h with x.cc: two headers may form no ring while their .cc files do.
TEST(Structure, UnitsFormNoRing) {
  expect_no_ring(
      graph_by([](const std::string& file) { return fs::path(file).replace_extension().string(); }),
      "units");
}

TEST(Structure, FoldersFormNoRing) { expect_no_ring(graph_by(folder_of), "folders"); }

TEST(Structure, EachFolderIsOneTarget) {
  std::set<std::string> folders;
  for (const auto& [file, includes] : read_tree()) folders.insert(folder_of(file));
  for (const std::string& folder : folders) {
    if (folder == "core" || folder == "cli") continue;  // one header; main
    std::ifstream file(fs::path(TAILRACE_SOURCE_DIR) / folder / "CMakeLists.txt");
    int targets = 0;
    for (std::string line; std::getline(file, line);)
      targets += line.starts_with("tailrace_library(");
    EXPECT_EQ(targets, 1) << folder;
  }
}

// Rule 1: what decides reads no clock, starts no thread, opens no stream and knows no wire, nor
// does anything that it includes.
TEST(Structure, NothingUnderRuleOneCanReachAClockAThreadAStreamOrAWire) {
  // Values and arithmetic; whatever is not named here is refused.
  const std::set<std::string> allowed = {
      "algorithm", "array",       "bit",          "charconv",    "chrono",
      "cmath",     "compare",     "concepts",     "cstddef",     "cstdint",
      "cstring",   "deque",       "exception",    "functional",  "initializer_list",
      "iterator",  "limits",      "map",          "memory",      "numeric",
      "optional",  "queue",       "set",          "span",        "stdexcept",
      "string",    "string_view", "tuple",        "type_traits", "utility",
      "variant",   "vector",      "fmt/format.h", "fmt/ranges.h"};
  const auto tree = read_tree();
  // Names too: the precompiled headers hand over what is not included.
  const std::regex clock(
      R"(\b(system_clock|steady_clock|high_resolution_clock|nlohmann|std::(rand|j?thread|this_thread)"
      R"(|\w*mutex|\w*lock|condition_variable\w*|future|promise|async|atomic\w*|filesystem|time)"
      R"(|w?(cin|cout|cerr|clog)|\w*(stream|buf)|f?printf|fopen|getc|getenv|getline))\b)");
  std::set<std::string> seen;
  std::function<void(const std::string&, const std::string&)> visit =
      [&](const std::string& file, const std::string& trail) {
        if (!seen.insert(file).second) return;
        EXPECT_NE(file, "core/base/clock.h") << trail;
        EXPECT_FALSE(file.starts_with("core/wire/")) << trail;
        std::ifstream text(fs::path(TAILRACE_SOURCE_DIR) / file);
        for (std::string line; std::getline(text, line);)
          EXPECT_FALSE(std::regex_search(line, clock)) << trail << ": " << line;
        for (const auto& include : tree.at(file)) {
          // The law stays off containers whose order is the library's: a walk over one could
          // decide.
          const bool is_hashed =
              include.target == "unordered_map" && file.starts_with("scheduler/simulator/");
          EXPECT_TRUE(include.quoted || is_hashed || allowed.contains(include.target))
              << trail << " includes <" << include.target << ">";
          if (tree.contains(include.target)) visit(include.target, trail + " -> " + include.target);
        }
      };
  int files = 0;
  for (const auto& [file, includes] : tree) {
    if (!file.starts_with("scheduler/state/") && !file.starts_with("scheduler/decide/") &&
        !file.starts_with("scheduler/simulator/"))
      continue;
    visit(file, file);
    ++files;
  }
  EXPECT_GT(files, 10);
}

TEST(Structure, HeavyLibrariesStayInTheirPlacesAndOutOfHeaders) {
  for (const auto& [file, includes] : read_tree()) {
    for (const auto& include : includes) {
      for (const auto& [library, places] : kLibraries) {
        if (include.target.rfind(library, 0) != 0) continue;
        EXPECT_TRUE(places.contains(folder_of(file)))
            << file << ":" << include.line << " includes " << include.target;
        bool header = fs::path(file).extension() == ".h";
        EXPECT_FALSE(header) << file << ": keep " << include.target << " in a .cc file";
      }
    }
  }
}

// The library's own parsers cost n^2 or have no bounds (core/base/json_reader.h).
TEST(Structure, JsonIsReadByOneReader) {
  const fs::path root = TAILRACE_SOURCE_DIR;
  const std::regex parses(R"re(([jJ]son|basic_json)\w*::(parse|accept|sax_parse|from_\w+)\s*\()re");
  for (const auto& [file, includes] : read_tree()) {
    std::ifstream source(root / file);
    std::string line;
    for (int number = 1; std::getline(source, line); ++number)
      if (std::regex_search(line, parses)) {
        EXPECT_EQ(file, "core/base/json_reader.cc") << file << ":" << number << ": " << line;
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
