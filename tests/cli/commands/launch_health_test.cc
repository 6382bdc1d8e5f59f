// Broken recipes: each is configs/quickstart.yaml made small with one thing wrong, and within three
// steps the launch names what. The recipe without a fault, and each shipped config that a machine
// without a GPU runs, from its start to its end, are told nothing.
#include <fstream>

#include <gmock/gmock.h>

#include "cli/view/health.h"
#include "tests/cli/commands/launch_fixture.h"

namespace tailrace {
namespace {

using testing::HasSubstr;
using testing::Not;

struct BrokenRecipe {
  const char* kind;  // the finding that must be said
  std::vector<std::string> overrides;
  const char* reward = nullptr;  // an answer of reward.command (Python); null: the environment's
  bool ends_well = true;
};

// A program that answers each episode with one object. ANSWER is a Python expression.
constexpr const char* kScorer = R"(
import json, sys
for count, line in enumerate(sys.stdin):
    episode = json.loads(line)
    print(json.dumps({"id": episode["id"], **(ANSWER)}), flush=True)
)";

const BrokenRecipe kBrokenRecipes[] = {
    {"no_reward", {}, R"({"reward": 0})"},
    {"constant_reward", {}, R"({"reward": 0.7})"},
    {"solved", {}, R"({"reward": 1, "metrics": {"success": 1}})"},
    {"failures",
     {"scheduler.retries_verifier_failed=9", "scheduler.quarantine_seconds=0.001"},
     R"({"error": "down"} if count % 3 == 2 else {"reward": episode["environment_reward"]})"},
    // Weights that grow by a factor of a million an update; the engine refuses them a moment later.
    {"updates_skipped",
     {"optim.lr=1000", "optim.weight_decay=1000", "optim.warmup_updates=0",
      "train.minibatches_per_step=8"},
     nullptr,
     false},
    {"no_signal", {"rollout.sampling.temperature=0.02"}},
    {"truncated", {"rollout.max_action_tokens=1"}},
    {"actions_cut", {"rollout.max_action_tokens=1"}},
    {"too_hot", {"rollout.sampling.temperature=5"}},
    {"rate_zero", {"optim.lr=0"}},
    {"rate_too_high", {"optim.lr=0.2"}},
    {"invalid_actions", {"sft.demonstrations=0"}},
    // A judge that rewards by chance gives a signal even where all samples are the same.
    {"entropy_gone", {"rollout.sampling.temperature=0.02"}, R"({"reward": count % 2})"},
    {"entropy_rises",
     {"algo.entropy_coef=100", "optim.lr=0.003", "optim.warmup_updates=0",
      "optim.schedule=constant"}},
    {"gradient_cut", {"optim.max_grad_norm=1e-4"}},
    {"mismatch", {"rollout.sampling.top_k=3"}},
    {"kl_dominates", {"algo.kl.coef=1000"}},
    {"rejected",
     {"algo.correction.kind=mask", "algo.correction.low=0", "algo.correction.cap=1e-6",
      "algo.correction.rejected=leave"}},
    {"critic_diverges", {"algo.name=ppo", "critic.lr=1000", "critic.max_grad_norm=0"}},
    {"clip_too_tight", {"algo.clip_low=1e-4", "algo.clip_high=1e-4"}},
};

void PrintTo(const BrokenRecipe& recipe, std::ostream* out) { *out << recipe.kind; }

class LaunchHealth : public LaunchTest {
 protected:
  // Three steps of a shipped config.
  void start_three_steps(const std::string& config, std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), {"run.steps=3", "eval.prompts=0"});
    start_shipped(config, overrides);
  }
  void start_shipped(const std::string& config, const std::vector<std::string>& overrides = {}) {
    std::vector<std::string> arguments = {TAILRACE_SOURCE_DIR "/configs/" + config + ".yaml",
                                          "--run-dir", paths().root.string(), "--in-process"};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    start(command(arguments));
  }
  void start_small_quickstart(std::vector<std::string> overrides) {
    overrides.emplace_back("rollout.prompts_per_step=8");
    if (std::ranges::count(overrides, "sft.demonstrations=0") == 0)
      overrides.emplace_back("sft.demonstrations=1500");
    start_three_steps("quickstart", overrides);
  }
  // But that a task is solved, at the end of a run.
  void expect_no_finding() const {
    for (const Finding& finding : health_of(paths()).findings())
      EXPECT_EQ(finding.severity, Severity::kGood) << finding.line();
    EXPECT_THAT(report(), HasSubstr("<h2>Health</h2>"));
    EXPECT_THAT(run_binary("status " + paths().root.string()).out, HasSubstr("health    signal "));
  }
  std::string report() const {
    const auto page = read_file(paths().report());
    return page ? page.value() : page.failure().message;
  }
};

