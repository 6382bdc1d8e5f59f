#include "scheduler/simulator/episodes.h"

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
    const Episode episode = source.draw(Lane::kTrain, {.prompt = prompt});
    EXPECT_LE(episode.context(), 600);
    EXPECT_GE(episode.tokens(), 1);
    truncated += episode.truncated;
  }
  EXPECT_EQ(truncated, 100) << "20 answers of 40 tokens never fit";
}

TEST(Episodes, ThatNoRecordNamesAreDrawnOrTheLongest) {
  using Replayed = ReplayedEpisodes;
  const std::vector<Replayed::Record> records = {
      {{.prompt = 1, .member = 0}, {.prompt_tokens = 1, .turns = {{10, 1, 0}}}},
      {{.prompt = 2, .member = 0}, {.prompt_tokens = 2, .turns = {{5, 1, 0}, {5, 3, 0}}}},
      {{.prompt = 3, .member = 0}, {.prompt_tokens = 3, .turns = {{5, 2, 0}, {5, 1, 0}}}}};
  const Replayed drawn(records, 1), longest(records, 1, Replayed::Other::kLongest);
  for (const Replayed* source : {&drawn, &longest})
    EXPECT_EQ(source->draw(Lane::kTrain, {.prompt = 1, .member = 0}).prompt_tokens, 1);
  EXPECT_EQ(drawn.draw(Lane::kTrain, {.prompt = 1, .member = 7}).prompt_tokens, 1)
      << "its prompt's";
  EXPECT_EQ(longest.draw(Lane::kTrain, {.prompt = 1, .member = 7}).prompt_tokens, 2);
  EXPECT_EQ(longest.draw(Lane::kEval, {.prompt = 1, .member = 0}).prompt_tokens, 2)
      << "the record is of training";
}

}  // namespace
}  // namespace tailrace::simulator
