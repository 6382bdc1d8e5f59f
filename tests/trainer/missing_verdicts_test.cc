// Samples that never get a verdict, from the scheduler that gives them up to the gradient: nothing
// of them is left, neither a reward of 0 nor a row that is masked.
#include <algorithm>
#include <deque>
#include <set>

#include <gtest/gtest.h>

#include "tests/scheduler/decide/harness.h"
#include "tests/trainer/fixtures.h"
#include "trainer/batch.h"
#include "trainer/policy_trainer.h"

namespace tailrace {
namespace {

using testing::copy;
using testing::kStill;
using testing::loss_config;
using testing::tiny_trainer;

constexpr int64_t kPrompts = 8;
constexpr int32_t kMembers = 5;
using Members = std::set<MemberId>;

// A tenth of the 40 samples; two of them are of one group.
const Members kMissing = {{.prompt = 0, .member = 1},
                          {.prompt = 2, .member = 0},
                          {.prompt = 2, .member = 4},
                          {.prompt = 5, .member = 3}};

// A step's samples with the rewards that a verifier would give.
std::vector<Trajectory> samples() {
  std::vector<Trajectory> all;
  Rng rng(11);
  for (int64_t prompt = 0; prompt < kPrompts; ++prompt)
    for (int32_t member = 0; member < kMembers; ++member)
      all.push_back(testing::random_trajectory(
          prompt, member, 0.5 + static_cast<double>((prompt + 2 * member) % 3), rng));
  testing::record_logprobs(*tiny_trainer({}), all);
  return all;
}

const Trajectory& sample_of(const std::vector<Trajectory>& all, const MemberId& member) {
  return *std::ranges::find(all, member, [](const Trajectory& t) { return t.lease.member; });
}

// What the scheduler hands to the trainer of `all`, when the verifier fails at `missing` as often
// as it is asked.
std::vector<Trajectory> handed_over(const std::vector<Trajectory>& all, const Members& missing) {
  using namespace scheduler;
  Config config = small_config(kPrompts, kMembers);
  config.retries.verifier_failed = 2;
  config.quarantine.faults = 1000;
  config.breaker.window = 0;
  Harness h = started(config);
  h.tell(WorkerUp{.worker = "r0", .role = Role::kReward, .slots = 64});
  std::deque<Verify> open;
  const auto keep = [&](const Actions& actions) {
    for (const Verify& verify : only<Verify>(actions)) open.push_back(verify);
  };
  for (int64_t prompt = 0; prompt < kPrompts; ++prompt)
    for (const Grant& grant : grants_of(h, prompt)) keep(h.tell(h.result(grant, std::nullopt)));
  size_t no_verdicts = 0;
  while (!open.empty()) {
    const Verify v = open.front();
    open.pop_front();
    Reward answer{v.worker, v.lease, v.lane, v.verify_attempt, {}, ""};
    if (missing.contains(v.lease.member)) {
      ++no_verdicts;
    } else {
      answer.reward = sample_of(all, v.lease.member).reward;
    }
    keep(h.tell(answer));
    if (open.empty()) keep(h.wait(seconds(2)));  // a retry has a rest where it failed
  }
  EXPECT_EQ(no_verdicts, 3 * missing.size()) << "once, and two more within the bound";
  const auto batches = only<HandOver>(h.tell(wants(1)));
  EXPECT_EQ(batches.size(), 1u);
  std::vector<Trajectory> found;
  for (const HandOver& batch : batches) {
    for (const HandOver::Item& item : batch.items) {
      found.push_back(sample_of(all, item.lease.member));
      found.back().reward = item.reward;
    }
  }
  return found;
}

// The same step, of groups that never had those members.
std::vector<Trajectory> never_sampled(const std::vector<Trajectory>& all, const Members& missing) {
  std::vector<Trajectory> rest;
  for (const Trajectory& t : all) {
    if (missing.contains(t.lease.member)) continue;
    const bool goes_on = !rest.empty() && rest.back().lease.member.prompt == t.lease.member.prompt;
    const int32_t member = goes_on ? rest.back().lease.member.member + 1 : 0;
    rest.push_back(t);
    rest.back().lease.member.member = member;
  }
  return rest;
}

BatchOptions options_of(AdvantageKind kind) {
  BatchOptions options = testing::tiny_batch_options();
  options.algo.advantage = kind;
  return options;
}

// Of one update over all of them.
std::vector<float> gradient(const std::vector<Trajectory>& trajectories, AdvantageKind kind,
                            const PolicyLossConfig& config, int64_t slots) {
  auto trainer = tiny_trainer({.gradient_slots = slots}, kStill);
  TrainBatch batch = testing::make_batch(trajectories, options_of(kind));
  trainer->prepare_step(batch, 0, config);
  trainer->policy_update(batch, {0, batch.sequences.size()}, config, 0);
  return copy(trainer->gradients().flat());
}

// The same, handed over group by group.
std::vector<float> streamed_gradient(const std::vector<Trajectory>& trajectories,
                                     AdvantageKind kind, const PolicyLossConfig& config) {
  auto trainer = tiny_trainer({}, kStill);
  TrainStep step = trainer->begin_step(/*gathers=*/true);
  for (auto begin = trajectories.begin(); begin != trajectories.end();) {
    const auto end = std::find_if(begin, trajectories.end(), [&](const Trajectory& t) {
      return !same_group(t.lease.member, begin->lease.member);
    });
    step.add(testing::make_batch({begin, end}, options_of(kind)), 0, config);
    begin = end;
  }
  step.finish(0, config);
  return copy(step.gradients().flat());
}

TEST(MissingVerdicts, TheGradientIsThatOfAStepThatNeverHadTheSamples) {
  const std::vector<Trajectory> all = samples();
  const std::vector<Trajectory> given = handed_over(all, kMissing);
  const std::vector<Trajectory> without = never_sampled(all, kMissing);
  ASSERT_EQ(given.size(), 36u);
  std::vector<Trajectory> as_zeros = all;
  for (Trajectory& t : as_zeros)
    if (kMissing.contains(t.lease.member)) t.reward = 0;
  for (const AdvantageKind kind :
       {AdvantageKind::kGroupMean, AdvantageKind::kGroupMeanStd, AdvantageKind::kGroupMeanBatchStd,
        AdvantageKind::kLeaveOneOut}) {
    for (const AggregationKind aggregation :
         {AggregationKind::kTokenMean, AggregationKind::kSeqMeanTokenMean}) {
      PolicyLossConfig config = loss_config();
      config.aggregation.kind = aggregation;
      for (const int64_t slots : {1, 3}) {
        const std::vector<float> expected = gradient(without, kind, config, slots);
        EXPECT_TRUE(std::ranges::any_of(expected, [](float g) { return g != 0; }));
        EXPECT_EQ(gradient(given, kind, config, slots), expected) << name_of(kind);
        EXPECT_NE(gradient(as_zeros, kind, config, slots), expected) << name_of(kind);
      }
      if (kind != AdvantageKind::kGroupMeanBatchStd) {  // streaming knows no batch
        EXPECT_EQ(streamed_gradient(given, kind, config), streamed_gradient(without, kind, config))
            << name_of(kind);
      }
    }
  }
}

TEST(MissingVerdicts, NoRowNoRewardAndNoCountOfTheSamplesIsLeft) {
  const std::vector<Trajectory> all = samples();
  const std::vector<Trajectory> without = never_sampled(all, kMissing);
  BatchOptions options = testing::tiny_batch_options();
  options.algo.filter_zero_signal = ZeroSignalFilter::kNone;
  const TrainBatch batch = testing::make_batch(handed_over(all, kMissing), options);
  const TrainBatch expected = testing::make_batch(without, options);
  for (const TrainSequence& sequence : batch.sequences)
    EXPECT_FALSE(kMissing.contains(sequence.lease.member)) << to_string(sequence.lease);
  EXPECT_EQ(batch.group_offsets, expected.group_offsets);
  EXPECT_EQ(batch.trajectory_tokens, expected.trajectory_tokens);
  EXPECT_EQ(batch.metrics, expected.metrics);
  ASSERT_EQ(batch.sequences.size(), expected.sequences.size());
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    EXPECT_EQ(batch.sequences[i].tokens, expected.sequences[i].tokens) << i;
    EXPECT_EQ(batch.sequences[i].targets, expected.sequences[i].targets) << i;
    EXPECT_EQ(batch.sequences[i].advantages, expected.sequences[i].advantages) << i;
  }
  const LossCounts counts = loss_counts(batch, {0, batch.sequences.size()});
  EXPECT_EQ(counts.trajectories, 36);
}

// Two that remain compare themselves with each other; one that remains compares itself with nobody,
// and the scheduler replaces its prompt instead.
TEST(MissingVerdicts, TwoSamplesOfAGroupAreStillOne) {
  const std::vector<Trajectory> all = samples();
  const Members missing = {
      {.prompt = 3, .member = 0}, {.prompt = 3, .member = 2}, {.prompt = 3, .member = 3}};
  const std::vector<Trajectory> given = handed_over(all, missing);
  ASSERT_EQ(given.size(), 37u);
  const std::vector<Trajectory> without = never_sampled(all, missing);
  EXPECT_EQ(gradient(given, AdvantageKind::kLeaveOneOut, loss_config(), 2),
            gradient(without, AdvantageKind::kLeaveOneOut, loss_config(), 2));
}

// The trainer takes none of them, should anybody hand one over.
TEST(MissingVerdicts, ASampleWithoutAVerdictIsNoSampleOfABatch) {
  std::vector<Trajectory> all = samples();
  Trajectory& missing = all[7];
  missing.reward.reset();
  const auto refused = [&] {
    const auto batch = build_batch(all, testing::tiny_batch_options());
    return batch ? std::string("accepted") : batch.failure().message;
  };
  EXPECT_NE(refused().find("has no finite reward"), std::string::npos) << refused();
  missing.outcome = Outcome::kVerifierFailed;
  EXPECT_NE(refused().find("ended as verifier_failed"), std::string::npos) << refused();
  missing.reward = 0;
  EXPECT_NE(refused().find("ended as verifier_failed"), std::string::npos) << refused();
}

}  // namespace
}  // namespace tailrace
