// What `plan --quick` says of each config of the repository: tests/golden/plans/NAME.txt.
#include <filesystem>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/cli/run_binary.h"
#include "tests/golden/golden.h"

namespace tailrace {
namespace {

// Of a command in the source folder, which is taken out of what it says.
BinaryResult run_in_source(const std::string& arguments) {
  const std::string source = TAILRACE_SOURCE_DIR;
  auto result = run_binary(arguments, "", source);
  for (size_t at; (at = result.out.find(source + "/")) != std::string::npos;)
    result.out.erase(at, source.size() + 1);
  return result;
}

// Without its lines about cores, of which each machine has its own number.
std::string without_cores(const std::string& plan) {
  std::istringstream lines(plan);
  std::string kept;
  for (std::string line; std::getline(lines, line);)
    if (line.find(" core") == std::string::npos) kept += line + "\n";
  return kept;
}

TEST(Plans, OfTheConfigsAreAsTheyWereRead) {
  const std::filesystem::path source = TAILRACE_SOURCE_DIR;
  for (const auto& entry : std::filesystem::directory_iterator(source / "configs")) {
    if (entry.path().extension() != ".yaml") continue;
    const std::string name = entry.path().stem().string();
    if (name.starts_with("simulate_")) continue;  // they have no model (simulate_test.cc)
    // Some run with any model, or with one that is not in the tree, and are given one. It has no
    // chat template.
    std::string model;
    if (name.ends_with("gsm8k") || name.starts_with("smollm2"))
      model = " model.path=tests/data/models/stories260K";
    if (name == "smollm2" || name == "smollm2_lora") model += " chat.system=";
    // Else as many as there are cores, and each has a workspace; and a GPU where there is one. A
    // run of preferences alone samples nothing.
    const bool samples = name != "smollm2_dpo" && name != "smollm2_simpo" && name != "smollm2_orpo";
    const auto result =
        run_in_source("plan --quick configs/" + name + ".yaml train.threads=2" +
                      (samples ? " rollout.threads=1" : "") + " model.device=cpu" + model);
    if (result.err.find("this machine cannot test programs") != std::string::npos) {
      fmt::print("skipped configs/{}.yaml: {}", name, result.err);
      continue;
    }
    EXPECT_EQ(result.exit_code, 0) << result.err;
    expect_golden("plans/" + name + ".txt", without_cores(result.out));
  }
}

TEST(Plans, ADryRunSaysTheSame) {
  const std::string of = " configs/mixed.yaml train.threads=2 rollout.threads=1";
  const auto quick = run_in_source("plan --quick" + of),
             dry = run_in_source("launch --dry-run" + of);
  EXPECT_EQ(quick.exit_code, 0) << quick.err;
  EXPECT_EQ(quick.out, dry.out);
  EXPECT_EQ(quick.err, dry.err);
}

// From the card's data sheet and the sizes of the policy alone; nothing is measured.
TEST(Plans, OnACardThatIsNotHere) {
  const auto result = run_in_source(
      "plan configs/quickstart.yaml rollout.workers=1 --hardware h100-80 --price 2.49");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const size_t time = result.out.find("\nepisodes ");
  ASSERT_NE(time, std::string::npos) << result.out;
  expect_golden("plans/on_h100-80.txt", result.out.substr(time + 1));
}

// The file has its own loss_agg and penalty.
TEST(Plans, OfAPresetThatIsNamedOverAFile) {
  const auto result = run_in_source(
      "launch --dry-run configs/tinystories.yaml train.threads=2 rollout.threads=1 "
      "model.device=cpu "
      "algo.name=DR_GRPO");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string plan = without_cores(result.out);
  expect_golden("plans/tinystories_dr_grpo.txt", plan.substr(0, plan.find("trainer ")));
}

}  // namespace
}  // namespace tailrace
