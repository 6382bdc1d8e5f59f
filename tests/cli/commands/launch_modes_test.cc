// Whole runs in every mode, over processes, while each role is killed once: every step is trained,
// every prompt that was begun has ended once, and no sample is older than the mode promises.
#include "scheduler/store/journal.h"
#include "tests/cli/commands/launch_fixture.h"
#include "trainer/checkpoint.h"

namespace tailrace {
namespace {

struct ModeCase {
  std::string name;
  std::vector<std::string> overrides;
  std::optional<int64_t> oldest;  // versions; what the mode promises, if it does
  bool surplus = false;           // prompts are begun that are not trained at once
  bool masks = false;             // some tokens are too old for the loss
};

class LaunchModes : public LaunchTest, public testing::WithParamInterface<ModeCase> {
 protected:
  double worst(std::string_view metric) const {
    const auto rows = read_metrics(paths().metrics());
    EXPECT_TRUE(rows);
    double most = 0;
    for (const MetricsRow& row : rows.value())
      if (const double* value = row.find(metric)) most = std::max(most, *value);
    return most;
  }

  // Waits for a step, then kills a process of this role.
  void kill_at(int64_t step, const std::string& role) {
    ASSERT_TRUE(wait_until([&] { return has_step(step); })) << output();
    for (const pid_t pid : workers(role)) num_killed_ += ::kill(pid, SIGKILL) == 0;
  }

