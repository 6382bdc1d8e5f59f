#include "cli/inputs/threads.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cli/inputs/resolved_run.h"
#include "core/config/yaml_config.h"

namespace tailrace {
namespace {

RunOptions run_of(const std::vector<std::string>& overrides) {
  RunOptions options;
  bind_config(parse_config("run: {steps: 80}\n"
                           "model: {create: {hidden_size: 64, intermediate_size: 192, layers: 3, "
                           "heads: 4, kv_heads: 2}}\n"
                           "env: {name: frozen_grid}\n"
                           "rollout: {prompts_per_step: 16, group_size: 8, max_context_tokens: "
                           "128, workers: 2}\n"
                           "train: {microbatch_tokens: 1024}\n",
                           "a.yaml", overrides),
              options);
  return options;
}

std::string said(const std::vector<std::string>& overrides, int64_t cores) {
  return describe(resolve(run_of(overrides), cores).threads);
}

TEST(PlanThreads, InTurnEachSideHasAllCores) {
  EXPECT_EQ(said({}, 8), "trainer 8 or 2 rollout workers x 4, in turn: at most 8 of 8 cores");
  EXPECT_EQ(said({"scheduler.mode=tail_batching"}, 5),
            "trainer 5 or 2 rollout workers x 2, in turn: at most 5 of 5 cores");
  EXPECT_EQ(said({"rollout.workers=1"}, 1),
            "trainer 1 or 1 rollout worker x 1, in turn: at most 1 of 1 core");
}

TEST(PlanThreads, BothAtOnceShareThem) {
  const std::string both = "trainer 4 + 2 rollout workers x 2 = 8 of 8 cores";
  for (const char* mode : {"async", "partial", "streaming"})
    EXPECT_EQ(said({fmt::format("scheduler.mode={}", mode)}, 8), both);
  // What the workers cannot divide is the trainer's.
  EXPECT_EQ(said({"scheduler.mode=async", "rollout.workers=3"}, 8),
            "trainer 5 + 3 rollout workers x 1 = 8 of 8 cores");
  EXPECT_EQ(said({"scheduler.mode=async", "train.ranks=2", "train.gradient_slots=2"}, 8),
            "2 trainers x 2 + 2 rollout workers x 2 = 8 of 8 cores");
}

// Whatever the machine, where each process can have a core.
TEST(PlanThreads, NeverSumToMoreThanTheCores) {
  for (const char* mode : {"sync", "tail_batching", "partial", "async", "streaming"})
    for (const char* workers : {"1", "2", "3", "7"})
      for (int64_t cores = 1; cores <= 130; ++cores) {
        const RunOptions options = run_of(
            {fmt::format("scheduler.mode={}", mode), fmt::format("rollout.workers={}", workers)});
        const ThreadPlan plan = resolve(options, cores).threads;
        EXPECT_GE(plan.trainer, 1);
        EXPECT_GE(plan.worker, 1);
        const bool fits = cores >= plan.workers + (plan.in_turn ? 0 : plan.ranks);
        EXPECT_EQ(plan.busy() <= cores, fits) << mode << " " << workers << " on " << cores;
        EXPECT_EQ(thread_shortage(plan, options).empty(), fits);
      }
}

TEST(PlanThreads, ObeyTheirKeysAndSayWhatDoesNotFit) {
  const auto shortage = [](const std::vector<std::string>& overrides, int64_t cores) {
    const RunOptions options = run_of(overrides);
    return thread_shortage(resolve(options, cores).threads, options);
  };
  EXPECT_EQ(said({"scheduler.mode=async", "train.threads=6"}, 8),
            "trainer 6 + 2 rollout workers x 1 = 8 of 8 cores");
  EXPECT_EQ(said({"scheduler.mode=async", "rollout.threads=3"}, 8),
            "trainer 2 + 2 rollout workers x 3 = 8 of 8 cores");
  const std::vector<std::string> many = {"scheduler.mode=async", "train.threads=6",
                                         "rollout.threads=3"};
  EXPECT_EQ(said(many, 8), "trainer 6 + 2 rollout workers x 3 = 12 of 8 cores");
  EXPECT_EQ(
      shortage(many, 8),
      "12 threads compute at once on 8 cores and get in each other's way. Try train.threads=0, "
      "rollout.threads=0");
  EXPECT_EQ(shortage({"scheduler.mode=async"}, 2),
            "3 threads compute at once on 2 cores and get in each other's way. Try fewer "
            "rollout.workers");
  EXPECT_EQ(shortage({"scheduler.mode=async", "train.threads=2"}, 2),
            "4 threads compute at once on 2 cores and get in each other's way. Try "
            "train.threads=0, fewer rollout.workers");
}

TEST(PlanThreads, OnTheCpuAnEvaluationHasItsTurn) {
  const Device cpu, gpu{.kind = DeviceKind::kCuda};
  const auto in_turn = [](const RunOptions& options, Device trainer, Device rollout) {
    return evaluates_in_turn(resolve(options).threads, trainer, rollout);
  };
  EXPECT_TRUE(in_turn(run_of({}), cpu, cpu));
  EXPECT_FALSE(in_turn(run_of({}), gpu, gpu));
  EXPECT_FALSE(in_turn(run_of({}), cpu, gpu));
  EXPECT_FALSE(in_turn(run_of({"scheduler.mode=async"}), cpu, cpu));
  // Both fit.
  EXPECT_FALSE(
      in_turn(run_of({"train.threads=1", "rollout.threads=1", "rollout.workers=1"}), cpu, cpu) &&
      num_usable_cores() >= 2);
  // Nobody samples on this machine.
  EXPECT_FALSE(in_turn(run_of({"rollout.pools=[{name: far, workers: 1, cluster: there}]",
                               "clusters=[{name: there}]"}),
                       cpu, cpu));
}

TEST(PlanThreads, OfAWorkerThatJoinsAreThoseOfTheKey) {
  EXPECT_EQ(joined_threads(run_of({})), 1);
  EXPECT_EQ(joined_threads(run_of({"rollout.threads=3"})), 3);
}

}  // namespace
}  // namespace tailrace
