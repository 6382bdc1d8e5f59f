#include <gtest/gtest.h>

#include "core/base/file.h"
#include "tests/cli/run_binary.h"

namespace tailrace {
namespace {

TEST(Docs, TheReferenceOfConfigKeysIsUpToDate) {
  auto result = run_binary("docs");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  auto written = read_file(std::string(TAILRACE_SOURCE_DIR) + "/docs/configuration.md");
  ASSERT_TRUE(written) << written.failure().message;
  EXPECT_EQ(written.value(), result.out) << "run: build/tailrace docs docs/configuration.md";
}

TEST(Docs, ListEachKeyWithItsDefaultAndAliases) {
  std::string text = run_binary("docs").out;
  EXPECT_NE(text.find("| `rollout.group_size` | `8` | integer, >= 1 |"), std::string::npos);
  EXPECT_NE(text.find("| `env.name` | required |"), std::string::npos);
  EXPECT_NE(text.find("| `run.steps` | `100` | integer, >= 0 | may grow |"), std::string::npos);
  EXPECT_NE(text.find("| `run.seed` | `0` | integer, >= 0 |  |"), std::string::npos);
  EXPECT_NE(text.find("also: rollout_batch_size"), std::string::npos);
}

}  // namespace
}  // namespace tailrace
