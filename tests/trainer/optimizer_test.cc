#include "trainer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numbers>
#include <utility>

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
  Optimizer optimizer({}, layout_, {.lr = .01, .weight_decay = .01, .max_grad_norm = 0});
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
    Optimizer optimizer({}, layout_, {.lr = .1, .weight_decay = .5, .decay_norms = decay_norms});
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
  Optimizer optimizer({}, layout, {.lr = .01, .weight_decay = .01, .max_grad_norm = 0});
  optimizer.apply(gradients, adapter);
  for (const ParameterInfo& info : layout.entries())
    EXPECT_NEAR(adapter.vector(info.name)[0], 0.9999, 1e-7) << info.name;
}

TEST_F(OptimizerTest, ClipsByGlobalNormAsGoldenClip1) {
  TemporaryDirectory dir;
  Optimizer optimizer({}, layout_, {.lr = .01, .max_grad_norm = 1});
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
  Optimizer optimizer({}, layout_, {.lr = .1});
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
  Optimizer at_once({}, layout_, options), later({}, layout_, options);
  Parameters other(layout_);
  std::vector<Optimizer::Report> reports;
  int64_t updates = 0;
  double warm_up_end = 1;
  const auto bits = [](const Parameters& p) {
    return std::vector<float>(p.flat().begin(), p.flat().end());
  };
  for (int i = 0; i < 200; ++i) {
    const bool skips = i % 17 == 3;
    grad(kMatrix) = skips ? std::numeric_limits<float>::infinity() : static_cast<float>(i % 5 - 2);
    const std::vector<float> before = bits(parameters_);
    const double done = i / 200.0;
    at_once.apply(gradients_, parameters_, done);
    later.apply(gradients_, other, done);
    reports.push_back(at_once.last_report());
    EXPECT_EQ(reports.back().skipped, skips);
    updates += !skips;
    if (updates == 8 && !skips) warm_up_end = done;
    EXPECT_EQ(reports.back().lr, skips ? 0 : learning_rate(options, updates, done, warm_up_end));
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
  // The file counts from 0 to the end, which lies behind the last of 25 updates. In the warm-up, of
  // 5 updates, it has what an update has risen to; behind it, where an update begins to fall.
  const auto value = [&](int64_t i) {
    EXPECT_EQ(block.at("steps")[static_cast<size_t>(i)], i);
    return block.at("values")[static_cast<size_t>(i)].get<double>();
  };
  const auto rate = [&](int64_t update) {
    return learning_rate(options, update, static_cast<double>(update - 1) / 25, 5.0 / 25);
  };
  for (int64_t update = 1; update <= 5; ++update)
    EXPECT_NEAR(rate(update), value(update), 1e-14) << update;
  for (int64_t update = 6; update <= 25; ++update)
    EXPECT_NEAR(rate(update), value(update - 1), 1e-14) << update;
  EXPECT_NEAR(learning_rate(options, 26, 1, 5.0 / 25), value(25), 1e-14);
  options.schedule = LrSchedule::kLinear;
  EXPECT_NEAR(learning_rate(options, 16, 15.0 / 25, 5.0 / 25), (1e-3 + 1e-4) / 2, 1e-15);
  options.schedule = LrSchedule::kConstant;
  EXPECT_EQ(learning_rate(options, 99, 1, 5.0 / 25), 1e-3);
}

// Of N updates the first has the whole rate and, of linear to 0, the last lr / N, as transformers
// has them: the end lies behind the last one.
TEST_F(OptimizerTest, NoUpdateOfAScheduleHasTheRateZero) {
  OptimOptions options{.lr = 1e-3, .schedule = LrSchedule::kLinear, .min_lr_ratio = 0};
  for (const int64_t updates : {1, 2, 5, 40}) {
    const auto rate = [&](int64_t i) {
      return learning_rate(options, i + 1, static_cast<double>(i) / static_cast<double>(updates),
                           0);
    };
    options.schedule = LrSchedule::kLinear;
    for (int64_t i = 0; i < updates; ++i)
      EXPECT_NEAR(rate(i), 1e-3 * static_cast<double>(updates - i) / static_cast<double>(updates),
                  1e-15);
    options.schedule = LrSchedule::kCosine;
    EXPECT_EQ(rate(0), 1e-3);
    for (int64_t i = 1; i < updates; ++i) {
      EXPECT_LT(rate(i), rate(i - 1));
      EXPECT_GT(rate(i), 0);
    }
  }
  // A warm-up of as many updates as there are, or of more, only rises, from its first update on.
  for (const int64_t warm_up : {4, 8}) {
    options.warmup_updates = warm_up;
    for (int64_t i = 0; i < 4; ++i)
      EXPECT_NEAR(learning_rate(options, i + 1, static_cast<double>(i) / 4, 1),
                  1e-3 * static_cast<double>(i + 1) / static_cast<double>(warm_up), 1e-15);
  }
}

// The update behind the warm-up has the whole rate, and the fall takes the rest of the run,
// whichever updates were not made: 40 are planned, in steps of four.
TEST_F(OptimizerTest, RiseAndFallDoNotOverlapWhateverIsNotMade) {
  const auto every = [](int tries, double part) {
    std::vector<double> dones;
    for (int i = 0; i < tries; ++i) dones.push_back(i * part);
    return dones;
  };
  std::vector<double> two_of_four;  // minibatches, which share their step's part
  for (int i = 0; i < 20; ++i) two_of_four.push_back((i / 2 + i % 2 / 2.0) / 10);
  std::vector<double> late =
      every(20, 1.0 / 20);  // all steps of a quarter of the run were filtered
  std::erase_if(late, [](double done) { return done > 0.1 && done < 0.35; });
  const std::map<std::string, std::vector<double>> runs = {
      {"all", every(40, 1.0 / 40)},
      {"every other group filtered", every(20, 2.0 / 40)},
      {"two of four", two_of_four},
      {"a quarter filtered", late},
      {"the data ends at 17", every(17, 1.0 / 17)},
      {"longer than planned", every(90, 1.0 / 90)}};
  for (const LrSchedule schedule : {LrSchedule::kLinear, LrSchedule::kCosine}) {
    const OptimOptions options{
        .lr = 1, .warmup_updates = 10, .schedule = schedule, .min_lr_ratio = 0, .max_grad_norm = 0};
    for (const auto& [name, dones] : runs) {
      SCOPED_TRACE(name);
      Optimizer optimizer({}, layout_, options);
      for (const double done : dones) optimizer.apply(gradients_, parameters_, done);
      const std::vector<Optimizer::Report> reports = optimizer.take_reports();
      ASSERT_EQ(reports.size(), dones.size());
      for (size_t i = 0; i < reports.size(); ++i) {
        const double fallen = i < 10 ? 0 : (dones[i] - dones[10]) / (1 - dones[10]);
        const double fall = schedule == LrSchedule::kLinear
                                ? 1 - fallen
                                : (1 + std::cos(std::numbers::pi * fallen)) / 2;
        const double expected = i < 10 ? static_cast<double>(i + 1) / 10 : fall;
        EXPECT_NEAR(reports[i].lr, expected, 1e-12) << i;
        EXPECT_GT(reports[i].lr, 0);
      }
      EXPECT_EQ(reports[9].lr, 1);
      EXPECT_EQ(reports[10].lr, 1);
    }
  }
}

// Steps before it moved something else, such as a critic, or nothing at all.
TEST_F(OptimizerTest, TheFallBeginsWithTheFirstUpdate) {
  TemporaryDirectory dir;
  const std::filesystem::path file = dir.path() / "o.safetensors";
  const OptimOptions options{
      .lr = 1, .schedule = LrSchedule::kLinear, .min_lr_ratio = 0, .max_grad_norm = 0};
  for (const bool reloads : {false, true}) {
    auto optimizer = std::make_unique<Optimizer>(Stream{}, layout_, options);
    for (const double done : {0.5, 0.5, 0.75, 0.875}) {
      const bool skips = optimizer->tries() == 0;
      grad(kMatrix) = skips ? std::numeric_limits<float>::infinity() : 0;
      optimizer->apply(gradients_, parameters_, done);
      EXPECT_EQ(optimizer->last_report().lr, skips ? 0 : (1 - done) / 0.5);
      if (!reloads) continue;
      optimizer->save(file);
      optimizer = std::make_unique<Optimizer>(Stream{}, layout_, options);
      optimizer->load(file);
    }
  }
  // A state of an earlier build says nothing of it: from the begin of the run on.
  Optimizer earlier({}, layout_, options);
  grad(kMatrix) = 0;
  earlier.apply(gradients_, parameters_, 0);
  earlier.save(file);
  EXPECT_FALSE(SafetensorsFile(file).metadata().contains("warm_up_end"));
  earlier.load(file);
  earlier.apply(gradients_, parameters_, 0.75);
  EXPECT_EQ(earlier.last_report().lr, 0.25);
}

// In the middle of the warm-up, at its end and behind it, with updates that are skipped and some
// that nobody has waited for.
TEST_F(OptimizerTest, AScheduleGoesOnWithTheSameRatesFromWhereItWasSaved) {
  TemporaryDirectory dir;
  const std::filesystem::path file = dir.path() / "o.safetensors";
  const OptimOptions options{
      .lr = 1, .warmup_updates = 10, .schedule = LrSchedule::kLinear, .max_grad_norm = 0};
  const auto rates = [&](int stop_after) {
    Parameters p(layout_);
    auto optimizer = std::make_unique<Optimizer>(Stream{}, layout_, options);
    std::vector<double> all;
    const auto take = [&] {
      for (const Optimizer::Report& report : optimizer->take_reports()) all.push_back(report.lr);
    };
    for (int i = 0; i < 30; ++i) {
      grad(kMatrix) = i == 4 || i == 11 ? std::numeric_limits<float>::infinity() : 0;
      optimizer->apply(gradients_, p, std::sqrt(i / 30.0));
      if (i != stop_after) continue;
      optimizer->save(file);
      take();
      optimizer = std::make_unique<Optimizer>(Stream{}, layout_, options);
      optimizer->load(file);
    }
    take();
    return all;
  };
  const std::vector<double> whole = rates(-1);
  EXPECT_EQ(whole[10], 1) << "the tenth";
  EXPECT_EQ(whole[11], 0) << "skipped";
  EXPECT_EQ(whole[12], 1);
  EXPECT_LT(whole[13], 1);
  for (int stop_after = 0; stop_after < 30; ++stop_after)
    EXPECT_EQ(rates(stop_after), whole) << stop_after;
}

// What a build wrote that did not keep it: half of the updates that were made are the warm-up.
TEST_F(OptimizerTest, AStateWithoutTheEndOfTheWarmUpHasItFromTheUpdatesThatWereMade) {
  TemporaryDirectory dir;
  const std::filesystem::path file = dir.path() / "o.safetensors",
                              next = dir.path() / "n.safetensors";
  OptimOptions options{.lr = 1, .schedule = LrSchedule::kLinear, .min_lr_ratio = 0};
  Optimizer before({}, layout_, options);
  for (int i = 0; i < 8; ++i) before.apply(gradients_, parameters_, i / 16.0);
  before.save(file);
  options.warmup_updates = 4;
  Optimizer after({}, layout_, options);
  after.load(file);
  after.apply(gradients_, parameters_, 0.5);
  EXPECT_NEAR(after.last_report().lr, 1 - 0.25 / 0.75, 1e-15);
  after.save(next);
  Optimizer again({}, layout_, options);
  again.load(next);
  again.apply(gradients_, parameters_, 0.75);
  EXPECT_NEAR(again.last_report().lr, 1 - 0.5 / 0.75, 1e-15);
  // A warm-up that goes on takes none.
  options.warmup_updates = 16;
  Optimizer longer({}, layout_, options);
  longer.load(next);
  longer.apply(gradients_, parameters_, 0.75);
  EXPECT_EQ(longer.last_report().lr, 10.0 / 16);
}

TEST_F(OptimizerTest, SaveLoadContinueGivesTheSameBitsAsNeverStopping) {
  TemporaryDirectory dir;
  OptimOptions options{
      .lr = .01, .weight_decay = .1, .warmup_updates = 3, .schedule = LrSchedule::kLinear};
  auto run = [&](int stop_after) {
    Rng rng(3);
    Parameters p(layout_), g(layout_);
    auto optimizer = std::make_unique<Optimizer>(Stream{}, layout_, options);
    for (int update = 0; update < 8; ++update) {
      for (float& x : g.flat()) x = static_cast<float>(rng.normal());
      optimizer->apply(g, p, update / 8.0);
      if (update != stop_after) continue;
      optimizer->save(dir.path() / "o.safetensors");
      optimizer = std::make_unique<Optimizer>(Stream{}, layout_, options);
      optimizer->load(dir.path() / "o.safetensors");
    }
    return std::vector<float>(p.flat().begin(), p.flat().end());
  };
  EXPECT_EQ(run(-1), run(4));
}

// A run begins with a checkpoint, and moments that are all 0 would be most of it.
TEST_F(OptimizerTest, AStateBeforeTheFirstUpdateHasNoMoments) {
  TemporaryDirectory dir;
  const auto path = dir.path() / "o.safetensors";
  Parameters p(layout_), g(layout_);
  Optimizer optimizer({}, layout_, {.lr = .01});
  const auto update = [&](float gradient) {
    std::ranges::fill(p.flat(), 1.0f);
    std::ranges::fill(g.flat(), gradient);
    optimizer.apply(g, p, 0);
    return std::vector<float>(p.flat().begin(), p.flat().end());
  };
  optimizer.save(path);
  EXPECT_TRUE(SafetensorsFile(path).tensors().empty());
  const std::vector<float> first = update(0.5f);
  (void)update(-1.0f);
  EXPECT_NE(update(0.5f), first);
  optimizer.load(path);
  EXPECT_EQ(optimizer.updates(), 0);
  EXPECT_EQ(update(0.5f), first);
  optimizer.save(path);
  EXPECT_FALSE(SafetensorsFile(path).tensors().empty());
}

TEST_F(OptimizerTest, AStateOfAnotherModelIsRefusedByName) {
  TemporaryDirectory dir;
  ModelConfig other = testing::tiny_model();
  other.vocab_size = 23;
  ParameterLayout layout(other);
  Parameters p(layout), g(layout);
  Optimizer of_other({}, layout, {});
  of_other.apply(g, p, 0);
  of_other.save(dir.path() / "o.safetensors");
  Optimizer optimizer({}, layout_, {});
  try {
    optimizer.load(dir.path() / "o.safetensors");
    FAIL();
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("m.model.embed_tokens.weight does not fit"),
              std::string::npos)
        << e.what();
  }
}