  int num_killed_ = 0;
};

TEST_P(LaunchModes, KeepTheirPromisesWhoeverIsKilled) {
  const ModeCase& mode = GetParam();
  start_run("run", mode.overrides);
  int64_t step = 1;
  for (const char* role : {"rollout", "trainer", "scheduler", "reward"}) {
    kill_at(step, role);
    step += 3;
  }
  expect_done();
  EXPECT_GE(num_killed_, 2) << "the run was over before it was disturbed";
  expect_each_step_once();
  if (mode.masks) {
    EXPECT_GT(worst("staleness/masked_frac"), 0);
  }
  if (mode.oldest) {
    EXPECT_EQ(worst("staleness/masked_frac"), 0);
    EXPECT_LE(worst("staleness/max"), static_cast<double>(*mode.oldest));
  }
  if (mode.oldest == 0) {
    EXPECT_EQ(worst("mismatch/kl"), 0);
  }
  const auto end = scheduler::restore(paths().journal());
  ASSERT_TRUE(end && end.value().state);
  const scheduler::Dataset& dataset = end.value().state->policies.at(0).datasets.at(0);
  const auto ended = [&](scheduler::TaskEnd how) { return dataset.ended_as(how); };
  EXPECT_EQ(ended(scheduler::TaskEnd::kTrained), kSteps * 4);
  int64_t all = 0;
  for (const int64_t count : dataset.ended) all += count;
  EXPECT_EQ(all, dataset.next) << "each prompt that was begun ends once";
  if (!mode.surplus) {
    EXPECT_EQ(ended(scheduler::TaskEnd::kUnreached), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, LaunchModes,
    testing::Values(
        ModeCase{"sync", {"scheduler.mode=sync"}, 0},
        ModeCase{"sync_bf16", {"scheduler.mode=sync", "model.compute=bf16"}, 0},
        ModeCase{"sync_bf16_cache",
                 {"scheduler.mode=sync", "model.compute=bf16", "model.kv_cache_dtype=bf16"},
                 0},
        ModeCase{
            "sync_ranks", {"scheduler.mode=sync", "train.ranks=2", "train.gradient_slots=2"}, 0},
        ModeCase{"async_ranks",
                 {"scheduler.mode=async", "train.ranks=2", "train.gradient_slots=4"},
                 std::nullopt},
        ModeCase{"tail_batching",
                 {"scheduler.mode=tail_batching", "scheduler.launch_prompts_ratio=1.5"},
                 0,
                 true},
        ModeCase{"partial", {"scheduler.mode=partial"}, std::nullopt, true},
        ModeCase{"async_half", {"scheduler.mode=async", "scheduler.ahead=0.5"}, std::nullopt},
        ModeCase{"partial_mask",
                 {"scheduler.mode=partial", "scheduler.max_staleness=0"},
                 std::nullopt,
                 true,
                 true},
        ModeCase{"async_drop",
                 {"scheduler.mode=async", "scheduler.ahead=2", "scheduler.max_staleness=1",
                  "scheduler.on_stale=drop"},
                 1},
        ModeCase{"async_wait",
                 {"scheduler.mode=async", "scheduler.max_staleness=1", "scheduler.on_stale=wait"},
                 1},
        ModeCase{"async_drained",
                 {"scheduler.mode=async", "scheduler.install=drained",
                  "scheduler.dispatch=least_loaded"},
                 std::nullopt},
        ModeCase{"longest_first",
                 {"scheduler.dispatch_order=longest_first", "rollout.max_sequences=2"},
                 0},
        ModeCase{"streaming", {"scheduler.mode=streaming"}, std::nullopt},
        ModeCase{"tail_batching_streaming",
                 {"scheduler.mode=tail_batching", "scheduler.launch_prompts_ratio=1.5",
                  "scheduler.hand_over=groups"},
                 0,
                 true},
        ModeCase{"redundant",
                 {"scheduler.mode=async", "scheduler.launch_members_ratio=1.5",
                  "scheduler.max_staleness=1", "scheduler.on_stale=wait"},
                 1}),
    [](const auto& one) { return one.param.name; });

using LaunchModesTest = LaunchTest;

// A mode is its values, whatever it is called.
TEST_F(LaunchModesTest, AsyncWithNothingAheadIsSyncBitForBit) {
  start_run("run", {"scheduler.mode=async", "scheduler.ahead=0"});
  expect_done();
  EXPECT_EQ(final_digest(), undisturbed_digest());
}

// Who goes first changes when a sample comes, and not which.
TEST_F(LaunchModesTest, TheLongestFirstTrainTheSameBitForBit) {
  start_run("run", {"scheduler.dispatch_order=longest_first", "rollout.max_sequences=2"});
  expect_done();
  EXPECT_EQ(final_digest(), undisturbed_digest());
}

// Which groups a step keeps is a matter of time, so the journal knows them: from an early
// checkpoint the same lists, with the samples that the store has of them, lead to the same weights.
TEST_F(LaunchModesTest, TailBatchingIsTrainedAgainFromTheKeptListsBitForBit) {
  start_run("run", {"scheduler.mode=tail_batching", "scheduler.launch_prompts_ratio=1.5",
                    "checkpoint.keep_last=100"});
  expect_done();
  const auto kept = [&] {
    const auto end = scheduler::restore(paths().journal());
    EXPECT_TRUE(end && end.value().state);
    return end.value().state->policies.at(0);
  };
  const scheduler::Policy before = kept();
  ASSERT_EQ(std::ssize(before.batches), kSteps);
  int64_t newest = -1, out_of_order = 0;
  for (const auto& [step, batch] : before.batches) {
    for (const TaskId& id : batch.tasks) {
      out_of_order += id.prompt < newest;
      newest = std::max(newest, id.prompt);
    }
  }
  EXPECT_GT(out_of_order, 0) << "all prompts were trained in the order of the dataset";
  const auto weights = [&](int64_t step) {
    auto bytes =
        read_file(paths().checkpoints() / fmt::format("step_{:06}", step) / "model.safetensors");
    EXPECT_TRUE(bytes);
    return bytes ? bytes.value() : "";
  };
  const std::string last = weights(kSteps);
  for (const fs::path& checkpoint : list_checkpoints(paths().checkpoints()))
    if (checkpoint_step(checkpoint) > 0) fs::remove_all(checkpoint);
  continue_run();
  expect_done();
  EXPECT_EQ(weights(kSteps), last);
  const scheduler::Policy after = kept();
  for (const auto& [step, batch] : after.batches)
    EXPECT_EQ(batch.tasks, before.batches.at(step).tasks) << step;
  EXPECT_EQ(after.lineage.at(kSteps), before.lineage.at(kSteps));
  EXPECT_EQ(after.datasets[0].next, before.datasets[0].next) << "something was sampled";
}

// A worker is killed again and again in the middle of its episodes; who goes on behind the turns
// that it has stored samples what it would have sampled.
TEST_F(LaunchModesTest, WhatGoesOnFromStoredTurnsTrainsTheSameBitForBit) {
  const std::vector<std::string> slow = {"env.name=paced", "env.settings.turns=6",
                                         "env.settings.latency_ms=40",
                                         "rollout.store_turns_tokens=1"};
  start_run("other", slow);
  expect_done();
  start_run("run", slow);
  for (const int64_t step : {1, 3, 5, 7, 9, 11}) {
    ASSERT_TRUE(wait_until([&] { return has_step(step); })) << output();
    // Some turns into the next step.
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    for (const pid_t pid : workers("rollout")) ::kill(pid, SIGKILL);
  }
  expect_done();
  EXPECT_GT(sum_of_rows("rollout/resumed_tokens"), 0) << "nothing had been stored";
  EXPECT_EQ(final_digest(), final_digest("other"));
}

}  // namespace
}  // namespace tailrace
