#include "kernels/ops/sample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/cuda.h"
#include "kernels/ref/ref.h"
#include "tests/kernels/cuda/device_array.h"

namespace tailrace {
namespace {

using namespace cuda_testing;

constexpr float kInf = std::numeric_limits<float>::infinity(), kUntouched = -77;

// What is drawn from rows of one vocabulary, on the host.
struct Draws {
  std::vector<int32_t> drawn, kept_counts, kept_ids;
  std::vector<float> lse, logprobs, kept_lse;
  int64_t vocab = 0;

  std::vector<int32_t> set(size_t row = 0) const {
    const auto begin = kept_ids.begin() + static_cast<int64_t>(row) * vocab;
    return {begin, begin + kept_counts[row]};
  }
};

Draws draw(const std::vector<float>& logits, int64_t vocab, const std::vector<SamplingRow>& rows) {
  const auto count = static_cast<int64_t>(rows.size());
  const DeviceMatrix<float> z(count, vocab, logits);
  const DeviceArray<SamplingRow> how(rows);
  DeviceArray<int32_t> drawn(rows.size()), counts(rows.size()),
      ids(rows.size() * static_cast<size_t>(vocab));
  const std::vector<float> untouched(rows.size(), kUntouched);
  DeviceArray<float> lse(untouched), logprobs(untouched), kept_lse(untouched);
  DeviceArray<std::byte> scratch(cuda::sample_workspace_bytes(count, vocab));
  Workspace workspace({scratch.data(), scratch.size()}, kGpu);
  cuda::sample(gpu_stream(), workspace,
               {.logits = z.view(),
                .rows = how.span(),
                .drawn = drawn.span(),
                .lse = lse.span(),
                .logprobs = logprobs.span(),
                .kept_lse = kept_lse.span(),
                .kept_counts = counts.span(),
                .kept_ids = ids.span()});
  Draws draws{drawn.get(),    counts.get(),   ids.get(), lse.get(),
              logprobs.get(), kept_lse.get(), vocab};
  expect_no_findings();
  z.expect_canaries();
  return draws;
}
Draws draw(const std::vector<float>& logits, const SamplingRow& row) {
  return draw(logits, std::ssize(logits), {row});
}
// In double, and in order of id as a GPU.
Draws expected_of(const std::vector<float>& logits, int64_t vocab, std::vector<SamplingRow> rows) {
  const size_t n = rows.size();
  const std::vector<float> untouched(n, kUntouched);
  Draws draws{std::vector<int32_t>(n),
              std::vector<int32_t>(n),
              std::vector<int32_t>(logits.size()),
              untouched,
              untouched,
              untouched,
              vocab};
  ref::sample({.logits = ConstMatrix(logits.data(), static_cast<int64_t>(n), vocab),
               .rows = rows,
               .drawn = draws.drawn,
               .lse = draws.lse,
               .logprobs = draws.logprobs,
               .kept_lse = draws.kept_lse,
               .kept_counts = draws.kept_counts,
               .kept_ids = draws.kept_ids});
  return draws;
}

SamplingRow row_of(float inv_temperature, int32_t top_k, double uniform) {
  SamplingRow row{.uniform = uniform};
  row.inv_temperature = inv_temperature;
  row.top_k = top_k;
  return row;
}
SamplingRow greedy() {
  SamplingRow row;
  row.greedy = true;
  return row;
}

void expect_same_bits(float a, float b) {
  EXPECT_EQ(std::memcmp(&a, &b, sizeof(a)), 0) << a << " and " << b;
}

// Whether `token` is where the cumulative distribution of `ids` passes `uniform`. Masses are
// float32, so an edge is right to a few units of 2^-24.
void expect_place(std::span<const float> z, const std::vector<int32_t>& ids, const SamplingRow& row,
                  int32_t token) {
  double top = -kInf, total = 0, before = 0, own = 0;
  const auto at = [&](int32_t id) { return double{z[static_cast<size_t>(id)]}; };
  for (const int32_t id : ids) top = std::max(top, at(id));
  for (const int32_t id : ids) {
    const double weight = std::exp((at(id) - top) * row.inv_temperature);
    total += weight;
    before += id < token ? weight : 0;
    own += id == token ? weight : 0;
  }
  EXPECT_GT(own, 0) << "token " << token;
  EXPECT_LE(before / total, row.uniform + 2e-6) << "token " << token;
  EXPECT_GE((before + own) / total, row.uniform - 2e-6) << "token " << token;
}

std::vector<int32_t> all_ids(int64_t vocab) {
  std::vector<int32_t> ids(static_cast<size_t>(vocab));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  return ids;
}

// The batch against ref, and each row against itself alone.
void expect_ref(const std::vector<float>& logits, int64_t vocab,
                const std::vector<SamplingRow>& rows) {
  const Draws got = draw(logits, vocab, rows), expected = expected_of(logits, vocab, rows);
  EXPECT_EQ(got.kept_counts, expected.kept_counts);
  for (size_t r = 0; r < rows.size(); ++r) {
    SCOPED_TRACE(r);
    const auto z = std::span<const float>(logits).subspan(r * static_cast<size_t>(vocab),
                                                          static_cast<size_t>(vocab));
    EXPECT_EQ(got.set(r), expected.set(r));
    EXPECT_NEAR(got.lse[r], expected.lse[r], 2e-5);
    EXPECT_NEAR(got.kept_lse[r], expected.kept_lse[r], 2e-5);
    ASSERT_TRUE(got.drawn[r] >= 0 && got.drawn[r] < vocab) << got.drawn[r];
    EXPECT_EQ(got.logprobs[r],
              z[static_cast<size_t>(got.drawn[r])] * rows[r].inv_temperature - got.lse[r]);
    if (rows[r].greedy) {
      EXPECT_EQ(got.drawn[r], expected.drawn[r]);
    } else {
      const auto ids = got.kept_counts[r] > 0 ? got.set(r) : all_ids(vocab);
      expect_place(z, ids, rows[r], got.drawn[r]);
    }
    // Whoever else is in the batch.
    const Draws alone = draw({z.begin(), z.end()}, rows[r]);
    EXPECT_EQ(alone.drawn[0], got.drawn[r]);
    EXPECT_EQ(alone.set(), got.set(r));
    expect_same_bits(alone.lse[0], got.lse[r]);
    expect_same_bits(alone.logprobs[0], got.logprobs[r]);
    expect_same_bits(alone.kept_lse[0], got.kept_lse[r]);
  }
}

// In half of the rows many ties; zeros of both signs are ties too.
std::vector<float> logits_with_ties(size_t rows, int64_t vocab, std::mt19937& rng) {
  auto logits = random_floats(static_cast<int64_t>(rows) * vocab, rng, 3);
  for (size_t i = 0; i < logits.size(); ++i)
    if (i / static_cast<size_t>(vocab) % 2 == 0) logits[i] = std::round(logits[i]);
  return logits;
}

TEST(CudaSample, IsRefOverShapesAndKinds) {
  for (const int64_t vocab : {1, 2, 33, 511, 512, 513, 4099}) {
    SCOPED_TRACE(vocab);
    std::mt19937 rng(static_cast<unsigned>(vocab));
    const auto most = static_cast<int32_t>(vocab);
    std::vector<SamplingRow> rows = {greedy()};
    for (const int32_t k : {0, 1, 2, 5, 9, 10, 40, 600, most - 1, most, most + 1})
      if (k >= 0 && k <= most + 1)
        rows.push_back(row_of(k % 2 == 0 ? 1 : 0.7f, k, std::uniform_real_distribution<>()(rng)));
    expect_ref(logits_with_ties(rows.size(), vocab, rng), vocab, rows);
  }
}

// Sets that no rounding of a sum decides: top-p ends in the middle of the mass of the n-th
// likeliest token, min-p in the middle between its weight and that of the next less likely one.
struct Edges {
  double top_p, min_p;
};
Edges edges_behind(std::span<const float> logits, const SamplingRow& row, size_t n) {
  std::vector<double> z(logits.begin(), logits.end());
  std::ranges::sort(z, std::greater<>());
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < z.size())
    z.resize(static_cast<size_t>(row.top_k));
  n = std::min(n, z.size());
  double total = 0, through = 0;
  const auto weight = [&](double x) { return std::exp((x - z[0]) * row.inv_temperature); };
  for (size_t i = 0; i < z.size(); ++i) {
    total += weight(z[i]);
    if (i + 1 < n) through += weight(z[i]);
  }
  const double own = weight(z[n - 1]);
  const auto next = std::ranges::find_if(z, [&](double x) { return x < z[n - 1]; });
  return {.top_p = (through + own / 2) / total,
          .min_p = next == z.end() ? own / 2 : (own + weight(*next)) / 2};
}

TEST(CudaSample, TopPAndMinPAreRef) {
  for (const int64_t vocab : {1, 2, 33, 511, 512, 513, 4099}) {
    SCOPED_TRACE(vocab);
    std::mt19937 rng(static_cast<unsigned>(vocab) + 1);
    std::uniform_real_distribution<> uniform;
    struct Kind {
      int32_t top_k;
      size_t top_p, min_p;  // how many they keep; 0: off
    };
    constexpr Kind kKinds[] = {{0, 1, 0},   {0, 3, 0},  {0, 40, 0}, {0, 600, 0},  {0, 0, 1},
                               {0, 0, 7},   {0, 0, 90}, {25, 9, 0}, {25, 600, 0}, {25, 0, 4},
                               {25, 0, 60}, {0, 30, 5}, {0, 5, 30}, {50, 20, 6},  {6, 20, 50}};
    std::vector<SamplingRow> rows;
    for (size_t i = 0; i < std::size(kKinds); ++i)
      for (const float inv_temperature : {1.0f, 0.7f})
        rows.push_back(row_of(inv_temperature, kKinds[i].top_k, uniform(rng)));
    // Each kind has a row with ties and one without.
    const auto logits = logits_with_ties(rows.size(), vocab, rng);
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto size = static_cast<size_t>(vocab);
      const auto z = std::span<const float>(logits).subspan(r * size, size);
      const Kind& kind = kKinds[r / 2];
      if (kind.top_p > 0) rows[r].top_p = edges_behind(z, rows[r], kind.top_p).top_p;
      if (kind.min_p > 0) rows[r].min_p = edges_behind(z, rows[r], kind.min_p).min_p;
    }
    expect_ref(logits, vocab, rows);
  }
}