class MuonTest : public OptimizerTest {
 protected:
  const OptimOptions options_{
      .kind = OptimizerKind::kMuon, .lr = .1, .weight_decay = .01, .max_grad_norm = 0};

  // Gradients sin(update * k^2) of k = 1, 2, ... in each tensor, as the script has them.
  void set_gradients(int update) {
    for (const ParameterInfo& info : layout_.entries()) {
      const std::span<float> values = gradients_.vector(info.name);
      for (size_t i = 0; i < values.size(); ++i) {
        const double k = 1 + static_cast<double>(i);
        values[i] = static_cast<float>(std::sin(update * k * k));
      }
    }
  }
};

// Expected numbers: a script in Python of its own, in double precision and plain loops, with
// weights 1 / (1 + row + column); elements (0, 0), (1, 2), (rows / 2, cols / 3) and the last one
// after three updates, and the sum of all.
TEST_F(MuonTest, ThreeUpdatesOfEachShapeMatchTheScript) {
  Optimizer optimizer({}, layout_, options_);
  for (const ParameterInfo& info : layout_.entries()) {
    if (info.shape.size() != 2) continue;
    const Matrix matrix = parameters_.matrix(info.name);
    for (int64_t r = 0; r < matrix.rows; ++r)
      for (int64_t c = 0; c < matrix.cols; ++c)
        matrix.row(r)[c] = 1 / static_cast<float>(1 + r + c);
  }
  for (int update = 1; update <= 3; ++update) {
    set_gradients(update);
    optimizer.apply(gradients_, parameters_);
  }
  struct Expected {
    std::string_view name;
    double first, second, third, last, sum;
  };
  const Expected all[] = {
      {"model.layers.0.self_attn.q_proj.weight", 0.9147984, 0.2590596, 0.1140985, 0.04895,
       21.041281},
      {"model.layers.0.self_attn.k_proj.weight", 0.9269618, 0.2358965, 0.1810734, 0.0530423,
       15.080342},
      {"model.layers.1.mlp.up_proj.weight", 0.9077266, 0.2501411, 0.0612314, 0.0277391, 25.611166},
      {"model.layers.1.mlp.down_proj.weight", 0.9197242, 0.2279856, 0.036361, 0.0210855,
       25.128560}};
  for (const Expected& expected : all) {
    SCOPED_TRACE(expected.name);
    const ConstMatrix p = std::as_const(parameters_).matrix(expected.name);
    // Numbers of about 1 in float, after three updates of five iterations each.
    EXPECT_NEAR(p.row(0)[0], expected.first, 2e-6);
    EXPECT_NEAR(p.row(1)[2], expected.second, 2e-6);
    EXPECT_NEAR(p.row(p.rows / 2)[p.cols / 3], expected.third, 2e-6);
    EXPECT_NEAR(p.row(p.rows - 1)[p.cols - 1], expected.last, 2e-6);
    double sum = 0;
    for (int64_t r = 0; r < p.rows; ++r)
      for (int64_t c = 0; c < p.cols; ++c) sum += p.row(r)[c];
    EXPECT_NEAR(sum, expected.sum, 1e-4);
  }
}

