// What a step leaves of its samples: the trajectory and the loss, bit for bit.
#include "trainer/worker/step_traces.h"

#include <gtest/gtest.h>

#include "core/base/file.h"
#include "core/trajectory/trace_rows.h"
#include "tests/trainer/fixtures.h"
#include "trainer/token_advantages.h"

namespace tailrace {
namespace {

using Reasons = std::map<LeftOut, std::vector<int32_t>>;

struct StepTracesTest : ::testing::Test {
  TemporaryDirectory dir;

  std::vector<TraceRow> rows_of(int64_t step) const {
    const auto text = read_file(dir.path() / trace_file_name(step));
    EXPECT_TRUE(text) << text.failure().message;
    std::vector<TraceRow> rows;
    LineReader lines(text.value());
    EXPECT_TRUE(parse_trace_head(lines.next()->text));
    while (auto line = lines.next()) {
      auto row = parse_trace_row(line->text);
      EXPECT_TRUE(row) << row.failure().message;
      rows.push_back(row.value());
    }
    return rows;
  }
  int64_t num_files() const {
    return std::distance(std::filesystem::directory_iterator(dir.path()), {});
  }
};

TEST_F(StepTracesTest, ARowIsTheTrajectoryAndWhatTheLossSawOfIt) {
  auto trainer = testing::tiny_trainer({.minibatches_per_step = 2, .ppo_epochs = 2}, {.lr = 1e-2});
  std::vector<Trajectory> samples = testing::random_trajectories(3, 5);
  testing::record_logprobs(*trainer, samples);
  // One group without a signal, one whose tokens are older than the step's weights.
  for (size_t i = 0; i < 4; ++i) samples[i].reward = 0.5;
  for (size_t i = 4; i < 8; ++i)
    for (int64_t& version : samples[i].segments[0].versions) version = version < 0 ? -1 : 2;
  for (size_t i = 8; i < 12; ++i)
    for (int64_t& version : samples[i].segments[0].versions) version = version < 0 ? -1 : 3;
  TrainBatch batch = testing::make_batch(samples);
  StepTraces traces(dir.path(), 1);
  std::map<LeaseId, std::vector<float>> last_seen;
  trainer->watch_logprobs([&](const TrainSequence& sequence, std::span<const float> seen) {
    traces.saw(sequence, seen);
    last_seen[sequence.lease].assign(seen.begin(), seen.end());
  });
  trainer->policy_step(batch, 3, policy_loss_config(AlgoOptions{}));
  ASSERT_TRUE(traces.write(4, samples, batch));

  const std::vector<TraceRow> rows = rows_of(4);
  ASSERT_EQ(rows.size(), samples.size());
  std::map<LeaseId, const TrainSequence*> trained;
  for (const TrainSequence& sequence : batch.sequences) trained[sequence.lease] = &sequence;
  ASSERT_EQ(trained.size(), 8u);
  for (size_t i = 0; i < rows.size(); ++i) {
    const TraceRow& row = rows[i];
    const Segment& segment = samples[i].segments[0];
    ASSERT_EQ(row.lease, samples[i].lease);
    EXPECT_EQ(row.step, 4);
    EXPECT_EQ(row.reward, samples[i].reward);
    ASSERT_EQ(row.segments.size(), 1u);
    EXPECT_EQ(row.segments[0].tokens, segment.tokens);
    EXPECT_EQ(row.segments[0].roles, segment.roles);
    EXPECT_EQ(row.segments[0].versions, segment.versions);
    EXPECT_EQ(row.segments[0].logprobs, segment.logprobs);  // == of floats: the same bits, no -0
    const auto sequence = trained.find(row.lease);
    EXPECT_EQ(row.advantage.has_value(), sequence != trained.end());
    for (size_t k = 0; k < segment.tokens.size(); ++k) {
      EXPECT_EQ(row.segments[0].mask[k] == 1,
                sequence != trained.end() && segment.roles[k] == TokenRole::kSampled);
    }
    if (sequence == trained.end()) continue;
    EXPECT_EQ(row.advantage, sequence->second->advantages.front()) << "all tokens have the same";
    EXPECT_EQ(row.segments[0].advantages, sequence->second->advantages);
    EXPECT_EQ(row.segments[0].turn_begins, segment.turn_begins);
    EXPECT_EQ(row.segments[0].old_logprobs, sequence->second->old_logprobs);
    EXPECT_EQ(row.segments[0].new_logprobs, last_seen.at(row.lease));
    EXPECT_NE(row.segments[0].new_logprobs, row.segments[0].old_logprobs) << "a later pass";
  }
}

// Two turns of two and one sampled tokens with an observation between them; members of one prompt
// begin in the same state.
Trajectory two_turns(int32_t member, std::vector<double> rewards, uint64_t second_state) {
  Trajectory t = testing::two_turns(member, rewards[0] + rewards[1]);
  t.turn_rewards = std::move(rewards);
  t.turn_anchors = {7, second_state};
  return t;
}

// As if the loss had seen them.
void see_all(StepTraces& traces, TrainBatch& batch) {
  for (TrainSequence& s : batch.sequences) {
    s.old_logprobs = s.recorded_logprobs;
    traces.saw(s, s.old_logprobs);
  }
}

TEST_F(StepTracesTest, ATurnHasItsRewardItsStateItsReturnAndItsAdvantage) {
  const std::vector<Trajectory> samples = {two_turns(0, {0.5, 1}, 8), two_turns(1, {0, 0}, 9)};
  BatchOptions options = testing::tiny_batch_options();
  options.algo.credit = {.kind = CreditKind::kGigpo, .gamma = 0.5};
  options.algo.length = {
      .penalty = LengthPenalty::kSoftOverlong, .factor = 1, .limit = 4, .buffer = 2};
  TrainBatch batch = testing::make_batch(samples, options);
  StepTraces traces(dir.path(), 1);
  see_all(traces, batch);
  ASSERT_TRUE(traces.write(1, samples, batch));
  const auto rows = rows_of(1);
  ASSERT_EQ(rows.size(), 2u);
  // Three tokens of a limit of four with a buffer of two: half of the penalty, for either.
  EXPECT_EQ(rows[0].shaped_reward, 1);
  EXPECT_EQ(rows[1].shaped_reward, -0.5);
  ASSERT_EQ(rows[0].turns.size(), 2u);
  const TraceTurn& first = rows[0].turns[0];
  const TraceTurn& second = rows[0].turns[1];
  EXPECT_EQ(first.reward, 0.5);
  EXPECT_EQ(second.reward, 1.0);
  EXPECT_EQ(first.anchor, 7u);
  EXPECT_EQ(second.anchor, 8u);
  // The penalty is the last turn's: 0.5 + 0.5 * (1 - 0.5), and 1 - 0.5.
  EXPECT_EQ(first.turn_return, 0.75);
  EXPECT_EQ(second.turn_return, 0.5);
  EXPECT_FALSE(first.value) << "there is no critic";
  // Of the trajectory 0.75, of the shared state (0.75 - -0.25) / 2; nobody else met the second.
  EXPECT_EQ(first.advantage, 1.25f);
  EXPECT_EQ(second.advantage, 0.75f);
  EXPECT_EQ(rows[0].segments[0].advantages, (std::vector<float>{1.25f, 1.25f, 0.75f}));
  EXPECT_EQ(rows[0].advantage, static_cast<float>(3.25 / 3));
  EXPECT_EQ(rows[1].turns[0].advantage, -1.25f);
}

TEST_F(StepTracesTest, WithACriticTokensOfATurnDifferAndTheRejectedAreNamed) {
  const std::vector<Trajectory> samples = {two_turns(0, {0.5, 1}, 8), two_turns(1, {0, 0}, 9)};
  BatchOptions options = testing::tiny_batch_options();
  options.algo.advantage = AdvantageKind::kGae;
  options.algo.returns = {.gamma = 1, .lambda = 0.5};
  TrainBatch batch = testing::make_batch(samples, options);
  ASSERT_EQ(batch.sequences.size(), 2u);
  StepTraces traces(dir.path(), 1);
  see_all(traces, batch);
  for (TrainSequence& s : batch.sequences) s.old_values = {0.25f, 0.5f, 0.125f};
  batch.sequences[0].mask = {0, 1, 1};
  batch.sequences[1].mask = {0, 0, 0};
  settle_advantages(batch, {});
  ASSERT_TRUE(traces.write(1, samples, batch));
  const auto rows = rows_of(1);
  ASSERT_EQ(rows.size(), 2u);
  const TrainSequence& s = batch.sequences[0];
  // delta: 0.25, 0.5 + 0.125 - 0.5, 1 - 0.125.
  EXPECT_EQ(s.advantages, (std::vector<float>{0.53125f, 0.5625f, 0.875f}));
  const TraceSegment& segment = rows[0].segments[0];
  EXPECT_EQ(segment.mask, (std::vector<uint8_t>{0, 0, 1, 0, 1}));
  EXPECT_EQ(segment.left_out, (Reasons{{LeftOut::kRejected, {1}}}));
  EXPECT_EQ(segment.advantages, (std::vector<float>{0.5625f, 0.875f}));
  EXPECT_EQ(segment.old_logprobs.size(), 2u);
  EXPECT_EQ(segment.new_logprobs.size(), 2u);
  const TraceTurn& first = rows[0].turns[0];
  EXPECT_EQ(first.tokens, 2);
  EXPECT_EQ(first.trained, 1);
  EXPECT_EQ(first.advantage, 0.5625f);
  EXPECT_EQ(first.value, 0.5);
  EXPECT_EQ(first.turn_return, 1.0625);
  EXPECT_EQ(rows[0].turns[1].value, 0.125);
  EXPECT_FALSE(rows[0].shaped_reward);
  // Nothing of the other is left in the loss, but its turns are still told.
  EXPECT_FALSE(rows[1].advantage);
  EXPECT_EQ(rows[1].segments[0].left_out, (Reasons{{LeftOut::kRejected, {1, 2, 4}}}));
  EXPECT_EQ(rows[1].turns[0].left_out, (std::map<LeftOut, int64_t>{{LeftOut::kRejected, 2}}));
  EXPECT_EQ(rows[1].turns[0].trained, 0);
  EXPECT_EQ(rows[1].turns[0].reward, 0.0);
}

// Whatever of the four keeps a sample or a token out of the loss is told of that token.
TEST_F(StepTracesTest, EachTokenOutOfTheLossHasItsReason) {
  const auto sample = [](int64_t prompt, int32_t member, double reward) {
    Trajectory t = testing::two_turns(member, reward);
    t.lease.member.prompt = prompt;
    return t;
  };
  // Of prompt 0 no two rewards differ. Of prompt 1 one member was cut, and of the other the first
  // turn is too old.
  std::vector<Trajectory> samples = {sample(0, 0, 1), sample(0, 1, 1), sample(1, 0, 1),
                                     sample(1, 1, 0)};
  samples[0].segments[0].versions[1] = -7;  // too old as well; the group is told
  samples[2].outcome = Outcome::kTruncated;
  samples[3].segments[0].versions = {-1, 1, 1, -1, 3};
  for (size_t i = 0; i < 3; ++i) samples[i].segments[0].versions = {-1, 3, 3, -1, 3};
  BatchOptions options = testing::tiny_batch_options();
  options.version = 3, options.max_staleness = 1;
  options.algo.truncated = TruncatedSamples::kMask;
  TrainBatch batch = testing::make_batch(samples, options);
  StepTraces traces(dir.path(), 1);
  see_all(traces, batch);
  ASSERT_TRUE(traces.write(1, samples, batch));
  std::vector<TraceRow> rows = rows_of(1);
  ASSERT_EQ(rows.size(), 4u);
  const std::vector<int32_t> all = {1, 2, 4};
  EXPECT_EQ(rows[0].segments[0].left_out, (Reasons{{LeftOut::kNoSignal, all}}));
  EXPECT_EQ(rows[1].segments[0].left_out, (Reasons{{LeftOut::kNoSignal, all}}));
  EXPECT_EQ(rows[2].segments[0].left_out, (Reasons{{LeftOut::kTruncated, all}}));
  EXPECT_EQ(rows[3].segments[0].left_out, (Reasons{{LeftOut::kTooOld, {1, 2}}}));
  EXPECT_EQ(rows[3].segments[0].mask, (std::vector<uint8_t>{0, 0, 0, 0, 1}));
  EXPECT_EQ(rows[3].turns[0].left_out, (std::map<LeftOut, int64_t>{{LeftOut::kTooOld, 2}}));
  EXPECT_TRUE(rows[3].turns[1].left_out.empty());

  // A greedy member is compared with, and its tokens come to no loss; a token at the very beginning
  // has nothing in front of it.
  options = testing::tiny_batch_options();
  options.algo.advantage = AdvantageKind::kGreedy;
  samples = {sample(0, 0, 1), sample(0, 1, 0)};
  samples[0].sampling.temperature = 0;
  samples[1].segments[0].roles[0] = TokenRole::kSampled;
  samples[1].segments[0].versions[0] = 0, samples[1].segments[0].classes[0] = 0;
  samples[1].segments[0].turn_begins = {0, 4};
  batch = testing::make_batch(samples, options);
  see_all(traces, batch);
  ASSERT_TRUE(traces.write(1, samples, batch));
  rows = rows_of(1);
  EXPECT_EQ(rows[0].segments[0].left_out, (Reasons{{LeftOut::kGreedyBaseline, all}}));
  EXPECT_EQ(rows[1].segments[0].left_out, (Reasons{{LeftOut::kFirstToken, {0}}}));

  // A step that trains the critic alone shows its loss to nobody; what was rejected is told so even
  // where nothing of its sequence is left.
  batch = testing::make_batch(samples, options);
  for (TrainSequence& s : batch.sequences) s.old_logprobs = s.recorded_logprobs;
  ASSERT_EQ(batch.sequences.size(), 1u);
  batch.sequences[0].mask = {1, 0, 0};
  ASSERT_TRUE(traces.write(1, samples, batch));
  EXPECT_EQ(rows_of(1)[1].segments[0].left_out, (Reasons{{LeftOut::kFirstToken, {0}},
                                                         {LeftOut::kRejected, {2, 4}},
                                                         {LeftOut::kCriticWarmUp, {1}}}));
}

TEST_F(StepTracesTest, KeepsTheLastStepsAndNoneOfAnotherLineage) {
  const std::vector<Trajectory> samples = testing::random_trajectories(1, 5);
  const TrainBatch batch = testing::make_batch(samples);
  StepTraces traces(dir.path(), 2);
  for (int64_t step = 1; step <= 4; ++step) ASSERT_TRUE(traces.write(step, samples, batch));
  EXPECT_EQ(num_files(), 2);
  EXPECT_EQ(rows_of(3).size(), 4u);
  // Back to version 1.
  ASSERT_TRUE(traces.write(2, samples, batch));
  EXPECT_EQ(num_files(), 1);
  EXPECT_EQ(rows_of(2).size(), 4u);
  StepTraces off(dir.path(), 0);
  ASSERT_TRUE(off.write(3, samples, batch));
  EXPECT_EQ(num_files(), 1);
}

TEST_F(StepTracesTest, OfALargeStepTheFirstSamplesAreKept) {
  const std::vector<Trajectory> samples = testing::random_trajectories(2, 5);
  const TrainBatch batch = testing::make_batch(samples);
  StepTraces traces(dir.path(), 1, /*max_bytes=*/2500);
  ASSERT_TRUE(traces.write(1, samples, batch));
  const auto text = read_file(dir.path() / trace_file_name(1)).value();
  EXPECT_LT(text.size(), 2500u);
  EXPECT_EQ(parse_trace_head(text.substr(0, text.find('\n'))), 8);
  const auto rows = rows_of(1);
  EXPECT_GT(rows.size(), 0u);
  EXPECT_LT(rows.size(), 8u);
  EXPECT_EQ(rows[0].lease, samples[0].lease);
}

}  // namespace
}  // namespace tailrace