SamplingRow nucleus_of(double top_p, double min_p = 0, double uniform = 0.5) {
  SamplingRow row = row_of(1, 0, uniform);
  row.top_p = top_p;
  row.min_p = min_p;
  return row;
}

TEST(CudaSample, TopPAndMinPAtTheirEnds) {
  // All sums are exact, so a set ends where it reaches its share; ties go to the smaller id.
  std::vector<float> equal(1600, -2.0f);
  EXPECT_EQ(draw(equal, nucleus_of(0.25)).set(), all_ids(400));
  EXPECT_EQ(draw(equal, nucleus_of(0.25 + 1e-9)).set(), all_ids(401));
  EXPECT_EQ(draw(equal, nucleus_of(1e-6)).set(), all_ids(1));
  EXPECT_EQ(draw(equal, nucleus_of(1 - 0x1p-53)).set(), all_ids(1600));
  EXPECT_EQ(draw(equal, nucleus_of(1, 1)).set(), all_ids(1600));
  // -0 and 0 tie.
  EXPECT_EQ(draw({-1e30f, -0.0f, 0.0f, -0.0f, 0.0f}, nucleus_of(0.5)).set(),
            (std::vector<int32_t>{1, 2}));
  // What has no mass is in no set, and the likeliest is in every one.
  std::vector<float> sparse(1100, -kInf);
  for (const size_t id : {5, 600, 1099}) sparse[id] = id == 600 ? 1.0f : -1.0f;
  const std::vector<int32_t> members = {5, 600, 1099};
  EXPECT_EQ(draw(sparse, nucleus_of(1 - 0x1p-53)).set(), members);
  EXPECT_EQ(draw(sparse, nucleus_of(1, 1e-30)).set(), members);
  EXPECT_EQ(draw(sparse, nucleus_of(1, 1)).set(), (std::vector<int32_t>{600}));
  EXPECT_EQ(draw(sparse, nucleus_of(1e-6, 1)).set(), (std::vector<int32_t>{600}));
  SamplingRow row = nucleus_of(1 - 0x1p-53);
  row.top_k = 700;
  EXPECT_EQ(draw(sparse, row).set(), members);
}

