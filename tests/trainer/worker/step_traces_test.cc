// What a step leaves of its samples: the trajectory and the loss, bit for bit.
#include "trainer/worker/step_traces.h"

#include <gtest/gtest.h>

#include "core/base/file.h"
#include "core/trajectory/trace_rows.h"
#include "tests/trainer/fixtures.h"

namespace tailrace {
namespace {

struct StepTracesTest : ::testing::Test {
  testing::TempDir dir;

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
    EXPECT_EQ(row.advantage, sequence->second->advantages.front());
    EXPECT_EQ(row.segments[0].old_logprobs, sequence->second->old_logprobs);
    EXPECT_EQ(row.segments[0].new_logprobs, last_seen.at(row.lease));
    EXPECT_NE(row.segments[0].new_logprobs, row.segments[0].old_logprobs) << "a later pass";
  }
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
