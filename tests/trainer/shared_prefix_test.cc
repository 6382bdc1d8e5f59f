#include "trainer/shared_prefix.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "kernels/base/thread_pool.h"
#include "tests/trainer/fixtures.h"
#include "trainer/packed_forward.h"

namespace tailrace {
namespace {

using testing::copy;

TEST(SharedPrefixes, ASequenceGoesOnFromTheOneThatHasMostOfItsFirstTokens) {
  const std::vector<TokenId> a = {1, 2, 3, 4, 5, 6}, b = {1, 2, 3, 4, 9, 9}, c = {1, 2, 3, 4, 9, 8},
                             other = {1, 7, 7, 7};
  SharedPrefixes prefixes;
  const auto place = [&](std::span<const TokenId> tokens, int64_t unscored) {
    const SharedPrefixes::Place found = prefixes.add(tokens, unscored);
    return std::pair(found.parent, found.tokens);
  };
  using Pair = std::pair<int32_t, int64_t>;
  EXPECT_EQ(place(a, 3), Pair(-1, 0));
  // Never into the row before its first target, and the first of several that have it.
  EXPECT_EQ(place(b, 3), Pair(0, 3));
  EXPECT_EQ(place(c, 3), Pair(0, 3));
  EXPECT_EQ(place(c, 5), Pair(1, 5));
  EXPECT_EQ(place(a, 0), Pair(-1, 0));
  // A beginning that all prompts of a run have is less than half.
  EXPECT_EQ(place(other, 3), Pair(-1, 0));
  prefixes.clear();
  EXPECT_EQ(place(b, 3), Pair(-1, 0));
}

struct Group {
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::vector<int32_t>> targets;

  std::vector<PackedSequence> packed() const {
    std::vector<PackedSequence> sequences;
    for (size_t i = 0; i < tokens.size(); ++i)
      sequences.push_back({.tokens = tokens[i], .targets = targets[i]});
    return sequences;
  }
};

// Three groups of four; prompts end in the middle of a KV block, at its end and behind it. In the
// last group each goes on from the one before, targets and all.
Group groups() {
  Rng rng(5);
  Group made;
  const auto random = [&](int64_t count) {
    std::vector<TokenId> tokens;
    for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(rng.below(19)));
    return tokens;
  };
  for (const int64_t prompt : {21, 33, 9}) {
    std::vector<TokenId> context = random(prompt);
    for (int64_t member = 0; member < 4; ++member) {
      std::vector<TokenId> tokens = context;
      const std::vector<TokenId> answer = random(3 + 2 * member);
      tokens.insert(tokens.end(), answer.begin(), answer.end());
      std::vector<int32_t>& targets = made.targets.emplace_back();
      // Not all of them: an observation stands in the middle.
      for (auto t = static_cast<int32_t>(context.size()); t < std::ssize(tokens); ++t)
        if (t % 4 != 1 || targets.empty()) targets.push_back(t);
      if (prompt == 9) context = tokens;
      made.tokens.push_back(std::move(tokens));
    }
  }
  return made;
}

struct Passed {
  std::vector<float> logprobs, entropies, gradient;
  int64_t rows = 0;
};

Passed pass(const ModelConfig& config, const Group& group, bool shares, int64_t max_tokens = 4096,
            int threads = 1, ForBackward keeps = ForBackward::kActivations) {
  ThreadPool pool(threads);
  Stream stream;
  if (threads > 1) stream.pool = &pool;
  auto trainer = testing::tiny_trainer({}, {}, {}, 1, config);
  const PackedWeights packed(Stream{}, config, trainer->parameters());
  PackedForward forward(trainer->model(),
                        {.max_tokens = max_tokens, .max_sequences = 100, .shares = shares},
                        testing::kMaxSequenceTokens, keeps, threads);
  Parameters gradient(trainer->model().layout());
  Passed passed;
  const auto sequences = group.packed();
  for (auto [begin, end] : pack(sequences, forward.limits())) {
    const auto part = std::span(sequences).subspan(begin, end - begin);
    const auto output = forward.forward(stream, packed, part, {.entropy = true, .backward = true});
    passed.logprobs.insert(passed.logprobs.end(), output.logprob.begin(), output.logprob.end());
    passed.entropies.insert(passed.entropies.end(), output.entropy.begin(), output.entropy.end());
    passed.rows += forward.num_rows();
    std::vector<float> dlogprob(output.logprob.size());
    for (size_t i = 0; i < dlogprob.size(); ++i)
      dlogprob[i] = std::sin(static_cast<float>(i + passed.logprobs.size()));
    forward.backward(stream, packed, dlogprob, std::vector<float>(dlogprob.size(), 0.25f),
                     gradient);
  }
  passed.gradient = copy(gradient.flat());
  return passed;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{b[i]} * b[i];
  }
  return std::sqrt(difference / size);
}

TEST(SharedPrefixes, ScoresHaveTheSameBitsAndGradientsTheSameDigits) {
  ModelConfig windowed = testing::tiny_model();
  windowed.qk_norm = true;
  for (const ModelConfig& config : {testing::tiny_model(), windowed}) {
    const Group group = groups();
    const Passed alone = pass(config, group, false), shared = pass(config, group, true);
    int64_t tokens = 0;
    for (const auto& sequence : group.tokens) tokens += std::ssize(sequence);
    EXPECT_EQ(alone.rows, tokens);
    // Each group has its prompt once, but its last row for each; the last group has all before it.
    EXPECT_EQ(shared.rows, tokens - 3 * 20 - 3 * 32 - (11 + 16 + 23));
    EXPECT_EQ(shared.logprobs, alone.logprobs);
    EXPECT_EQ(shared.entropies, alone.entropies);
    // Sums of some 500 rows in another order, of float32.
    EXPECT_LT(distance(shared.gradient, alone.gradient), 500 * 0x1p-24);
    EXPECT_GT(distance(shared.gradient, pass(config, groups(), false, 60).gradient), 0);
  }
}

TEST(SharedPrefixes, ThreadsAndRecomputationChangeNoBit) {
  const Group group = groups();
  const Passed one = pass(testing::tiny_model(), group, true);
  for (const int threads : {2, 3})
    EXPECT_EQ(pass(testing::tiny_model(), group, true, 4096, threads).gradient, one.gradient);
  EXPECT_EQ(pass(testing::tiny_model(), group, true, 4096, 1, ForBackward::kInputs).gradient,
            one.gradient);
}

// Cut anywhere: what a pass has not seen it computes itself.
TEST(SharedPrefixes, PassesAreFullByWhatTheyCompute) {
  const Group group = groups();
  const Passed whole = pass(testing::tiny_model(), group, true);
  for (const int64_t max_tokens : {1, 30, 50, 80, 150}) {
    const Passed cut = pass(testing::tiny_model(), group, true, max_tokens);
    EXPECT_EQ(cut.logprobs, whole.logprobs) << max_tokens;
    EXPECT_GE(cut.rows, whole.rows);
  }
  const auto sequences = group.packed();
  const PackLimits limits{.max_tokens = 60, .max_sequences = 100};
  PackLimits shares = limits;
  shares.shares = true;
  EXPECT_LT(pack(sequences, shares).size(), pack(sequences, limits).size());
}

TEST(SharedPrefixes, ExpertsShareNothing) {
  const Group group = groups();
  const Passed alone = pass(testing::sparse_model(), group, false),
               asked = pass(testing::sparse_model(), group, true);
  EXPECT_EQ(asked.rows, alone.rows);
  EXPECT_EQ(asked.gradient, alone.gradient);
}

}  // namespace
}  // namespace tailrace
