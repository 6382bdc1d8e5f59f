// Losses, gradients and optimizer steps of the whole trainer against an independent float64
// implementation (tests/data/golden/README.md, whose bounds are used).
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "core/model/model_config.h"
#include "core/model/parameter_files.h"
#include "core/model/safetensors.h"
#include "tests/trainer/fixtures.h"

namespace tailrace {
namespace {

class TrainerGolden : public ::testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path folder_ = testing::data_dir() / "golden" / GetParam();
  nlohmann::json golden_ = testing::read_json(folder_ / "golden.json");

  std::unique_ptr<PolicyTrainer> make_trainer(const OptimOptions& optim,
                                              const TrainOptions& train) {
    ModelConfig config = read_model_config(folder_);
    auto trainer = std::make_unique<PolicyTrainer>(Stream{}, config, train, config.max_positions);
    load_parameters(folder_, config, trainer->parameters());
    trainer->weights_changed();
    trainer->reset_optimizer(optim);
    return trainer;
  }

  static OptimOptions optim_of(const nlohmann::json& settings) {
    OptimOptions optim{.lr = settings.at("lr"),
                       .betas = settings.at("betas"),
                       .eps = settings.at("eps"),
                       .weight_decay = settings.at("weight_decay"),
                       .decay_norms = settings.at("decay_rule") == "all",
                       .max_grad_norm = 0};
    if (!settings.at("max_grad_norm").is_null()) optim.max_grad_norm = settings.at("max_grad_norm");
    return optim;
  }

  static void expect_gradients(const nlohmann::json& expected, const Parameters& gradients) {
    ASSERT_FALSE(expected.empty());
    for (const auto& [name, tensor] : expected.items()) {
      const ParameterInfo& info = gradients.layout().at(name);
      auto found = gradients.flat().subspan(static_cast<size_t>(info.offset),
                                            static_cast<size_t>(info.size));
      double largest = tensor.at("max_abs"), squares = 0;
      for (float g : found) squares += double{g} * g;
      EXPECT_NEAR(std::sqrt(squares), tensor.at("l2").get<double>(),
                  1e-3 * tensor.at("l2").get<double>())
          << name;
      // At the largest element, where a wrong scale or place shows most; then at places spread over
      // the tensor.
      EXPECT_NEAR(found[tensor.at("argmax_abs")], tensor.at("value_at_argmax").get<double>(),
                  1e-3 * largest)
          << name;
      for (size_t i = 0; i < tensor.at("indices").size(); ++i) {
        EXPECT_NEAR(found[tensor.at("indices")[i]], tensor.at("values")[i].get<double>(),
                    1e-3 * largest)
            << name;
      }
    }
  }

  void expect_parameters(const char* file, const char* deviation, const Parameters& parameters) {
    SafetensorsFile expected(folder_ / file);
    EXPECT_EQ(expected.tensors().size(), parameters.layout().entries().size());
    for (const auto& [name, view] : expected.tensors()) {
      std::vector<float> values(static_cast<size_t>(view.num_elements()));
      to_float(view, values);
      const ParameterInfo& info = parameters.layout().at(name);
      // Adam divides by sqrt(v): where a gradient is near 0, a rounding decides the direction of a
      // whole step of lr. So the bound is by parameter, from what float32 did to the independent
      // implementation.
      double bound =
          5e-5 + 5 * golden_["float32_deviation"][deviation]["by_parameter"][name].get<double>();
      double worst = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        double difference =
            double{parameters.flat()[static_cast<size_t>(info.offset) + i]} - values[i];
        worst = std::max(worst, std::abs(difference));
      }
      EXPECT_LE(worst, bound) << name;
    }
  }

  TrainBatch rl_batch(bool token_advantages) {
    TrainBatch batch;
    for (const auto& s : golden_["rl"]["data"]["sequences"]) {
      TrainSequence sequence;
      sequence.tokens = s.at("ids").get<std::vector<TokenId>>();
      for (auto j = s.at("prompt_len").get<int32_t>();
           j < static_cast<int32_t>(sequence.tokens.size()); ++j) {
        sequence.targets.push_back(j);
      }
      size_t n = sequence.targets.size();
      sequence.old_logprobs = s.at("old_logprobs").get<std::vector<float>>();
      sequence.behaviour_logprobs = sequence.recorded_logprobs = sequence.old_logprobs;
      sequence.ref_logprobs = s.at("ref_logprobs").get<std::vector<float>>();
      sequence.advantages.assign(n, s.at("advantage").get<float>());
      if (token_advantages)
        sequence.advantages = s.at("token_advantages").get<std::vector<float>>();
      sequence.versions.assign(n, 0);
      sequence.foreign_class.assign(n, 0);
      sequence.turns.assign(n, 0);
      sequence.trajectory = static_cast<int32_t>(batch.trajectory_tokens.size());
      batch.trajectory_tokens.push_back(static_cast<int32_t>(n));
      batch.sequences.push_back(std::move(sequence));
    }
    return batch;
  }