TEST(CudaSample, GivesTheBitsOfTheOtherOps) {
  constexpr int64_t kVocab = 1300;
  std::mt19937 rng(3);
  const auto logits = random_floats(kVocab, rng, 3);
  const DeviceMatrix<float> z(1, kVocab, logits);
  for (const int32_t k : {0, 20, 700}) {
    const Draws draws = draw(logits, row_of(0.8f, k, 0.4));
    DeviceArray<float> lse(1), kept_lse(1);
    cuda::log_sum_exp(gpu_stream(),
                      {.logits = z.view(), .inv_temperature = 0.8f, .lse = lse.span()});
    expect_same_bits(draws.lse[0], lse.get()[0]);
    if (k == 0) continue;
    const DeviceArray<int64_t> offsets(std::vector<int64_t>{0, k});
    const DeviceArray<int32_t> ids(draws.set());
    cuda::kept_log_sum_exp(gpu_stream(), {.logits = z.view(),
                                          .kept = {offsets.span(), ids.span()},
                                          .inv_temperature = 0.8f,
                                          .kept_lse = kept_lse.span()});
    expect_same_bits(draws.kept_lse[0], kept_lse.get()[0]);
  }
  expect_no_findings();
}

// A batch that gives a row fewer threads changes nothing of it.
void expect_whatever_the_threads(int64_t vocab, const SamplingRow& row) {
  std::mt19937 rng(9);
  const auto logits = random_floats(vocab, rng, 2);
  const Draws alone = draw(logits, row), expected = expected_of(logits, vocab, {row});
  EXPECT_EQ(alone.set(), expected.set());
  expect_place(logits, truncates(row, vocab) ? alone.set() : all_ids(vocab), row, alone.drawn[0]);
  constexpr size_t kRows = 133;
  std::vector<float> copies;
  for (size_t r = 0; r < kRows; ++r) copies.insert(copies.end(), logits.begin(), logits.end());
  const Draws all = draw(copies, vocab, std::vector<SamplingRow>(kRows, row));
  for (const size_t r : {size_t{0}, kRows - 1}) {
    EXPECT_EQ(all.drawn[r], alone.drawn[0]);
    EXPECT_EQ(all.set(r), alone.set());
    expect_same_bits(all.lse[r], alone.lse[0]);
    expect_same_bits(all.kept_lse[r], alone.kept_lse[0]);
  }
}