TEST_F(MuonTest, EmbeddingsHeadAndNormsStayWithAdamW) {
  ModelConfig config = testing::tiny_model();
  config.tie_embeddings = false;
  const ParameterLayout layout(config);
  Parameters with_muon(layout), with_adamw(layout), gradients(layout);
  Rng rng(5);
  for (float& x : gradients.flat()) x = static_cast<float>(rng.normal());
  OptimOptions adamw = options_;
  adamw.kind = OptimizerKind::kAdamW;
  Optimizer first({}, layout, options_), second({}, layout, adamw);
  for (int update = 0; update < 2; ++update) {
    first.apply(gradients, with_muon);
    second.apply(gradients, with_adamw);
  }
  for (const ParameterInfo& info : layout.entries()) {
    const bool hidden = info.name.find("_proj") != std::string::npos;
    EXPECT_EQ(std::ranges::equal(with_muon.vector(info.name), with_adamw.vector(info.name)),
              !hidden)
        << info.name;
  }
}

TEST_F(MuonTest, DecayIsThatOfAdamW) {
  // Without gradients there is nothing else.
  for (float& x : parameters_.flat()) x = 1;
  Optimizer optimizer({}, layout_, options_);
  optimizer.apply(gradients_, parameters_);
  EXPECT_FLOAT_EQ(weight(kResidual), 0.999f);
  EXPECT_FLOAT_EQ(weight(kMatrix), 0.999f);
  EXPECT_EQ(weight(kNorm), 1);
}

