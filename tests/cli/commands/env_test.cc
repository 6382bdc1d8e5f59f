// `tailrace env`: what is said of environments, each of its checks with an environment that fails
// it, and a person at the keyboard.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "cli/env/apart.h"
#include "cli/env/check.h"
#include "cli/env/play.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "reward/verifiers/built_in.h"
#include "sandbox/builtin/built_in.h"
#include "tests/cli/run_binary.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/sandbox/plugin/plugins.h"

namespace tailrace {
namespace {

using nlohmann::json;
using sandbox::Observation;
using sandbox::StepResult;
using sandbox::Task;

// ---- small environments, each broken in one way

// Sound: counts to three, and rewards "yes".
class Counting : public sandbox::Environment {
 public:
  Counting() {
    info_.name = "counting";
    info_.max_turns = 3;
    info_.stop_strings = {"\n"};
  }
  const sandbox::EnvironmentInfo& info() const override { return info_; }
  Result<Observation> reset(const Task& task) override {
    seed_ = task.seed;
    turn_ = 0;
    running_ = true;
    return Observation{look()};
  }
  Result<StepResult> step(const std::string& action) override {
    if (!running_) return Failure{"no episode"};
    StepResult result;
    result.reward = action == "yes\n" ? 1 : 0;
    result.terminated = ++turn_ == 3;
    running_ = !result.terminated;
    result.observation.text = look();
    result.metrics = {{"success", result.reward}};
    return result;
  }
  void close() override { running_ = false; }
  std::string sample_action(Rng& rng) override { return rng.chance(0.5) ? "yes\n" : "no\n"; }

 protected:
  virtual std::string look() {
    return std::to_string(seed_ % 1000) + " " + std::to_string(turn_) + " >";
  }

  sandbox::EnvironmentInfo info_;
  uint64_t seed_ = 0;
  int turn_ = 0;
  bool running_ = false;
};

class Forgetful : public Counting {  // not deterministic: counts over episodes
  std::string look() override { return std::to_string(++looks_); }
  int looks_ = 0;
};

class Sharing : public Counting {  // alone it is deterministic, two at once are not
  Result<Observation> reset(const Task& task) override {
    shared = task.seed;
    return Counting::reset(task);
  }
  std::string look() override { return std::to_string(shared % 1000); }
  static inline uint64_t shared = 0;
};

class Leaking : public Counting {
  Result<Observation> reset(const Task& task) override {
    kept_.emplace_back(4096, 'x');
    return Counting::reset(task);
  }
  std::vector<std::string> kept_;
};

class Unable : public Counting {
  Result<Observation> reset(const Task&) override { return Failure{"no server is there"}; }
};

class Unrewarding : public Counting {
  Result<StepResult> step(const std::string& action) override {
    auto result = Counting::step(action);
    if (result) result.value().reward = 0;
    return result;
  }
};

class Unnumbered : public Counting {
  Result<StepResult> step(const std::string& action) override {
    auto result = Counting::step(action);
    if (result && turn_ == 2) result.value().reward = std::numeric_limits<double>::quiet_NaN();
    return result;
  }
};

class UnnumberedMetric : public Counting {
  Result<StepResult> step(const std::string& action) override {
    auto result = Counting::step(action);
    if (result) result.value().metrics = {{"ratio", std::numeric_limits<double>::infinity()}};
    return result;
  }
};

class Eager : public Counting {  // answers without an episode
  Result<StepResult> step(const std::string& action) override {
    running_ = true;
    return Counting::step(action);
  }
};

class Crashing : public Counting {
  Result<StepResult> step(const std::string& action) override {
    if (action.empty()) std::raise(SIGSEGV);
    return Counting::step(action);
  }
};

class Throwing : public Counting {
  Result<StepResult> step(const std::string& action) override {
    if (action.size() == 1024) throw std::runtime_error("no such word");
    return Counting::step(action);
  }
};

class Refusing : public Counting {
  Result<StepResult> step(const std::string& action) override {
    if (running_ && action != "yes\n" && action != "no\n") return Failure{"what?"};
    return Counting::step(action);
  }
};

class Hanging : public Counting {
  Result<StepResult> step(const std::string& action) override {
    if (action.empty()) std::this_thread::sleep_for(std::chrono::hours(1));
    return Counting::step(action);
  }
};

class GoingOn : public Counting {  // begins anew only after an end
  Result<Observation> reset(const Task& task) override {
    if (!running_) return Counting::reset(task);
    return Observation{look()};
  }
};

class Endless : public Counting {  // neither ends nor lets itself be cut
  Result<StepResult> step(const std::string& action) override {
    auto result = Counting::step(action);
    running_ = true;
    if (result) result.value().terminated = false;
    return result;
  }
  Result<StepResult> cut() override { return StepResult{}; }
};

class Cuttable : public Endless {
  Result<StepResult> cut() override { return Counting::cut(); }
};

class Talking : public Counting {
 public:
  explicit Talking(std::string words) : words_(std::move(words)) {}