// More blocks than lanes of a warp.
TEST(CudaSample, OfALargeVocabularyWhateverTheThreads) {
  for (const int32_t k : {0, 30, 3000})
    expect_whatever_the_threads(512 * 70 + 100, row_of(1.1f, k, 0.6));
  SamplingRow row = nucleus_of(0.31, 0.002, 0.6);
  expect_whatever_the_threads(512 * 33 + 100, row);
}

// Pearson's chi-square of one row a draw: with few tokens, and spread over blocks.
void expect_distribution(const std::vector<float>& logits, SamplingRow row) {
  const int64_t vocab = std::ssize(logits);
  constexpr int64_t kDraws = 2000;
  std::mt19937_64 rng(7);
  std::uniform_real_distribution<double> uniform;
  std::vector<float> copies;
  std::vector<SamplingRow> rows(kDraws, row);
  for (SamplingRow& own : rows) {
    own.uniform = uniform(rng);
    copies.insert(copies.end(), logits.begin(), logits.end());
  }
  const Draws draws = draw(copies, vocab, rows);
  std::vector<int64_t> counts(logits.size());
  for (const int32_t token : draws.drawn) {
    ASSERT_TRUE(token >= 0 && token < vocab) << token;
    ++counts[static_cast<size_t>(token)];
  }
  const auto ids = draws.kept_counts[0] > 0 ? draws.set() : all_ids(vocab);
  double total = 0, statistic = 0;
  int64_t inside = 0, kinds = 0;
  const auto weight = [&](int32_t id) {
    return std::exp(double{logits[static_cast<size_t>(id)]} * row.inv_temperature);
  };
  for (const int32_t id : ids) total += weight(id);
  for (const int32_t id : ids) {
    const double expected = kDraws * weight(id) / total;
    const auto count = counts[static_cast<size_t>(id)];
    inside += count;
    if (expected == 0) {
      EXPECT_EQ(count, 0);
      continue;
    }
    ++kinds;
    statistic += (static_cast<double>(count) - expected) * (static_cast<double>(count) - expected) /
                 expected;
  }
  EXPECT_EQ(inside, kDraws);
  const double freedom = static_cast<double>(kinds) - 1;
  EXPECT_LT(statistic, freedom + 4.5 * std::sqrt(2 * freedom));
}

