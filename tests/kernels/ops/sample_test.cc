#include "kernels/ops/sample.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "kernels/ops/log_softmax.h"
#include "kernels/ref/ref.h"
#include "tests/kernels/ops/op_testing.h"

namespace tailrace {
namespace {

using namespace op_testing;

constexpr float kUntouched = -77;

// Rows of one vocabulary, and what is drawn from them.
struct Draws {
  ConstMatrix logits;
  std::vector<SamplingRow> rows;
  std::vector<int32_t> drawn, kept_counts, kept_ids;
  std::vector<float> lse, logprobs, kept_lse;

  Draws(ConstMatrix z, std::vector<SamplingRow> how)
      : logits(z),
        rows(std::move(how)),
        drawn(rows.size(), -2),
        kept_counts(rows.size(), -2),
        kept_ids(rows.size() * static_cast<size_t>(z.cols), -2),
        lse(rows.size(), kUntouched),
        logprobs(rows.size(), kUntouched),
        kept_lse(rows.size(), kUntouched) {}

  SampleTokens args() {
    return {.logits = logits,
            .rows = rows,
            .drawn = drawn,
            .lse = lse,
            .logprobs = logprobs,
            .kept_lse = kept_lse,
            .kept_counts = kept_counts,
            .kept_ids = kept_ids};
  }
  Draws& run(const Stream& stream = {}) {
    TestWorkspace workspace(sample_workspace_bytes(logits.rows, logits.cols));
    sample(stream, workspace.get(), args());
    return *this;
  }
  std::vector<int32_t> set(size_t row = 0) const {
    const auto begin = kept_ids.begin() + static_cast<int64_t>(row) * logits.cols;
    return {begin, begin + kept_counts[row]};
  }
};

Draws draw(const std::vector<float>& logits, const SamplingRow& row) {
  return Draws(as_row(logits), {row}).run();
}

SamplingRow row_of(double temperature, int32_t top_k = 0, double top_p = 1, double min_p = 0,
                   double uniform = 0.4) {
  SamplingRow row{.uniform = uniform, .top_p = top_p, .min_p = min_p};
  row.top_k = top_k;
  row.greedy = temperature <= 0;
  if (!row.greedy) row.inv_temperature = static_cast<float>(1 / temperature);
  return row;
}

std::vector<float> random_logits(int64_t vocab, uint64_t seed, float spread) {
  Rng rng(static_cast<unsigned>(seed));
  return random_vector(vocab, rng, spread);
}

// Of ref::sample(), which decides in double.
std::vector<int32_t> ref_set(const std::vector<float>& logits, const SamplingRow& row) {
  Draws expected(as_row(logits), {row});
  ref::sample(expected.args());
  return expected.set();
}

TEST(Sample, KeepsTheTokensOfTheGoldenCases) {
  std::ifstream file(std::filesystem::path(TAILRACE_SOURCE_DIR) / "tests/data/golden/rl_math.json");
  auto cases = nlohmann::json::parse(file).at("sampling_filters").at("cases");
  ASSERT_GT(cases.size(), 5u);
  int truncated = 0;
  for (const auto& golden : cases) {
    const std::vector<float> logits = golden.at("logits");
    const SamplingRow row =
        row_of(golden.at("temperature"), std::max(0, golden.at("top_k").get<int>()),
               golden.at("top_p"), golden.at("min_p"));
    const Draws draws = draw(logits, row);
    const bool has_set = truncates(row, std::ssize(logits));
    truncated += has_set;
    std::vector<int32_t> ids = draws.set();
    for (int32_t id = 0; !has_set && id < std::ssize(logits); ++id) ids.push_back(id);
    for (const int32_t id : ids) {
      const float scaled = logits[static_cast<size_t>(id)] * row.inv_temperature;
      const double expected = golden.at("probabilities").at(std::to_string(id));
      // Roundings of float32, those of z' and of lse at their own size, which is up to 1000 at
      // temperature 0.01.
      EXPECT_NEAR(std::exp(double{scaled} - (has_set ? draws.kept_lse : draws.lse)[0]), expected,
                  expected * (1e-5 + 4 * kUnit * std::abs(scaled)) + 1e-9);
    }
    EXPECT_EQ(ids, golden.at("kept_sorted").get<std::vector<int32_t>>()) << golden.dump();
    EXPECT_EQ(ref_set(logits, row), draws.set()) << golden.dump();
  }
  EXPECT_GT(truncated, 4);
}

TEST(Sample, SaysWhatItDrewFromInOrderOfId) {
  const std::vector<float> logits = random_logits(300, /*seed=*/3, 2.0);
  const Draws draws = draw(logits, row_of(0.8, 40, 0.9));
  const auto set = draws.set();
  EXPECT_EQ(set, ref_set(logits, row_of(0.8, 40, 0.9)));
  EXPECT_GT(set.size(), 3u);
  EXPECT_LT(set.size(), 40u);
  EXPECT_TRUE(std::ranges::is_sorted(set));
  EXPECT_TRUE(std::ranges::binary_search(set, draws.drawn[0]));
  // Without truncation, and where it is none.
  for (const SamplingRow& row : {row_of(0.8), row_of(0.8, 300), row_of(0.8, 301), row_of(0, 40)}) {
    EXPECT_FALSE(truncates(row, 300));
    const Draws whole = draw(logits, row);
    EXPECT_EQ(whole.kept_counts[0], 0);
    EXPECT_EQ(whole.kept_lse[0], kUntouched);
  }
  EXPECT_TRUE(truncates(row_of(0.8, 299), 300));
}

TEST(Sample, KeepsWhatASortOfTheWholeVocabularyWouldKeep) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(static_cast<unsigned>(seed));
    const auto below = [&](int64_t n) {
      return std::uniform_int_distribution<int64_t>(0, n - 1)(rng);
    };
    const auto uniform = [&] { return std::uniform_real_distribution<double>()(rng); };
    const int64_t vocab = 1 + below(1500);
    std::vector<float> logits = random_logits(vocab, seed, 2.0);
    for (float& logit : logits) logit = std::round(logit * 8) / 8;  // many ties
    SamplingRow row;
    row.top_k = below(2) != 0 ? static_cast<int32_t>(1 + below(vocab)) : 0;
    row.top_p = below(2) != 0 ? 0.2 + 0.8 * uniform() : 1.0;
    row.min_p = below(2) != 0 ? 0.2 * uniform() : 0.0;
    row.uniform = uniform();
    const Draws draws = draw(logits, row);
    if (!truncates(row, vocab)) {
      EXPECT_EQ(draws.kept_counts[0], 0);
      continue;
    }
    const auto set = draws.set(), expected = ref_set(logits, row);
    // The two add the total in different orders and precisions, which may move the edge of the
    // nucleus by one.
    const int64_t slack = row.top_p < 1 ? 1 : 0;
    EXPECT_NEAR(static_cast<double>(set.size()), static_cast<double>(expected.size()),
                static_cast<double>(slack))
        << "seed " << seed;
    std::vector<int32_t> both;
    std::ranges::set_intersection(set, expected, std::back_inserter(both));
    EXPECT_EQ(both.size(), std::min(set.size(), expected.size())) << "seed " << seed;
    EXPECT_TRUE(std::ranges::binary_search(set, draws.drawn[0])) << "seed " << seed;
  }
}

