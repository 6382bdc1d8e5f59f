#include "trainer/policy_trainer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <tuple>

#include <gtest/gtest.h>

#include "core/run/memory_need.h"
#include "kernels/base/memory.h"
#include "kernels/base/thread_pool.h"
#include "tests/trainer/fixtures.h"
#include "tests/trainer/slopes.h"

namespace tailrace {
namespace {

using testing::copy;
using testing::kStill;
using testing::loss_config;
using testing::make_batch;
using testing::metric;
using testing::recorded;
using testing::tiny_trainer;

// Gradient of one update over the whole batch, weights of seed 1.
std::vector<float> gradient(const std::vector<Trajectory>& trajectories, const TrainOptions& train,
                            Stream stream = {}, const PolicyLossConfig& config = loss_config()) {
  auto trainer = tiny_trainer(train, kStill, stream);
  TrainBatch batch = make_batch(trajectories);
  trainer->prepare_step(batch, 0, config);
  trainer->policy_update(batch, {0, batch.sequences.size()}, config, 0);
  return copy(trainer->gradients().flat());
}

TEST(PolicyTrainer, ScoresAreTheSameBitsInAnyPacking) {
  std::vector<Trajectory> trajectories = recorded(3, 1);
  TrainBatch batch = make_batch(trajectories);
  std::vector<PackedSequence> sequences;
  for (const TrainSequence& s : batch.sequences) sequences.push_back(s.packed());
  for (int64_t tokens : {1, 20, 50, 4096}) {
    auto trainer = tiny_trainer({.microbatch_tokens = tokens});
    std::vector<std::vector<float>> scores = trainer->score(sequences);
    for (size_t i = 0; i < scores.size(); ++i)
      EXPECT_EQ(scores[i], batch.sequences[i].behaviour_logprobs) << tokens;
  }
}

// Every second sequence is given its experts; its neighbours in a pass choose as they would alone.
TEST(PolicyTrainer, GivenExpertsHoldForTheirSequenceInAnyPacking) {
  const TrainBatch batch = make_batch(recorded(3, 1));
  const auto make_trainer = [](int64_t microbatch_tokens) {
    return tiny_trainer({.microbatch_tokens = microbatch_tokens}, kStill, {}, 1,
                        testing::sparse_model());
  };
  Rng rng(3);
  std::vector<std::vector<int32_t>> choices;
  std::vector<PackedSequence> sequences;
  for (const TrainSequence& s : batch.sequences) sequences.push_back(s.packed());
  const std::vector<std::vector<float>> own = make_trainer(4096)->score(sequences);
  for (size_t i = 0; i < sequences.size(); i += 2) {
    std::vector<int32_t>& ids = choices.emplace_back();
    for (size_t t = 0; t < sequences[i].tokens.size(); ++t) {
      const auto first = static_cast<int32_t>(rng.below(4));
      ids.insert(ids.end(), {first, first + 1});
    }
    sequences[i].choices = {ids.data(), std::ssize(sequences[i].tokens), 2};
  }
  std::vector<std::vector<float>> alone;
  for (const PackedSequence& sequence : sequences)
    alone.push_back(make_trainer(4096)->score({&sequence, 1})[0]);
  for (size_t i = 0; i < own.size(); ++i) EXPECT_EQ(alone[i] == own[i], i % 2 == 1) << i;
  for (int64_t tokens : {1, 20, 50, 4096})
    EXPECT_EQ(make_trainer(tokens)->score(sequences), alone) << tokens;
}

TEST(PolicyTrainer, FirstUpdateOnItsOwnSamplesHasNoMismatchAtAll) {
  TrainBatch batch = make_batch(recorded(4, 2));
  auto trainer = tiny_trainer({.minibatches_per_step = 2, .ppo_epochs = 2}, {.lr = 1e-2});
  MetricList metrics = trainer->policy_step(batch, 0, loss_config());
  EXPECT_EQ(metric(metrics, "policy/updates"), 4);
  EXPECT_EQ(metric(metrics, "mismatch/abs_logprob_diff"), 0);
  EXPECT_EQ(metric(metrics, "mismatch/max_logprob_diff"), 0);
  EXPECT_EQ(metric(metrics, "mismatch/max_ratio"), 1);
  EXPECT_EQ(metric(metrics, "mismatch/kl"), 0);
  EXPECT_EQ(metric(metrics, "mismatch/ess_frac"), 1);
  EXPECT_EQ(metric(metrics, "staleness/ess_frac_0"), 1);
  // Later updates have moved.
  EXPECT_GT(metric(metrics, "policy/kl_old"), 0);
  EXPECT_GT(metric(metrics, "policy/ratio_max"), 1);
}

TEST(PolicyTrainer, OneUpdateOnItsOwnSamplesHasRatioOneAndClipsNothing) {
  TrainBatch batch = make_batch(recorded(4, 2));
  MetricList metrics = tiny_trainer({}, {.lr = 1e-2})->policy_step(batch, 0, loss_config());
  EXPECT_EQ(metric(metrics, "policy/ratio_max"), 1);
  EXPECT_EQ(metric(metrics, "policy/clipfrac_low"), 0);
  EXPECT_EQ(metric(metrics, "policy/clipfrac_high"), 0);
}

// With one update every ratio is 1 and policy/kl_old is 0, whatever the update does.
TEST(PolicyTrainer, AStepSaysHowFarItHasMovedThePolicyBehindItsLastUpdate) {
  const auto step = [](double lr, std::vector<float>* weights = nullptr) {
    auto trainer = tiny_trainer({}, {.lr = lr});
    TrainBatch batch = make_batch(recorded(4, 2));
    const MetricList metrics = trainer->policy_step(batch, 0, loss_config());
    EXPECT_EQ(metric(metrics, "policy/kl_old"), 0);
    if (weights != nullptr) *weights = copy(trainer->parameters().flat());
    return metric(metrics, "policy/kl_step");
  };
  EXPECT_EQ(step(0), 0);
  std::vector<float> weights;
  const double small = step(1e-4), middle = step(1e-2, &weights), large = step(1);
  EXPECT_GT(small, 0);
  EXPECT_GT(middle, 10 * small);
  EXPECT_GT(large, 0.1) << "what is told to be too high";
  EXPECT_LE(large, kMaxLogRatio * kMaxLogRatio / 2);

  // To measure it changes nothing that is trained.
  auto trainer = tiny_trainer({}, {.lr = 1e-2});
  TrainBatch batch = make_batch(recorded(4, 2));
  trainer->prepare_step(batch, 0, loss_config());
  trainer->policy_update(batch, {0, batch.sequences.size()}, loss_config(), 0);
  EXPECT_EQ(copy(trainer->parameters().flat()), weights);
  // All of a step this small is measured.
  std::vector<PackedSequence> all;
  for (const TrainSequence& s : batch.sequences) all.push_back(s.packed());
  const auto scores = trainer->score(all);
  double sum = 0;
  int64_t tokens = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    for (size_t k = 0; k < scores[i].size(); ++k, ++tokens) {
      const double x = double{batch.sequences[i].old_logprobs[k]} - scores[i][k];
      sum += x < 0 ? x * x / 2 : std::exp(-x) - 1 + x;
    }
  }
  EXPECT_NEAR(middle, sum / static_cast<double>(tokens), 1e-9);
}

TEST(PolicyTrainer, WhatADriftIsMeasuredOnIsBounded) {
  TrainBatch batch = make_batch(testing::random_trajectories(400, 9));
  int64_t tokens = 0;
  for (const TrainSequence& s : batch.sequences) tokens += std::ssize(s.tokens);
  ASSERT_GT(tokens, 16 * 1024);
  const auto tokens_of = [&](const std::vector<size_t>& sample) {
    int64_t sum = 0;
    for (const size_t index : sample) sum += std::ssize(batch.sequences[index].tokens);
    return sum;
  };
  const std::vector<size_t> sample = drift_sample(batch, 1 << 20);
  EXPECT_LE(tokens_of(sample), tokens / 16);
  EXPECT_GT(tokens_of(sample), tokens / 20);
  EXPECT_TRUE(std::ranges::is_sorted(sample));
  EXPECT_LT(sample.front(), batch.sequences.size() / 20);
  EXPECT_GT(sample.back(), batch.sequences.size() * 19 / 20);
  EXPECT_LE(tokens_of(drift_sample(batch, 100)), 100);
  EXPECT_EQ(drift_sample(batch, 1).size(), 1u) << "one is measured, however long";
  // What is not in the loss says nothing of it.
  for (size_t i = 0; i < batch.sequences.size(); ++i)
    if (i != 7) batch.sequences[i].mask.assign(batch.sequences[i].targets.size(), 0);
  EXPECT_EQ(drift_sample(batch, 1 << 20), std::vector<size_t>{7});
  batch.sequences[7].mask.assign(batch.sequences[7].targets.size(), 0);
  EXPECT_TRUE(drift_sample(batch, 1 << 20).empty());
}

// Through a warm-up with an optimizer of its own and a whole step.
TEST(PolicyTrainer, TakesTheMemoryThatItSays) {
  struct Case {
    TrainOptions train = {};
    PolicyTrainer::Extras extras = {};
    int threads = 1;
    ModelConfig model = testing::tiny_model();
  };
  for (const auto& [train, extras, threads, model] : std::vector<Case>{
           {},
           {.train = {.microbatch_tokens = 20, .gradient_slots = 5}},
           {.train = {.microbatch_tokens = 100}, .extras = {.keeps_reference = true}, .threads = 3},
           {.train = {.microbatch_tokens = 100, .recompute = true}},
           {.train = {}, .extras = {.keeps_reference = true, .streams = true}},
           {.train = {.gradient_slots = 5}, .extras = {.has_critic = true}},
           {.train = {}, .extras = {.optimizers = {OptimizerKind::kMuon}}},
           {.train = {},
           .extras = {.optimizers = {OptimizerKind::kMuon}},
           .model = testing::sparse_model()},
           {.train = {}, .extras = {.optimizers = {OptimizerKind::kMuon, OptimizerKind::kAdamW}}},
           {.train = {.microbatch_tokens = 100},
           .extras = {.keeps_reference = true},
           .threads = 3,
           .model = testing::sparse_model()}}) {
    ThreadPool pool(threads);
    const int64_t before = Buffer::total_bytes();
    Buffer::begin_peak();
    const OptimOptions first{.kind = extras.optimizers.front(), .lr = 1e-2};
    const OptimOptions second{.kind = extras.optimizers.back(), .lr = 1e-2};
    auto trainer = tiny_trainer(train, first, Stream{{}, &pool, nullptr}, 1, model);
    trainer->reset_optimizer(second);
    if (extras.keeps_reference) trainer->set_reference(trainer->parameters());
    if (extras.has_critic) trainer->use_critic({});
    TrainStep step = trainer->begin_step(extras.streams);
    trainer->warm_up();
    PolicyLossConfig loss = loss_config();
    if (extras.keeps_reference) loss.kl.coef = 0.1;
    std::vector<Trajectory> trajectories = testing::random_trajectories(4, 2);
    testing::record_logprobs(*trainer, trajectories);
    TrainBatch batch = make_batch(trajectories);
    if (extras.has_critic) testing::set_returns(batch);
    step.add(batch, 0, loss);
    step.finish(0, loss);
    EXPECT_EQ(Buffer::peak_bytes() - before,
              total_bytes(PolicyTrainer::memory(model, train, testing::kMaxSequenceTokens, threads,
                                                extras)));
  }
}

TEST(PolicyTrainer, AWarmUpLeavesNoTrace) {
  const auto run = [](bool warms_up) {
    auto trainer = tiny_trainer(
        {.minibatches_per_step = 2, .microbatch_tokens = 50, .gradient_slots = 3}, {.lr = 1e-2});
    std::vector<float> seen;
    trainer->watch_logprobs([&](const TrainSequence&, std::span<const float> logprobs) {
      seen.insert(seen.end(), logprobs.begin(), logprobs.end());
    });
    std::vector<Trajectory> trajectories = testing::random_trajectories(4, 2);
    testing::record_logprobs(*trainer, trajectories);
    if (warms_up) {
      trainer->warm_up();
      EXPECT_TRUE(seen.empty());
      EXPECT_EQ(trainer->optimizer().updates(), 0);
      EXPECT_EQ(std::ranges::count(trainer->gradients().flat(), 0.0f),
                std::ssize(trainer->gradients().flat()));
    }
    TrainBatch batch = make_batch(trajectories);
    const MetricList metrics = trainer->policy_step(batch, 0, loss_config());
    return std::tuple(copy(trainer->parameters().flat()), copy(trainer->gradients().flat()),
                      metrics, seen);
  };
  EXPECT_EQ(run(true), run(false));
}

// The largest micro-batch of a run fits into what the warm-up has used: no call asks for more.
TEST(PolicyTrainer, WarmsUpWithAsMuchAsAMicrobatchMayHold) {
  for (const int64_t tokens : {1, 20, 64, 100, 4096}) {
    auto trainer = tiny_trainer({.microbatch_tokens = tokens});
    trainer->warm_up();
    Rng rng(1);
    std::vector<TokenId> longest(testing::kMaxSequenceTokens);
    std::vector<int32_t> targets(longest.size() - 1);
    std::iota(targets.begin(), targets.end(), 1);
    const std::vector<PackedSequence> sequences(5, {.tokens = longest, .targets = targets});
    const int64_t before = Buffer::total_bytes();
    Buffer::begin_peak();
    trainer->sft_update(sequences);
    EXPECT_EQ(Buffer::peak_bytes(), before) << tokens;
  }
}

TEST(PolicyTrainer, AMismatchIsSeen) {
  std::vector<Trajectory> trajectories = recorded(2, 2);
  for (size_t i = 0; i < trajectories[0].segments[0].tokens.size(); ++i) {
    if (trajectories[0].segments[0].roles[i] != TokenRole::kSampled) continue;
    trajectories[0].segments[0].logprobs[i] -= 0.25f;
    break;
  }
  TrainBatch batch = make_batch(trajectories);
  MetricList metrics = tiny_trainer({})->policy_step(batch, 0, loss_config());
  EXPECT_NEAR(metric(metrics, "mismatch/max_logprob_diff"), 0.25, 1e-6);
  EXPECT_GT(metric(metrics, "mismatch/abs_logprob_diff"), 0);
}

TEST(PolicyTrainer, StaleTokensAreScoredAgainAndCorrected) {
  // Sampled by weights of seed 1 as version 0; the trainer holds seed 2 as version 3.
  std::vector<Trajectory> trajectories = recorded(2, 3);
  TrainBatch batch = make_batch(trajectories);
  auto trainer = tiny_trainer({}, kStill, {}, /*seed=*/2);
  PolicyLossConfig config;
  config.correction.cap = 1.5;
  trainer->prepare_step(batch, 3, config);
  std::vector<PackedSequence> sequences;
  for (const TrainSequence& s : batch.sequences) sequences.push_back(s.packed());
  std::vector<std::vector<float>> current = trainer->score(sequences);
  for (size_t i = 0; i < sequences.size(); ++i)
    EXPECT_EQ(batch.sequences[i].old_logprobs, current[i]);

  UpdateReport report = trainer->policy_update(batch, {0, batch.sequences.size()}, config, 3);
  EXPECT_EQ(report.current_tokens, 0);
  EXPECT_EQ(report.loss.stats.ratio_max, 1);
  EXPECT_NEAR(report.loss.stats.correction_max, 1.5, 1e-12);
  EXPECT_GT(report.loss.stats.correction_cut, 0);
  // l = l_old: the loss is the weighted mean of -A.
  double expected = 0;
  for (const TrainSequence& s : batch.sequences) {
    for (size_t k = 0; k < s.targets.size(); ++k) {
      expected -= std::min(1.5, std::exp(double{s.old_logprobs[k]} - s.behaviour_logprobs[k])) *
                  s.advantages[k];
    }
  }
  EXPECT_NEAR(report.loss.loss, expected / static_cast<double>(report.loss.stats.tokens), 1e-6);
}

TEST(PolicyTrainer, ToprTapersStaleFailuresAndLeavesSuccessesAlone) {
  // As above.
  std::vector<Trajectory> trajectories = recorded(2, 3);
  TrainBatch batch = make_batch(trajectories);
  auto trainer = tiny_trainer({}, kStill, {}, /*seed=*/2);
  const PolicyLossConfig config = policy_loss_config(AlgoOptions::preset(AlgoPreset::kTopr));
  trainer->prepare_step(batch, 3, config);
  UpdateReport report = trainer->policy_update(batch, {0, batch.sequences.size()}, config, 3);
  double expected = 0;
  int64_t tapered = 0;
  for (const TrainSequence& s : batch.sequences) {
    for (size_t k = 0; k < s.targets.size(); ++k) {
      const double l = s.old_logprobs[k], ratio = std::exp(l - s.behaviour_logprobs[k]);
      const bool success = s.advantages[k] > 0;  // rewards are 0 and 1
      tapered += !success && ratio < 1;
      expected -= (success ? 1 : std::min(ratio, 1.0)) * s.advantages[k] * l;
    }
  }
  EXPECT_GT(tapered, 0);
  EXPECT_NEAR(report.loss.loss, expected / static_cast<double>(report.loss.stats.tokens), 1e-6);
}

TEST(PolicyTrainer, MixedVersionsKeepTheRecordedLogprobOfFreshTokens) {
  std::vector<Trajectory> trajectories = recorded(2, 3);
  TrainBatch batch = make_batch(trajectories);
  // The first token is fresh, the others are not.
  for (TrainSequence& s : batch.sequences) s.versions[0] = 1;
  auto trainer = tiny_trainer({}, kStill, {}, /*seed=*/2);
  trainer->prepare_step(batch, 1, {});
  for (const TrainSequence& s : batch.sequences) {
    EXPECT_EQ(s.old_logprobs[0], s.behaviour_logprobs[0]);
    for (size_t k = 1; k < s.targets.size(); ++k)
      EXPECT_NE(s.old_logprobs[k], s.behaviour_logprobs[k]);
  }
  MetricList metrics = trainer->policy_step(batch, 1, {});
}

// Equal versions are not enough: another class computes other bits of the same weights.
TEST(PolicyTrainer, TokensOfAnotherClassAreScoredAgainAndCorrected) {
  std::vector<Trajectory> trajectories = recorded(2, 3);
  for (Trajectory& t : trajectories) {
    if (t.lease.member.prompt == 1) continue;
    t.numerics_classes = {"gpu-test"};
    // What that class made of the weights that both hold.
    for (Segment& segment : t.segments)
      for (float& l : segment.logprobs) l *= 1.125f;
  }
  TrainBatch batch = make_batch(trajectories);
  auto trainer = tiny_trainer({}, kStill);
  trainer->prepare_step(batch, 0, {});
  double largest = 0, foreign = 0, tokens = 0;
  for (const TrainSequence& s : batch.sequences) {
    const PackedSequence packed = s.packed();
    EXPECT_EQ(s.old_logprobs, trainer->score({&packed, 1})[0]);
    for (size_t k = 0; k < s.targets.size(); ++k) {
      largest = std::max(largest, std::exp(double{s.old_logprobs[k]} - s.behaviour_logprobs[k]));
      foreign += s.foreign_class[k];
      ++tokens;
    }
  }
  MetricList metrics = trainer->policy_step(batch, 0, {});
  EXPECT_NEAR(metric(metrics, "mismatch/foreign_class_frac"), foreign / tokens, 1e-12);
  EXPECT_GT(foreign, 0);
  EXPECT_LT(foreign, tokens);
  EXPECT_EQ(metric(metrics, "mismatch/max_ratio"), std::min(2.0, largest));
  EXPECT_GT(metric(metrics, "mismatch/max_ratio"), 1.1);
  EXPECT_GT(metric(metrics, "mismatch/mean_ratio"), 1);
  EXPECT_GT(metric(metrics, "mismatch/kl"), 0);
  EXPECT_GT(metric(metrics, "mismatch/abs_logprob_diff"), 0);
  // The ratio of the update is to our own numbers, and these have not moved.
  EXPECT_EQ(metric(metrics, "policy/ratio_min"), 1);
  EXPECT_EQ(metric(metrics, "policy/ratio_max"), 1);
}

TEST(PolicyTrainer, GradientsAreTheSameBitsForAnyNumberOfThreads) {
  std::vector<Trajectory> trajectories = recorded(3, 4);
  TrainOptions train{.microbatch_tokens = 60, .gradient_slots = 2};
  std::vector<float> one = gradient(trajectories, train);
  for (int threads : {2, 3, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(gradient(trajectories, train, Stream{{}, &pool, nullptr}), one) << threads;
  }
}

TEST(PolicyTrainer, AStepGivesTheSameWeightsForAnyNumberOfThreads) {
  // Wide enough that its loops are divided.
  ModelConfig wide = testing::tiny_model();
  wide.hidden_size = 128, wide.intermediate_size = 256, wide.head_dim = 32;
  const TrainOptions train{.minibatches_per_step = 2};
  std::vector<Trajectory> trajectories = testing::random_trajectories(4, 2);
  testing::record_logprobs(*tiny_trainer(train, {}, {}, 1, wide), trajectories);
  const auto stepped = [&](Stream stream) {
    TrainBatch batch = make_batch(trajectories);
    auto trainer = tiny_trainer(train, {.lr = 1e-2}, stream, 1, wide);
    trainer->policy_step(batch, 0, loss_config());
    return copy(trainer->parameters().flat());
  };
  const std::vector<float> one = stepped({});
  EXPECT_NE(one, copy(tiny_trainer(train, {}, {}, 1, wide)->parameters().flat()));
  for (const int threads : {2, 3, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(stepped(Stream{{}, &pool, nullptr}), one) << threads;
    EXPECT_GT(pool.num_divided(), 0) << threads;
  }
}

TEST(PolicyTrainer, LayersThatAreComputedAgainChangeNoBit) {
  std::vector<Trajectory> trajectories = recorded(3, 4);
  EXPECT_EQ(gradient(trajectories, {.microbatch_tokens = 60, .recompute = true}),
            gradient(trajectories, {.microbatch_tokens = 60}));
}

// Sums of the same terms in another order: each element differs by a few roundings of its largest
// partial sum. Bounded per tensor by its largest element; a gradient element is a sum of about 100
// targets' terms, whose orders differ in at most that many additions: 100 * 2^-24 = 6e-6, doubled
// for the two passes.
void expect_close(const ParameterLayout& layout, const std::vector<float>& a,
                  const std::vector<float>& b) {
  for (const ParameterInfo& info : layout.entries()) {
    float largest = 0, difference = 0;
    for (auto i = static_cast<size_t>(info.offset);
         i < static_cast<size_t>(info.offset + info.size); ++i) {
      largest = std::max(largest, std::abs(a[i]));
      difference = std::max(difference, std::abs(a[i] - b[i]));
    }
    EXPECT_GT(largest, 0) << info.name;
    EXPECT_LE(difference, 1.2e-5f * largest) << info.name;
  }
}

TEST(PolicyTrainer, AnotherCutIntoMicroBatchesOrSlotsAgreesWithinRounding) {
  std::vector<Trajectory> trajectories = recorded(3, 4);
  ParameterLayout layout(testing::tiny_model());
  std::vector<float> whole = gradient(trajectories, {});
  for (int64_t tokens : {1, 30, 100}) {
    for (int64_t slots : {1, 2, 3, 5, 8}) {
      expect_close(layout, whole,
                   gradient(trajectories, {.microbatch_tokens = tokens, .gradient_slots = slots}));
    }
  }
}

// One group after the other, without knowing how many tokens the step will have.
// The last turn of each member that has several becomes a segment of its own, behind all that was
// said and sampled before it.
std::vector<Trajectory> split_behind_a_turn(std::vector<Trajectory> trajectories) {
  for (Trajectory& t : trajectories) {
    Segment& whole = t.segments[0];
    if (whole.turn_begins.size() < 2) continue;
    auto cut = static_cast<std::ptrdiff_t>(whole.turn_begins.back());
    while (whole.roles[static_cast<size_t>(cut) - 1] == TokenRole::kObservation) --cut;
    Segment last;
    last.parent = 0;
    last.parent_tokens = static_cast<int32_t>(cut);
    last.turn_begins = {whole.turn_begins.back() - last.parent_tokens};
    whole.turn_begins.pop_back();
    const auto move = [cut](auto& from, auto& to) {
      to.assign(from.begin() + cut, from.end());
      from.resize(static_cast<size_t>(cut));
    };
    move(whole.tokens, last.tokens);
    move(whole.roles, last.roles);
    move(whole.logprobs, last.logprobs);
    move(whole.versions, last.versions);
    move(whole.classes, last.classes);
    t.segments.push_back(std::move(last));
  }
  return trajectories;
}

// A member counts once, however many segments it has: as many rewards in its group, as many samples
// in the means, and each of its tokens as much.
TEST(PolicyTrainer, AMemberOfTwoSegmentsIsTrainedAsTheSameTokensInOne) {
  const std::vector<Trajectory> one = recorded(4, 4), two = split_behind_a_turn(one);
  int64_t split = 0;
  for (const Trajectory& t : two) split += t.segments.size() == 2;
  ASSERT_GT(split, 4);
  ASSERT_LT(split, std::ssize(two)) << "some have one segment, beside those that have two";
  const TrainBatch whole = make_batch(one), parts = make_batch(two);
  EXPECT_EQ(std::ssize(parts.sequences), std::ssize(whole.sequences) + split);
  EXPECT_EQ(parts.trajectory_tokens, whole.trajectory_tokens);
  ASSERT_EQ(parts.credit.size(), whole.trajectory_tokens.size());
  for (size_t i = 0; i < parts.credit.size(); ++i)
    EXPECT_EQ(parts.credit[i].lease, whole.credit[i].lease);
  EXPECT_EQ(parts.metrics, whole.metrics);
  EXPECT_EQ(parts.num_groups(), whole.num_groups());
  for (const TrainSequence& s : parts.sequences)
    for (const TrainSequence& w : whole.sequences)
      if (w.trajectory == s.trajectory) {
        EXPECT_EQ(s.advantages.front(), w.advantages.front());
      }
  for (const AggregationKind kind :
       {AggregationKind::kTokenMean, AggregationKind::kSeqMeanTokenMean,
        AggregationKind::kSeqMeanTokenSumConst}) {
    PolicyLossConfig config = loss_config();
    config.aggregation = {kind, 7};
    const std::vector<float> expected = gradient(one, {}, {}, config),
                             found = gradient(two, {}, {}, config);
    double norm = 0, difference = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      norm += double{expected[i]} * expected[i];
      difference += std::pow(double{found[i]} - expected[i], 2);
    }
    EXPECT_GT(norm, 0);
    // The same terms, added in another order.
    EXPECT_LT(std::sqrt(difference / norm), 1e-5) << name_of(kind);
  }
}

TEST(PolicyTrainer, AStreamedStepIsThatOfTheWholeBatch) {
  std::vector<Trajectory> all = recorded(4, 4);
  for (size_t i = 4; i < 8; ++i) all[i].reward = 1;  // a group without signal in between
  const ParameterLayout layout(testing::tiny_model());
  std::vector<PolicyLossConfig> configs;
  for (const AggregationKind kind :
       {AggregationKind::kTokenMean, AggregationKind::kSeqMeanTokenMean,
        AggregationKind::kSeqMeanTokenSumConst}) {
    for (const KlTarget target : {KlTarget::kBehaviour, KlTarget::kReference}) {
      for (const RatioUnit ratio : {RatioUnit::kToken, RatioUnit::kSequence}) {
        configs.push_back(loss_config());
        configs.back().aggregation = {kind, 7};
        configs.back().kl = {.coef = 0.1, .target = target};
        configs.back().ratio = ratio;
      }
    }
  }
  for (const PolicyLossConfig& config : configs) {
    for (const int64_t slots : {1, 3}) {
      // Weights that have moved since: ratios and the KL term are not those of fresh samples.
      const auto moved = [&] {
        auto trainer = tiny_trainer({.gradient_slots = slots}, kStill);
        trainer->set_reference(trainer->parameters());
        for (float& w : trainer->parameters().flat()) w *= 1.02f;
        trainer->weights_changed();
        return trainer;
      };
      auto at_once = moved();
      TrainBatch batch = make_batch(all);
      const MetricList expected = at_once->policy_step(batch, 1, config);

      auto trainer = moved();
      TrainStep step = trainer->begin_step(/*gathers=*/true);
      for (auto begin = all.begin(); begin != all.end(); begin += 4)
        step.add(make_batch({begin, begin + 4}), 1, config);
      step.batch().metrics = batch.metrics;
      const MetricList streamed = step.finish(1, config);
      expect_close(layout, copy(at_once->gradients().flat()), copy(step.gradients().flat()));
      ASSERT_EQ(streamed.size(), expected.size());
      for (size_t i = 0; i < streamed.size(); ++i) {
        EXPECT_EQ(streamed[i].first, expected[i].first);
        EXPECT_NEAR(streamed[i].second, expected[i].second,
                    1e-5 * std::max(1.0, std::abs(expected[i].second)))
            << streamed[i].first;
      }
    }
  }
}

TEST(PolicyTrainer, AStreamedStepWithoutSignalMakesNoUpdate) {
  std::vector<Trajectory> trajectories = recorded(2, 6);
  for (Trajectory& t : trajectories) t.reward = 1;
  auto trainer = tiny_trainer({});
  const std::vector<float> before = copy(trainer->parameters().flat());
  TrainStep step = trainer->begin_step(/*gathers=*/true);
  step.add(make_batch({trajectories.begin(), trajectories.begin() + 4}), 0, {});
  step.add(make_batch({trajectories.begin() + 4, trajectories.end()}), 0, {});
  EXPECT_EQ(metric(step.finish(0, {}), "policy/updates"), 0);
  EXPECT_EQ(copy(trainer->parameters().flat()), before);
}

TEST(PolicyTrainer, SlotsAreJoinedInAFixedTree) {
  // A batch of 4 equal groups in 4 slots: ((s0 + s1) + (s2 + s3)), each slot alone computed by its
  // own call.
  std::vector<Trajectory> trajectories = recorded(1, 5);
  std::vector<Trajectory> all;
  for (int64_t g = 0; g < 4; ++g) {
    for (Trajectory t : trajectories) {
      t.lease.member.prompt = g;
      // Rewards that differ from group to group.
      t.reward = *t.reward + 0.1 * static_cast<double>(g) * t.lease.member.member;
      all.push_back(t);
    }
  }
  PolicyLossConfig config;
  config.aggregation = {AggregationKind::kSeqMeanTokenSumConst, 1};
  std::vector<float> joined = gradient(all, {.gradient_slots = 4}, {}, config);
  std::vector<std::vector<float>> slots;
  auto trainer = tiny_trainer({}, kStill);
  TrainBatch batch = make_batch(all);
  trainer->prepare_step(batch, 0, config);
  // A slot alone has a quarter of the trajectories, and 1 / 4 is exact.
  config.aggregation.const_tokens = 4;
  for (size_t g = 0; g < 4; ++g) {
    trainer->policy_update(batch, {4 * g, 4 * g + 4}, config, 0);
    slots.push_back(copy(trainer->gradients().flat()));
  }
  for (size_t i = 0; i < joined.size(); ++i) {
    ASSERT_EQ(joined[i], (slots[0][i] + slots[1][i]) + (slots[2][i] + slots[3][i])) << i;
  }
}

// Of whole distributions, and of draws from kept sets.
class LossGradient : public ::testing::TestWithParam<SamplingMask> {};

TEST_P(LossGradient, MatchesFiniteDifferencesOfTheWholeLoss) {
  std::vector<Trajectory> trajectories = recorded(2, 6);
  testing::truncate(trajectories);
  PolicyLossConfig config = loss_config();
  config.entropy_coef = .05;
  config.kl.coef = .2;
  auto trainer = tiny_trainer({.microbatch_tokens = 50, .gradient_slots = 2}, kStill);
  Parameters other(trainer->model().layout());
  init_parameters(trainer->model().config(), 7, other);
  trainer->set_reference(other);
  TrainBatch batch = make_batch(trajectories, AdvantageKind::kGroupMean, true, GetParam());
  trainer->prepare_step(batch, 0, config);
  // As the sets of truncate() were not drawn from, their recorded numbers fit nothing.
  for (TrainSequence& s : batch.sequences) {
    const PackedSequence packed = s.packed();
    s.old_logprobs = trainer->score({&packed, 1})[0];
  }
  // Away from ratio 1, where the loss has no kink nearby.
  Rng rng(8);
  for (TrainSequence& s : batch.sequences) {
    for (float& l : s.old_logprobs) l += static_cast<float>(.05 + .1 * rng.uniform());
  }
  auto evaluate = [&] {
    return trainer->policy_update(batch, {0, batch.sequences.size()}, config, 0).loss.loss;
  };
  evaluate();
  const std::vector<float> gradient = copy(trainer->gradients().flat());
  testing::expect_slopes(*trainer, gradient, rng, evaluate);
}

INSTANTIATE_TEST_SUITE_P(PolicyTrainer, LossGradient,
                         ::testing::Values(SamplingMask::kNone, SamplingMask::kKeep),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST(PolicyTrainer, KlAgainstAReferenceIsZeroForItselfAndPositiveForAnother) {
  std::vector<Trajectory> trajectories = recorded(2, 6);
  PolicyLossConfig config;
  config.kl.coef = .1;
  auto trainer = tiny_trainer({}, kStill);
  trainer->set_reference(trainer->parameters());
  TrainBatch batch = make_batch(trajectories);
  EXPECT_EQ(metric(trainer->policy_step(batch, 0, config), "policy/kl_ref"), 0);
  Parameters other(trainer->model().layout());
  init_parameters(trainer->model().config(), 2, other);
  trainer->set_reference(other);
  EXPECT_GT(metric(trainer->policy_step(batch, 0, config), "policy/kl_ref"), .01);
}

TEST(PolicyTrainer, AStepWithoutSignalMakesNoUpdateAndSaysSo) {
  std::vector<Trajectory> trajectories = recorded(2, 6);
  for (Trajectory& t : trajectories) t.reward = 1;
  auto trainer = tiny_trainer({});
  std::vector<float> before = copy(trainer->parameters().flat());
  TrainBatch batch = make_batch(trajectories);
  MetricList metrics = trainer->policy_step(batch, 0, {});
  EXPECT_EQ(metric(metrics, "policy/updates"), 0);
  EXPECT_EQ(metric(metrics, "rollout/zero_signal_frac"), 1);
  EXPECT_EQ(copy(trainer->parameters().flat()), before);
}

// The updates that a step makes share its part of the run, however many they are.
TEST(PolicyTrainer, TheRateFallsWithTheShareOfTheRun) {
  const OptimOptions optim{
      .lr = 1e-3, .schedule = LrSchedule::kLinear, .min_lr_ratio = 0, .max_grad_norm = 0};
  const auto last_rate = [&](int64_t groups, const TrainOptions& train, RunShare share) {
    auto trainer = tiny_trainer(train, optim);
    TrainBatch first = make_batch(recorded(groups, 6)), batch = make_batch(recorded(groups, 6));
    if (share.begin > 0) (void)trainer->policy_step(first, 0, {}, {0, share.begin});
    return metric(trainer->policy_step(batch, 0, {}, share), "policy/lr");
  };
  const RunShare second{0.25, 0.5};
  EXPECT_NEAR(last_rate(4, {}, second), 0.75e-3, 1e-12);
  EXPECT_NEAR(last_rate(4, {.minibatches_per_step = 4}, second), (0.75 - 0.25 * 3 / 4) * 1e-3,
              1e-12);
  EXPECT_NEAR(last_rate(4, {.minibatches_per_step = 2, .ppo_epochs = 3}, second),
              (0.75 - 0.25 * 5 / 6) * 1e-3, 1e-12);
  // Fewer groups than minibatches.
  EXPECT_NEAR(last_rate(2, {.minibatches_per_step = 4}, second), (0.75 - 0.25 / 2) * 1e-3, 1e-12);
  // The last step of a run, and one that is all of it.
  EXPECT_NEAR(last_rate(4, {.minibatches_per_step = 4}, {0.75, 1}), 1e-3 / 16, 1e-12);
  EXPECT_EQ(last_rate(4, {}, {0, 1}), 1e-3);
}

// Ten steps of two minibatches, of which some make one update, or none.
TEST(PolicyTrainer, TheFallBeginsWhereTheWarmUpEnded) {
  const OptimOptions optim{.lr = 1e-3,
                           .warmup_updates = 3,
                           .schedule = LrSchedule::kLinear,
                           .min_lr_ratio = 0,
                           .max_grad_norm = 0};
  TemporaryDirectory dir;
  const std::filesystem::path file = dir.path() / "o.safetensors";
  const auto last_rates = [&](const std::vector<int64_t>& groups, int stop_before) {
    auto trainer = tiny_trainer({.minibatches_per_step = 2}, optim);
    std::vector<double> rates;
    for (int step = 0; step < std::ssize(groups); ++step) {
      if (step == stop_before) {
        trainer->optimizer().save(file);
        trainer->reset_optimizer(optim);
        trainer->optimizer().load(file);
      }
      const int64_t count = groups[static_cast<size_t>(step)];
      std::vector<Trajectory> trajectories = recorded(std::max<int64_t>(count, 1), 6);
      if (count == 0)
        for (Trajectory& t : trajectories) t.reward = 1;
      TrainBatch batch = make_batch(trajectories);
      const MetricList metrics =
          trainer->policy_step(batch, 0, {}, {step / 10.0, (step + 1) / 10.0});
      if (count > 0) rates.push_back(metric(metrics, "policy/lr") / optim.lr);
    }
    return rates;
  };
  const std::vector<std::pair<std::vector<int64_t>, std::vector<double>>> cases = {
      // The fourth update is the second of its step, at a share of 0.15.
      {{2, 2, 2, 2, 2, 2, 2, 2, 2, 2},
       {2 / 3.0, 1, 1 - .1 / .85, 1 - .2 / .85, 1 - .3 / .85, 1 - .4 / .85, 1 - .5 / .85,
        1 - .6 / .85, 1 - .7 / .85, 1 - .8 / .85}},
      // One minibatch of two: at 0.3.
      {{1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
       {1 / 3.0, 2 / 3.0, 1, 1, 6 / 7.0, 5 / 7.0, 4 / 7.0, 3 / 7.0, 2 / 7.0, 1 / 7.0}},
      // Every other step filtered: at 0.6.
      {{1, 0, 1, 0, 1, 0, 1, 0, 1, 0}, {1 / 3.0, 2 / 3.0, 1, 1, .5}}};
  for (const auto& [groups, expected] : cases) {
    const std::vector<double> whole = last_rates(groups, -1);
    ASSERT_EQ(whole.size(), expected.size());
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(whole[i], expected[i], 1e-12) << i;
    for (const int stop_before : {1, 2, 3, 6})
      EXPECT_EQ(last_rates(groups, stop_before), whole) << stop_before;
  }
}

TEST(PolicyTrainer, TokensBeyondTheStalenessBoundAreInNoSumOfTheLoss) {
  std::vector<Trajectory> trajectories = recorded(2, 3);
  testing::set_versions(trajectories, [](size_t t, int64_t i) { return t == 1 ? 0 : i % 3; });
  BatchOptions options = testing::tiny_batch_options();
  options.version = 3;
  options.max_staleness = 1;
  TrainBatch batch = testing::make_batch(trajectories, options);
  PolicyLossConfig config;
  config.aggregation.kind = AggregationKind::kSeqMeanTokenMean;
  MetricList metrics = tiny_trainer({}, kStill)->policy_step(batch, 3, config);
  double expected = 0, trajectories_left = 0, tokens_left = 0;
  for (const Trajectory& t : trajectories) {
    const Segment& segment = t.segments[0];
    const double left = static_cast<double>(std::ranges::count(segment.versions, 2));
    // Half of a group of two different rewards succeeds. The same weights sampled: the ratios
    // are 1.
    if (left > 0) expected -= *t.reward - 0.5;
    trajectories_left += left > 0;
    tokens_left += left;
  }
  EXPECT_EQ(metric(metrics, "policy/loss_tokens"), tokens_left);
  EXPECT_NEAR(metric(metrics, "policy/loss"), expected / trajectories_left, 1e-6);
}

// Sampled by weights of seed 1, as several versions; the trainer holds seed 2 as version 7.
TEST(PolicyTrainer, EffectiveSamplesAreCountedByStaleness) {
  std::vector<Trajectory> trajectories = recorded(3, 3);
  auto with = [&](std::vector<int64_t> staleness) {
    testing::set_versions(trajectories, [&](size_t, int64_t i) {
      return 7 - staleness[static_cast<size_t>(i) % staleness.size()];
    });
    TrainBatch batch = make_batch(trajectories);
    MetricList metrics =
        tiny_trainer({.ppo_epochs = 2}, {.lr = 1e-2}, {}, /*seed=*/2)->policy_step(batch, 7, {});
    // As the formula has it, from the step's own numbers.
    auto expected = [&](int64_t low, int64_t high) {
      double n = 0, sum = 0, squares = 0;
      for (const TrainSequence& s : batch.sequences)
        for (size_t k = 0; k < s.targets.size(); ++k) {
          if (7 - s.versions[k] < low || 7 - s.versions[k] > high) continue;
          const double w = std::exp(double{s.old_logprobs[k]} - s.behaviour_logprobs[k]);
          n += 1, sum += w, squares += w * w;
        }
      return n > 0 ? sum * sum / (n * squares) : -1;
    };
    const std::vector<std::tuple<const char*, int64_t, int64_t>> rows = {
        {"mismatch/ess_frac", 0, 99},
        {"staleness/ess_frac_0", 0, 0},
        {"staleness/ess_frac_1", 1, 1},
        {"staleness/ess_frac_2", 2, 2},
        {"staleness/ess_frac_3_up", 3, 99}};
    std::vector<double> found;
    for (const auto& [name, low, high] : rows) {
      const bool present = std::ranges::count(metrics, name, [](const auto& m) { return m.first; });
      found.push_back(present ? metric(metrics, name) : -1);
      EXPECT_NEAR(found.back(), expected(low, high), 1e-12) << name;
    }
    return found;
  };
  const std::vector<double> mixed = with({0, 1, 3, 2, 5, 7});
  EXPECT_EQ(mixed[1], 1) << "fresh tokens have no weight";
  for (size_t i : {0, 2, 3, 4}) {
    EXPECT_GT(mixed[i], 0.1) << i;
    EXPECT_LT(mixed[i], 0.999) << i;
  }
  const std::vector<double> two = with({1, 4});
  EXPECT_EQ(two[1], -1);
  EXPECT_EQ(two[3], -1);
  EXPECT_GT(two[2], 0);
  EXPECT_GT(two[4], 0);
}

TEST(PolicyTrainer, AStepWhoseTokensAreAllTooOldMakesNoUpdateAndSaysSo) {
  std::vector<Trajectory> trajectories = recorded(2, 6);
  BatchOptions options = testing::tiny_batch_options();
  options.version = 3;
  options.max_staleness = 2;
  TrainBatch batch = testing::make_batch(trajectories, options);
  auto trainer = tiny_trainer({.minibatches_per_step = 2, .ppo_epochs = 2}, {.lr = 1e-2});
  std::vector<float> before = copy(trainer->parameters().flat());
  MetricList metrics = trainer->policy_step(batch, 3, {});
  EXPECT_EQ(metric(metrics, "policy/updates"), 0);
  EXPECT_EQ(metric(metrics, "policy/loss_tokens"), 0);
  EXPECT_EQ(metric(metrics, "staleness/masked_frac"), 1);
  EXPECT_LT(metric(metrics, "rollout/zero_signal_frac"), 1);
  EXPECT_THROW(metric(metrics, "policy/loss"), std::runtime_error);
  EXPECT_THROW(metric(metrics, "mismatch/ess_frac"), std::runtime_error);
  TrainBatch nothing = testing::make_batch({}, options);
  EXPECT_EQ(metric(trainer->policy_step(nothing, 4, {}), "policy/updates"), 0);
  EXPECT_EQ(copy(trainer->parameters().flat()), before);
  EXPECT_EQ(trainer->optimizer().updates(), 0);
}

// Who takes turns with it writes there (Colocation).
TEST(PolicyTrainer, TurnMemoryMayHoldAnythingBetweenSteps) {
  for (const bool recompute : {false, true}) {
    const TrainOptions train{.microbatch_tokens = 50, .recompute = recompute};
    auto apart = tiny_trainer(train, {.lr = 1e-2});
    int64_t bytes = 64 << 10;  // what is rounded up
    for (const MemoryItem& item :
         PolicyTrainer::memory(testing::tiny_model(), train, testing::kMaxSequenceTokens, 1, {}))
      if (item.of_turn) bytes += item.bytes;
    Buffer memory(static_cast<size_t>(bytes));
    PolicyTrainer in_turn(Stream{}, testing::tiny_model(), train, testing::kMaxSequenceTokens,
                          Dtype::kF32, /*base=*/nullptr, memory.bytes());
    std::ranges::copy(apart->parameters().flat(), in_turn.parameters().flat().begin());
    in_turn.weights_changed();
    in_turn.reset_optimizer({.lr = 1e-2});
    for (int64_t version = 0; version < 3; ++version) {
      TrainBatch batch = make_batch(recorded(2, 6)), same = batch;
      apart->policy_step(batch, version, loss_config());
      std::ranges::fill(memory.as<uint8_t>(), uint8_t{0xff});  // NaN in each dtype
      in_turn.policy_step(same, version, loss_config());
      EXPECT_EQ(copy(in_turn.parameters().flat()), copy(apart->parameters().flat())) << version;
    }
    EXPECT_EQ(in_turn.optimizer().updates(), 3);
  }
}

TEST(PolicyTrainer, TemperatureIsPartOfThePolicy) {
  std::vector<Trajectory> trajectories = recorded(1, 6);
  for (Trajectory& t : trajectories) t.sampling.temperature = .5;
  TrainBatch batch = make_batch(trajectories);
  EXPECT_EQ(batch.sequences[0].inv_temperature, 2);
  auto trainer = tiny_trainer({}, kStill);
  // Recorded at temperature 1: the mismatch must show.
  EXPECT_GT(metric(trainer->policy_step(batch, 0, {}), "mismatch/abs_logprob_diff"), .01);
}

TEST(PolicyTrainer, RewardedTokensBecomeMoreLikely) {
  std::vector<Trajectory> trajectories = recorded(4, 9);
  auto trainer = tiny_trainer({.minibatches_per_step = 2, .ppo_epochs = 3}, {.lr = 3e-3});
  TrainBatch batch = make_batch(trajectories);
  trainer->policy_step(batch, 0, {});
  double gain = 0;
  for (const TrainSequence& s : batch.sequences) {
    PackedSequence packed = s.packed();
    std::vector<float> now = trainer->score({&packed, 1})[0];
    for (size_t k = 0; k < now.size(); ++k)
      gain += s.advantages[k] * (now[k] - s.behaviour_logprobs[k]);
  }
  EXPECT_GT(gain, 0.1);
}

}  // namespace
}  // namespace tailrace
