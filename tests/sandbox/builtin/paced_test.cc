#include "sandbox/builtin/paced.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/error.h"
#include "sandbox/plugin/library.h"
#include "sandbox/settings_schema.h"
#include "tests/sandbox/environment_contract.h"

namespace tailrace::sandbox {
namespace {

using std::chrono::milliseconds;

struct HandClock final : Clock {
  Time time{};
  Time now() const override { return time; }
};

std::string word_of(const std::string& observation) {
  return observation.substr(0, observation.find(' ')) + "\n";
}

std::unique_ptr<Env> paced_by(const Clock& clock, const EnvironmentSettings& settings) {
  for (const Declaration& declared : built_in_environments().list()) {
    if (declared.name != "paced") continue;
    const EnvironmentSettings whole =
        complete_settings(declared.settings, settings, "environment paced", "env.settings");
    const PluginValues values(whole);
    return make_paced(Settings(values.data(), values.size()), clock);
  }
  return nullptr;
}

// Right on every turn; the time that it took.
Time play_right(Env& environment, HandClock& clock, uint64_t seed, int64_t* turns, double* reward) {
  const Time begin = clock.time;
  std::string text = environment.reset({.seed = seed}).text;
  *turns = 0;
  *reward = 0;
  for (;;) {
    const Step step = environment.step(word_of(text));
    if (step.is_pending) {
      clock.time += milliseconds(1);
      continue;
    }
    ++*turns;
    *reward += step.reward;
    if (step.ending == TR_TERMINATED) return clock.time - begin;
    text = step.text;
  }
}

TEST(Paced, KeepsTheContract) {
  check_environment({.make = [] { return built_in("paced", {{"turns_sigma", "1"}}); }});
}

TEST(Paced, LengthFollowsFromTheSeedAloneAndHasALongTail) {
  HandClock clock;
  auto environment = paced_by(
      clock, {{"turns", "8"}, {"turns_sigma", "1"}, {"max_turns", "100"}, {"latency_ms", "5"}});
  std::vector<int64_t> lengths;
  for (uint64_t seed = 0; seed < 1001; ++seed) {
    int64_t turns = 0;
    double reward = 0;
    play_right(*environment, clock, seed, &turns, &reward);
    EXPECT_NEAR(reward, 1, 1e-9);
    lengths.push_back(turns);
    if (seed % 100 != 0) continue;
    // Whatever is answered.
    const Episode wrong = play(*built_in("paced", {{"turns_sigma", "1"}, {"max_turns", "100"}}),
                               {.seed = seed}, [](int64_t) { return "?\n"; });
    EXPECT_EQ(wrong.turns, turns);
    EXPECT_EQ(wrong.reward, 0);
  }
  std::sort(lengths.begin(), lengths.end());
  EXPECT_NEAR(static_cast<double>(lengths[500]), 8, 1);
  // One in ten is beyond exp(1.28) = 3.6 medians.
  EXPECT_NEAR(static_cast<double>(lengths[900]), 28.8, 5);
  EXPECT_LE(lengths.back(), 100);
}

// As measured of a 14B model on mathematics (RollPacker): the longest is 31 medians, some prompts
// have members that never come to an end, and siblings are alike but not equal.
TEST(Paced, MembersMayDifferInLength) {
  const EnvironmentSettings settings = {
      {"turns", "6"},       {"turns_sigma", "0.65"},     {"member_turns_sigma", "1.13"},
      {"max_turns", "186"}, {"endless_prompts", "0.18"}, {"endless_members", "0.08"}};
  const auto words = std::vector<std::string>{"red\n", "blue\n"};
  std::vector<int64_t> lengths;
  int64_t endless = 0;
  double within = 0, all = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    std::vector<double> logs;
    for (uint64_t member = 0; member < 8; ++member) {
      const auto act = [&](int64_t turn) { return words.at((member >> (turn % 3)) & 1); };
      const Episode episode = play(*built_in("paced", settings), {.seed = seed}, act);
      EXPECT_EQ(play(*built_in("paced", settings), {.seed = seed}, act).turns, episode.turns);
      lengths.push_back(episode.turns);
      endless += episode.turns == 186;
      logs.push_back(std::log(static_cast<double>(episode.turns)));
    }
    const double mean = std::accumulate(logs.begin(), logs.end(), 0.0) / 8;
    for (const double x : logs) within += (x - mean) * (x - mean) / 7 / 400;
  }
  const double mean = std::accumulate(lengths.begin(), lengths.end(), 0.0,
                                      [](double sum, int64_t n) { return sum + std::log(n); }) /
                      3200;
  for (const int64_t n : lengths)
    all += std::pow(std::log(static_cast<double>(n)) - mean, 2) / 3200;
  std::sort(lengths.begin(), lengths.end());
  EXPECT_GE(lengths.front(), 4);
  EXPECT_NEAR(static_cast<double>(lengths[1600]), 6, 1);
  EXPECT_NEAR(static_cast<double>(endless) / 3200, 0.18 * 0.08, 0.006);
  EXPECT_GT(within, 0.4 * all);
  EXPECT_LT(within, 0.9 * all);
}

TEST(Paced, WithoutSigmaAllAreEqual) {
  HandClock clock;
  auto environment = paced_by(clock, {{"turns", "5"}, {"latency_ms", "20"}});
  for (uint64_t seed = 0; seed < 20; ++seed) {
    int64_t turns = 0;
    double reward = 0;
    // Five steps and the reset, each of 20 ms, within the millisecond of the clock.
    EXPECT_NEAR(
        std::chrono::duration<double>(play_right(*environment, clock, seed, &turns, &reward))
            .count(),
        0.120, 0.006);
    EXPECT_EQ(turns, 5);
  }
}

TEST(Paced, AnAnswerIsPendingUntilItsTimeHasPassed) {
  HandClock clock;
  const EnvironmentSettings settings = {
      {"latency_ms", "50"}, {"latency_sigma", "2"}, {"max_latency_ms", "400"}};
  auto environment = paced_by(clock, settings);
  std::vector<Time> times;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    int64_t turns = 0;
    double reward = 0;
    times.push_back(play_right(*environment, clock, seed, &turns, &reward));
    // The same task takes the same time: nine answers of 400 ms at most.
    EXPECT_EQ(play_right(*environment, clock, seed, &turns, &reward), times.back());
    EXPECT_LE(times.back(), milliseconds(9 * 401));
  }
  EXPECT_GT(*std::max_element(times.begin(), times.end()),
            *std::min_element(times.begin(), times.end()) * 3 / 2);
}

