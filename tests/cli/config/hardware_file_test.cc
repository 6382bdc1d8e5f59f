// Hardware files: those that come along, and what a person is told of others.
#include "cli/config/hardware_file.h"

#include <filesystem>
#include <set>

#include <gtest/gtest.h>

#include "cli/inputs/load.h"
#include "cli/inputs/registries.h"
#include "core/base/error.h"
#include "core/config/config_printer.h"
#include "core/run/run_directory.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

const fs::path kConfigs = fs::path(TAILRACE_SOURCE_DIR) / "configs";

std::string hardware_error(const std::string& name, std::vector<std::string> overrides = {}) {
  try {
    load_hardware(name, overrides);
  } catch (const UserError& error) {
    return error.what();
  }
  return "(no error)";
}

TEST(HardwareFiles, AllThatAreCommittedAreRead) {
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kConfigs)) {
    const bool is_hardware = entry.path().stem().extension() == ".hardware" ||
                             entry.path().parent_path().filename() == "hardware";
    if (entry.path().extension() != ".yaml" || !is_hardware) continue;
    ++files;
    EXPECT_EQ(hardware_error(entry.path().string()), "(no error)");
  }
  EXPECT_GE(files, 7);
}

// A file of the folder that the build does not name is in no binary.
TEST(HardwareFiles, TheBinaryHasThoseOfTheFolder) {
  std::set<std::string> there;
  for (const auto& entry : fs::directory_iterator(kConfigs / "hardware"))
    if (entry.path().extension() == ".yaml") there.insert(entry.path().stem().string());
  const std::vector<std::string> names = hardware_names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), there);
  for (const std::string& name : names) {
    const HardwareFile file = load_hardware(name, {});
    ASSERT_EQ(file.section.hardware.size(), 1u) << name;
    const HardwareSection& card = file.section.hardware[0];
    EXPECT_EQ(card.name, name);
    EXPECT_TRUE(card.is_card()) << name;
    EXPECT_GT(card.memory_gib, 0) << name;
    EXPECT_GT(card.link_gb_per_s, 0) << name;
    EXPECT_EQ(card.price_per_hour, 0) << name << ": a price is an argument";
    EXPECT_NE(hardware_table().find("\n" + name + " "), std::string::npos);
  }
}

TEST(HardwareFiles, AMistypedNameIsToldTheNearest) {
  EXPECT_NE(hardware_error("h100-8").find("did you mean 'h100-80'?"), std::string::npos)
      << hardware_error("h100-8");
  EXPECT_NE(hardware_error("tpu").find("it must be one of: rtx-4090, "), std::string::npos);
  EXPECT_NE(hardware_error("none.yaml").find("cannot open none.yaml"), std::string::npos)
      << hardware_error("none.yaml");
}

TEST(HardwareFiles, WordsOfTheCommandLineSetKeysOfTheFile) {
  EXPECT_TRUE(sets_hardware("hardware.workers=4"));
  EXPECT_FALSE(sets_hardware("rollout.workers=4"));
  const std::vector<std::string> words = {"hardware.workers=4", "hardware.trainer.workers=3",
                                          "hardware.h200.step_ms=9",
                                          "hardware.weights.link_mbit=7"};
  const SimulateSection section = load_hardware("h200", words).section;
  EXPECT_EQ(section.workers, 4);
  EXPECT_EQ(section.trainer.workers, 3);
  EXPECT_EQ(section.hardware[0].step_ms, 9);
  EXPECT_EQ(section.weights.link_mbit, 7);
  EXPECT_NE(hardware_error("h200", {"hardware.wokers=4"}).find("the nearest is workers"),
            std::string::npos)
      << hardware_error("h200", {"hardware.wokers=4"});
}

// Below `simulate:` they were indented, and may stay so.
TEST(HardwareFiles, LinesOfASectionAreMovedAsTheyAre) {
  const SimulateSection section =
      parse_hardware("  workers: 7\n  episodes:\n    turns: 3\n", "h.yaml", {}).section;
  EXPECT_EQ(section.workers, 7);
  EXPECT_EQ(section.episodes.turns, 3);
}

// An older build has written the section into the config of each run, where no launch read it.
TEST(HardwareFiles, ARunThatHasBegunGoesOnWithASection) {
  TemporaryDirectory folder;
  const RunPaths paths{folder.path()};
  const std::vector<std::string> none;
  const LoadedRun loaded =
      load_run_options(kConfigs / "quickstart.yaml", none, built_in_registries());
  const std::string config =
      print_config(loaded.run.options) + "simulate:\n  days: 1\n  trainer:\n    workers: 1\n";
  folder.write("config.yaml", prove_config("a run", config));
  EXPECT_EQ(load_stored_run(paths, none, built_in_registries()).run.options.run.steps,
            loaded.run.options.run.steps);
  const std::vector<std::string> words = {"simulate.workers=3"};
  EXPECT_THROW(load_stored_run(paths, words, built_in_registries()), UserError);
  EXPECT_THROW(load_run_options(paths.config(), none, built_in_registries()), UserError);
}

// A launch reads nothing of it, and a run that has begun goes on with any other.
TEST(HardwareFiles, AreNoPartOfARunsConfig) {
  for (const auto& [key, option] : options_by_key(RunOptions()))
    EXPECT_FALSE(key.starts_with("simulate") || key.starts_with("hardware")) << key;
}

TEST(HardwareFiles, WhatIsPrintedReadsBack) {
  const std::vector<std::string> words = {"hardware.workers=4", "hardware.h200.step_ms=9"};
  const std::string text = print_config(load_hardware("h200", words).section);
  EXPECT_EQ(print_config(parse_hardware(text, "again.yaml", {}).section), text);
}

}  // namespace
}  // namespace tailrace
