#include "cli/prepare/disk_plan.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "core/config/yaml_config.h"
#include "core/model/parameters.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

constexpr int64_t kWords = 20, kSteps = 80, kTokens = 16 * 8 * 128;

RunOptions saved_run(const std::vector<std::string>& overrides = {}) {
  RunOptions options;
  bind_config(parse_config("run: {steps: 80}\n"
                           "model: {create: {hidden_size: 64, intermediate_size: 192, layers: 3, "
                           "heads: 4, kv_heads: 2}}\n"
                           "env: {name: frozen_grid}\n"
                           "rollout: {prompts_per_step: 16, group_size: 8, max_context_tokens: "
                           "128}\n"
                           "checkpoint: {interval_steps: 10, keep_last: 2}\n"
                           "weights: {keep: 3}\n",
                           "a.yaml", overrides),
              options);
  return options;
}

DiskPlan disk_of(const RunOptions& options, int64_t steps = kSteps) {
  return plan_disk(place(resolve(options), model_config(options.model.create, kWords)), steps,
                   kTokens,
                   /*lags=*/true);
}

TEST(PlanDisk, SaysWhatAStepAndACheckpointWrite) {
  const RunOptions options = saved_run();
  const int64_t floats =
      ParameterLayout(model_config(options.model.create, kWords)).num_parameters() * 4;
  const DiskPlan plan = disk_of(options);
  EXPECT_EQ(plan.version, floats);
  EXPECT_EQ(plan.model, floats);
  EXPECT_EQ(plan.master, 0);
  EXPECT_EQ(plan.moments, 2 * floats);
  EXPECT_EQ(plan.interval, 10);
  EXPECT_GT(plan.tokens, kTokens * 9);
  const DiskPlan rounded = disk_of(saved_run({"model.compute=bf16"}));
  EXPECT_LT(rounded.version, floats * 6 / 10);
  EXPECT_EQ(rounded.master, floats);
  // It came in 16 bits, and is saved so whatever samples.
  ModelConfig came = model_config(options.model.create, kWords);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    came.dtype = dtype;
    const DiskPlan narrow =
        plan_disk(place(resolve(saved_run({"model.compute=f32"})), came), kSteps, kTokens, true);
    EXPECT_EQ(narrow.version, floats);
    EXPECT_EQ(narrow.model, floats / 2);
    EXPECT_EQ(narrow.master, floats);
  }
}

TEST(PlanDisk, SaysWhatStays) {
  DiskPlan plan = disk_of(saved_run());
  EXPECT_EQ(plan.versions, 3);
  EXPECT_EQ(plan.checkpoints, 3);
  EXPECT_EQ(plan.stored_steps, 20);
  EXPECT_EQ(plan.older_versions, 18);
  EXPECT_EQ(plan.certain_bytes(), 3 * plan.version + 3 * plan.checkpoint_bytes());
  EXPECT_EQ(plan.reference, 0);
  EXPECT_EQ(disk_of(saved_run({"weights.keep_sampled=false"})).older_bytes, 0);
  const RunOptions lean = saved_run({"weights.keep_sampled=false"});
  const auto lines = describe(disk_of(lean), lean);
  EXPECT_TRUE(std::ranges::any_of(lines, [](const std::string& line) {
    return line.starts_with(
        "weights.keep_sampled is false; true would keep 18 older versions of stored samples");
  })) << fmt::format("{}", fmt::join(lines, "\n"));
  EXPECT_EQ(disk_of(saved_run({"algo.kl.coef=0.1"})).reference, plan.model);
  // Those since the one that is evaluated, which may lag to the next that is due.
  const std::vector<std::string> lags = {"weights.keep_sampled=false", "eval.prompts=8",
                                         "eval.interval_steps=12"};
  EXPECT_EQ(disk_of(saved_run(lags)).older_versions, 13 - 3);
  EXPECT_EQ(disk_of(saved_run(lags), 9).older_versions, 10 - 3);
  const RunOptions in_turn = saved_run(lags);
  EXPECT_EQ(plan_disk(place(resolve(in_turn), model_config(in_turn.model.create, kWords)), kSteps,
                      kTokens, false)
                .older_versions,
            0);
  // A run that is soon over has fewer: version 0 and those of its two steps, the checkpoint of
  // version 0 and that of the end.
  plan = disk_of(saved_run(), 2);
  EXPECT_EQ(plan.versions, 3);
  EXPECT_EQ(plan.checkpoints, 2);
  EXPECT_EQ(plan.older_versions, 0);
  EXPECT_EQ(plan.stored_steps, 2);
}

TEST(PlanDisk, WarnsWhereThereIsLessRoom) {
  const TemporaryDirectory folder;
  const int64_t room = disk_facts(folder.path()).available_bytes;
  ASSERT_GT(room, 0);
  DiskPlan plan = disk_of(saved_run());
  // Of a folder that is not there yet the disk is that of the one above.
  EXPECT_EQ(disk_shortage({}, folder / "a/b"), "");
  plan.tokens = room;
  EXPECT_NE(disk_shortage(plan, folder / "a/b").find("the run may keep "), std::string::npos);
  EXPECT_NE(disk_shortage(plan, folder / "a/b").find("free at " + folder.path().string()),
            std::string::npos);
  plan.version = 2 * room;
  EXPECT_NE(disk_shortage(plan, folder.path()).find("the run keeps "), std::string::npos);
}

}  // namespace
}  // namespace tailrace
