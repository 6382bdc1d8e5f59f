// A run on cards that are not here.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cli/config/hardware_file.h"
#include "cli/plan/card_fit.h"
#include "cli/plan/card_numbers.h"
#include "core/base/error.h"

namespace tailrace {
namespace {

// A run of a policy of these sizes on a card, as far as plans read it.
RunOptions run_on(const std::string& card, std::vector<std::string> words = {}) {
  RunOptions options;
  options.model.path = "/nowhere";
  options.env.name = "text";
  options.env.dataset = "/nowhere/rows.jsonl";
  options.run.steps = 10;
  options.rollout.engine.max_context_tokens = 2048;
  options.rollout.engine.kv_cache_mb = 4096;
  options.train.microbatch_tokens = 4096;
  options.simulate = load_hardware(card, words).section;
  return options;
}

// Dense, of about 1 B parameters.
ModelConfig small_policy() {
  ModelConfig config = usual_policy();
  config.hidden_size = 2048;
  config.intermediate_size = 8192;
  config.num_layers = 16;
  config.num_kv_heads = 8;
  config.head_dim = 64;
  config.max_positions = 8192;
  config.tie_embeddings = true;
  return config;
}

CardFit fit_of(const RunOptions& options, const ModelConfig& config) {
  const ResolvedRun run = resolve(options);
  return fit_on_cards(run, config, plan_on_cards(run, config));
}
CardFit fit_of(const std::string& card, const ModelConfig& config) {
  return fit_of(run_on(card), config);
}

HardwareSection filled(const std::string& card, const ModelConfig& config,
                       const std::vector<std::string>& words = {}) {
  RunOptions options = run_on(card, words);
  fill_from_cards(options, load_hardware(card, words).keys, config, /*is_known=*/true);
  options.simulate.validate();
  return options.simulate.hardware.front();
}

TEST(CardNumbers, EachCardThatComesAlongIsAsFastAsItsDataSheetSays) {
  const ModelConfig config = small_policy();
  const double fastest = filled("h200", config).tokens_per_s;
  for (const std::string& name : hardware_names()) {
    const HardwareSection card = filled(name, config);
    // Reading the weights of 1.2 B parameters in bfloat16 at 70 % of the bandwidth; 16 layers.
    EXPECT_NEAR(card.step_ms, 2.5e9 / (0.7e6 * card.memory_gb_per_s) + 0.24, 0.1 * card.step_ms)
        << name;
    // Training is three passes of a prefill.
    EXPECT_NEAR(card.train_tokens_per_s, card.prefill_tokens_per_s / 3,
                1e-6 * card.prefill_tokens_per_s)
        << name;
    EXPECT_LE(card.tokens_per_s, fastest) << name;
    // 4 GiB of 32 KiB a token.
    EXPECT_NEAR(static_cast<double>(card.kv_tokens), 131072, 2048) << name;
  }
  EXPECT_GT(filled("h200", config).tokens_per_s, filled("h100-80", config).tokens_per_s);
}

TEST(CardNumbers, WhatTheFileGivesStays) {
  const HardwareSection card =
      filled("h200", small_policy(), {"hardware.h200.step_ms=9", "hardware.h200.kv_tokens=5000"});
  EXPECT_EQ(card.step_ms, 9);
  EXPECT_EQ(card.kv_tokens, 5000);
}

TEST(CardFit, ASmallPolicyFitsOnEachCardThatComesAlong) {
  for (const std::string& name : hardware_names()) {
    const CardFit fit = fit_of(name, small_policy());
    EXPECT_TRUE(fit.fits() || name == "rtx-4090") << name << "\n" << fit_text(fit);
    EXPECT_EQ(fit.trainer_card, name);
  }
  EXPECT_TRUE(fit_of("h200", small_policy()).shares());
}

// By turns the trainer has no device of its own, and what a turn needs is there once.
TEST(CardFit, ARunByTurnsHasOneCard) {
  RunOptions options = run_on("h200");
  const ModelConfig config = small_policy();
  const CardFit apart = fit_of(options, config);
  options.run.colocate = true;
  const CardFit fit = fit_of(options, config);
  EXPECT_TRUE(fit.fits());
  EXPECT_EQ(fit.in_turn_needs, apart.in_turn_needs);
  EXPECT_LT(fit.in_turn_needs, apart.trainer_needs + apart.rollout_needs);
  EXPECT_NE(fit_text(fit).find("both by turns (run.colocate) take"), std::string::npos)
      << fit_text(fit);
  options.simulate.hardware[0].memory_gib = 10;
  const CardFit small = fit_of(options, config);
  EXPECT_FALSE(small.fits());
  EXPECT_FALSE(small.would.empty());
}

// Where a file says nothing of memory, nothing is too large.
TEST(CardFit, OfACardWithoutMemoryNothingIsSaid) {
  RunOptions options = run_on("h200");
  options.simulate.hardware[0].memory_gib = 0;
  const std::string text = fit_text(fit_of(options, usual_policy()));
  EXPECT_EQ(text.find("GiB of the "), std::string::npos) << text;
  EXPECT_EQ(text.find("both fit"), std::string::npos) << text;
  EXPECT_EQ(text.rfind("memory  ", 0), 0u) << text;
  EXPECT_NE(text.find("Whether that fits is not"), std::string::npos) << text;
}

// Master, gradients and moments of 8 B parameters are 128 GB.
TEST(CardFit, WhatDoesNotFitSaysSoAndWhatWould) {
  const CardFit fit = fit_of("h100-80", usual_policy());
  EXPECT_FALSE(fit.trainer_fits());
  EXPECT_TRUE(fit.rollout_fits());
  const std::string text = fit_text(fit);
  EXPECT_EQ(text.rfind("fits not   the trainer takes ", 0), 0u) << text;
  EXPECT_NE(text.find(" of the 79.6 GiB of h100-80"), std::string::npos) << text;
  EXPECT_NE(text.find("would fit  "), std::string::npos) << text;
  EXPECT_NE(text.find("B parameters\n"), std::string::npos) << text;
  EXPECT_GT(fit.trainer_needs, int64_t{120} << 30);
}

TEST(CardFit, ACacheOfOtherElementsIsRefused) {
  RunOptions options = run_on("h100-80");
  options.model.kv_cache_dtype = Compute::kBf16;
  options.model.compute = Compute::kF32;
  EXPECT_THROW((void)cache_placement(options, small_policy()), UserError);
  options.model.compute = Compute::kBf16;
  EXPECT_EQ(cache_placement(options, small_policy()).kv_cache, Dtype::kBF16);
}

TEST(CardFit, TellsWhatCannotRunToday) {
  RunOptions options = run_on("h200", {"hardware.h200.devices=8"});
  const ModelConfig config = small_policy();
  const std::string text = gaps_text(gaps_of(resolve(options), &config, 2));
  for (const char* part :
       {"a policy trains on one device, and this plan has 16", "no model is split over devices"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_TRUE(gaps_of(resolve(run_on("h200")), &config, 1).empty());
  options = run_on("h200");
  options.lora.rank = 8;
  EXPECT_EQ(gaps_of(resolve(options), &config, 1).size(), 1u);
}

}  // namespace
}  // namespace tailrace