 private:
  std::string look() override { return words_; }
  std::string words_;
};

class Misleading : public Counting {  // its demonstrator never says yes
  std::optional<std::string> demonstrate(Rng&) override { return "no\n"; }
};

class Showing : public Counting {
  std::optional<std::string> demonstrate(Rng&) override { return "yes\n"; }
};

class Judged : public Counting {
 public:
  Judged() { info_.verifier = "generous"; }

 private:
  Result<StepResult> step(const std::string& action) override {
    auto result = Counting::step(action);
    if (result && result.value().terminated) {
      result.value().verifier = "generous";
      result.value().evidence = "{\"response\": \"3\"}";
    }
    return result;
  }
  Result<StepResult> cut() override {
    StepResult result;
    result.truncated = true;
    result.verifier = "generous";
    result.evidence = "{\"response\": \"\"}";
    return result;
  }
};

class Generous : public Verifier {  // scores whatever comes
 public:
  explicit Generous(bool reads) : reads_(reads) {}
  Result<Score> score(const std::string& evidence, Time) const override {
    if (reads_ && (!json::accept(evidence) || !json::parse(evidence).is_object() ||
                   !json::parse(evidence).contains("response")))
      return Failure{"no response"};
    return Score{.reward = 1, .metrics = {}};
  }