  static PolicyLossConfig loss_of(const nlohmann::json& settings) {
    PolicyLossConfig config;
    config.surrogate.clip_low = settings.at("clip_low");
    config.surrogate.clip_high = settings.at("clip_high");
    config.surrogate.clip_c = settings.value("dual_clip", 0.0);
    config.kl.coef = settings.at("kl_coef");
    config.entropy_coef = settings.value("entropy_coef", 0.0);
    if (settings.value("ratio", "") == "sequence") config.ratio = RatioUnit::kSequence;
    std::string aggregation = settings.at("aggregation");
    if (aggregation == "seq_mean_token_mean")
      config.aggregation.kind = AggregationKind::kSeqMeanTokenMean;
    if (aggregation == "seq_mean_token_sum_over_const") {
      config.aggregation = {AggregationKind::kSeqMeanTokenSumConst, settings.at("const_len")};
    }
    return config;
  }
};

void expect_relative(double found, double expected, double bound) {
  EXPECT_NEAR(found, expected, bound * std::abs(expected));
}

TEST_P(TrainerGolden, CrossEntropyGradientsAndThreeSteps) {
  const auto& ce = golden_["ce"];
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::vector<int32_t>> targets;
  for (const auto& s : ce["data"]["sequences"]) {
    tokens.push_back(s.at("ids").get<std::vector<TokenId>>());
    targets.emplace_back();
    for (size_t j = 0; j < s.at("loss_mask").size(); ++j) {
      if (s.at("loss_mask")[j] == 1) targets.back().push_back(static_cast<int32_t>(j + 1));
    }
  }
  std::vector<PackedSequence> sequences;
  for (size_t i = 0; i < tokens.size(); ++i)
    sequences.push_back({.tokens = tokens[i], .targets = targets[i]});

  // Small micro-batches and slots: the golden values must not depend on them.
  auto trainer = make_trainer(optim_of(ce["adamw"]["settings"]),
                              {.microbatch_tokens = 64, .gradient_slots = 2});
  const auto& history = ce["adamw"]["history"];
  for (size_t step = 0; step < 3; ++step) {
    MetricList metrics = trainer->sft_update(sequences);
    expect_relative(testing::metric(metrics, "sft/loss"), history[step].at("loss"), 1e-5);
    expect_relative(testing::metric(metrics, "sft/grad_norm"),
                    history[step].at("grad_norm_before_clip"), 1e-3);
    EXPECT_EQ(testing::metric(metrics, "sft/tokens"), ce.at("predicted_tokens"));
    if (step > 0) continue;
    expect_gradients(ce["gradients"], trainer->gradients());
    // Two of the models have them whole.
    if (!std::filesystem::exists(folder_ / "golden_ce_grads.safetensors")) continue;
    SafetensorsFile full(folder_ / "golden_ce_grads.safetensors");
    for (const auto& [name, view] : full.tensors()) {
      std::vector<float> expected(static_cast<size_t>(view.num_elements()));
      to_float(view, expected);
      const ParameterInfo& info = trainer->model().layout().at(name);
      double bound = 1e-3 * ce["gradients"][name]["max_abs"].get<double>(), worst = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        double found = trainer->gradients().flat()[static_cast<size_t>(info.offset) + i];
        worst = std::max(worst, std::abs(found - expected[i]));
      }
      EXPECT_LE(worst, bound) << name;
    }
  }
  expect_parameters("golden_ce_after3.safetensors", "ce_after3", trainer->parameters());
  expect_relative(testing::metric(trainer->sft_update(sequences), "sft/loss"),
                  history[3].at("loss"), 1e-4);
}