TEST(Paced, AsTheEngineHasItAnAnswerIsPendingToo) {
  const auto environment = built_in("paced", {{"latency_ms", "20"}});
  const std::string action = word_of(environment->reset({.seed = 1}).value().text);
  EXPECT_TRUE(environment->step(action).value().pending);
  Result<StepResult> step = environment->step(action);
  while (step.value().pending) step = environment->step(action);
  EXPECT_EQ(step.value().metrics[1].second, 0);
}

TEST(Paced, MembersThatActDifferentlyTakeDifferentTimes) {
  HandClock clock;
  auto environment = paced_by(clock, {{"latency_ms", "50"}, {"latency_sigma", "1"}});
  const auto second_step_of = [&](const std::string& first_action) {
    environment->reset({.seed = 3});
    while (environment->step(first_action).is_pending) clock.time += milliseconds(1);
    const Time begin = clock.time;
    while (environment->step("red\n").is_pending) clock.time += milliseconds(1);
    return clock.time - begin;
  };
  EXPECT_EQ(second_step_of("red\n"), second_step_of("red\n"));
  EXPECT_NE(second_step_of("red\n"), second_step_of("blue\n"));
}

TEST(Paced, ADemonstrationIsNotWaitedFor) {
  HandClock clock;
  auto environment = paced_by(clock, {{"latency_ms", "50"}, {"demo_right", "1"}});
  Random random(1);
  for (uint64_t seed = 0; seed < 100; ++seed) {
    environment->reset({.seed = seed});
    Step step;
    do step = environment->step(environment->demonstrate(random));
    while (step.ending == TR_RUNNING && !step.is_pending);
    EXPECT_EQ(step.ending, TR_TERMINATED);
    EXPECT_EQ(step.reward, 1);
  }
}

TEST(Paced, AnythingButTheWordIsWrong) {
  auto environment = built_in("paced", {{"turns", "1"}});
  const std::string text = environment->reset({.seed = 3}).value().text;
  const std::string right = word_of(text);
  const std::string bare = right.substr(0, right.size() - 1);
  for (const std::string& action :
       std::vector<std::string>{bare, "", "\n", "?\n", bare + " " + right, right + " "}) {
    environment->reset({.seed = 3}).value();
    const StepResult result = environment->step(action).value();
    EXPECT_EQ(result.reward, 0) << action;
    EXPECT_EQ(result.metrics[1].second, 1) << action;
  }
  environment->reset({.seed = 3}).value();
  EXPECT_EQ(environment->step(" " + right).value().reward, 1);
}

// One that is cut before its length is drawn has done nothing yet.
TEST(Paced, OnlyAnEpisodeThatEndedIsASuccess) {
  auto environment = built_in("paced", {{"member_turns_sigma", "1"}});
  environment->reset({.seed = 3}).value();
  EXPECT_EQ(environment->step("?\n").value().metrics[0].second, 0);
}

TEST(Paced, RefusesSettingsThatContradictEachOther) {
  const auto error_of = [](const EnvironmentSettings& settings) -> std::string {
    try {
      built_in("paced", settings);
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(error_of({{"turns", "9"}, {"max_turns", "4"}}),
            "environment paced: turns is 9, above max_turns 4");
  EXPECT_EQ(error_of({{"turns", "1"}, {"max_turns", "3"}, {"member_turns_sigma", "1"}}),
            "environment paced: max_turns is 3; where members differ an episode has at least 4 "
            "turns");
  EXPECT_EQ(error_of({{"latency_ms", "9"}, {"max_latency_ms", "4"}}),
            "environment paced: latency_ms is 9, above max_latency_ms 4");
  EXPECT_EQ(error_of({{"endless_members", "0.2"}}),
            "environment paced: endless_members is 0.2 without endless_prompts, the share of the "
            "prompts that have such members: set that as well, as in 0.1");
}

}  // namespace
}  // namespace tailrace::sandbox
