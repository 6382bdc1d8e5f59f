// The programs of docs/rewards.md, and examples/reward.py, score as they are written there.
#include <cstdlib>
#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/file.h"
#include "reward/command/command_verifier.h"
#include "reward/command/retold.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/examples/page_blocks.h"

namespace tailrace {
namespace {

constexpr Time kPageBudget = std::chrono::seconds(60);

class RewardsPage : public testing::Test {
 protected:
  // The block of the page in this language.
  std::string program(const std::string& language) {
    for (const PageBlock& block :
         blocks_of(read_file(TAILRACE_SOURCE_DIR "/docs/rewards.md").value()))
      if (block.language == language) return block.text;
    ADD_FAILURE() << "no block in " << language;
    return "";
  }

  static std::string episode(const std::string& response) {
    const nlohmann::json told = {{"prompt", "p"},
                                 {"messages", nlohmann::json::array()},
                                 {"response", response},
                                 {"row", {{"words", {"cat"}}, {"min_words", 2}, {"max_words", 9}}},
                                 {"turns", 1}};
    return RetoldEpisode{.episode = told.dump()}.write();
  }

  // Of two episodes, one after the other by the same process.
  static std::pair<double, double> rewards(const sandbox::CommandStart& command,
                                           const std::string& first, const std::string& second) {
    const auto verifier = make_command_verifier(command, {});
    double found[2] = {-1, -1};
    int i = 0;
    for (const std::string& response : {first, second}) {
      const auto score = verifier->score(episode(response), kPageBudget);
      EXPECT_TRUE(score) << score.failure().message;
      if (score) found[i++] = score.value().reward;
    }
    return {found[0], found[1]};
  }

  TemporaryDirectory folder_;
};

TEST_F(RewardsPage, ThePythonOfThePageScores) {
  const auto file = folder_.write("page.py", program("python"));
  EXPECT_EQ(rewards({.words = {"python3", file.string()}}, "The end. ", "no end"),
            std::pair(1.0, 0.0));
}

TEST_F(RewardsPage, TheCOfThePageScores) {
  const auto file = folder_.write("page.c", program("c"));
  const std::string binary = (folder_ / "page").string();
  const std::string build = fmt::format("cc -O1 -o {} {} 2>&1", binary, file.string());
  if (std::system("cc --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no C compiler";
  ASSERT_EQ(std::system(build.c_str()), 0);
  const auto [brief, lengthy] = rewards({.words = {binary}}, "a", std::string(5000, 'a'));
  EXPECT_GT(brief, lengthy);
  EXPECT_GT(lengthy, 0.1);
}

TEST_F(RewardsPage, TheAwkOfThePageScores) {
  const auto file = folder_.write("page.awk", program("awk"));
  sandbox::CommandStart command{.words = {"gawk", "-f", file.string()}};
  if (!find_program(command)) command.words = {"mawk", "-W", "interactive", "-f", file.string()};
  if (!find_program(command)) GTEST_SKIP() << "no awk";
  const auto [brief, lengthy] = rewards(command, "a", std::string(5000, 'a'));
  EXPECT_GT(brief, lengthy);
}

TEST_F(RewardsPage, TheExampleKeepsTheRulesThatItStates) {
  const sandbox::CommandStart command{
      .words = {"python3", TAILRACE_SOURCE_DIR "/examples/reward.py"}};
  EXPECT_EQ(rewards(command, "The cat ran home.", "cat"), std::pair(1.0, 0.0));
  EXPECT_EQ(rewards(command, "A dog ran off", "One cat and so very many other small dogs here!"),
            std::pair(0.25, 0.75));
}

}  // namespace
}  // namespace tailrace
