#include <gtest/gtest.h>

#include "core/base/error.h"
#include "sandbox/environment.h"

namespace tailrace {
namespace {

std::string error_of(const std::string& name, const EnvironmentSettings& settings) {
  try {
    built_in_environments().make(name, settings);
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

TEST(EnvironmentRegistry, MakesEachBuiltInEnvironmentUnderItsName) {
  EnvironmentRegistry registry = built_in_environments();
  EXPECT_EQ(registry.list().size(), 4u);
  for (const auto& [name, help] : registry.list()) {
    EXPECT_EQ(registry.make(name, {})->info().name, name);
    EXPECT_EQ(registry.make(name, {})->info().help, help);
  }
}

TEST(EnvironmentRegistry, NamesTheNearestNameOrSetting) {
  EXPECT_EQ(error_of("frozengrid", {}),
            "there is no environment 'frozengrid'; did you mean 'frozen_grid'? Environments: "
            "calculator, countdown, "
            "frozen_grid, text");
  EXPECT_NE(error_of("frozen_grid", {{"max_turn", "3"}}).find("did you mean 'max_turns'"),
            std::string::npos);
  EXPECT_EQ(error_of("frozen_grid", {{"max_turns", "many"}}),
            "environment frozen_grid: max_turns is 'many'; it must be an integer from 1 to 1000 "
            "(default 14)");
  EXPECT_EQ(
      error_of("frozen_grid", {{"demo_look", "2"}}),
      "environment frozen_grid: demo_look is '2'; it must be a number from 0 to 1 (default 0.4)");
  EXPECT_EQ(
      error_of("frozen_grid", {{"demo_look", "nan"}}),
      "environment frozen_grid: demo_look is 'nan'; it must be a number from 0 to 1 (default 0.4)");
  EXPECT_EQ(error_of("calculator", {{"score_by", "hope"}}),
            "environment calculator: score_by is 'hope'; accepted: rule, number");
}

TEST(EnvironmentRegistryDeathTest, ANameIsTakenOnce) {
  EnvironmentRegistry registry = built_in_environments();
  EXPECT_DEATH(registry.add("text", "again", {}), "environment text is registered twice");
}

}  // namespace
}  // namespace tailrace