// Pearson's chi-square of many draws against softmax.
void expect_distribution(const std::vector<float>& logits, SamplingRow row) {
  constexpr int64_t kDraws = 200000, kRows = 1000;
  std::mt19937_64 rng(42);
  std::uniform_real_distribution<double> uniform;
  GuardedMatrix copies(kRows, std::ssize(logits));
  for (int64_t r = 0; r < kRows; ++r) std::ranges::copy(logits, copies.view().row(r));
  std::vector<int64_t> counts(logits.size());
  for (int64_t i = 0; i < kDraws; i += kRows) {
    std::vector<SamplingRow> rows(kRows, row);
    for (SamplingRow& own : rows) own.uniform = uniform(rng);
    const Draws draws = Draws(copies.view(), rows).run();
    for (const int32_t token : draws.drawn) ++counts[static_cast<size_t>(token)];
  }
  const auto set = draw(logits, row).set();
  std::set<int32_t> allowed(set.begin(), set.end());
  for (int32_t id = 0; set.empty() && id < std::ssize(logits); ++id) allowed.insert(id);
  double total = 0, statistic = 0;
  const auto weight = [&](size_t id) { return std::exp(double{logits[id]} * row.inv_temperature); };
  for (int32_t id : allowed) total += weight(static_cast<size_t>(id));
  for (size_t id = 0; id < logits.size(); ++id) {
    if (!allowed.contains(static_cast<int32_t>(id))) {
      EXPECT_EQ(counts[id], 0);
      continue;
    }
    const double expected = kDraws * weight(id) / total;
    statistic += (static_cast<double>(counts[id]) - expected) *
                 (static_cast<double>(counts[id]) - expected) / expected;
  }
  // Mean and variance of chi-square are its degrees of freedom n and 2 n; 4.5 sigma.
  const double freedom = static_cast<double>(allowed.size()) - 1;
  EXPECT_LT(statistic, freedom + 4.5 * std::sqrt(2 * freedom));
}