TEST(CudaSample, DrawsFollowTheDistribution) {
  std::mt19937 rng(1);
  expect_distribution(random_floats(23, rng), row_of(1, 0, 0));
  expect_distribution(random_floats(23, rng), row_of(0.6f, 6, 0));
  expect_distribution(random_floats(23, rng), nucleus_of(0.8, 0.05));
  std::vector<float> sparse(1100, -kInf);
  for (const size_t id : {0, 5, 511, 512, 600, 1099}) sparse[id] = random_floats(1, rng)[0];
  expect_distribution(sparse, row_of(1.2f, 0, 0));
  expect_distribution(sparse, row_of(1, 4, 0));
}

TEST(CudaSample, TiesGoToTheSmallerId) {
  std::vector<float> logits(1600, 1.0f);
  logits[3] = 2.0f;
  logits[700] = logits[1500] = logits[1501] = 5.0f;
  logits[900] = -0.0f, logits[901] = 0.0f;
  EXPECT_EQ(draw(logits, greedy()).drawn[0], 700);
  EXPECT_EQ(draw(logits, row_of(1, 1, 0.9)).drawn[0], 700);
  EXPECT_EQ(draw(logits, row_of(1, 2, 0.9)).set(), (std::vector<int32_t>{700, 1500}));
  EXPECT_EQ(draw(logits, row_of(1, 6, 0)).set(), (std::vector<int32_t>{0, 1, 3, 700, 1500, 1501}));
  EXPECT_EQ(draw(std::vector<float>(1100, -2.0f), greedy()).drawn[0], 0);
  // Four blocks, of which three say that no member is less than -2.
  EXPECT_EQ(draw(std::vector<float>(1600, -2.0f), row_of(1, 3, 0)).set(),
            (std::vector<int32_t>{0, 1, 2}));
  // A lane has the first block and the last.
  EXPECT_EQ(draw(std::vector<float>(512 * 33, -2.0f), greedy()).drawn[0], 0);
  EXPECT_EQ(draw({-1.0f, -0.0f, 0.0f, -0.0f}, row_of(1, 2, 0)).set(), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(draw({-1.0f, -0.0f, 0.0f, -0.0f}, greedy()).drawn[0], 1);
  EXPECT_EQ(draw({-1.0f, -0.0f, 0.0f, -0.0f}, row_of(1, 1, 0)).set(), (std::vector<int32_t>{1}));
  // A number on an edge belongs to the token behind it.
  for (const int token : {0, 1, 2, 3})
    EXPECT_EQ(draw({2.0f, 2.0f, 2.0f, 2.0f}, row_of(1, 0, token / 4.0)).drawn[0], token);
}

TEST(CudaSample, NeverDrawsWhatHasNoMass) {
  for (const double uniform : {0.0, 0.3, 0.5, 1.0 - 0x1p-53}) {
    for (const int32_t k : {0, 1, 3, 700, 1500}) {
      std::vector<float> logits(1600, -kInf);
      logits[800] = 3;
      EXPECT_EQ(draw(logits, row_of(1, k, uniform)).drawn[0], 800);
      logits[40] = 2.5f;
      const int32_t token = draw(logits, row_of(1, k, uniform)).drawn[0];
      EXPECT_TRUE(token == 800 || token == 40) << token;
    }
    EXPECT_EQ(draw({-1e30f, 0.0f, -1e30f}, row_of(1, 0, uniform)).drawn[0], 1);
    EXPECT_EQ(draw({-1e30f, 0.0f, -1e30f}, row_of(1, 2, uniform)).drawn[0], 1);
  }
}

TEST(CudaSample, DrawsNothingFromRowsThatAreNotFinite) {
  std::mt19937 rng(2);
  for (const float bad : {NAN, kInf}) {
    for (const SamplingRow& row :
         {greedy(), row_of(1, 0, 0.5), row_of(1, 3, 0.5), nucleus_of(0.9), nucleus_of(1, 0.1)}) {
      auto logits = random_floats(3 * 600, rng);
      logits[600 + 550] = bad;
      const Draws draws = draw(logits, 600, {row, row, row});
      EXPECT_FALSE(std::isfinite(draws.lse[1]));
      EXPECT_EQ(draws.drawn[1], -1);
      EXPECT_EQ(draws.kept_counts[1], 0);
      EXPECT_EQ(draws.logprobs[1], kUntouched);
      EXPECT_GE(draws.drawn[0], 0);
      EXPECT_GE(draws.drawn[2], 0);
    }
  }
  EXPECT_EQ(draw(std::vector<float>(3, -kInf), row_of(1, 2, 0.5)).drawn[0], -1);
}

}  // namespace
}  // namespace tailrace
