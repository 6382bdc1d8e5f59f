// Agents of a config: what is refused before a run begins, and what its plan says.
#include "cli/inputs/agents.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cli/config/datasets.h"
#include "cli/inputs/load.h"
#include "cli/inputs/registries.h"
#include "core/base/error.h"
#include "core/config/yaml_config.h"

namespace tailrace {
namespace {

constexpr const char* kAgent =
    "run: {steps: 4}\n"
    "model: {create: {hidden_size: 64, layers: 2, heads: 4}}\n"
    "env: {agent: {command: [sh, -c, 'echo 1'], vocabulary: [a]}}\n";

RunOptions read_agents(const std::vector<std::string>& overrides) {
  RunOptions options;
  (void)bind_config(parse_config(kAgent, "a.yaml", overrides), options);
  Registries registries = built_in_registries();
  add_agents(options, datasets_of(options), registries.environments);
  return options;
}

std::string agents_error(const std::vector<std::string>& overrides) {
  try {
    (void)read_agents(overrides);
  } catch (const UserError& error) {
    return error.what();
  }
  return "(no error)";
}

// Each process of a sandbox has a folder of its own, so that nothing would pass from one to the
// next.
TEST(Agents, InASandboxTheyHaveNoSetupAndNoScore) {
  for (const std::string name : {"setup", "score"}) {
    const std::string word = "env.agent." + name + "=[sh, -c, 'true']";
    EXPECT_EQ(agents_error({word}), "(no error)");
    EXPECT_EQ(agents_error({word, "env.isolation=sandbox"}),
              "env.agent." + name +
                  " needs the folder of the run, and each process in a sandbox has one of its own. "
                  "Do its work in env.agent.command, or try env.isolation=process.");
  }
  EXPECT_EQ(agents_error({"env.isolation=sandbox"}), "(no error)");
}

// The keys of a list of datasets, by which a run that goes on is compared with what it was.
TEST(Agents, OfADatasetHaveKeysOfTheirOwn) {
  RunOptions options;
  const std::vector<std::string> overrides = {"datasets.a.agent.at_once=2"};
  (void)bind_config(
      parse_config("datasets: [{name: a, agent: {command: [sh, x], max_calls: 7}, epochs: 3}]\n",
                   "a.yaml", overrides),
      options);
  const auto keys = options_by_key(options);
  EXPECT_EQ(keys.at("datasets.a.agent.max_calls").integer, 7);
  EXPECT_EQ(keys.at("datasets.a.agent.at_once").integer, 2);
  EXPECT_EQ(keys.at("datasets.a.epochs").integer, 3);
  EXPECT_TRUE(keys.contains("datasets.a.command"));
  EXPECT_FALSE(keys.contains("datasets.agent.epochs"));
}

TEST(Agents, ThePlanSaysWhatTheyReach) {
  constexpr const char* kBegin =
      "agent, an agent: 'sh -c echo 1', at most 600 s and 64 answers an episode, ";
  EXPECT_EQ(describe_agents(datasets_of(read_agents({}))),
            std::vector{kBegin + place_of_program(Isolation::kProcess)});
  EXPECT_EQ(describe_agents(datasets_of(read_agents({"env.isolation=sandbox"}))),
            std::vector{std::string(kBegin) + "in a sandbox: of all networks the policy alone, and "
                                              "no files but those that it names"});
}

}  // namespace
}  // namespace tailrace
