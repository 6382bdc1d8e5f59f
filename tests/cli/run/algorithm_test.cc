#include "cli/run/algorithm.h"

#include <gtest/gtest.h>

#include "cli/run/rules.h"
#include "core/base/yaml_config.h"

namespace tailrace {
namespace {

std::vector<std::string> lines(std::vector<std::string> overrides) {
  const std::string text =
      "model: {create: {hidden_size: 64, layers: 2, heads: 4}}\n"
      "env: {name: frozen_grid}\n"
      "rollout: {max_context_tokens: 128, max_turns: 4, max_action_tokens: 3}\n"
      "algo:\n  loss_agg: token_mean_global\n  kl: {coef: 0.02}\n";
  RunOptions options;
  ConfigKeys keys = bind_config(parse_config(text, "a.yaml", overrides), options);
  validate(options, keys, built_in_registries());
  return describe_algorithm(options, keys);
}

TEST(DescribeAlgorithm, SaysEachValueWithTheLayerThatItComesFrom) {
  EXPECT_EQ(lines({}),
            (std::vector<std::string>{
                "name default (default)",
                "advantage group_mean (default), filter_zero_signal drop (default)",
                "ratio token (default)", "surrogate ppo_clip (default)",
                "clip_low 0.2 (default), clip_high 0.28 (default), clip_c 0 (default)",
                "correction.kind tis (default), correction.level token (default), correction.cap 2 "
                "(default)",
                "loss_agg token_mean_global (a.yaml:5)",
                "kl.coef 0.02 (a.yaml:6), kl.estimator k3 (default), kl.target ref (default), "
                "entropy_coef 0 (default)"}));
  EXPECT_EQ(
      lines({"algo.name=dr_grpo", "algo.clip_high=0.3"}),
      (std::vector<std::string>{
          "name dr_grpo (command line)",
          "advantage group_mean (preset dr_grpo), filter_zero_signal none (preset dr_grpo)",
          "ratio token (preset dr_grpo)", "surrogate ppo_clip (preset dr_grpo)",
          "clip_low 0.2 (preset dr_grpo), clip_high 0.3 (command line), clip_c 0 (preset dr_grpo)",
          "correction.kind tis (default), correction.level token (default), correction.cap 2 "
          "(default)",
          "loss_agg seq_mean_token_sum_const (preset dr_grpo), loss_const_tokens 12 (response "
          "limit: 4 turns x 3 tokens)",
          "kl.coef 0 (preset dr_grpo), entropy_coef 0 (preset dr_grpo)"}));
}

TEST(DescribeAlgorithm, LeavesOutWhatHasNoEffect) {
  EXPECT_EQ(lines({"algo.name=topr"})[3], "surrogate topr (preset topr)");
  EXPECT_EQ(lines({"algo.name=topr"})[4], "correction.kind none (preset topr)");
  EXPECT_EQ(lines({"algo.surrogate=cispo"})[4], "clip_high 0.28 (default)");
  EXPECT_EQ(lines({"algo.advantage=group_mean_std"})[1],
            "advantage group_mean_std (command line), std_eps 1e-06 (default), filter_zero_signal "
            "drop (default)");
}

}  // namespace
}  // namespace tailrace
