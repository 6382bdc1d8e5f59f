// Agents are tried before a run, as processes, against a policy that does not answer.
#include "cli/inputs/agent_trial.h"

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cli/inputs/agents.h"
#include "cli/inputs/load.h"
#include "cli/inputs/registries.h"
#include "cli/inputs/resolved_run.h"
#include "core/base/error.h"
#include "core/config/yaml_config.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

constexpr const char* kConfig =
    "run: {steps: 4}\n"
    "model: {create: {hidden_size: 64, layers: 2, heads: 4}}\n"
    "env: {agent: {command: [python3, agent.py], vocabulary: [a]}}\n";

constexpr const char* kAsks = R"(
import json, os, sys, urllib.request
task = json.loads(sys.stdin.readline())
CHECK
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", b"{}")
urllib.request.urlopen(request, timeout=60)
)";

class AgentTrial : public testing::Test {
 protected:
  // What is said of the program; notes behind "note: ".
  std::string tried(const std::string& text, const std::vector<std::string>& more = {},
                    Time patience = 20s) {
    const auto file = folder_.path() / "agent.py";
    std::ofstream(file) << text;
    std::vector<std::string> overrides = {"env.agent.command=[python3, " + file.string() + "]"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    RunOptions options;
    (void)bind_config(parse_config(kConfig, "a.yaml", overrides), options);
    Registries registries = built_in_registries();
    add_agents(options, datasets_of(options), registries.environments);
    try {
      std::string notes;
      for (const std::string& note :
           try_agents(resolve(options), registries.environments, patience))
        notes += "note: " + note;
      return notes;
    } catch (const UserError& error) {
      return error.what();
    }
  }
  static std::string asks(const std::string& check) {
    std::string text = kAsks;
    return text.replace(text.find("CHECK"), 5, check);
  }

  TemporaryDirectory folder_;
};

TEST_F(AgentTrial, OneThatAsksIsGood) {
  EXPECT_EQ(tried(asks("assert task['row'] is None and not task['evaluates']")), "");
  folder_.write("rows.jsonl", "{\"prompt\": \"hello\", \"a\": 7}\n");
  EXPECT_EQ(tried(asks("assert task['row']['a'] == 7, task"),
                  {"env.dataset=" + (folder_.path() / "rows.jsonl").string()}),
            "");
}

TEST_F(AgentTrial, OneThatCrashesIsToldInItsOwnWords) {
  const std::string said = tried("import no_such_package\n");
  EXPECT_EQ(said.find("env.agent.command is 'python3 agent.py', which in a first episode, before "
                      "the run, fails before its first call to the policy: its run has ended with "
                      "status 1; it says: "),
            0)
      << said;
  EXPECT_NE(said.find("ModuleNotFoundError: No module named 'no_such_package'"), said.npos) << said;
  EXPECT_NE(tried(asks("task['row']['question']")).find("TypeError"), std::string::npos);
  EXPECT_NE(tried(asks("pass"), {"env.agent.setup=[sh, -c, 'echo no disk >&2; exit 3']"})
                .find("its setup has ended with status 3; it says: no disk"),
            std::string::npos);
}

TEST_F(AgentTrial, OneThatNeverAsksHasNoTokens) {
  EXPECT_NE(tried("print(1)\n").find("has ended without a call to the policy"), std::string::npos);
}

TEST_F(AgentTrial, OneThatThinksIsBelieved) {
  EXPECT_EQ(tried("import time; time.sleep(100)\n", {}, 300ms),
            "note: env.agent.command is 'python3 agent.py', which has not asked the policy within "
            "0.3 s of a first episode");
}

TEST_F(AgentTrial, WhereOthersPlayNothingIsTried) {
  EXPECT_EQ(tried("exit(1)\n", {"rollout.pools=[{name: a, cluster: elsewhere}]"}), "");
}

}  // namespace
}  // namespace tailrace
