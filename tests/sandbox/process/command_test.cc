// What is said of a program before it is started.
#include "sandbox/process/command.h"

#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/core/base/temporary_directory.h"

namespace tailrace::sandbox {
namespace {

namespace fs = std::filesystem;

// The python of a virtual environment is a link to /usr, which a sandbox shows; its packages are
// not there.
TEST(Command, AVirtualEnvironmentIsNotInASandboxAndThatIsSaid) {
  TemporaryDirectory folder;
  fs::create_directories(folder / "venv/bin");
  fs::create_symlink("/bin/sh", folder / "venv/bin/python3");
  const std::string python = (folder / "venv/bin/python3").string();
  EXPECT_TRUE(find_program({.words = {python}, .is_isolated = true}).ok());
  folder.write("venv/pyvenv.cfg", "home = /usr/bin\n");
  EXPECT_TRUE(find_program({.words = {python}}).ok());
  const auto hidden = find_program({.words = {python}, .is_isolated = true});
  ASSERT_FALSE(hidden.ok());
  EXPECT_EQ(
      hidden.failure().message,
      fmt::format("{} belongs to the virtual environment {}, which a sandbox does not show: it "
                  "shows /usr and the like. Have the packages below /usr (python3 -m venv "
                  "/usr/local/NAME), or run without a sandbox",
                  python, (folder / "venv").string()));
}

}  // namespace
}  // namespace tailrace::sandbox