TEST_P(TrainerGolden, AdvantagesOfTheGroups) {
  std::vector<double> rewards, expected;
  std::vector<int32_t> offsets;
  int group = -1;
  for (const auto& s : golden_["rl"]["data"]["sequences"]) {
    if (s.at("group") != group) offsets.push_back(static_cast<int32_t>(rewards.size()));
    group = s.at("group");
    rewards.push_back(s.at("reward"));
    expected.push_back(s.at("advantage"));
  }
  offsets.push_back(static_cast<int32_t>(rewards.size()));
  std::vector<double> found =
      group_advantages(AdvantageKind::kGroupMeanStd, 1e-6, rewards, offsets).advantage;
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-6) << i;
}

TEST_P(TrainerGolden, EveryModeOfThePolicyLoss) {
  ASSERT_EQ(golden_["rl"]["modes"].size(), 5u);
  for (const auto& [name, mode] : golden_["rl"]["modes"].items()) {
    SCOPED_TRACE(name);
    // lr = 0 and no clipping: losses and gradients are compared here, nothing is learned.
    auto trainer = make_trainer({.lr = 0, .max_grad_norm = 0}, {.microbatch_tokens = 48});
    TrainBatch batch = rl_batch(mode["settings"].at("advantage") == "token");
    auto report = trainer->policy_update(batch, {0, batch.sequences.size()},
                                         loss_of(mode["settings"]), /*version=*/0);
    const auto& expected = mode["result"];
    const PolicyLossStats& stats = report.loss.stats;
    auto tokens = static_cast<double>(stats.tokens);
    EXPECT_EQ(stats.tokens, expected.at("response_tokens"));
    // Losses are sums of terms of order 1 that nearly cancel: the bound is relative to those.
    EXPECT_NEAR(report.loss.loss, expected.at("loss").get<double>(), 1e-5);
    EXPECT_NEAR(report.loss.policy_term, expected.at("policy_term").get<double>(), 1e-5);
    EXPECT_NEAR(report.loss.kl_term, expected.at("kl_term_before_coef").get<double>(), 1e-5);
    EXPECT_NEAR(static_cast<double>(stats.clipped_low + stats.clipped_high) / tokens,
                expected.at("clip_fraction").get<double>(), 1e-9);
    EXPECT_NEAR(stats.old_minus_new_sum / tokens,
                expected.at("mean_old_minus_new_logprob").get<double>(), 1e-5);
    EXPECT_NEAR(stats.entropy_sum / tokens, expected.at("mean_entropy").get<double>(), 1e-4);
    expect_relative(stats.ratio_max, expected.at("ratio_max"), 1e-4);
    expect_relative(stats.ratio_min, expected.at("ratio_min"), 1e-4);
    expect_relative(report.optimizer.grad_norm, expected.at("grad_norm"), 1e-3);
    if (mode.contains("gradients")) expect_gradients(mode["gradients"], trainer->gradients());
  }
}

TEST_P(TrainerGolden, ThreeAdamWStepsOfGrpo) {
  const auto& adamw = golden_["rl"]["adamw"];
  auto trainer =
      make_trainer(optim_of(adamw["settings"]), {.microbatch_tokens = 48, .gradient_slots = 3});
  PolicyLossConfig loss = loss_of(golden_["rl"]["modes"]["grpo"]["settings"]);
  TrainBatch batch = rl_batch(false);
  for (size_t step = 0; step < 3; ++step) {
    auto report = trainer->policy_update(batch, {0, batch.sequences.size()}, loss, 0);
    const auto& want = adamw["history"][step];
    const auto grad_norm = want.at("grad_norm_before_clip").get<double>();
    // What the steps before have rounded, about 1e-6 in all, moves the loss by as much as it is
    // steep; in one of these models it is.
    EXPECT_NEAR(report.loss.loss, want.at("loss").get<double>(), std::max(2e-5, 1e-6 * grad_norm))
        << step;
    expect_relative(report.optimizer.grad_norm, grad_norm, 1e-3);
  }
  expect_parameters("golden_grpo_after3.safetensors", "grpo_after3", trainer->parameters());
}

INSTANTIATE_TEST_SUITE_P(Models, TrainerGolden,
                         ::testing::Values("llama3-untied-f32", "llama3-ropescaled-tied-bf16",
                                           "qwen2-tied-f32", "qwen3-headdim-untied-bf16"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tailrace