// The files of the same experts differ: in one tensor a layer, and in one a matrix.
TEST_F(MuonTest, ExpertsInOneTensorLearnAsThoseThatStandApart) {
  ModelConfig apart = testing::sparse_model(), fused = apart;
  fused.fused_experts = true;
  const auto run = [&](const ModelConfig& config) {
    const ParameterLayout layout(config);
    Parameters p(layout), g(layout);
    Optimizer optimizer({}, layout, options_);
    Rng rng(6);
    for (int update = 0; update < 2; ++update) {
      for (float& x : g.flat()) x = static_cast<float>(rng.normal());
      optimizer.apply(g, p);
    }
    Parameters view(layout);
    std::ranges::copy(p.flat(), view.flat().begin());
    const auto layer = layer_tensors(config, view, 1);
    const auto copy_of = [](const MatrixStack<float>& stack) {
      return std::vector<float>(stack.data, stack.data + stack.count * stack.rows * stack.cols);
    };
    return std::pair(copy_of(layer.expert_gate_up), copy_of(layer.expert_down));
  };
  EXPECT_GT(run(apart).first.size(), 0u);
  EXPECT_EQ(run(apart), run(fused));
}

TEST_F(MuonTest, ANanGradientChangesNothing) {
  for (float& x : parameters_.flat()) x = 1;
  Optimizer spoiled({}, layout_, options_), clean({}, layout_, options_);
  Parameters other(layout_);
  std::ranges::copy(parameters_.flat(), other.flat().begin());
  for (int update = 1; update <= 2; ++update) {
    set_gradients(update);
    clean.apply(gradients_, other);
    spoiled.apply(gradients_, parameters_);
    // In a norm, which Muon does not update itself.
    grad(kNorm, 3) = std::numeric_limits<float>::quiet_NaN();
    spoiled.apply(gradients_, parameters_);
    EXPECT_TRUE(spoiled.last_report().skipped);
  }
  EXPECT_TRUE(std::ranges::equal(parameters_.flat(), other.flat()));
  EXPECT_EQ(spoiled.updates(), 2);
}

