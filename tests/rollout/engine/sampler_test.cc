#include "rollout/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/random.h"

namespace tailrace {
namespace {

struct Scratch {
  explicit Scratch(size_t vocab) : weights(vocab), ids(vocab) {}
  operator SamplerScratch() { return {weights, ids}; }  // NOLINT
  std::vector<float> weights;
  std::vector<int32_t> ids;
};

SamplingParams sampling(double temperature, int64_t top_k = -1, double top_p = 1,
                        double min_p = 0) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.min_p = min_p;
  return params;
}

std::vector<float> random_logits(int64_t vocab, uint64_t seed, double spread) {
  Rng rng(seed);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& logit : logits) logit = static_cast<float>(rng.normal() * spread);
  return logits;
}

TEST(Sampler, KeepsTheTokensOfTheGoldenCases) {
  std::ifstream file(std::filesystem::path(TAILRACE_SOURCE_DIR) / "tests/data/golden/rl_math.json");
  auto cases = nlohmann::json::parse(file).at("sampling_filters").at("cases");
  ASSERT_GT(cases.size(), 5u);
  for (const auto& golden : cases) {
    std::vector<float> logits = golden.at("logits");
    SamplingParams params;
    params.temperature = golden.at("temperature");
    params.top_k = golden.at("top_k");
    params.top_p = golden.at("top_p");
    params.min_p = golden.at("min_p");
    Scratch scratch(logits.size());
    int64_t kept = keep_tokens(logits, params, scratch);
    std::vector<int32_t> ids(scratch.ids.begin(), scratch.ids.begin() + kept);
    double total = 0;
    for (int32_t id : ids) total += scratch.weights[static_cast<size_t>(id)];
    for (int32_t id : ids) {
      // float32 weights against float64 ones: a few rounding steps of 6e-8, and the argument of
      // exp carries up to 100 * 6e-8 at temperature 0.01.
      double expected = golden.at("probabilities").at(std::to_string(id));
      EXPECT_NEAR(scratch.weights[static_cast<size_t>(id)] / total, expected, 2e-5);
    }
    std::ranges::sort(ids);
    EXPECT_EQ(ids, golden.at("kept_sorted").get<std::vector<int32_t>>()) << golden.dump();
  }
}

TEST(Sampler, SaysWhatItDrewFromInOrderOfId) {
  std::vector<float> logits = random_logits(300, /*seed=*/3, 2.0);
  Scratch expected(300), scratch(300);
  const SamplingParams params = sampling(0.8, 40, 0.9);
  const int64_t kept = keep_tokens(logits, params, expected);
  std::sort(expected.ids.begin(), expected.ids.begin() + kept);
  const Drawn drawn = sample_token(logits, params, 0.4, scratch);
  EXPECT_TRUE(std::equal(drawn.kept.begin(), drawn.kept.end(), expected.ids.begin(),
                         expected.ids.begin() + kept));
  EXPECT_TRUE(std::ranges::binary_search(drawn.kept, drawn.token));
  // Without truncation, and where it is none.
  EXPECT_TRUE(sample_token(logits, sampling(0.8), 0.4, scratch).kept.empty());
  EXPECT_TRUE(sample_token(logits, sampling(0.8, 300), 0.4, scratch).kept.empty());
  EXPECT_TRUE(sample_token(logits, sampling(0, 40), 0.4, scratch).kept.empty());
}

TEST(Sampler, KeepsWhatASortOfTheWholeVocabularyWouldKeep) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    int64_t vocab = 1 + rng.below(1500);
    std::vector<float> logits = random_logits(vocab, seed, 2.0);
    for (float& logit : logits) logit = std::round(logit * 8) / 8;  // many ties
    SamplingParams params;
    params.top_k = rng.chance(0.5) ? 1 + rng.below(vocab) : -1;
    params.top_p = rng.chance(0.5) ? 0.2 + 0.8 * rng.uniform() : 1.0;
    params.min_p = rng.chance(0.5) ? 0.2 * rng.uniform() : 0.0;
    Scratch scratch(logits.size());
    int64_t kept = keep_tokens(logits, params, scratch);

    std::vector<int32_t> order(logits.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    if (params.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(params.top_k)));
    double total = 0, reached = 0;
    for (int32_t id : order) total += scratch.weights[static_cast<size_t>(id)];
    size_t expected = 0;
    while (expected < order.size()) {
      double weight = scratch.weights[static_cast<size_t>(order[expected])];
      if (weight < params.min_p * scratch.weights[static_cast<size_t>(order[0])]) break;
      ++expected;
      reached += weight;
      if (params.top_p < 1 && reached >= params.top_p * total) break;
    }
    // The two add the total in different orders, which may move the edge of the nucleus by one.
    EXPECT_NEAR(static_cast<double>(kept), static_cast<double>(expected), params.top_p < 1 ? 1 : 0)
        << "seed " << seed;
    for (int64_t i = 0; i < std::min<int64_t>(kept, static_cast<int64_t>(expected)); ++i)
      ASSERT_EQ(scratch.ids[static_cast<size_t>(i)], order[static_cast<size_t>(i)]);
  }
}