 private:
  bool reads_;
};

// ---- running the checks

using Checks = std::map<std::string, EnvCheck>;

EnvCheckPlan small_plan(std::function<std::unique_ptr<sandbox::Environment>()> make) {
  static const VerifierRegistry verifiers = built_in_verifiers();
  return {.make = std::move(make),
          .verifiers = &verifiers,
          .episodes = 20,
          .memory_episodes = 4000,
          .limit = std::chrono::seconds(60)};
}

Checks by_name(const std::vector<EnvCheck>& checks) {
  Checks all;
  for (const EnvCheck& check : checks) all[check.name] = check;
  return all;
}

template <class E, class... Args>
Checks check_broken(Args... args) {
  return by_name(check_env(small_plan([=] { return std::make_unique<E>(args...); })));
}

// `name` has failed with these words, and nothing else but what `also` names.
void expect_failed(const Checks& checks, const std::string& name, const std::string& words,
                   const std::vector<std::string>& also = {}) {
  for (const auto& [other, check] : checks) {
    if (other == name) {
      EXPECT_EQ(check.outcome, CheckOutcome::kFailed) << name << ": " << check.seen;
      EXPECT_NE(check.seen.find(words), std::string::npos) << name << ": " << check.seen;
    } else if (std::ranges::find(also, other) == also.end()) {
      EXPECT_NE(check.outcome, CheckOutcome::kFailed) << other << ": " << check.seen;
    }
  }
  EXPECT_TRUE(checks.contains(name)) << name;
}

TEST(EnvCheck, ASoundEnvironmentPassesEachCheck) {
  const auto checks = check_broken<Counting>();
  EXPECT_EQ(checks.size(), 12u);
  for (const auto& [name, check] : checks)
    EXPECT_NE(check.outcome, CheckOutcome::kFailed) << name << ": " << check.seen;
  EXPECT_EQ(checks.at("demonstrator").outcome, CheckOutcome::kSkipped);
  EXPECT_EQ(checks.at("rewards").outcome, CheckOutcome::kSkipped);
  EXPECT_GT(checks.at("speed").seconds_per_step.value_or(0), 0);
}

TEST(EnvCheck, FindsAnEpisodeThatIsAnotherOneTheSecondTime) {
  expect_failed(check_broken<Forgetful>(), "deterministic", "played again: the first observation",
                {"reset", "invalid actions"});
}

TEST(EnvCheck, FindsTwoInstancesThatShareTheirState) {
  expect_failed(check_broken<Sharing>(), "deterministic", "while another instance plays");
}

TEST(EnvCheck, FindsAStepThatIsAnsweredWithoutAnEpisode) {
  expect_failed(check_broken<Eager>(), "order of calls", "before reset()");
}

TEST(EnvCheck, FindsACrashAndSaysWhatItWasAbout) {
  expect_failed(check_broken<Crashing>(), "invalid actions", "during step(\"\") in turn 1 of");
}

TEST(EnvCheck, FindsAnExceptionThatInvalidActionsMake) {
  expect_failed(check_broken<Throwing>(), "invalid actions", "no such word");
}

TEST(EnvCheck, FindsAnInvalidActionThatFailsTheEpisode) {
  auto checks = check_broken<Refusing>();
  expect_failed(checks, "invalid actions", "an empty action: step() fails in turn 1: what?");
}

TEST(EnvCheck, FindsAHang) {
  auto plan = small_plan([] { return std::make_unique<Hanging>(); });
  plan.limit = std::chrono::seconds(2);
  plan.memory_episodes = 100;
  expect_failed(by_name(check_env(plan)), "invalid actions", "does not come back");
}

TEST(EnvCheck, FindsAResetThatGoesOnWithTheOldEpisode) {
  expect_failed(check_broken<GoingOn>(), "reset", "in the middle",
                {"deterministic", "ends", "order of calls", "invalid actions"});
}

TEST(EnvCheck, FindsAnEpisodeThatCannotBeEnded) {
  auto checks = check_broken<Endless>();
  EXPECT_EQ(checks.at("ends").outcome, CheckOutcome::kFailed);
  EXPECT_NE(checks.at("ends").seen.find("cut() does not end"), std::string::npos)
      << checks.at("ends").seen;
}

// It says no end by itself, which is allowed.
TEST(EnvCheck, AnEpisodeThatIsCutHasEnded) {
  const auto checks = check_broken<Cuttable>();
  EXPECT_EQ(checks.at("ends").outcome, CheckOutcome::kOk) << checks.at("ends").seen;
  EXPECT_NE(checks.at("ends").seen.find("20 were cut"), std::string::npos);
}

TEST(EnvCheck, AFirstResetThatFailsIsSaidOnce) {
  const auto checks = check_broken<Unable>();
  expect_failed(checks, "made", "reset() fails: no server is there");
  EXPECT_EQ(checks.at("speed").outcome, CheckOutcome::kSkipped);
  EXPECT_EQ(checks.at("speed").seen, "as above");
}

TEST(EnvCheck, NotesThatNoRandomEpisodeHasAReward) {
  const std::string words = "no random episode had a reward other than 0";
  const auto flat = check_broken<Unrewarding>();
  EXPECT_EQ(flat.at("finite numbers").outcome, CheckOutcome::kOk);
  EXPECT_NE(flat.at("finite numbers").seen.find(words), std::string::npos);
  const auto other = check_broken<Counting>();
  EXPECT_EQ(other.at("finite numbers").seen.find(words), std::string::npos);
}

TEST(EnvCheck, FindsARewardAndAMetricThatAreNotFinite) {
  expect_failed(check_broken<Unnumbered>(), "finite numbers", "turn 2: the reward is nan");
  expect_failed(check_broken<UnnumberedMetric>(), "finite numbers", "the metric ratio is inf");
}

TEST(EnvCheck, FindsObservationsThatNoPolicyShouldRead) {
  expect_failed(check_broken<Talking>(std::string(70000, 'x')), "observations", "70000 bytes");
  expect_failed(check_broken<Talking>(std::string("a\xFFz")), "observations",
                "not UTF-8 at byte 1");
  for (const char* special : {"<|im_start|>", "<|endoftext|>", "<s>", "</s>"})
    expect_failed(check_broken<Talking>("so " + std::string(special)), "observations", special);
}

TEST(EnvCheck, FindsADemonstratorThatIsNoBetterThanChance) {
  expect_failed(check_broken<Misleading>(), "demonstrator", "succeeds in 0 of 20");
  const auto checks = check_broken<Showing>();
  EXPECT_EQ(checks.at("demonstrator").outcome, CheckOutcome::kOk) << checks.at("demonstrator").seen;
}

TEST(EnvCheck, FindsMemoryThatGrows) {
  const auto checks = check_broken<Leaking>();
  if (checks.at("memory").outcome == CheckOutcome::kSkipped) GTEST_SKIP() << "under a sanitizer";
  expect_failed(checks, "memory", "short episodes memory grew by");
}

TEST(EnvCheck, FindsARewardForGarbage) {
  auto plan = small_plan([] { return std::make_unique<Judged>(); });
  VerifierRegistry generous, careful;
  generous.add("generous", "", std::make_unique<Generous>(false));
  careful.add("generous", "", std::make_unique<Generous>(true));
  plan.verifiers = &generous;
  expect_failed(by_name(check_env(plan)), "rewards", "must be no verdict");
  plan.verifiers = &careful;
  const auto checks = by_name(check_env(plan));
  EXPECT_EQ(checks.at("rewards").outcome, CheckOutcome::kOk) << checks.at("rewards").seen;
  const VerifierRegistry none;
  plan.verifiers = &none;
  expect_failed(by_name(check_env(plan)), "rewards", "there is no reward 'generous'",
                {"demonstrator"});
}

TEST(EnvCheck, WithoutAnEnvironmentNothingElseIsChecked) {
  auto plan = small_plan(
      []() -> std::unique_ptr<sandbox::Environment> { throw std::runtime_error("no grid"); });
  const auto checks = check_env(plan);
  ASSERT_EQ(checks.size(), 12u);
  EXPECT_EQ(checks[0].name, "made");
  EXPECT_EQ(checks[0].outcome, CheckOutcome::kFailed);
  for (size_t i = 1; i < checks.size(); ++i) {
    EXPECT_EQ(checks[i].outcome, CheckOutcome::kSkipped) << checks[i].name;
    EXPECT_EQ(checks[i].seen, "as above");
  }
  EXPECT_NE(checks[0].seen.find("no grid"), std::string::npos);
  plan.make = []() -> std::unique_ptr<sandbox::Environment> { throw UserError("size is 99"); };
  EXPECT_THROW(check_env(plan), UserError);
}

TEST(RunApart, SaysHowTheProcessEnded) {
  const Time limit = std::chrono::seconds(60);
  EXPECT_EQ(run_apart([](const Note&) { return std::string(100000, 'x'); }, limit).value().size(),
            100000u);
  const auto left = run_apart(
      [](const Note& note) -> std::string {
        note("leaving");
        ::_exit(7);
      },
      limit);
  ASSERT_FALSE(left.ok());
  EXPECT_EQ(left.failure().message, "it ended the process during leaving with exit status 7");
}

// ---- the command

TEST(Env, ChecksBuiltInEnvironments) {
  for (const char* name : {"frozen_grid", "calculator", "countdown", "paced", "shopping"}) {
    const auto result = run_binary(std::string("env check ") + name + " --episodes 50");
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_EQ(result.out.find("FAILED"), std::string::npos) << result.out;
    EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 12) << result.out;
    EXPECT_EQ(result.out.find("ok      made"), 0u) << result.out;
  }
}

// None of them succeeds in a hundred turns; the demonstrator repeats more of the words.
TEST(Env, ADemonstratorMayBeBetterWithoutSuccess) {
  const auto result = run_binary("env check paced --episodes 20 --set turns=100 max_turns=100");
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_NE(result.out.find("random actions in 0; its mean reward is 0.5"), std::string::npos)
      << result.out;
}

// An end that it does not say in our word; each check but the first meets it.
TEST(Env, AMistakeOfAProgramIsSaidOnce) {
  const TemporaryDirectory folder;
  const std::string program = folder
                                  .write("env.py", R"(
import json, sys
answers = {"info": {"name": "x", "max_turns": 3}, "reset": {"text": "a"},
           "step": {"text": "b", "reward": 0, "done": True}}
for line in sys.stdin:
    print(json.dumps(answers.get(json.loads(line)["call"], {"unsupported": True})), flush=True)
)")
                                  .string();
  const auto result = run_binary("env check --episodes 5 --command \"python3 " + program + "\"");
  EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
  const std::string words = "did you mean 'terminated'?";
  const size_t first = result.out.find(words);
  EXPECT_NE(first, std::string::npos) << result.out;
  EXPECT_EQ(result.out.find(words, first + 1), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("FAILED  ends             as above (deterministic)\n"),
            std::string::npos)
      << result.out;
}

// Each check but the first meets it, each in a process of its own.
TEST(Env, ATracebackOfAProgramIsShownOnce) {
  const TemporaryDirectory folder;
  const std::string program = folder
                                  .write("env.py", R"(
import json, sys
def deep(n):
    if n == 0: raise ValueError("no map")
    deep(n - 1)
for line in sys.stdin:
    call = json.loads(line)["call"]
    if call == "step": deep(2)
    answers = {"info": {"name": "x", "max_turns": 3}, "reset": {"text": "a"}}
    print(json.dumps(answers.get(call, {"unsupported": True})), flush=True)
)")
                                  .string();
  const auto result = run_binary("env check --episodes 5 --command \"python3 " + program + "\"");
  EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
  const size_t first = result.err.find("Traceback (most recent call last)");
  EXPECT_NE(first, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("Traceback", first + 1), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("in deep", result.err.find("ValueError: no map")), std::string::npos)
      << result.err;
  EXPECT_NE(result.out.find("; its stderr ends: ValueError: no map (env.py:4)\n"),
            std::string::npos)
      << result.out;
}

TEST(Env, ChecksAsJson) {
  const auto result = run_binary("env check frozen_grid --episodes 20 --json --set max_turns=9");
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const json row = json::parse(result.out);
  EXPECT_EQ(row.at("environment"), "frozen_grid");
  EXPECT_EQ(row.at("good"), true);
  EXPECT_EQ(row.at("checks").size(), 12u);
  EXPECT_EQ(row.at("checks").at(0).at("seen"), "frozen_grid: 9 turns at most, scores itself");
}

// Every word that this demonstrator says is no action.
TEST(Env, AFailedCheckIsExitStatus1) {
  const auto result =
      run_binary("env check frozen_grid --episodes 20 --set demo_invalid=1 max_turns=5");
  EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
  EXPECT_NE(result.out.find("FAILED  demonstrator"), std::string::npos) << result.out;
}

// A file that was copied in part: who loads it dies of it, which a process of its own does.
TEST(Env, ALibraryThatCannotBeLoadedIsNamedByEachCommand) {
  const TemporaryDirectory folder;
  const std::string whole = read_file(sandbox::testing::plugin("maze")).value();
  const std::string half = folder.write("half.so", whole.substr(0, whole.size() / 4)).string();
  for (const char* command : {"list", "check", "play"}) {
    const auto result = run_binary(fmt::format("env {} {}", command, half));
    EXPECT_EQ(result.exit_code, 2) << command << result.out;
    EXPECT_NE(result.err.find("half.so: "), std::string::npos) << command << result.err;
  }
}

TEST(Env, ExplainsAWrongCall) {
  const auto error = [](const std::string& arguments) {
    const auto result = run_binary("env " + arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments << result.out;
    return result.err;
  };
  EXPECT_NE(error("chek frozen_grid").find("'chek'; did you mean 'check'?"), std::string::npos);
  EXPECT_NE(error("check").find("no environment is given. Give FILE.so"), std::string::npos);
  EXPECT_NE(error("check frozen_gird").find("did you mean 'frozen_grid'?"), std::string::npos);
  EXPECT_NE(error("check frozen_grid --set size").find("key=value"), std::string::npos);
  EXPECT_NE(error("check frozen_grid --set max_tuns=3").find("max_turns"), std::string::npos);
  EXPECT_NE(error("check ./none.so").find("not found"), std::string::npos);
  const TemporaryDirectory folder;
  const std::string program = folder.write("guess.py", "print('hello')\n").string();
  for (const char* command : {"check", "play", "list"})
    EXPECT_NE(error(fmt::format("{} {}", command, program))
                  .find(fmt::format("Try --command \"python3 {}\"", program)),
              std::string::npos)
        << command;
  const std::string other = folder.write("guess", "#!/bin/sh\n").string();
  EXPECT_NE(error("check " + other).find(fmt::format("Try --command \"{}\"", other)),
            std::string::npos);
  EXPECT_NE(error("check text --set verifier=text_rules").find("--dataset"), std::string::npos);
  EXPECT_NE(error("play text --set verifier=text_rules").find("--dataset"), std::string::npos);
}

TEST(Env, ListsTheBuiltInOnes) {
  const auto text = run_binary("env list");
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("frozen_grid: walk to the goal"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("    14 turns; needs no dataset; scores itself\n"), std::string::npos)
      << text.out;
  EXPECT_NE(text.out.find("    max_terms (integer, 2 to 6, default 3): of a question\n"),
            std::string::npos)
      << text.out;
  const auto rows = json::parse(run_binary("env list --json").out);
  ASSERT_EQ(rows.size(), sandbox::built_in_environments().list().size());
  for (const json& row : rows) {
    EXPECT_EQ(row.at("kind"), "environment");
    EXPECT_FALSE(row.at("settings").empty()) << row;
    EXPECT_TRUE(row.contains("max_turns") || row.contains("needs_settings")) << row;
  }
}

// ---- play

std::string play_with(const std::string& lines) {
  Counting environment;
  std::istringstream in(lines);
  std::ostringstream out;
  const auto played = play_by_hand(environment, {.seed = 7}, VerifierRegistry(), in, out);
  EXPECT_TRUE(played.ok());
  return out.str();
}

TEST(EnvPlay, SendsEachLineWithItsStopString) {
  EXPECT_EQ(play_with("yes\nno\nyes\n"),
            "7 0 >\n> 7 1 >\n> 7 2 >\n> 7 3 >\nended after 3 turns\nreward: 2\nsuccess: 1\n");
}

TEST(EnvPlay, SaysTheSameAsOneObject) {
  Counting environment;
  std::istringstream in("yes\nno\nyes\n");
  std::ostringstream out;
  ASSERT_TRUE(play_by_hand(environment, {.seed = 7}, VerifierRegistry(), in, out, PlayedAs::kJson));
  const json said = json::parse(out.str());
  EXPECT_EQ(said.at("observation"), "7 0 >");
  EXPECT_EQ(said.at("turns").size(), 3u);
  EXPECT_EQ(said.at("turns")[0].at("observation"), "7 1 >");
  EXPECT_EQ(said.at("end"), "ended");
  EXPECT_EQ(said.at("reward"), 2);
  EXPECT_EQ(said.at("metrics").at("success"), 1);
}

TEST(EnvPlay, TheEndOfTheInputCutsTheEpisode) {
  EXPECT_EQ(play_with("yes\n"), "7 0 >\n> 7 1 >\n> \ncut after 1 turn\nreward: 1\n");
  EXPECT_EQ(play_with(""), "7 0 >\n> \ncut after 0 turns\nreward: 0\n");
}

TEST(EnvPlay, PlaysABuiltInEnvironmentOverTheCommand) {
  const auto played = run_binary("env play frozen_grid --seed 3 --set max_turns=2", "jump\njump\n");
  EXPECT_EQ(played.exit_code, 0) << played.err;
  EXPECT_NE(played.out.find("what ? "), std::string::npos) << played.out;
  EXPECT_NE(played.out.find("reward: -0.1\nsuccess: 0\ninvalid_actions: 2\n"), std::string::npos)
      << played.out;
  EXPECT_EQ(run_binary("env play calculator", "").exit_code, 0);
}

}  // namespace
}  // namespace tailrace
