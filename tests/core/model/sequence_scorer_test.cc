#include "core/model/sequence_scorer.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/random.h"
#include "tests/core/model/model_harness.h"

namespace tailrace {
namespace {

// A model of random weights, and sequences that need several pieces.
constexpr int64_t kLongest = 2 * SequenceScorer::kPieceTokens + 40;

ModelConfig long_config() {
  ModelConfig config = awkward_config(/*tie_embeddings=*/false);
  config.max_positions = std::max(config.max_positions, kLongest);
  return config;
}

class SequenceScorerTest : public ::testing::Test {
 protected:
  SequenceScorerTest()
      : rig_(long_config(), /*num_threads=*/2, /*block_tokens=*/16, kLongest),
        scorer_(rig_.model, rig_.stream(), kLongest) {
    rig_.init(7);
  }

  static Tokens sequence(int64_t size) {
    Rng rng(3);
    Tokens ids(static_cast<size_t>(size));
    for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(67));
    return ids;
  }

  SequenceScores score(const ScoreRequest& request) {
    return scorer_.score(rig_.weights(), request);
  }

  // All rows of logits that a request hears, one after another.
  std::vector<float> logits_of(ScoreRequest request, SequenceScores* scores = nullptr) {
    std::vector<float> all;
    request.on_logits = [&](ConstMatrix rows) {
      EXPECT_LE(rows.rows, SequenceScorer::kLogitRows);
      for (int64_t r = 0; r < rows.rows; ++r)
        all.insert(all.end(), rows.row(r), rows.row(r) + rows.cols);
    };
    const SequenceScores got = score(request);
    if (scores != nullptr) *scores = got;
    return all;
  }

