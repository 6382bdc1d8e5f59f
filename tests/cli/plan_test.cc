#include "cli/plan.h"

#include <gtest/gtest.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/model/kv_cache.h"
#include "rollout/engine.h"

namespace tailrace {
namespace {

RunOptions example() {
  RunOptions options;
  bind_config(
      parse_config("run: {steps: 80}\n"
                   "model: {create: {hidden_size: 64, intermediate_size: 192, layers: 3, heads: 4, "
                   "kv_heads: 2}}\n"
                   "env: {name: frozen_grid}\n"
                   "rollout: {prompts_per_step: 16, group_size: 8, max_context_tokens: 128, "
                   "workers: 2, kv_cache_mb: 16}\n"
                   "train: {minibatches_per_step: 2, ppo_epochs: 3, microbatch_tokens: 1024}\n",
                   "a.yaml", {}),
      options);
  return options;
}

TEST(MakePlan, DerivesBatchesAndUpdates) {
  RunOptions options = example();
  Plan plan = make_plan(options, planned_model(options), 0);
  EXPECT_EQ(plan.samples_per_step, 128);
  EXPECT_EQ(plan.samples_per_minibatch, 64);
  EXPECT_EQ(plan.updates_per_step, 6);
  EXPECT_EQ(plan.max_tokens_per_step, 128 * 128);
  EXPECT_EQ(plan.parameters, planned_model(options).num_parameters());
  EXPECT_NEAR(static_cast<double>(plan.parameters), 153e3, 5e3);  // the quickstart policy
  EXPECT_NEAR(static_cast<double>(plan.rollout_worker[1].bytes), 16 << 20,
              1 << 15);  // whole blocks of kv_cache_mb
  EXPECT_TRUE(plan.warnings.empty() || plan.warnings[0].find("cores") != std::string::npos);
}

TEST(MakePlan, CountsTheCacheThatTheEngineMakes) {
  RunOptions options = example();
  options.rollout.engine.kv_cache_mb = 4096;  // far more than is of use
  ModelConfig config = planned_model(options);
  Model model(config);
  SteadyClock clock;
  Engine engine(model, nullptr, options.rollout.engine, Stream{}, clock);
  EXPECT_EQ(
      make_plan(options, config, 0).rollout_worker[1].bytes,
      engine.num_blocks() *
          KvCache::bytes_per_block(config, static_cast<int>(options.rollout.engine.block_tokens)));
}

TEST(MakePlan, CountsTheReferenceOnlyWhenItIsKept) {
  RunOptions options = example();
  int64_t without = make_plan(options, planned_model(options), 0).total_bytes();
  options.algo.kl.coef = 0.01;
  EXPECT_GT(make_plan(options, planned_model(options), 0).total_bytes(), without);
  options.algo.kl.target = "behaviour";
  EXPECT_EQ(make_plan(options, planned_model(options), 0).total_bytes(), without);
}

TEST(MakePlan, WarnsWhenTheMemoryIsShort) {
  RunOptions options = example();
  Plan plan = make_plan(options, planned_model(options), int64_t{1} << 20);
  ASSERT_FALSE(plan.warnings.empty());
  EXPECT_NE(plan.warnings[0].find("but 1.0 MiB are free"), std::string::npos);
}

TEST(MakePlan, RefusesAContextBeyondTheModel) {
  RunOptions options = example();
  ModelConfig config = planned_model(options);
  config.max_positions = 100;
  EXPECT_THROW(make_plan(options, config, 0), UserError);
}

TEST(FormatPlan, ShowsTheDerivation) {
  RunOptions options = example();
  std::string text = format_plan(make_plan(options, planned_model(options), 0), options);
  EXPECT_NE(text.find("16 prompts x 8 samples = 128 samples"), std::string::npos);
  EXPECT_NE(text.find("2 minibatches of 64 samples x 3 epochs = 6 updates"), std::string::npos);
  EXPECT_NE(text.find("80 steps = 10240 samples, 480 updates"), std::string::npos);
}

}  // namespace
}  // namespace tailrace
