#include "sandbox/plugin/library.h"

#include <cmath>
#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/base/error.h"
#include "tests/sandbox/plugin/plugins.h"

namespace tailrace::sandbox {
namespace {

using ::testing::HasSubstr;
using testing::make;
using testing::plugin;

std::string refusal(const std::filesystem::path& file) {
  try {
    PluginLibrary::load(file);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(PluginLibrary, SaysWhatItHas) {
  const auto library = PluginLibrary::load(plugin("maze"));
  ASSERT_EQ(library->environments().size(), 1u);
  const auto& maze = library->environments()[0];
  EXPECT_EQ(maze.name, "maze");
  ASSERT_EQ(maze.settings.size(), 3u);
  EXPECT_EQ(maze.settings[0].name, "size");
  EXPECT_EQ(maze.settings[0].type, SettingType::kInteger);
  EXPECT_EQ(maze.settings[0].max, 12);
  EXPECT_EQ(maze.settings[2].choices, (std::vector<std::string>{"itself", "short_way"}));
  ASSERT_EQ(library->rewards().size(), 1u);
  EXPECT_EQ(library->rewards()[0].name, "short_way");
  EXPECT_EQ(PluginLibrary::load(plugin("maze")), library);
}

TEST(PluginLibrary, WhatIsNoneIsRefusedInOneLine) {
  const auto folder = std::filesystem::temp_directory_path();
  const auto text = folder / fmt::format("tr-notes-{}.so", ::getpid());
  std::ofstream(text) << "no library\n";
  EXPECT_THAT(refusal(folder / "gone.so"), HasSubstr("not found"));
  EXPECT_THAT(refusal(text), HasSubstr("cannot be loaded as a library"));
  std::filesystem::remove(text);
  EXPECT_THAT(refusal(plugin("without_entry")), HasSubstr("no function tailrace_library_1"));
  EXPECT_THAT(refusal(plugin("other_abi")), HasSubstr("built with ABI 2, and this Tailrace"));
  EXPECT_THAT(refusal(plugin("refuses")), HasSubstr("refuses to work here"));
}

// Its reason goes into messages and logs, and a NUL byte would end them.
TEST(PluginLibrary, AReasonShowsItsControlCharacters) {
  const std::string_view reason("no\0 \x1b[2J", 8);
  EXPECT_EQ(failure_of(TR_FAILED, {reason.data(), reason.size()}).message, "no\\x00 \\x1b[2J");
}

std::string complaint(const EnvironmentSettings& settings, std::string* key = nullptr) {
  try {
    make("maze", "maze", settings);
  } catch (const UserError& error) {
    if (key != nullptr) *key = error.key();
    return error.what();
  }
  return "";
}

TEST(PluginSettings, AreCheckedBeforeAnythingIsMade) {
  std::string key;
  EXPECT_THAT(complaint({{"sise", "4"}}, &key), HasSubstr("did you mean 'size'"));
  EXPECT_EQ(key, "env.settings.sise");
  EXPECT_THAT(complaint({{"size", "13"}}, &key), HasSubstr("an integer from 2 to 12 (default 4)"));
  EXPECT_EQ(key, "env.settings.size");
  EXPECT_THAT(complaint({{"size", "4.5"}}), HasSubstr("an integer"));
  EXPECT_THAT(complaint({{"scored_by", "me"}}), HasSubstr("one of itself, short_way"));
  EXPECT_EQ(complaint({{"size", "12"}, {"scored_by", "short_way"}}), "");
  const SettingsSchema schema = {{.name = "path", .help = "a file"},
                                 {.name = "on", .type = SettingType::kBool, .fallback = "true"}};
  EXPECT_THROW(complete_settings(schema, {}, "it", "s"), UserError);
  EXPECT_THROW(complete_settings(schema, {{"path", "x"}, {"on", "yes"}}, "it", "s"), UserError);
  EXPECT_EQ(complete_settings(schema, {{"path", "x"}}, "it", "s"),
            (EnvironmentSettings{{"path", "x"}, {"on", "true"}}));
  EXPECT_EQ(complete_settings(schema, {{"path", "True"}, {"on", "False"}}, "it", "s"),
            (EnvironmentSettings{{"path", "True"}, {"on", "false"}}));
}

struct Played {
  std::string text;
  double reward = 0;
  StepResult last = {};
};
Result<Played> play(Environment& environment, uint64_t seed) {
  auto first = environment.reset({.seed = seed, .data = {}});
  if (!first) return first.failure();
  Played played{.text = first.value().text};
  for (int turn = 0; turn < 100; ++turn) {
    auto step = environment.step("go\n");
    if (!step) return step.failure();
    played.last = step.value();
    if (step.value().pending) {
      played.text += "|pending";
      continue;
    }
    played.text += "|" + played.last.observation.text;
    played.reward += played.last.reward;
    if (played.last.terminated || played.last.truncated) break;
  }
  environment.close();
  return played;
}

TEST(PluginEnvironment, PlaysAsOneOfOurs) {
  const auto environment = make("faulty", "faulty", {{"max_turns", "3"}});
  EXPECT_EQ(environment->info().max_turns, 3);
  EXPECT_EQ(environment->info().stop_strings, std::vector<std::string>{"\n"});
  Rng rng(1);
  EXPECT_FALSE(environment->demonstrate(rng));  // no episode
  EXPECT_FALSE(environment->step("go\n"));
  ASSERT_TRUE(environment->reset({.seed = 7}));
  EXPECT_TRUE(environment->demonstrate(rng));
  const auto played = play(*environment, 7);
  ASSERT_TRUE(played);
  EXPECT_EQ(played.value().text, "seed 7 |at 1 |at 2 |");
  EXPECT_EQ(played.value().reward, 1.25);
  EXPECT_EQ(played.value().last.metrics, (MetricList{{"success", 1}}));
  EXPECT_FALSE(environment->step("go\n"));
  EXPECT_EQ(play(*environment, 7).value().text, played.value().text);
}

TEST(PluginEnvironment, WhatFailsIsAFailureAndNoReward) {
  const auto failure = [](const char* fault) {
    const auto played = play(*make("faulty", "faulty", {{"fault", fault}}), 1);
    return played ? std::string() : played.failure().message;
  };
  EXPECT_EQ(failure("throw"), "a bad day");
  EXPECT_EQ(failure("failed"), "out of luck");
  EXPECT_EQ(failure("broken"), "the task is broken: nobody can play it");
  EXPECT_EQ(failure("no_verdict"), "no verdict: the judge is away");
  EXPECT_THROW(make("faulty", "faulty", {{"fault", "construct"}}), UserError);
  EXPECT_EQ(play(*make("faulty", "big"), 1).failure().message,
            "the observation has 2097152 bytes; at most 1048576 are taken");
  // Who plays the episode refuses it.
  EXPECT_TRUE(std::isnan(play(*make("faulty", "nan"), 1).value().reward));
}

TEST(PluginEnvironment, AScoreBehindTheEndComesOnTop) {
  EXPECT_EQ(play(*make("faulty", "faulty", {{"fault", "scored"}}), 1).value().reward, 11.5);
  const auto judged = play(*make("faulty", "faulty", {{"fault", "judged"}}), 1).value();
  EXPECT_EQ(judged.last.verifier, "length");
  EXPECT_TRUE(judged.last.evidence.starts_with("{\"turns\":5,")) << judged.last.evidence;
}

TEST(PluginEnvironment, WhatIsPendingIsAskedAgain) {
  EXPECT_EQ(
      play(*make("faulty", "faulty", {{"fault", "pending"}, {"max_turns", "2"}}), 1).value().text,
      "seed 1 |pending|at 1 |pending|");
}

}  // namespace
}  // namespace tailrace::sandbox
