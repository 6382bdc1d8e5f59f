#include "trainer/optimizer.h"

#include <limits>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/model/safetensors.h"
#include "tests/trainer/fixtures.h"

namespace tailrace {
namespace {

class OptimizerTest : public ::testing::Test {
 protected:
  ParameterLayout layout_{testing::tiny_model()};
  Parameters parameters_{layout_}, gradients_{layout_};

  float& weight(std::string_view name) {
    return parameters_.flat()[static_cast<size_t>(layout_.at(name).offset)];
  }
  float& grad(std::string_view name, size_t i = 0) {
    return gradients_.flat()[static_cast<size_t>(layout_.at(name).offset) + i];
  }
};

constexpr std::string_view kMatrix = "model.embed_tokens.weight", kNorm = "model.norm.weight",
                           kResidual = "model.layers.0.self_attn.o_proj.weight";

TEST_F(OptimizerTest, MatchesGoldenAdam1) {
  Optimizer optimizer({}, layout_, {.lr = .01, .weight_decay = .01, .max_grad_norm = 0}, 10);
  weight(kMatrix) = 1;
  grad(kMatrix) = .1f;
  optimizer.apply(gradients_, parameters_);
  // Decay by 1 - lr * 0.01 = 0.9999 first; then the first step of Adam is lr g / (|g| + eps)
  // whatever the gradient's size.
  EXPECT_NEAR(weight(kMatrix), 0.989900001, 1e-7);
  grad(kMatrix) = -.2f;
  optimizer.apply(gradients_, parameters_);
  EXPECT_NEAR(weight(kMatrix), 0.993462046, 1e-7);
}

TEST_F(OptimizerTest, DecaysMatricesAndLeavesNormsAloneUnlessAsked) {
  for (bool decay_norms : {false, true}) {
    Optimizer optimizer({}, layout_, {.lr = .1, .weight_decay = .5, .decay_norms = decay_norms},
                        10);
    weight(kMatrix) = weight(kResidual) = weight(kNorm) = 1;
    optimizer.apply(gradients_, parameters_);
    EXPECT_FLOAT_EQ(weight(kMatrix), .95f);
    EXPECT_FLOAT_EQ(weight(kResidual), .95f);
    EXPECT_FLOAT_EQ(weight(kNorm), decay_norms ? .95f : 1.0f);
  }
}

TEST_F(OptimizerTest, DecaysBothMatricesOfAnAdapter) {
  ModelConfig config = testing::tiny_model();
  config.lora = {.rank = 2, .alpha = 4, .targets = {LoraTarget::kV}, .base = ""};
  const ParameterLayout layout = ParameterLayout::of_adapter(config);
  Parameters adapter(layout), gradients(layout);
  for (const ParameterInfo& info : layout.entries()) adapter.vector(info.name)[0] = 1;
  Optimizer optimizer({}, layout, {.lr = .01, .weight_decay = .01, .max_grad_norm = 0}, 10);
  optimizer.apply(gradients, adapter);
  for (const ParameterInfo& info : layout.entries())
    EXPECT_NEAR(adapter.vector(info.name)[0], 0.9999, 1e-7) << info.name;
}

TEST_F(OptimizerTest, ClipsByGlobalNormAsGoldenClip1) {
  testing::TempDir dir;
  Optimizer optimizer({}, layout_, {.lr = .01, .max_grad_norm = 1}, 10);
  // The norm of 3 and 4 is 5, over matrix and norm weights together.
  grad(kMatrix) = 3;
  grad(kNorm) = 4;
  optimizer.apply(gradients_, parameters_);
  EXPECT_NEAR(optimizer.last_report().grad_norm, 5, 1e-12);
  optimizer.save(dir.path() / "o.safetensors");
  SafetensorsFile file(dir.path() / "o.safetensors");
  auto first = [&](const char* name) {
    std::vector<float> values(static_cast<size_t>(file.tensors().at(name).num_elements()));
    to_float(file.tensors().at(name), values);
    return values[0];
  };
  // The first moment after one update is 0.1 times the clipped gradient [0.6, 0.8].
  EXPECT_NEAR(first("m.model.embed_tokens.weight"), .06, 2e-8);
  EXPECT_NEAR(first("m.model.norm.weight"), .08, 2e-8);
}

TEST_F(OptimizerTest, NanOrInfiniteGradientsSkipTheUpdateAndAreCounted) {
  Optimizer optimizer({}, layout_, {.lr = .1}, 10);
  weight(kMatrix) = 1;
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    grad(kNorm, 3) = bad;
    optimizer.apply(gradients_, parameters_);
    EXPECT_TRUE(optimizer.last_report().skipped);
  }
  EXPECT_EQ(optimizer.skipped(), 2);
  // A skipped update moves nothing, nor the schedule and the bias correction.
  EXPECT_EQ(optimizer.updates(), 0);
  EXPECT_EQ(weight(kMatrix), 1);
  grad(kNorm, 3) = 1;
  optimizer.apply(gradients_, parameters_);
  EXPECT_FALSE(optimizer.last_report().skipped);
  EXPECT_EQ(optimizer.updates(), 1);
}

// More than may be under way at once, with some that are skipped between them, through warm-up,
// schedule and what is behind it.
TEST_F(OptimizerTest, ReportsAreReadWhenTheyAreWanted) {
  const OptimOptions options{
      .lr = 1e-3, .warmup_updates = 7, .schedule = LrSchedule::kCosine, .max_grad_norm = 0};
  Optimizer at_once({}, layout_, options, 150), later({}, layout_, options, 150);
  Parameters other(layout_);
  std::vector<Optimizer::Report> reports;
  int64_t updates = 0;
  const auto bits = [](const Parameters& p) {
    return std::vector<float>(p.flat().begin(), p.flat().end());
  };
  for (int i = 0; i < 200; ++i) {
    const bool skips = i % 17 == 3;
    grad(kMatrix) = skips ? std::numeric_limits<float>::infinity() : static_cast<float>(i % 5 - 2);
    const std::vector<float> before = bits(parameters_);
    at_once.apply(gradients_, parameters_);
    later.apply(gradients_, other);
    reports.push_back(at_once.last_report());
    EXPECT_EQ(reports.back().skipped, skips);
    updates += !skips;
    EXPECT_EQ(reports.back().lr, skips ? 0 : learning_rate(options, updates, 150));
    if (skips) {
      EXPECT_EQ(bits(parameters_), before);
    }
    EXPECT_EQ(later.tries(), i + 1);
  }
  EXPECT_EQ(bits(other), bits(parameters_));
  EXPECT_EQ(later.updates(), updates);
  EXPECT_EQ(later.skipped(), 200 - updates);
  for (Optimizer* optimizer : {&at_once, &later}) {
    const std::vector<Optimizer::Report> taken = optimizer->take_reports();
    ASSERT_EQ(taken.size(), reports.size());
    for (size_t i = 0; i < taken.size(); ++i) {
      EXPECT_EQ(taken[i].lr, reports[i].lr);
      EXPECT_EQ(taken[i].skipped, reports[i].skipped);
      if (!taken[i].skipped) {
        EXPECT_EQ(taken[i].grad_norm, reports[i].grad_norm);
      }
    }
    EXPECT_TRUE(optimizer->take_reports().empty());
  }
}

TEST_F(OptimizerTest, SchedulesMatchTheIndependentReferenceFile) {
  auto block = testing::read_json(testing::data_dir() / "golden/rl_math.json").at("lr_schedule");
  OptimOptions options{
      .lr = block.at("lr"),
      .warmup_updates = block.at("warmup"),
      .schedule = LrSchedule::kCosine,
      .min_lr_ratio = block.at("min_lr").get<double>() / block.at("lr").get<double>()};
  for (size_t i = 0; i < block.at("steps").size(); ++i) {
    EXPECT_NEAR(learning_rate(options, block.at("steps")[i], block.at("total")),
                block.at("values")[i].get<double>(), 1e-14);
  }
  options.schedule = LrSchedule::kLinear;
  EXPECT_NEAR(learning_rate(options, 15, 25), (1e-3 + 1e-4) / 2, 1e-15);
  // Beyond the last update the rate stays at its end.
  EXPECT_NEAR(learning_rate(options, 99, 25), 1e-4, 1e-15);
  options.schedule = LrSchedule::kConstant;
  EXPECT_EQ(learning_rate(options, 99, 25), 1e-3);
}

TEST_F(OptimizerTest, SaveLoadContinueGivesTheSameBitsAsNeverStopping) {
  testing::TempDir dir;
  OptimOptions options{
      .lr = .01, .weight_decay = .1, .warmup_updates = 3, .schedule = LrSchedule::kLinear};
  auto run = [&](int stop_after) {
    Rng rng(3);
    Parameters p(layout_), g(layout_);
    auto optimizer = std::make_unique<Optimizer>(Stream{}, layout_, options, 8);
    for (int update = 0; update < 8; ++update) {
      for (float& x : g.flat()) x = static_cast<float>(rng.normal());
      optimizer->apply(g, p);
      if (update != stop_after) continue;
      optimizer->save(dir.path() / "o.safetensors");
      optimizer = std::make_unique<Optimizer>(Stream{}, layout_, options, 8);
      optimizer->load(dir.path() / "o.safetensors");
    }
    return std::vector<float>(p.flat().begin(), p.flat().end());
  };
  EXPECT_EQ(run(-1), run(4));
}

TEST_F(OptimizerTest, AStateOfAnotherModelIsRefusedByName) {
  testing::TempDir dir;
  ModelConfig other = testing::tiny_model();
  other.vocab_size = 23;
  ParameterLayout layout(other);
  Optimizer({}, layout, {}, 1).save(dir.path() / "o.safetensors");
  Optimizer optimizer({}, layout_, {}, 1);
  try {
    optimizer.load(dir.path() / "o.safetensors");
    FAIL();
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("m.model.embed_tokens.weight does not fit"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace tailrace