TEST(Sample, DrawsFromTheSoftmax) {
  expect_distribution(random_logits(61, 1, 1.0), row_of(1));
  expect_distribution(random_logits(61, 2, 1.0), row_of(0.6));
  expect_distribution(random_logits(16, 3, 1.0), row_of(1.5));
}

TEST(Sample, DrawsFromTheTruncatedSoftmax) {
  expect_distribution(random_logits(61, 4, 1.0), row_of(1, 7));
  expect_distribution(random_logits(61, 5, 1.0), row_of(0.8, 0, 0.7));
  expect_distribution(random_logits(61, 6, 1.0), row_of(1, 0, 1, 0.2));
}

TEST(Sample, InvertsTheCumulativeDistributionInOrderOfId) {
  const std::vector<float> logits = random_logits(1300, 7, 3.0);
  const double top = *std::ranges::max_element(logits);
  double total = 0;
  for (const float z : logits) total += std::exp(z - top);
  for (int i = 0; i < 200; ++i) {
    const double uniform = (i + 0.5) / 200;
    const int32_t token = draw(logits, row_of(1, 0, 1, 0, uniform)).drawn[0];
    double before = 0;
    for (int32_t id = 0; id < token; ++id)
      before += std::exp(logits[static_cast<size_t>(id)] - top);
    const double own = std::exp(logits[static_cast<size_t>(token)] - top);
    // Weights of float32: a sum of them is right to a few units of 2^-24.
    EXPECT_LE(before / total, uniform + 1e-6);
    EXPECT_GE((before + own) / total, uniform - 1e-6);
  }
}

TEST(Sample, TiesGoToTheSmallerId) {
  std::vector<float> logits(40, 1.0f);
  logits[3] = 2.0f;
  logits[7] = logits[30] = 5.0f;
  EXPECT_EQ(draw(logits, row_of(0)).drawn[0], 7);
  EXPECT_EQ(draw(logits, row_of(1, 1, 1, 0, 0.9)).drawn[0], 7);
  EXPECT_EQ(draw(logits, row_of(1, 2, 1, 0, 0.9)).drawn[0], 30);
  EXPECT_EQ(draw(logits, row_of(1, 6)).set(), (std::vector<int32_t>{0, 1, 2, 3, 7, 30}));
}

