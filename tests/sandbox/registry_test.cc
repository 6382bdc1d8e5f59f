#include <gtest/gtest.h>

#include "core/base/error.h"
#include "sandbox/builtin/built_in.h"
#include "tests/sandbox/environment_contract.h"

namespace tailrace::sandbox {
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
  EXPECT_GE(registry.list().size(), 4u);
  for (const auto& [name, help, settings] : registry.list()) {
    EXPECT_EQ(registry.make(name, least_settings(name))->info().name, name);
    EXPECT_FALSE(help.empty()) << name;
  }
}

TEST(EnvironmentRegistry, NamesTheNearestNameOrSetting) {
  EXPECT_EQ(error_of("frozengrid", {})
                .find("there is no environment 'frozengrid'; did you mean "
                      "'frozen_grid'? Environments: calculator, countdown, "),
            0u);
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
            "environment calculator: score_by is 'hope'; it must be one of rule, number "
            "(default rule)");
}

TEST(Settings, ARefusalThatBeginsWithANameIsAboutItsKey) {
  const EnvironmentSettings whole = {{"size", "4"}, {"size_of_exit", "2"}};
  const auto key_of = [&](const char* reason) {
    return refused_settings(whole, "environment maze", "env.settings", reason).key();
  };
  EXPECT_EQ(key_of("size is 4, below 5"), "env.settings.size");
  EXPECT_EQ(key_of("size_of_exit: must be odd"), "env.settings.size_of_exit");
  EXPECT_EQ(key_of("sizes do not fit"), "");
}

TEST(EnvironmentRegistry, ANameIsTakenOnce) {
  EnvironmentRegistry registry = built_in_environments();
  EXPECT_THROW(registry.add({"text", "again", {}}, EnvironmentRegistry::Factory()), UserError);
}

}  // namespace
}  // namespace tailrace::sandbox