TEST_F(MuonTest, SaveLoadContinueGivesTheSameBitsAsNeverStopping) {
  TemporaryDirectory dir;
  const std::filesystem::path file = dir.path() / "o.safetensors";
  const auto run = [&](int stop_after) {
    Parameters p(layout_);
    auto optimizer = std::make_unique<Optimizer>(Stream{}, layout_, options_);
    for (int update = 1; update <= 6; ++update) {
      set_gradients(update);
      optimizer->apply(gradients_, p);
      if (update != stop_after) continue;
      optimizer->save(file);
      optimizer = std::make_unique<Optimizer>(Stream{}, layout_, options_);
      optimizer->load(file);
    }
    return std::vector<float>(p.flat().begin(), p.flat().end());
  };
  EXPECT_EQ(run(-1), run(3));
  // A matrix of Muon has one moment.
  const SafetensorsFile saved(file);
  EXPECT_TRUE(saved.tensors().contains("m." + std::string(kResidual)));
  EXPECT_FALSE(saved.tensors().contains("v." + std::string(kResidual)));
  EXPECT_TRUE(saved.tensors().contains("v." + std::string(kMatrix)));
}

TEST_F(MuonTest, AStateOfTheOtherKindIsRefused) {
  TemporaryDirectory dir;
  const std::filesystem::path file = dir.path() / "o.safetensors";
  for (const auto& [theirs, ours] : {std::pair(OptimizerKind::kAdamW, OptimizerKind::kMuon),
                                     std::pair(OptimizerKind::kMuon, OptimizerKind::kAdamW)}) {
    Optimizer({}, layout_, {.kind = theirs}).save(file);
    Optimizer optimizer({}, layout_, {.kind = ours});
    try {
      optimizer.load(file);
      FAIL();
    } catch (const UserError& e) {
      const std::string said =
          fmt::format("optim.kind={} wrote, and this run has {}", name_of(theirs), name_of(ours));
      EXPECT_NE(std::string(e.what()).find(said), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace tailrace
