#include "trainer/batch.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "kernels/ops/router.h"
#include "tests/trainer/fixtures.h"

namespace tailrace {
namespace {

using testing::make_batch;

const BatchOptions kOptions = testing::tiny_batch_options();

TEST(Pack, FillsInOrderWithoutSplittingASequence) {
  std::vector<int64_t> lengths = {7, 6, 8, 5, 1, 3, 8, 6};
  std::vector<std::vector<TokenId>> tokens;
  for (int64_t n : lengths) tokens.emplace_back(static_cast<size_t>(16 * n));
  std::vector<PackedSequence> sequences;
  for (const auto& t : tokens) sequences.push_back({.tokens = t});
  using Ranges = std::vector<std::pair<size_t, size_t>>;
  EXPECT_EQ(pack(sequences, {256, 100}), (Ranges{{0, 2}, {2, 5}, {5, 7}, {7, 8}}));
  EXPECT_EQ(pack(sequences, {256, 2}), (Ranges{{0, 2}, {2, 4}, {4, 6}, {6, 8}}));
  // A sequence that is longer than the limit goes alone.
  EXPECT_EQ(pack(sequences, {112, 100}),
            (Ranges{{0, 1}, {1, 2}, {2, 3}, {3, 5}, {5, 6}, {6, 7}, {7, 8}}));
  EXPECT_TRUE(pack({}, {256, 4}).empty());
  // The head takes one temperature for all rows of a pack.
  sequences[1].inv_temperature = 2;
  EXPECT_EQ(pack(sequences, {1600, 100}), (Ranges{{0, 1}, {1, 2}, {2, 8}}));
}

// A pass has twice the blocks of 16 that its tokens fill: here four of 32 tokens.
TEST(Pack, EndsWhereItsBlocksEnd) {
  std::vector<TokenId> tokens(48);
  std::iota(tokens.begin(), tokens.end(), 0);
  const std::vector<int32_t> targets = {47};
  const PackedSequence small{.tokens = std::span(tokens).first(1)};
  using Ranges = std::vector<std::pair<size_t, size_t>>;
  EXPECT_EQ(pack(std::vector(9, small), {32, 100}), (Ranges{{0, 4}, {4, 8}, {8, 9}}));
  // Eight of 64 tokens: the first sequence has three, each of the others adds two tokens and one.
  const PackedSequence whole{.tokens = tokens, .targets = targets};
  EXPECT_EQ(pack(std::vector(9, whole), {.max_tokens = 64, .max_sequences = 100, .shares = true}),
            (Ranges{{0, 6}, {6, 9}}));
}

TEST(Batch, IsOrderedByMemberWhateverTheOrderOfArrival) {
  std::vector<Trajectory> trajectories = testing::random_trajectories(5, 1);
  TrainBatch expected = make_batch(trajectories);
  Rng rng(9);
  for (size_t i = trajectories.size(); i > 1; --i) {
    std::swap(trajectories[i - 1],
              trajectories[static_cast<size_t>(rng.below(static_cast<int64_t>(i)))]);
  }
  TrainBatch shuffled = make_batch(trajectories);
  ASSERT_EQ(expected.sequences.size(), shuffled.sequences.size());
  for (size_t i = 0; i < expected.sequences.size(); ++i) {
    EXPECT_EQ(expected.sequences[i].tokens, shuffled.sequences[i].tokens);
    EXPECT_EQ(expected.sequences[i].advantages, shuffled.sequences[i].advantages);
  }
  EXPECT_EQ(expected.group_offsets, shuffled.group_offsets);
  EXPECT_EQ(expected.metrics, shuffled.metrics);
}

TEST(Batch, TrainsSampledTokensOnlyAndNumbersTheirTurns) {
  Trajectory t = testing::random_trajectories(1, 1)[0];
  using enum TokenRole;
  t.segments = {
      {.tokens = {1, 2, 3, 4, 5, 6, 7},
       .roles = {kPrompt, kPrompt, kSampled, kSampled, kObservation, kSampled, kObservation},
       .logprobs = {0, 0, -1, -2, 0, -3, 0},
       .versions = {-1, -1, 4, 4, -1, 5, -1},
       .classes = {-1, -1, 0, 0, -1, 0, -1},
       .turn_begins = {2, 5}}};
  Trajectory other = t;
  other.lease.member.member = 1;
  t.reward = 1;
  other.reward = 0;
  TrainBatch batch = make_batch({t, other});
  const TrainSequence& s = batch.sequences[0];
  // Target t is predicted by the row of token t - 1: the prompt's first token never is one.
  EXPECT_EQ(s.targets, (std::vector<int32_t>{2, 3, 5}));
  EXPECT_EQ(s.behaviour_logprobs, (std::vector<float>{-1, -2, -3}));
  EXPECT_EQ(s.versions, (std::vector<int64_t>{4, 4, 5}));
  EXPECT_EQ(s.turns, (std::vector<int32_t>{0, 0, 1}));
  EXPECT_EQ(s.advantages, (std::vector<float>{.5f, .5f, .5f}));
  EXPECT_EQ(batch.sequences[1].advantages, (std::vector<float>{-.5f, -.5f, -.5f}));
}

// A centred advantage does not say so: rewards of 0 and of -1 are both failures.
TEST(Batch, SaysWhoseRewardIsAboveZero) {
  std::vector<Trajectory> group = testing::random_trajectories(1, 1);
  const std::vector<double> rewards = {0.5, 0, -1, 1e-300};
  for (size_t i = 0; i < group.size(); ++i) group[i].reward = rewards[i];
  const TrainBatch batch = make_batch(group);
  for (size_t i = 0; i < group.size(); ++i)
    EXPECT_EQ(batch.sequences[i].positive, rewards[i] > 0) << i;
  EXPECT_GT(batch.sequences[1].advantages[0], 0);
}

// What sampled is the part of the distribution that was kept; what is trained is the whole or the
// part.
TEST(Batch, TruncationIsInTheBehaviourAndUnderKeepInThePolicyToo) {
  std::vector<Trajectory> trajectories = testing::random_trajectories(2, 1);
  testing::truncate(trajectories);
  for (SamplingMask mask : {SamplingMask::kNone, SamplingMask::kKeep}) {
    TrainBatch batch = make_batch(trajectories, AdvantageKind::kGroupMean, true, mask);
    for (size_t i = 0; i < batch.sequences.size(); ++i) {
      const TrainSequence& s = batch.sequences[i];
      const Segment& segment = trajectories[i].segments[0];
      const PackedSequence packed = s.packed();
      for (size_t k = 0; k < s.targets.size(); ++k) {
        const auto at = static_cast<size_t>(s.targets[k]);
        const float drawn = segment.logprobs[at] - segment.log_masses[at];
        EXPECT_EQ(s.behaviour_logprobs[k], drawn);
        const bool keep = mask == SamplingMask::kKeep;
        EXPECT_EQ(s.recorded_logprobs[k], keep ? drawn : segment.logprobs[at]);
        EXPECT_EQ(packed.kept.of(k).size(), keep ? 3u : 0u);
        EXPECT_EQ(std::ranges::count(packed.kept.of(k), segment.tokens[at]), keep ? 1 : 0);
      }
    }
  }
}

TEST(Batch, MarksWhatAnotherNumericsClassSampled) {
  std::vector<Trajectory> trajectories = testing::random_trajectories(1, 1);
  trajectories[0].numerics_classes = {"gpu-test", testing::kNumericsClass};
  for (int32_t& numerics_class : trajectories[0].segments[0].classes)
    if (numerics_class == 0) {
      numerics_class = 1;
      break;
    }
  TrainBatch batch = make_batch(trajectories);
  std::vector<uint8_t> expected(batch.sequences[0].targets.size(), 1);
  expected[0] = 0;
  EXPECT_EQ(batch.sequences[0].foreign_class, expected);
  EXPECT_EQ(std::ranges::count(batch.sequences[1].foreign_class, 1), 0);
}

TEST(Batch, SaysHowMuchTruncationCut) {
  std::vector<Trajectory> trajectories = testing::random_trajectories(2, 1);
  EXPECT_EQ(testing::metric(make_batch(trajectories).metrics, "rollout/cut_mass"), 0);
  testing::truncate(trajectories);
  // A mean over the sampled tokens of all samples, each of which lost a quarter.
  EXPECT_NEAR(testing::metric(make_batch(trajectories).metrics, "rollout/cut_mass"), 0.25, 1e-6);
}

// An observation may be empty: two answers then touch, and stay two.
TEST(Batch, TurnsThatTouchAreTwo) {
  using enum TokenRole;
  std::vector<Trajectory> group = testing::random_trajectories(1, 1);
  for (Trajectory& t : group) {
    t.segments = {{.tokens = {1, 2, 3, 4},
                   .roles = {kPrompt, kSampled, kSampled, kSampled},
                   .logprobs = {0, -1, -2, -3},
                   .versions = {-1, 0, 0, 0},
                   .classes = {-1, 0, 0, 0},
                   .turn_begins = {1, 3}}};
  }
  group[0].reward = 1;
  group[1].reward = 0;
  EXPECT_EQ(make_batch(group).sequences[0].turns, (std::vector<int32_t>{0, 0, 1}));
}

TEST(Batch, ASegmentCarriesItsParentsContextAndTrainsItsOwnTokensOnce) {
  using enum TokenRole;
  Trajectory t = testing::random_trajectories(1, 1)[0];
  t.segments = {{.tokens = {1, 2, 3, 4},
                 .roles = {kPrompt, kPrompt, kSampled, kSampled},
                 .logprobs = {0, 0, -1, -2},
                 .versions = {-1, -1, 0, 0},
                 .classes = {-1, -1, 0, 0},
                 .turn_begins = {2}},
                {.parent = 0,
                 .parent_tokens = 3,
                 .tokens = {9, 8},
                 .roles = {kObservation, kSampled},
                 .logprobs = {0, -3},
                 .versions = {-1, 0},
                 .classes = {-1, 0},
                 .turn_begins = {1}},
                {.parent = 1,
                 .parent_tokens = 4,
                 .tokens = {7},
                 .roles = {kSampled},
                 .logprobs = {-4},
                 .versions = {0},
                 .classes = {0},
                 .turn_begins = {0}}};
  Trajectory other = t;
  other.lease.member.member = 1;
  other.reward = 0;
  t.reward = 1;
  TrainBatch batch = make_batch({t, other});
  ASSERT_EQ(batch.sequences.size(), 6u);
  EXPECT_EQ(batch.sequences[1].tokens, (std::vector<TokenId>{1, 2, 3, 9, 8}));
  EXPECT_EQ(batch.sequences[1].targets, (std::vector<int32_t>{4}));
  EXPECT_EQ(batch.sequences[2].tokens, (std::vector<TokenId>{1, 2, 3, 9, 7}));
  // 2 and 1 and 1 own tokens; token 3 of the parent is context in its child and trained in the
  // parent.
  EXPECT_EQ(batch.trajectory_tokens, (std::vector<int32_t>{4, 4}));
  LossCounts counts = loss_counts(batch, {0, 6});
  EXPECT_EQ(counts.tokens, 8);
  EXPECT_EQ(counts.trajectories, 2);
}

// One of four experts in one layer.
TEST(Batch, ASegmentCarriesTheExpertsOfItsContext) {
  Rng rng(1);
  std::vector<Trajectory> trajectories = {testing::random_trajectory(0, 0, 1, rng),
                                          testing::random_trajectory(0, 1, 0, rng)};
  BatchOptions options = kOptions;
  options.experts = {.sparse_layers = 1, .chosen = 1, .experts = 4};
  for (Trajectory& t : trajectories) {
    t.experts = options.experts;
    for (int64_t i = 0; i < num_drawn_from(t.segments[0]); ++i)
      t.segments[0].choices.push_back(static_cast<uint16_t>(i % 4));
  }
  const auto length = std::ssize(trajectories[0].segments[0].tokens);
  // Behind all of the parent, whose last token nothing was computed of.
  trajectories[0].segments.push_back(
      {.parent = 0,
       .parent_tokens = static_cast<int32_t>(length),
       .tokens = {1, 2, 3},
       .roles = {TokenRole::kObservation, TokenRole::kSampled, TokenRole::kSampled},
       .logprobs = {0, -1, -1},
       .versions = {-1, 0, 0},
       .classes = {-1, 0, 0},
       .turn_begins = {1},
       .choices = {2, 3}});
  const TrainBatch batch = make_batch(trajectories, options);
  ASSERT_EQ(batch.sequences.size(), 3u);
  std::vector<int32_t> expected;
  for (int32_t i = 0; i + 1 < length; ++i) expected.push_back(i % 4);
  expected.push_back(kChoose);
  EXPECT_EQ(batch.sequences[0].choices, expected);
  expected.insert(expected.end(), {2, 3, kChoose});
  EXPECT_EQ(batch.sequences[1].choices, expected);
  const PackedSequence packed = batch.sequences[1].packed();
  EXPECT_EQ(packed.choices.rows, length + 3);
  EXPECT_EQ(packed.choices.cols, 1);
  for (const TrainSequence& sequence : batch.sequences) EXPECT_FALSE(sequence.mixed_choices);
  EXPECT_EQ(make_batch(trajectories, kOptions).sequences[0].packed().choices.rows, 0);
}

TEST(Batch, GroupsWithoutSignalLeaveTheBatchAndTheDenominators) {
  std::vector<Trajectory> trajectories = testing::random_trajectories(3, 2);
  // The second of three groups of four.
  for (size_t i = 4; i < 8; ++i) trajectories[i].reward = 0.1;
  TrainBatch dropped = make_batch(trajectories),
             kept = make_batch(trajectories, AdvantageKind::kGroupMean, false);
  EXPECT_EQ(dropped.num_groups(), 2);
  EXPECT_EQ(kept.num_groups(), 3);
  EXPECT_EQ(loss_counts(dropped, {0, dropped.sequences.size()}).trajectories, 8);
  EXPECT_EQ(loss_counts(kept, {0, kept.sequences.size()}).trajectories, 12);
  EXPECT_EQ(testing::metric(dropped.metrics, "rollout/groups"), 3);
  EXPECT_DOUBLE_EQ(testing::metric(dropped.metrics, "rollout/zero_signal_frac"), 1.0 / 3);
  for (Trajectory& t : trajectories) t.reward = 1;
  TrainBatch nothing = make_batch(trajectories);
  EXPECT_EQ(nothing.num_groups(), 0);
  EXPECT_TRUE(split_minibatches(nothing, 2).empty());
  EXPECT_DOUBLE_EQ(testing::metric(nothing.metrics, "reward/mean"), 1);
}

// A small part of the reward differs everywhere; what judges groups does in the third alone.
TEST(Batch, GroupsAreJudgedByTheMetricThatTheRunNames) {
  std::vector<Trajectory> trajectories = testing::random_trajectories(3, 2);
  EXPECT_EQ(make_batch(trajectories).num_groups(), 3);
  for (size_t i = 0; i < trajectories.size(); ++i) trajectories[i].judged = i == 9 ? 1 : 0;
  const TrainBatch batch = make_batch(trajectories);
  EXPECT_EQ(batch.num_groups(), 1);
  EXPECT_DOUBLE_EQ(testing::metric(batch.metrics, "rollout/zero_signal_frac"), 2.0 / 3);
  for (const TrainSequence& sequence : batch.sequences) {
    EXPECT_EQ(sequence.lease.member.prompt, 2);
    EXPECT_NE(sequence.advantages.front(), 0) << "of the reward";
  }
  // Nobody has it in the first group, and one in the second.
  for (size_t i = 0; i < 8; ++i)
    if (i != 5) trajectories[i].judged.reset();
  EXPECT_EQ(make_batch(trajectories).num_groups(), 2);
}

// The options of a step that starts from version 9.
BatchOptions with_bound(int64_t max_staleness, SamplingMask mask = SamplingMask::kNone) {
  BatchOptions options = kOptions;
  options.algo.sampling_mask = mask;
  options.version = 9;
  options.max_staleness = max_staleness;
  return options;
}

TEST(Batch, TokensBeyondTheStalenessBoundAreNoTargets) {
  std::vector<Trajectory> trajectories = testing::random_trajectories(3, 2);
  testing::truncate(trajectories);
  testing::set_versions(trajectories, [](size_t t, int64_t i) {
    return static_cast<int64_t>(6 + (t + static_cast<size_t>(i)) % 4);
  });
  const BatchOptions bounded = with_bound(2, SamplingMask::kKeep);
  BatchOptions unbounded = bounded;
  unbounded.max_staleness.reset();
  const TrainBatch all = make_batch(trajectories, unbounded);
  const TrainBatch young = make_batch(trajectories, bounded);
  // A long trajectory has a token of each version.
  ASSERT_EQ(young.sequences.size(), all.sequences.size());
  int64_t left_out = 0, tokens = 0;
  for (size_t i = 0; i < all.sequences.size(); ++i) {
    const TrainSequence& a = all.sequences[i];
    const TrainSequence& y = young.sequences[i];
    const PackedSequence a_packed = a.packed(), y_packed = y.packed();
    EXPECT_EQ(y.tokens, a.tokens) << "what is not trained is context all the same";
    size_t next = 0;
    for (size_t k = 0; k < a.targets.size(); ++k, ++tokens) {
      if (a.versions[k] < 7) {
        ++left_out;
        continue;
      }
      ASSERT_LT(next, y.targets.size());
      EXPECT_EQ(y.targets[next], a.targets[k]);
      EXPECT_EQ(y.versions[next], a.versions[k]);
      EXPECT_EQ(y.behaviour_logprobs[next], a.behaviour_logprobs[k]);
      EXPECT_EQ(y.recorded_logprobs[next], a.recorded_logprobs[k]);
      EXPECT_EQ(y.advantages[next], a.advantages[k]);
      EXPECT_EQ(y.turns[next], a.turns[k]);
      EXPECT_TRUE(std::ranges::equal(y_packed.kept.of(next), a_packed.kept.of(k)));
      ++next;
    }
    EXPECT_EQ(next, y.targets.size());
    EXPECT_EQ(young.trajectory_tokens[i], static_cast<int32_t>(next));
  }
  EXPECT_GT(left_out, 0);
  EXPECT_EQ(loss_counts(all, {0, all.sequences.size()}).tokens, tokens);
  EXPECT_EQ(loss_counts(young, {0, young.sequences.size()}).tokens, tokens - left_out);
  // Every other number of the batch is that of all samples.
  for (const auto& [name, value] : all.metrics) {
    const bool masked = name == "staleness/masked_frac";
    EXPECT_EQ(testing::metric(young.metrics, name),
              masked ? static_cast<double>(left_out) / static_cast<double>(tokens) : value)
        << name;
  }
  EXPECT_EQ(testing::metric(all.metrics, "staleness/masked_frac"), 0);
}

// A bound of n is the version that is n below the one that the step starts from, and all above.
TEST(Batch, TheStalenessBoundIsInVersionsBelowTheStepsOwn) {
  std::vector<Trajectory> trajectories = testing::random_trajectories(2, 2);
  for (const auto& [version, bound, trained] : std::vector<std::tuple<int64_t, int64_t, bool>>{
           {9, 0, true}, {8, 0, false}, {8, 1, true}, {4, 5, true}, {3, 5, false}, {0, 9, true}}) {
    testing::set_versions(trajectories, [&](size_t, int64_t) { return version; });
    const TrainBatch batch = make_batch(trajectories, with_bound(bound));
    EXPECT_EQ(batch.num_groups(), trained ? 2 : 0) << version << " " << bound;
    EXPECT_EQ(testing::metric(batch.metrics, "staleness/masked_frac"), trained ? 0 : 1);
  }
}

// What went on under new weights is counted within each sample: a sample of one version has none.
TEST(Batch, CarriedTokensAreOlderThanTheLastOfTheirSample) {
  std::vector<Trajectory> trajectories = testing::random_trajectories(2, 2);
  testing::set_versions(trajectories, [](size_t i, int64_t) { return static_cast<int64_t>(i); });
  const auto carried = [&] {
    const TrainBatch batch = make_batch(trajectories, with_bound(9));
    return testing::metric(batch.metrics, "staleness/carried_frac");
  };
  EXPECT_EQ(carried(), 0);
  int64_t sampled = 0;
  for (const Trajectory& t : trajectories) sampled += t.num_sampled();
  const auto longest = static_cast<size_t>(
      std::ranges::max_element(trajectories, {}, &Trajectory::num_sampled) - trajectories.begin());
  ASSERT_GT(trajectories[longest].num_sampled(), 1);
  testing::set_versions(
      trajectories, [&](size_t t, int64_t token) { return t == longest && token == 0 ? 3 : 4; });
  EXPECT_EQ(carried(), 1.0 / static_cast<double>(sampled));
}

TEST(Batch, WhatIsTooOldCountsInItsGroupToTheLastSample) {
  std::vector<Trajectory> trajectories = testing::random_trajectories(3, 2);
  // Of the first group the first two, of the second all, of the third none.
  testing::set_versions(trajectories,
                        [](size_t t, int64_t) { return t < 2 || t / 4 == 1 ? 5 : 9; });
  const TrainBatch all = make_batch(trajectories, kOptions);
  const TrainBatch young = make_batch(trajectories, with_bound(3));
  EXPECT_EQ(young.group_offsets, (std::vector<int32_t>{0, 2, 6}));
  const std::vector<size_t> left = {2, 3, 8, 9, 10, 11};
  ASSERT_EQ(young.sequences.size(), left.size());
  for (size_t i = 0; i < left.size(); ++i) {
    EXPECT_EQ(young.sequences[i].tokens, all.sequences[left[i]].tokens);
    // The baseline knows the rewards of the others.
    EXPECT_EQ(young.sequences[i].advantages, all.sequences[left[i]].advantages);
    EXPECT_EQ(young.sequences[i].trajectory, static_cast<int32_t>(left[i]));
  }
  EXPECT_EQ(loss_counts(young, {0, left.size()}).trajectories, 6);
  EXPECT_EQ(split_minibatches(young, 3).size(), 2u);
  for (const char* name : {"reward/mean", "rollout/zero_signal_frac", "rollout/turns/mean"})
    EXPECT_EQ(testing::metric(young.metrics, name), testing::metric(all.metrics, name));
}

TEST(Batch, SaysHowLongEpisodesWaitedForWhom) {
  std::vector<Trajectory> trajectories = testing::random_trajectories(7, 1);
  double environment = 0, generation = 0;
  for (size_t i = 0; i < trajectories.size(); ++i) {
    environment += trajectories[i].env_seconds = static_cast<double>(i);
    generation += trajectories[i].generate_seconds = 2.0 * static_cast<double>(i) + 1;
  }
  const TrainBatch batch = make_batch(trajectories);
  const auto n = static_cast<double>(trajectories.size());
  EXPECT_DOUBLE_EQ(testing::metric(batch.metrics, "time/env"), environment / n);
  EXPECT_DOUBLE_EQ(testing::metric(batch.metrics, "time/generate"), generation / n);
}

TEST(Batch, MinibatchesAreWholeGroupsOfNearlyEqualNumber) {
  std::vector<Trajectory> trajectories = testing::random_trajectories(7, 3);
  TrainBatch batch = make_batch(trajectories);
  auto sizes = [&](int64_t parts) {
    std::vector<size_t> result;
    size_t at = 0;
    for (const Minibatch& m : split_minibatches(batch, parts)) {
      EXPECT_EQ(m.begin, at);
      at = m.end;
      result.push_back((m.end - m.begin) / 4);
    }
    EXPECT_EQ(at, batch.sequences.size());
    return result;
  };
  EXPECT_EQ(sizes(1), (std::vector<size_t>{7}));
  EXPECT_EQ(sizes(2), (std::vector<size_t>{3, 4}));
  // Part i ends at group 7 (i + 1) / 4, rounded down.
  EXPECT_EQ(sizes(4), (std::vector<size_t>{1, 2, 2, 2}));
  EXPECT_EQ(sizes(9), (std::vector<size_t>(7, 1)));
}

TEST(Batch, WhatDoesNotFitIsAFailureThatNamesTheTrajectory) {
  auto failure = [](auto change, BatchOptions options = kOptions) {
    std::vector<Trajectory> trajectories = testing::random_trajectories(1, 4);
    change(trajectories);
    Result<TrainBatch> result = build_batch(trajectories, options);
    return result ? std::string("accepted") : result.failure().message;
  };
  auto expect_part = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  EXPECT_EQ(failure([](auto&) {}), "accepted");
  expect_part(failure([](auto& t) { t[2].segments[0].tokens[0] = 19; }),
              "holds token 19; the vocabulary has 19");
  expect_part(failure([](auto& t) { t[2].reward.reset(); }), "no finite reward");
  expect_part(failure([](auto& t) { t[2].outcome = Outcome::kEnvFailed; }),
              "only finished and truncated");
  expect_part(failure([](auto& t) { t[2].lease.member.member = 1; }), "twice");
  expect_part(failure([](auto& t) { t[2].segments[0].logprobs.pop_back(); }),
              to_string(LeaseId{.member = {.member = 2}}));
  // Of truncated sampling, under keep.
  BatchOptions keep = kOptions;
  keep.algo.sampling_mask = SamplingMask::kKeep;
  EXPECT_EQ(failure([](auto&) {}, keep), "accepted");
  expect_part(failure([](auto& t) { t[2].sampling.top_k = 3; }, keep),
              "member=2 attempt=0 does not say what its tokens were drawn from");
  EXPECT_EQ(failure([](auto& t) { t[2].sampling.top_k = 3; }), "accepted");
  EXPECT_EQ(failure([](auto& t) { t[2].sampling.top_k = 19; }, keep), "accepted")
      << "that is the whole vocabulary";
  expect_part(failure(
                  [](auto& t) {
                    testing::truncate(t);
                    t[2].segments[0].kept_ids.back() = 19;
                  },
                  keep),
              "holds token 19; the vocabulary has 19");
  expect_part(failure(
                  [](auto& t) {
                    testing::truncate(t);
                    t[2].segments[0].kept_ids.back() = 0;
                  },
                  keep),
              "do not ascend");
  expect_part(failure([](auto& t) { t[2].segments[0].classes.pop_back(); }), "numerics classes");
  BatchOptions small = kOptions;
  small.max_sequence_tokens = 5;
  expect_part(failure([](auto&) {}, small), "the trainer takes 5");
}

}  // namespace
}  // namespace tailrace
