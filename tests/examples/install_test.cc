// What an author of a plugin gets: the installed headers and CMake package, without anything of the
// tree, make examples/maze into a library that shows one function. Each compiler that is here does
// it once. The install component `plugin` needs nothing that is built.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>

#include "core/base/file.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

struct Compiler {
  const char* name;  // of the test
  const char* cxx;
  const char* c;
};

void PrintTo(const Compiler& compiler, std::ostream* out) { *out << compiler.cxx; }

class Install : public ::testing::TestWithParam<Compiler> {
 protected:
  void SetUp() override {
    for (const char* program : {GetParam().cxx, GetParam().c}) {
      if (!run(std::string("command -v ") + program, 10))
        GTEST_SKIP() << "there is no " << program << " here";
    }
    ASSERT_TRUE(run(kCmake + " --install " + fs::path(TAILRACE_BINARY).parent_path().string() +
                        " --component plugin --prefix " + prefix(),
                    60))
        << said();
  }

  // Runs a shell command in an environment that says nothing about compiling or installing.
  // False: it failed, or `seconds` passed.
  bool run(const std::string& command, int seconds) {
    const std::string script = folder_.write("command.sh", command + "\n").string();
    const int status = std::system(
        ("env -u CXX -u CC -u CXXFLAGS -u CFLAGS -u CPPFLAGS -u LDFLAGS -u CPATH -u DESTDIR"
         " -u CMAKE_PREFIX_PATH -u Tailrace_DIR -u MAKEFLAGS timeout -k 5 " +
         std::to_string(seconds) + " sh " + script + " > " + (folder_ / "said").string() + " 2>&1")
            .c_str());
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  std::string said() const { return read_file(folder_ / "said").value(); }

  std::string prefix() const { return (folder_ / "prefix").string(); }
  std::string build() const { return (folder_ / "build").string(); }
  std::string cxx() const { return GetParam().cxx; }

  // Configures the maze as its author would.
  bool configure_maze() {
    return run(kCmake + " -S " TAILRACE_SOURCE_DIR "/examples/maze -B " + build() +
                   " -G '" TAILRACE_GENERATOR
                   "' -DCMAKE_BUILD_TYPE=Release"
                   " -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DCMAKE_CXX_COMPILER=" +
                   cxx() + " -DCMAKE_PREFIX_PATH=" + prefix(),
               60);
  }

  const std::string kCmake = TAILRACE_CMAKE;
  TemporaryDirectory folder_;
};

TEST_P(Install, TheMazeBuildsOutsideOfTheTreeAndPassesItsTests) {
  ASSERT_TRUE(configure_maze()) << said();
  ASSERT_TRUE(run(kCmake + " --build " + build(), 200)) << said();
  ASSERT_TRUE(run("ctest --test-dir " + build() + " --no-tests=error --output-on-failure", 60))
      << said();

  // One symbol, whatever the templates of the standard library left behind.
  ASSERT_TRUE(run("nm -D --defined-only " + build() + "/libmaze.so", 10)) << said();
  const std::string symbols = said();
  EXPECT_EQ(std::count(symbols.begin(), symbols.end(), '\n'), 1) << symbols;
  EXPECT_TRUE(symbols.ends_with(" T tailrace_library_1\n")) << symbols;

  // It needs nothing of ours at run time either.
  ASSERT_TRUE(run("readelf -d " + build() + "/libmaze.so", 10)) << said();
  EXPECT_EQ(said().find("libfmt"), std::string::npos) << said();

  // The config finds the library beside itself.
  EXPECT_TRUE(fs::exists(build() + "/train.yaml"));
}

TEST_P(Install, ThePackageAddsNoFlagsButTheNamedOnes) {
  ASSERT_TRUE(configure_maze()) << said();
  const std::string commands = read_file(build() + "/compile_commands.json").value();
  EXPECT_NE(commands.find("-fvisibility=hidden"), std::string::npos) << commands;
  for (const char* ours : {"-ffp-contract", "-DFMT", "-Wall", "-Wextra", "-Wshadow"})
    EXPECT_EQ(commands.find(ours), std::string::npos) << ours << " in " << commands;
  // Nothing but the prefix stands between the author's sources and the headers.
  EXPECT_NE(commands.find(prefix() + "/include"), std::string::npos) << commands;
  EXPECT_EQ(commands.find(std::string(TAILRACE_SOURCE_DIR) + "/include"), std::string::npos)
      << commands;
}

TEST_P(Install, AHeaderAloneCompilesAsCxx17WithoutAWarning) {
  int headers = 0;
  for (const auto& entry : fs::directory_iterator(prefix() + "/include/tailrace")) {
    ++headers;
    const std::string header = "tailrace/" + entry.path().filename().string();
    const std::string source =
        folder_.write("alone.cc", "#include \"" + header + "\"\n#include \"" + header + "\"\n")
            .string();
    EXPECT_TRUE(run(cxx() +
                        " -std=c++17 -pedantic-errors -Wall -Wextra -Wshadow -Werror"
                        " -fsyntax-only -I" +
                        prefix() + "/include " + source,
                    60))
        << header << ": " << said();
  }
  EXPECT_EQ(headers, 4);
}

TEST_P(Install, ALibraryInCIsStrictC11) {
  EXPECT_TRUE(run(std::string(GetParam().c) +
                      " -std=c11 -pedantic-errors -Wall -Werror -shared -fPIC -fvisibility=hidden"
                      " -I" +
                      prefix() + "/include " TAILRACE_SOURCE_DIR "/tests/examples/abi_in_c.c -o " +
                      (folder_ / "in_c.so").string(),
                  60))
      << said();
}

INSTANTIATE_TEST_SUITE_P(Compilers, Install,
                         ::testing::Values(Compiler{"gcc", "g++", "gcc"},
                                           Compiler{"clang", "clang++", "clang"}),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace tailrace