  Rig rig_;
  SequenceScorer scorer_;
};

TEST_F(SequenceScorerTest, GivesTheBitsOfOneWholePassHoweverLongTheSequenceIs) {
  const int64_t piece = SequenceScorer::kPieceTokens, rows = SequenceScorer::kLogitRows;
  for (const int64_t size :
       {int64_t{2}, rows, rows + 1, rows + 2, piece, piece + 1, piece + 2, kLongest}) {
    SCOPED_TRACE(size);
    const Tokens ids = sequence(size);
    rig_.forward_whole({ids}, Rig::Rows::kPredicting, /*keep=*/false);
    const Tokens targets(ids.begin() + 1, ids.end());
    EXPECT_EQ(score({.ids = ids}).logprobs, rig_.head_rows(targets).logprobs);
    EXPECT_EQ(score({.ids = ids, .inverse_temperature = 0.7F}).logprobs,
              rig_.head_rows(targets, 0.7F).logprobs);
    // With the logits on their way the head runs in other rows.
    EXPECT_EQ(score({.ids = ids, .top_k = 1}).logprobs, rig_.head_rows(targets).logprobs);
    rig_.forward_whole({ids}, Rig::Rows::kAll, /*keep=*/false);
    SequenceScores scores;
    EXPECT_EQ(logits_of({.ids = ids}, &scores), rig_.logits());
    EXPECT_EQ(scores.logprobs, score({.ids = ids}).logprobs);
    EXPECT_TRUE(scores.top.empty());
  }
}

TEST_F(SequenceScorerTest, GivesTheTopOfAFullSort) {
  const Tokens ids = sequence(SequenceScorer::kPieceTokens + 70);
  const auto vocab = static_cast<size_t>(rig_.model.config().num_ids());
  for (const float inverse : {1.0F, 1.7F})
    for (const int64_t k : {int64_t{1}, int64_t{5}, int64_t{67}, int64_t{1000}}) {
      SCOPED_TRACE(k);
      const ScoreRequest request{.ids = ids, .top_k = k, .inverse_temperature = inverse};
      SequenceScores scores;
      const std::vector<float> logits = logits_of(request, &scores);
      ASSERT_EQ(scores.top.size(), ids.size() - 1);
      for (size_t i = 0; i < scores.top.size(); ++i) {
        const float* row = logits.data() + i * vocab;
        std::vector<int32_t> order(vocab);
        std::iota(order.begin(), order.end(), 0);
        std::ranges::stable_sort(
            order, [&](int32_t a, int32_t b) { return row[a] * inverse > row[b] * inverse; });
        const auto& top = scores.top[i];
        ASSERT_EQ(top.size(), std::min(static_cast<size_t>(k), vocab));
        for (size_t j = 0; j < top.size(); ++j) {
          ASSERT_EQ(top[j].id, order[j]) << i << ", " << j;
          // The target has the very bits of its own log-probability.
          if (top[j].id == ids[i + 1]) {
            ASSERT_EQ(top[j].logprob, scores.logprobs[i]);
          }
        }
      }
    }
}

// Each token of the top as a target: the head then gives the same bits.
TEST_F(SequenceScorerTest, ATopTokenHasTheBitsThatItHasAsATarget) {
  const Tokens ids = sequence(40);
  const SequenceScores scores = score({.ids = ids, .top_k = 3, .inverse_temperature = 0.6F});
  rig_.forward_whole({ids}, Rig::Rows::kPredicting, /*keep=*/false);
  for (size_t j = 0; j < 3; ++j) {
    Tokens targets;
    std::vector<float> got;
    for (const auto& top : scores.top) {
      targets.push_back(top[j].id);
      got.push_back(top[j].logprob);
    }
    EXPECT_EQ(got, rig_.head_rows(targets, 0.6F).logprobs);
  }
}

TEST_F(SequenceScorerTest, EqualLogitsComeByTheirIds) {
  // Without any weight in the head all logits are 0.
  std::ranges::fill(rig_.parameters.values("lm_head.weight"), 0.0F);
  rig_.repack();
  for (const auto& top : score({.ids = sequence(70), .top_k = 4}).top) {
    std::vector<int32_t> order;
    for (const TopToken& token : top) order.push_back(token.id);
    EXPECT_EQ(order, (std::vector<int32_t>{0, 1, 2, 3}));
  }
}

TEST_F(SequenceScorerTest, FirstOnlyCuts) {
  const int64_t piece = SequenceScorer::kPieceTokens;
  const Tokens ids = sequence(piece + 100);
  const auto vocab = static_cast<size_t>(rig_.model.config().num_ids());
  const SequenceScores whole = score({.ids = ids, .top_k = 2});
  const std::vector<float> logits = logits_of({.ids = ids});
  for (const int64_t first : {int64_t{1}, int64_t{2}, int64_t{65}, piece, piece + 1, piece + 2,
                              piece + 99, piece + 100}) {
    SCOPED_TRACE(first);
    const auto cut = first - 1;
    const SequenceScores part = score({.ids = ids, .first = first, .top_k = 2});
    EXPECT_EQ(part.logprobs,
              std::vector<float>(whole.logprobs.begin() + cut, whole.logprobs.end()));
    EXPECT_TRUE(
        std::ranges::equal(part.top, std::span(whole.top).subspan(static_cast<size_t>(cut))));
    const auto offset = static_cast<std::ptrdiff_t>(static_cast<size_t>(cut) * vocab);
    EXPECT_EQ(logits_of({.ids = ids, .first = first}),
              std::vector<float>(logits.begin() + offset, logits.end()));
  }
}

TEST_F(SequenceScorerTest, NothingIsPredictedBehindOneToken) {
  EXPECT_TRUE(score({.ids = {}}).logprobs.empty());
  const Tokens one = {5};
  EXPECT_TRUE(score({.ids = one, .top_k = 3}).top.empty());
  EXPECT_EQ(logits_of({.ids = one}).size(), 67U);
}

// A scorer that a short sequence fits exactly; its weights are others in the next call.
TEST_F(SequenceScorerTest, TakesTheWeightsOfEachCall) {
  SequenceScorer scorer(rig_.model, rig_.stream(), 9);
  const Tokens ids = sequence(9);
  const SequenceScores before = scorer.score(rig_.weights(), {.ids = ids});
  EXPECT_EQ(before.logprobs, score({.ids = ids}).logprobs);
  rig_.init(8);
  const SequenceScores after = scorer.score(rig_.weights(), {.ids = ids});
  EXPECT_NE(before.logprobs, after.logprobs);
  EXPECT_EQ(after.logprobs, score({.ids = ids}).logprobs);
}

}  // namespace
}  // namespace tailrace