TEST_F(LaunchHealth, TheRecipeWithoutAFaultIsToldNothing) {
  start_small_quickstart({});
  expect_done();
  expect_no_finding();
}

class LaunchHealthOfShipped : public LaunchHealth,
                              public testing::WithParamInterface<const char*> {};

// Rules look at several steps, and a task that is nearly solved looks otherwise than one that
// begins.
TEST_P(LaunchHealthOfShipped, IsToldNothingToItsEnd) {
  const std::string config = GetParam();
  const auto fits =
      run_binary(fmt::format("launch {}/configs/{}.yaml --dry-run", TAILRACE_SOURCE_DIR, config));
  if (config == "agent" && run_program("python3", "-c 'import openai'").exit_code != 0)
    GTEST_SKIP() << "the agent needs python3 with openai";
  if (config == "programs" && fits.exit_code != 0)
    GTEST_SKIP() << "this machine isolates no programs: " << fits.err;
  ASSERT_EQ(fits.exit_code, 0) << fits.err;
  start_shipped(config);
  expect_done();
  expect_no_finding();
  const std::string line = health_of(paths()).line();
  EXPECT_THAT(line, Not(HasSubstr("wrong")));
  EXPECT_THAT(line, HasSubstr("signal "));
}

// Those that need no data and no model from elsewhere.
INSTANTIATE_TEST_SUITE_P(Configs, LaunchHealthOfShipped,
                         testing::Values("quickstart", "calculator", "mixed", "async", "agent",
                                         "tool_calls", "tinystories", "programs"),
                         [](const auto& config) { return std::string(config.param); });

// Of a step with one update, which no pass of it sees.
TEST_F(LaunchHealth, ARateThatWreckedARunIsWhatItIsTold) {
  start_small_quickstart({"optim.lr=1", "train.minibatches_per_step=1", "optim.warmup_updates=0"});
  expect_done();
  EXPECT_THAT(output(), HasSubstr(": rate_too_high since step 1: "));
  EXPECT_THAT(output(), HasSubstr("(policy/kl_step)"));
  EXPECT_THAT(output(), HasSubstr(": reward_fell since step 2: "));
  EXPECT_THAT(output(), Not(HasSubstr("Raise rollout.")));
  const std::string status = run_binary("status " + paths().root.string()).out;
  EXPECT_THAT(status, HasSubstr(": rate_too_high since step 1: "));
  EXPECT_THAT(status, Not(HasSubstr("unknown ok")));
}

class LaunchHealthOfBroken : public LaunchHealth,
                             public testing::WithParamInterface<BrokenRecipe> {};

TEST_P(LaunchHealthOfBroken, IsNamedWithinThreeSteps) {
  const BrokenRecipe& recipe = GetParam();
  std::vector<std::string> overrides = recipe.overrides;
  if (recipe.reward != nullptr) {
    std::string program = kScorer;
    program.replace(program.find("ANSWER"), 6, recipe.reward);
    std::ofstream(folder_ / "score.py") << program;
    overrides.push_back(
        fmt::format("reward.command=[python3, {}]", (folder_ / "score.py").string()));
  }
  start_small_quickstart(overrides);
  if (recipe.ends_well) {
    expect_done();
  } else {
    EXPECT_FALSE(finish().ok());
  }
  // In the terminal, at the top of the report and in `status`.
  const std::string said = fmt::format(": {} since step ", recipe.kind);
  EXPECT_THAT(output(), HasSubstr(said));
  EXPECT_THAT(report(), HasSubstr(fmt::format(">{}</span>", recipe.kind)));
  // Nothing that comes of a reward without a signal is the last word.
  if (std::ranges::count(std::vector<std::string>{"no_reward", "constant_reward", "solved"},
                         recipe.kind) > 0) {
    EXPECT_THAT(output().substr(output().rfind(", run: ")), HasSubstr(said));
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, LaunchHealthOfBroken, testing::ValuesIn(kBrokenRecipes),
                         [](const auto& recipe) { return std::string(recipe.param.kind); });

}  // namespace
}  // namespace tailrace
