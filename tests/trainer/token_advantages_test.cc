// Credit on the way from trajectories to the tokens of a step.
#include "trainer/token_advantages.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/fixtures.h"

namespace tailrace {
namespace {

using testing::make_batch;
using testing::metric;
using testing::two_turns;

BatchOptions options_of(AdvantageKind kind) {
  BatchOptions options = testing::tiny_batch_options();
  options.algo.advantage = kind;
  options.algo.filter_zero_signal = ZeroSignalFilter::kNone;
  return options;
}

void set_old(TrainBatch& batch) {
  for (TrainSequence& s : batch.sequences) s.old_logprobs = s.recorded_logprobs;
}

void expect_floats(const std::vector<float>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 2e-6) << i;
}

TEST(Credit, TurnsGetTheirOwnAdvantage) {
  BatchOptions options = options_of(AdvantageKind::kGroupMean);
  options.algo.credit = {.kind = CreditKind::kTurnReturn, .gamma = .5};
  TrainBatch batch = make_batch({two_turns(0, 1), two_turns(1, 0)}, options);
  expect_floats(batch.sequences[0].advantages, {.25, .25, .5});
  expect_floats(batch.sequences[1].advantages, {-.25, -.25, -.5});
}

// A history that was rewritten: the second turn is a segment of its own, and still the second turn.
TEST(Credit, ATurnIsThatOfTheTrajectoryAlsoInAnotherSegment) {
  Trajectory t = two_turns(0, 1);
  Segment& first = t.segments[0];
  Segment second = first;
  for (auto* column : {&first.tokens}) column->resize(3);
  first.roles.resize(3), first.logprobs.resize(3), first.versions.resize(3),
      first.classes.resize(3);
  first.turn_begins = {1}, first.turn_numbers = {0};
  second.roles = {TokenRole::kPrompt, TokenRole::kObservation, TokenRole::kObservation,
                  TokenRole::kObservation, TokenRole::kSampled};
  second.logprobs = {0, 0, 0, 0, -1};
  second.versions = {-1, -1, -1, -1, 0};
  second.classes = {-1, -1, -1, -1, 0};
  second.turn_begins = {4}, second.turn_numbers = {1};
  t.segments.push_back(second);
  BatchOptions options = options_of(AdvantageKind::kGroupMean);
  options.algo.credit = {.kind = CreditKind::kTurnReturn, .gamma = .5};
  TrainBatch batch = make_batch({t, two_turns(1, 0)}, options);
  expect_floats(batch.sequences[0].advantages, {.25, .25});
  expect_floats(batch.sequences[1].advantages, {.5});
  EXPECT_EQ(batch.sequences[1].turns, (std::vector<int32_t>{1}));
}

// Bodies of before have no numbers: of several segments nobody knows which turn is which.
TEST(Credit, WithoutNumbersTurnsOfSeveralSegmentsShareTheTrajectorysAdvantage) {
  Trajectory t = two_turns(0, 1);
  t.segments.push_back(t.segments[0]);
  for (Segment& segment : t.segments) segment.turn_numbers.clear();
  BatchOptions options = options_of(AdvantageKind::kGroupMean);
  options.algo.credit = {.kind = CreditKind::kTurnReturn, .gamma = .5};
  TrainBatch batch = make_batch({t, two_turns(1, 0)}, options);
  expect_floats(batch.sequences[0].advantages, {.5, .5, .5});
  expect_floats(batch.sequences[1].advantages, {.5, .5, .5});
}

TEST(Credit, ARewardOfATurnIsItsOwnAndWhatNoTurnGaveIsTheLasts) {
  BatchOptions options = options_of(AdvantageKind::kReward);
  options.algo.credit = {.kind = CreditKind::kTurnReturn, .gamma = .5};
  Trajectory t = two_turns(0, 1);
  t.turn_rewards = {.2, .3};  // the verifier's .5 comes on top
  TrainBatch batch = make_batch({t}, options);
  expect_floats(batch.sequences[0].advantages, {.2 + .5 * .8, .2 + .5 * .8, .8});
}

TEST(Credit, StatesThatMembersShareAreComparedByTheirAnchors) {
  BatchOptions options = options_of(AdvantageKind::kGroupMean);
  options.algo.credit = {.kind = CreditKind::kGigpo, .gamma = .95, .weight = 1};
  Trajectory won = two_turns(0, 1), lost = two_turns(1, 0);
  won.turn_rewards = {0, 1}, lost.turn_rewards = {0, 0};
  won.turn_anchors = {11, 22}, lost.turn_anchors = {11, 11};
  TrainBatch batch = make_batch({won, lost}, options);
  expect_floats(batch.sequences[0].advantages, {1.133333, 1.133333, .5});
  expect_floats(batch.sequences[1].advantages, {-0.816667, -0.816667, -0.816667});
}

// Golden RFPP-3 (F3): the return goes on through an observation.
TEST(TokenAdvantages, RewardsToGoPassAnObservation) {
  TrainBatch batch = make_batch({two_turns(0, 1)}, options_of(AdvantageKind::kReward));
  expect_floats(batch.sequences[0].advantages, {0, 0, 1});  // rewards, so far
  set_old(batch);
  batch.sequences[0].ref_logprobs = {-1, -1, -1};
  const KlOptions kl = {
      .coef = .1, .estimator = KlEstimator::kK1, .placement = KlPlacement::kReward};
  settle_advantages(batch, kl);
  expect_floats(batch.sequences[0].advantages, {1, 1, 1});
  // And a penalty behind it reaches the tokens in front of it.
  batch = make_batch({two_turns(0, 1)}, options_of(AdvantageKind::kReward));
  set_old(batch);
  batch.sequences[0].ref_logprobs = {-1, -1, -2};
  settle_advantages(batch, kl);
  expect_floats(batch.sequences[0].advantages, {.9, .9, .9});
}

// What was earned before a token is not its own.
TEST(TokenAdvantages, ARewardOfATurnReachesTheTokensInFrontOfIt) {
  Trajectory t = two_turns(0, 1);
  t.turn_rewards = {1, 0};
  BatchOptions options = options_of(AdvantageKind::kReward);
  options.algo.returns.gamma = .5;
  TrainBatch batch = make_batch({t}, options);
  set_old(batch);
  settle_advantages(batch, {});
  expect_floats(batch.sequences[0].advantages, {.5, 1, 0});
}

// Also where the tokens that earned it are too old to be trained.
TEST(TokenAdvantages, AnEarlierTurnsRewardIsNotThatOfATurnBehindIt) {
  Trajectory t = two_turns(0, 1);
  t.turn_rewards = {1, 0};
  t.segments[0].versions = {-1, 0, 0, -1, 5};
  BatchOptions options = options_of(AdvantageKind::kGae);
  options.version = 5;
  options.max_staleness = 1;
  TrainBatch batch = make_batch({t}, options);
  expect_floats(batch.sequences[0].advantages, {0});
}

// RLOO (2402.14740): the baseline is of rewards with their penalties.
TEST(TokenAdvantages, PenaltiesAreLeftOutOfTheOthersToo) {
  std::vector<Trajectory> group = {two_turns(0, 1), two_turns(1, 1), two_turns(2, 0)};
  TrainBatch batch = make_batch(group, options_of(AdvantageKind::kLeaveOneOut));
  set_old(batch);
  const std::vector<std::vector<float>> ref = {{-2, -2, -2}, {-2, -2, -2}, {-1, -1, -1}};
  for (size_t i = 0; i < 3; ++i) batch.sequences[i].ref_logprobs = ref[i];
  const KlOptions kl = {
      .coef = .1, .estimator = KlEstimator::kK1, .placement = KlPlacement::kReward};
  settle_advantages(batch, kl);
  // Rewards .7, .7 and 0, each less the mean of the other two.
  expect_floats(batch.sequences[0].advantages, {.35, .35, .35});
  expect_floats(batch.sequences[1].advantages, {.35, .35, .35});
  expect_floats(batch.sequences[2].advantages, {-.7, -.7, -.7});
}

// Golden GAE-2 (F4): the observation between the tokens is none of them.
TEST(TokenAdvantages, GaePassesAnObservation) {
  Trajectory t = two_turns(0, 1);
  // One token, an observation, two tokens.
  t.segments[0].roles = {TokenRole::kPrompt, TokenRole::kSampled, TokenRole::kObservation,
                         TokenRole::kSampled, TokenRole::kSampled};
  t.segments[0].logprobs = {0, -1, 0, -1, -1};
  t.segments[0].versions = {-1, 0, -1, 0, 0};
  t.segments[0].classes = {-1, 0, -1, 0, 0};
  t.segments[0].turn_begins = {1, 3};
  BatchOptions options = options_of(AdvantageKind::kGae);
  options.algo.returns = {.gamma = .9, .lambda = .95};
  TrainBatch batch = make_batch({t}, options);
  expect_floats(batch.sequences[0].advantages, {0, 0, 1});  // rewards, so far
  set_old(batch);
  batch.sequences[0].old_values = {.2f, .5f, .8f};
  settle_advantages(batch, {});
  expect_floats(batch.sequences[0].advantages, {0.584305, .391, .2});
  expect_floats(batch.sequences[0].returns, {0.784305, .891, 1});
}

TEST(TokenAdvantages, ReturnsAreOfAdvantagesBeforeTheyAreWhitened) {
  BatchOptions options = options_of(AdvantageKind::kGae);
  options.algo.returns = {.gamma = 1, .lambda = 1, .whiten = true};
  TrainBatch batch = make_batch({two_turns(0, 1), two_turns(1, 0)}, options);
  set_old(batch);
  for (TrainSequence& s : batch.sequences) s.old_values = {.5f, .5f, .5f};
  settle_advantages(batch, {});
  expect_floats(batch.sequences[0].returns, {1, 1, 1});
  // +-.5 on three tokens each: the deviation is sqrt(6 * .25 / 5).
  const double scaled = .5 / std::sqrt(.3);
  expect_floats(batch.sequences[0].advantages, {scaled, scaled, scaled});
  expect_floats(batch.sequences[1].advantages, {-scaled, -scaled, -scaled});
}

TEST(TokenAdvantages, ACutEpisodeIsBootstrappedWhereThatIsAsked) {
  const auto first = [](TruncatedSamples truncated) {
    BatchOptions options = options_of(AdvantageKind::kGae);
    options.algo.truncated = truncated;
    options.algo.returns = {.gamma = 1, .lambda = 1};
    Trajectory t = two_turns(0, 0);
    t.outcome = Outcome::kTruncated;
    TrainBatch batch = make_batch({t}, options);
    set_old(batch);
    batch.sequences[0].old_values = {.5f, .5f, .5f};
    settle_advantages(batch, {});
    return batch.sequences[0].advantages[0];
  };
  EXPECT_FLOAT_EQ(first(TruncatedSamples::kKeep), -.5f);
  EXPECT_FLOAT_EQ(first(TruncatedSamples::kBootstrap), 0);
}

// Golden MM-3 (F12), and F13: what is rejected is in no denominator and no deviation.
TEST(TokenAdvantages, RejectedTokensLeaveCountsAndWhitening) {
  TrainBatch batch =
      make_batch({two_turns(0, 1), two_turns(1, 0)}, options_of(AdvantageKind::kReward));
  set_old(batch);
  batch.sequences[0].advantages = {1, 1, 1};
  batch.sequences[0].old_logprobs = {-1.2f, -.6f, -1};  // weights .82, 1.49 and 1
  CorrectionOptions correction = {.kind = CorrectionKind::kIcePop, .low = .9, .cap = 1.2};
  mask_rejected(batch, correction);
  EXPECT_EQ(loss_counts(batch, {0, 2}).tokens, 6) << "they stay by default";
  correction.rejected = RejectedTokens::kLeave;
  mask_rejected(batch, correction);
  EXPECT_EQ(batch.sequences[0].mask, (std::vector<uint8_t>{0, 0, 1}));
  const LossCounts counts = loss_counts(batch, {0, 2});
  EXPECT_EQ(counts.tokens, 4);
  EXPECT_EQ(counts.trajectories, 2);
  EXPECT_EQ(batch.trajectory_tokens, (std::vector<int32_t>{1, 3}));
  batch.returns = {.whiten = true};
  settle_advantages(batch, {});
  // 1, 0, 0, 0 of the four that are left.
  EXPECT_NEAR(batch.sequences[0].advantages[2], 1.5, 1e-6);
  EXPECT_NEAR(batch.sequences[1].advantages[0], -.5, 1e-6);
  EXPECT_EQ(batch.sequences[0].advantages[0], 1) << "not touched";
}

TEST(TokenAdvantages, ATrajectoryWithoutATokenLeftIsNoneOfTheCounted) {
  TrainBatch batch =
      make_batch({two_turns(0, 1), two_turns(1, 0)}, options_of(AdvantageKind::kReward));
  set_old(batch);
  batch.sequences[0].old_logprobs = {-9, -9, -9};
  mask_rejected(
      batch,
      {.kind = CorrectionKind::kMask, .low = .9, .cap = 1.2, .rejected = RejectedTokens::kLeave});
  EXPECT_EQ(loss_counts(batch, {0, 2}).trajectories, 1);
  EXPECT_EQ(loss_counts(batch, {0, 1}).tokens, 0);
}

// F17: length makes rewards differ in a group that has nothing to teach.
TEST(Batch, GroupsWithoutSignalAreFoundBeforeLengthShapesThem) {
  BatchOptions options = testing::tiny_batch_options();
  options.algo.length = {
      .penalty = LengthPenalty::kSoftOverlong, .factor = 1, .limit = 4, .buffer = 4};
  Trajectory a = two_turns(0, 1), b = two_turns(1, 1);
  Segment& shorter = b.segments[0];
  shorter.tokens.pop_back(), shorter.roles.pop_back(), shorter.logprobs.pop_back();
  shorter.versions.pop_back(), shorter.classes.pop_back();
  shorter.turn_begins.pop_back(), shorter.turn_numbers.pop_back();
  TrainBatch batch = make_batch({a, b}, options);
  EXPECT_TRUE(batch.sequences.empty());
  EXPECT_EQ(metric(batch.metrics, "reward/mean"), 1) << "the environment's";
  EXPECT_NEAR(metric(batch.metrics, "reward/length_penalty"), -(.75 + .5) / 2, 1e-12);
  // Where they stay, they learn to be short.
  options.algo.filter_zero_signal = ZeroSignalFilter::kNone;
  batch = make_batch({a, b}, options);
  EXPECT_LT(batch.sequences[0].advantages[0], 0);
  EXPECT_GT(batch.sequences[1].advantages[0], 0);
}

// Their baseline is no group: equal rewards teach as well as others.
TEST(Batch, GroupsOfEqualRewardsStayWhereMembersAreNotCompared) {
  for (AdvantageKind kind : {AdvantageKind::kReward, AdvantageKind::kGae}) {
    BatchOptions options = options_of(kind);
    options.algo.filter_zero_signal = ZeroSignalFilter::kDrop;
    TrainBatch batch = make_batch({two_turns(0, 1), two_turns(1, 1)}, options);
    EXPECT_EQ(batch.sequences.size(), 2u) << name_of(kind);
  }
}

TEST(Batch, SamplesThatWereCutLeaveTheLossAndStayInTheBaseline) {
  BatchOptions options = testing::tiny_batch_options();
  options.algo.truncated = TruncatedSamples::kMask;
  Trajectory won = two_turns(0, 1), cut = two_turns(1, 0);
  cut.outcome = Outcome::kTruncated;
  TrainBatch batch = make_batch({won, cut}, options);
  ASSERT_EQ(batch.sequences.size(), 1u);
  EXPECT_FLOAT_EQ(batch.sequences[0].advantages[0], .5f);
  EXPECT_EQ(batch.trajectory_tokens, (std::vector<int32_t>{3, 0}));
}

TEST(Batch, AGreedyMemberIsTheBaselineAndIsNotTrained) {
  Trajectory greedy = two_turns(0, 1), won = two_turns(1, 1), lost = two_turns(2, 0);
  greedy.sampling.temperature = 0;
  TrainBatch batch = make_batch({greedy, won, lost}, options_of(AdvantageKind::kGreedy));
  ASSERT_EQ(batch.sequences.size(), 2u);
  EXPECT_FLOAT_EQ(batch.sequences[0].advantages[0], 0);
  EXPECT_FLOAT_EQ(batch.sequences[1].advantages[0], -1);
}

// A_t loses coef (log mu - log T) of the token, and by the discount of those behind it.
TEST(Teacher, TakesFromEachTokenWhatWasLikelierToThePolicy) {
  BatchOptions options = options_of(AdvantageKind::kGroupMean);
  options.algo.distill.policy = "teacher";
  options.algo.distill.coef = .5;
  Trajectory won = two_turns(0, 1), lost = two_turns(1, 0);
  won.segments[0].teacher_logprobs = {0, -3, -1, 0, -.5};
  lost.segments[0].teacher_logprobs = {0, -1, -1, 0, -1};
  TrainBatch batch = make_batch({won, lost}, options);
  ASSERT_EQ(batch.sequences.size(), 2u);
  settle_advantages(batch, {});
  TrainBatch discounted = batch, alone = batch;
  add_teacher(batch, options.algo.distill);
  expect_floats(batch.sequences[0].advantages, {.5 - 1, .5, .5 + .25});
  expect_floats(batch.sequences[1].advantages, {-.5, -.5, -.5});
  options.algo.distill.discount = .5;
  add_teacher(discounted, options.algo.distill);
  // Log-ratios 2, 0, -0.5 and what comes behind: 1.875, -0.25, -0.5.
  expect_floats(discounted.sequences[0].advantages, {.5 - .9375, .5 + .125, .5 + .25});
  options.algo.distill.coef = 1;
  options.algo.distill.discount = 0;
  options.algo.distill.rewards = false;
  add_teacher(alone, options.algo.distill);
  expect_floats(alone.sequences[0].advantages, {-2, 0, .5});
  expect_floats(alone.sequences[1].advantages, {0, 0, 0});
}

// Equal rewards are no reason to leave a group out: the teacher has something to say of each token.
TEST(Teacher, AGroupWithoutASignalIsTaughtAndASampleWithoutScoresIsRefused) {
  BatchOptions options = options_of(AdvantageKind::kGroupMean);
  options.algo.filter_zero_signal = ZeroSignalFilter::kDrop;
  options.algo.distill.policy = "teacher";
  Trajectory a = two_turns(0, 1), b = two_turns(1, 1);
  for (Trajectory* t : {&a, &b}) t->segments[0].teacher_logprobs = {0, -1, -1, 0, -1};
  EXPECT_EQ(make_batch({a, b}, options).sequences.size(), 2u);
  b.segments[0].teacher_logprobs.clear();
  const auto refused = build_batch(std::vector{a, b}, options);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.failure().message.find("was scored by no teacher"), std::string::npos)
      << refused.failure().message;
}

}  // namespace
}  // namespace tailrace
