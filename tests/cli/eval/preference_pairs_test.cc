// Pairs and labels out of evaluated episodes.
#include "cli/eval/preference_pairs.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

EvaluatedEpisode episode(int64_t prompt, double reward, std::vector<TokenId> answer,
                         bool failed = false) {
  EvaluatedEpisode made{.prompt = prompt, .failed = failed, .reward = reward};
  made.success = reward >= 1;
  made.prompt_ids = {1, static_cast<TokenId>(10 + prompt)};
  made.answer_ids = std::move(answer);
  return made;
}

TEST(PreferencePairs, AreTheBestAndTheWorstAnswerOfAPrompt) {
  const std::vector<EvaluatedEpisode> episodes = {
      episode(0, 0.2, {5}), episode(0, 1, {6}),
      episode(0, 1, {7}),   episode(0, 0, {8}),
      episode(1, 1, {5}),   episode(1, 1, {6}),                   // no difference
      episode(2, 1, {5}),   episode(2, 0, {6}, /*failed=*/true),  // no score is no zero
      episode(3, 1, {5}),   episode(3, 0, {5}),                   // the same answer
      episode(4, 1, {}),    episode(4, 0, {5}),
      episode(4, 0, {6}),  // several turns
  };
  const std::vector<PreferenceRow> rows = preference_pairs(episodes);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].prompt, (std::vector<TokenId>{1, 10}));
  EXPECT_EQ(rows[0].chosen, std::vector<TokenId>{6});
  EXPECT_EQ(rows[0].rejected, std::vector<TokenId>{8});
}

TEST(PreferencePairs, AreWrittenAsTheTrainerReadsThem) {
  const std::vector<EvaluatedEpisode> episodes = {episode(0, 0, {5}), episode(0, 1, {6}),
                                                  episode(1, 1, {7}, /*failed=*/true)};
  const TemporaryDirectory folder;
  const std::string file = folder.path() / "pairs.jsonl";
  EXPECT_EQ(write_preferences(file, preference_pairs(episodes), episodes), "1 row of 2 prompts");
  EXPECT_EQ(read_preference_rows(file, 19, 64), preference_pairs(episodes));
  EXPECT_EQ(write_preferences(file, labelled_answers(episodes), episodes), "2 rows of 2 prompts");
  const std::vector<PreferenceRow> rows = read_preference_rows(file, 19, 64);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_FALSE(rows[0].desirable);
  EXPECT_TRUE(rows[1].desirable);
  EXPECT_THROW(write_preferences(file, {}, episodes), UserError);
  EXPECT_EQ(read_preference_rows(file, 19, 64).size(), 2u) << "nothing was lost";
}

}  // namespace
}  // namespace tailrace