// Pearson's chi-square of draws at successive positions of one key against softmax.
void expect_distribution(const std::vector<float>& logits, const SamplingParams& params) {
  constexpr int kDraws = 200000;
  Scratch scratch(logits.size());
  std::vector<int64_t> counts(logits.size());
  for (int64_t position = 0; position < kDraws; ++position) {
    TokenId token = sample_token(logits, params, sample_uniform({42}, position), scratch).token;
    ++counts[static_cast<size_t>(token)];
  }
  int64_t kept = keep_tokens(logits, params, scratch);
  std::set<int32_t> allowed(scratch.ids.begin(), scratch.ids.begin() + kept);
  double total = 0, statistic = 0;
  for (int32_t id : allowed)
    total += std::exp(static_cast<double>(logits[static_cast<size_t>(id)]) / params.temperature);
  for (size_t id = 0; id < logits.size(); ++id) {
    if (!allowed.contains(static_cast<int32_t>(id))) {
      EXPECT_EQ(counts[id], 0);
      continue;
    }
    double expected =
        kDraws * std::exp(static_cast<double>(logits[id]) / params.temperature) / total;
    statistic += (static_cast<double>(counts[id]) - expected) *
                 (static_cast<double>(counts[id]) - expected) / expected;
  }
  // Mean and variance of chi-square are its degrees of freedom n and 2 n; 4.5 sigma.
  double freedom = static_cast<double>(kept) - 1;
  EXPECT_LT(statistic, freedom + 4.5 * std::sqrt(2 * freedom));
}

TEST(Sampler, DrawsFromTheSoftmax) {
  expect_distribution(random_logits(61, 1, 1.0), {});
  expect_distribution(random_logits(61, 2, 1.0), sampling(0.6));
  expect_distribution(random_logits(16, 3, 1.0), sampling(1.5));
}

TEST(Sampler, DrawsFromTheTruncatedSoftmax) {
  expect_distribution(random_logits(61, 4, 1.0), sampling(1, 7));
  expect_distribution(random_logits(61, 5, 1.0), sampling(0.8, -1, 0.7));
  expect_distribution(random_logits(61, 6, 1.0), sampling(1, -1, 1, 0.2));
}

TEST(Sampler, TiesGoToTheSmallerId) {
  std::vector<float> logits(40, 1.0f);
  logits[3] = 2.0f;
  logits[7] = logits[30] = 5.0f;
  Scratch scratch(logits.size());
  EXPECT_EQ(sample_token(logits, sampling(0), 0.9, scratch).token, 7);
  EXPECT_EQ(sample_token(logits, sampling(1, 1), 0.9, scratch).token, 7);
  EXPECT_EQ(sample_token(logits, sampling(1, 2), 0.9, scratch).token, 30);
}

TEST(Sampler, StaysInsideTheVocabularyWhateverTheLogits) {
  std::vector<float> logits = {-1e30f, 0.0f, -1e30f, NAN, INFINITY};
  for (size_t size = 1; size <= logits.size(); ++size) {
    std::vector<float> some(logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(size));
    Scratch scratch(size);
    for (double uniform : {0.0, 0.5, 1.0 - 1e-16}) {
      for (const SamplingParams& params : {SamplingParams{}, sampling(0), sampling(1, -1, 0.5)}) {
        TokenId token = sample_token(some, params, uniform, scratch).token;
        EXPECT_GE(token, 0);
        EXPECT_LT(token, static_cast<TokenId>(size));
      }
    }
  }
  Scratch scratch(3);
  std::vector<float> sure = {-1e30f, 0.0f, -1e30f};
  for (double uniform : {0.0, 0.5, 1.0 - 1e-16})
    EXPECT_EQ(sample_token(sure, {}, uniform, scratch).token, 1);
}

}  // namespace
}  // namespace tailrace
