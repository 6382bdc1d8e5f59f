// What `launch --dry-run` says of each config of the repository: tests/golden/plans/NAME.txt.
#include <filesystem>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/cli/run_binary.h"
#include "tests/golden/golden.h"

namespace tailrace {
namespace {

TEST(Plans, OfTheConfigsAreAsTheyWereRead) {
  const std::filesystem::path source = TAILRACE_SOURCE_DIR;
  for (const auto& entry : std::filesystem::directory_iterator(source / "configs")) {
    if (entry.path().extension() != ".yaml") continue;
    const std::string name = entry.path().stem().string();
    const bool any = name == "gsm8k";  // runs with any model, and is given one
    // Else as many as there are cores, and each has a workspace.
    auto result = run_binary("launch --dry-run configs/" + name + ".yaml train.threads=2" +
                                 (any ? " model.path=tests/data/models/stories260K" : ""),
                             "", source.string());
    if (result.err.find("this machine cannot test programs") != std::string::npos) {
      fmt::print("skipped configs/{}.yaml: {}", name, result.err);
      continue;
    }
    EXPECT_EQ(result.exit_code, 0) << result.err;
    for (size_t at; (at = result.out.find(source.string() + "/")) != std::string::npos;)
      result.out.erase(at, source.string().size() + 1);
    expect_golden("plans/" + name + ".txt", result.out);
  }
}

}  // namespace
}  // namespace tailrace