TEST(Sample, StaysInsideTheVocabularyAndDrawsNothingWhereLseIsNotFinite) {
  const std::vector<float> logits = {-1e30f, 0.0f, -1e30f, NAN, INFINITY};
  for (size_t size = 1; size <= logits.size(); ++size) {
    const std::vector<float> some(logits.begin(), logits.begin() + static_cast<int64_t>(size));
    for (const double uniform : {0.0, 0.5, 1.0 - 1e-16}) {
      for (SamplingRow row : {row_of(1), row_of(0), row_of(1, 0, 0.5)}) {
        row.uniform = uniform;
        const Draws draws = draw(some, row);
        EXPECT_EQ(std::isfinite(draws.lse[0]), size < 4);
        EXPECT_GE(draws.drawn[0], size < 4 ? 0 : -1);
        EXPECT_LT(draws.drawn[0], size < 4 ? static_cast<int32_t>(size) : 0);
        if (size < 4) continue;
        EXPECT_EQ(draws.kept_counts[0], 0);
        EXPECT_EQ(draws.logprobs[0], kUntouched);
      }
    }
  }
  const std::vector<float> sure = {-1e30f, 0.0f, -1e30f};
  for (const double uniform : {0.0, 0.5, 1.0 - 1e-16})
    EXPECT_EQ(draw(sure, row_of(1, 0, 1, 0, uniform)).drawn[0], 1);
  EXPECT_EQ(draw(std::vector<float>(3, -INFINITY), row_of(1)).drawn[0], -1);
}

// Its numbers are those of the ops that the trainer calls, and neither neighbours nor threads
// change anything.
TEST(Sample, GivesTheBitsOfTheOtherOpsWhoeverElseIsInTheBatch) {
  constexpr int64_t kRows = 12, kVocab = 4099;
  Rng rng(5);
  const GuardedMatrix logits(kRows, kVocab, rng, 2);
  std::vector<SamplingRow> rows;
  const SamplingRow kinds[] = {row_of(1),       row_of(0.7),       row_of(0),
                               row_of(0.9, 50), row_of(1, 0, 0.9), row_of(1.3, 0, 1, 0.05)};
  for (int64_t r = 0; r < kRows; ++r) {
    rows.push_back(kinds[r % 6]);
    rows.back().uniform = (static_cast<double>(r) + 0.3) / kRows;
  }
  Draws all = Draws(logits.view(), rows).run();
  for (const int threads : {2, 3}) {
    const TestStream stream(threads);
    const Draws other = Draws(logits.view(), rows).run(stream.get());
    EXPECT_GT(stream.num_divided(), 0);
    EXPECT_EQ(other.drawn, all.drawn);
    EXPECT_EQ(other.kept_counts, all.kept_counts);
    expect_same_bits(as_row(other.lse), as_row(all.lse), "lse");
    expect_same_bits(as_row(other.logprobs), as_row(all.logprobs), "logprobs");
    expect_same_bits(as_row(other.kept_lse), as_row(all.kept_lse), "kept_lse");
    for (size_t r = 0; r < kRows; ++r) EXPECT_EQ(other.set(r), all.set(r));
  }
  for (int64_t r = 0; r < kRows; ++r) {
    const auto i = static_cast<size_t>(r);
    const ConstMatrix z = logits.view().slice_rows(r, r + 1);
    const Draws alone = Draws(z, {rows[i]}).run();
    EXPECT_EQ(alone.drawn[0], all.drawn[i]);
    EXPECT_EQ(alone.set(), all.set(i));
    EXPECT_EQ(alone.kept_lse[0], all.kept_lse[i]);
    float lse = 0, kept_lse = kUntouched;
    log_sum_exp(Stream{},
                {.logits = z, .inv_temperature = rows[i].inv_temperature, .lse = {&lse, 1}});
    EXPECT_EQ(lse, all.lse[i]);
    EXPECT_EQ(z.data[all.drawn[i]] * rows[i].inv_temperature - lse, all.logprobs[i]);
    const auto set = all.set(i);
    EXPECT_EQ(truncates(rows[i], kVocab), !set.empty());
    const std::vector<int64_t> offsets = {0, std::ssize(set)};
    kept_log_sum_exp(Stream{}, {.logits = z,
                                .kept = {offsets, set},
                                .inv_temperature = rows[i].inv_temperature,
                                .kept_lse = {&kept_lse, 1}});
    EXPECT_EQ(kept_lse, all.kept_lse[i]);
  }
  logits.expect_canaries();
}

}  // namespace
}  // namespace tailrace
