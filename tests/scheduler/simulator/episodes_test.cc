#include "scheduler/simulator/episodes.h"

#include <set>

#include <gtest/gtest.h>

namespace tailrace::simulator {
namespace {

Episode three_turns() {
  return {.prompt_tokens = 50, .turns = {{10, 1, 5}, {10, 1, 5}, {10, 1, 0}}};
}

TEST(Episodes, AreCutAsARunDoesIt) {
  struct Case {
    int64_t room, tokens, context;
    size_t turns;
    bool cut;
  };
  const Case cases[] = {
      {100, 30, 90, 3, false}, {40, 30, 90, 3, false},  // all of it
      {39, 29, 89, 3, true},   {31, 21, 81, 3, true},   // one token of the last turn
      {30, 20, 80, 2, true},                            // the answer of the second leaves nothing
      {27, 20, 77, 2, true},   {7, 7, 57, 1, true},
  };
  for (const Case& c : cases) {
    Episode episode = three_turns();
    EXPECT_EQ(episode.cut(c.room), c.cut) << c.room;
    EXPECT_EQ(episode.truncated, c.cut) << c.room;
    EXPECT_EQ(episode.tokens(), c.tokens) << c.room;
    EXPECT_EQ(episode.context(), c.context) << c.room;
    EXPECT_EQ(episode.turns.size(), c.turns) << c.room;
  }
}

TEST(Episodes, ThatAreDrawnFitTheirRoom) {
  const DrawnEpisodes source({{.prompt_tokens = 100,
                               .length = {.median = 300, .sigma_response = 1, .limit = 500},
                               .turns = {.mean = 20},
                               .env_tokens = 40,
                               .room = 500}},
                             1);
  int64_t truncated = 0;
  for (int64_t prompt = 0; prompt < 100; ++prompt) {
    const Episode episode = source.draw(Lane::kTrain, {.prompt = prompt}, 1);
    EXPECT_LE(episode.context(), 600);
    EXPECT_GE(episode.tokens(), 1);
    truncated += episode.truncated;
  }
  EXPECT_EQ(truncated, 100) << "20 answers of 40 tokens never fit";
}

// Who ran into a deadline once would else do so in every attempt.
TEST(Episodes, SayTheSameInEveryAttemptAndTakeAnotherTime) {
  const DrawnEpisodes source({{.length = {.median = 300, .sigma_response = 1},
                               .turns = {.mean = 3},
                               .env = {Distribution::Kind::kLogNormal, 10, 1},
                               .verify = {Distribution::Kind::kLogNormal, 1, 1}}},
                             1);
  for (int64_t prompt = 0; prompt < 20; ++prompt) {
    const Episode first = source.draw(Lane::kTrain, {.prompt = prompt}, 1);
    const Episode second = source.draw(Lane::kTrain, {.prompt = prompt}, 2);
    EXPECT_EQ(first.tokens(), second.tokens());
    EXPECT_EQ(first.reward, second.reward);
    EXPECT_NE(first.turns[1].env_seconds, second.turns[1].env_seconds);
    EXPECT_NE(first.verify_seconds, second.verify_seconds);
    EXPECT_EQ(first.turns[1].env_seconds,
              source.draw(Lane::kTrain, {.prompt = prompt}, 1).turns[1].env_seconds);
  }
}

TEST(Episodes, ThatNoRecordNamesAreThoseOfTheirPromptOrAny) {
  const ReplayedEpisodes source(
      {{{.prompt = 1, .member = 0}, {.prompt_tokens = 1, .turns = {{10, 1, 0}}}},
       {{.prompt = 2, .member = 0}, {.prompt_tokens = 2, .turns = {{5, 1, 0}, {5, 3, 0}}}},
       {{.prompt = 2, .member = 1}, {.prompt_tokens = 2, .turns = {{5, 2, 0}, {5, 1, 0}}}}},
      1);
  EXPECT_EQ(source.draw(Lane::kTrain, {.prompt = 1, .member = 0}, 1).prompt_tokens, 1);
  for (int32_t member = 2; member < 20; ++member) {
    EXPECT_EQ(source.draw(Lane::kTrain, {.prompt = 1, .member = member}, 1).prompt_tokens, 1);
    EXPECT_EQ(source.draw(Lane::kTrain, {.prompt = 2, .member = member}, 1).prompt_tokens, 2);
  }
  std::set<int64_t> others;
  for (int64_t prompt = 3; prompt < 40; ++prompt)
    others.insert(source.draw(Lane::kTrain, {.prompt = prompt}, 1).prompt_tokens);
  EXPECT_EQ(others, (std::set<int64_t>{1, 2}));
}

}  // namespace
}  // namespace tailrace::simulator
