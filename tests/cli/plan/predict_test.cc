#include "cli/plan/predict.h"

#include <gtest/gtest.h>

#include "cli/plan/lengths.h"

namespace tailrace {
namespace {

// A step of the engine takes a second, whatever is in it.
simulator::Hardware seconds_of_one() {
  simulator::Hardware worker;
  worker.decode = {.step = 1, .sequence = 0, .context = 0};
  return worker;
}

PlannedEpisode episode(int64_t prompt, int32_t member, std::vector<simulator::Turn> turns) {
  return {.member = {.prompt = prompt, .member = member},
          .episode = {.prompt_tokens = 10, .turns = std::move(turns)}};
}

RunOptions two_groups_of_two() {
  RunOptions options;
  options.step = {.prompts_per_step = 2, .group_size = 2};
  options.rollout.engine.max_context_tokens = 64;
  options.rollout_processes.workers = 1;
  return options;
}

TEST(PlayTime, IsThatOfTheLongestEpisodeWhereAllFit) {
  const std::vector<PlannedEpisode> episodes = {episode(0, 0, {{.tokens = 3}}),
                                                episode(0, 1, {{.tokens = 7}})};
  const Played played = play_time(seconds_of_one(), 0, 8, episodes);
  EXPECT_DOUBLE_EQ(played.seconds, 7);
  EXPECT_DOUBLE_EQ(played.sequence_seconds, 10);
  EXPECT_DOUBLE_EQ(played.waiting, 0);
}

TEST(PlayTime, QueuesWhatDoesNotFit) {
  const std::vector<PlannedEpisode> episodes = {episode(0, 0, {{.tokens = 3}}),
                                                episode(0, 1, {{.tokens = 7}})};
  EXPECT_DOUBLE_EQ(play_time(seconds_of_one(), 0, 1, episodes).seconds, 10);
}

TEST(PlayTime, WaitsForEnvironmentsOnlyWhereNobodyDecodes) {
  const simulator::Turn slow{.tokens = 1, .env_seconds = 5};
  const std::vector<PlannedEpisode> alone = {episode(0, 0, {slow, {.tokens = 1}})};
  EXPECT_DOUBLE_EQ(play_time(seconds_of_one(), 0, 8, alone).seconds, 7);
  EXPECT_DOUBLE_EQ(play_time(seconds_of_one(), 0, 8, alone).waiting, 5);
  const std::vector<PlannedEpisode> both = {alone[0], episode(0, 1, {{.tokens = 6}})};
  EXPECT_DOUBLE_EQ(play_time(seconds_of_one(), 0, 8, both).seconds, 7);
  EXPECT_DOUBLE_EQ(play_time(seconds_of_one(), 0, 8, both).waiting, 0);
}

TEST(PlayTime, CountsThePromptOfAGroupOnce) {
  simulator::Hardware worker = seconds_of_one();
  worker.prefill_tokens_per_s = 9;  // the last token of a prompt is a row of the decode step
  const std::vector<PlannedEpisode> group = {episode(0, 0, {{.tokens = 1}}),
                                             episode(0, 1, {{.tokens = 1}})};
  const std::vector<PlannedEpisode> strangers = {group[0], episode(1, 0, {{.tokens = 1}})};
  EXPECT_DOUBLE_EQ(play_time(worker, 0, 8, group).seconds, 2);
  EXPECT_DOUBLE_EQ(play_time(worker, 0, 8, strangers).seconds, 3);
}

TEST(PredictStep, AddsItsPartsUpInSynchronousMode) {
  const RunOptions options = two_groups_of_two();
  MachineCosts costs;
  costs.worker = seconds_of_one();
  costs.train = {.token = 0.5, .update = 2, .publish = 3};
  costs.transfer.fetch = 4;
  costs.beside_seconds = 1;
  std::vector<PlannedEpisode> step = {
      episode(0, 0, {{.tokens = 5}}), episode(0, 1, {{.tokens = 5}}),
      episode(1, 0, {{.tokens = 2}}), episode(1, 1, {{.tokens = 2}})};
  step[2].trained = step[3].trained = false;
  const StepTime time = predict_step(options, costs, step);
  EXPECT_DOUBLE_EQ(time.generate, 5);
  EXPECT_DOUBLE_EQ(time.trained_tokens, 30);
  EXPECT_DOUBLE_EQ(time.train, 17);
  EXPECT_DOUBLE_EQ(time.step, 4 + 5 + 17 + 3 + 1);
  EXPECT_DOUBLE_EQ(time.idle_share, 1 - 14.0 / 20);
}

TEST(PredictStep, HidesTheShorterHalfWhereTheModeSamplesAStepAhead) {
  RunOptions options = two_groups_of_two();
  options.scheduler.mode.name = scheduler::ModeName::kAsync;
  options.scheduler.mode.ahead = 1;
  MachineCosts costs;
  costs.worker = seconds_of_one();
  costs.train = {.update = 20};
  const std::vector<PlannedEpisode> step = {episode(0, 0, {{.tokens = 5}})};
  EXPECT_DOUBLE_EQ(predict_step(options, costs, step).step, 20);
}

TEST(DealGroups, KeepsGroupsTogether) {
  const std::vector<PlannedEpisode> step = {episode(0, 0, {}), episode(0, 1, {}), episode(1, 0, {}),
                                            episode(2, 0, {})};
  const auto dealt = deal_groups(step, 2);
  ASSERT_EQ(dealt.size(), 2u);
  EXPECT_EQ(dealt[0].size(), 3u);
  EXPECT_EQ(dealt[1].size(), 1u);
}

TEST(StepsOf, CutsARecordIntoStepsOfTheConfig) {
  const RunOptions options = two_groups_of_two();
  PlannedEpisodes known;
  for (int64_t prompt = 0; prompt < 5; ++prompt)
    for (int32_t member = 0; member < 2; ++member)
      known.episodes.push_back(episode(prompt, member, {{.tokens = 1 + prompt}}));
  const auto steps = steps_of(options, known);
  ASSERT_EQ(steps.size(), 2u);  // the fifth group fills none
  EXPECT_EQ(steps[1].size(), 4u);
  EXPECT_EQ(steps[1][0].episode.turns[0].tokens, 3);
}

// A small record still makes a whole step, of distinct samples.
TEST(StepsOf, RepeatsWhatIsTooLittle) {
  const RunOptions options = two_groups_of_two();
  const PlannedEpisodes known{.episodes = {episode(0, 0, {{.tokens = 3}})}, .source = {}};
  const auto steps = steps_of(options, known);
  ASSERT_EQ(steps.size(), 1u);
  ASSERT_EQ(steps[0].size(), 4u);
  EXPECT_NE(steps[0][0].member, steps[0][1].member);
  EXPECT_NE(task_of(steps[0][0].member), task_of(steps[0][2].member));
}

TEST(LongestEpisodes, FillTheContext) {
  const RunOptions options = two_groups_of_two();
  const PlannedEpisodes longest = longest_episodes(options, 20);
  ASSERT_EQ(longest.episodes.size(), 4u);
  for (const PlannedEpisode& planned : longest.episodes) EXPECT_EQ(tokens_of(planned.episode), 64);
}

}  // namespace
}  // namespace tailrace
