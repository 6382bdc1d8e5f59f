#include "core/base/error.h"
#include "tests/sandbox/environment_contract.h"

namespace tailrace::sandbox {
namespace {

TEST(CountdownEnvironment, KeepsTheContract) {
  check_environment({.make = [] { return built_in("countdown"); }});
  check_environment({.make = [] {
    return built_in(
        "countdown",
        {{"min_numbers", "2"}, {"max_numbers", "6"}, {"max_number", "9"}, {"max_target", "30"}});
  }});
}

TEST(CountdownEnvironment, EveryTaskHasTheSolutionThatTheDemonstratorShows) {
  auto environment = built_in("countdown", {{"demo_solve", "1"}, {"demo_invalid", "0"}});
  EXPECT_EQ(demonstrated_success(*environment, 2000), 1.0);
}

TEST(CountdownEnvironment, TheDemonstratorIsImperfect) {
  // 0.95 * 0.6 solved, and of the 0.38 guessed a few by luck (shuffled sums): at most a fifth.
  auto environment = built_in("countdown");
  constexpr int kEpisodes = 4000;
  double success = demonstrated_success(*environment, kEpisodes);
  EXPECT_GT(success, 0.57 - share_bound(0.57, kEpisodes));
  EXPECT_LT(success, 0.57 + 0.38 / 5 + share_bound(0.57, kEpisodes));
}

TEST(CountdownEnvironment, ImpossibleSettingsAreRefused) {
  EXPECT_THROW(built_in("countdown", {{"min_numbers", "4"}, {"max_numbers", "3"}}), UserError);
  EXPECT_THROW(built_in("countdown", {{"max_target", "-1"}}), UserError);
}

}  // namespace
}  // namespace tailrace::sandbox
