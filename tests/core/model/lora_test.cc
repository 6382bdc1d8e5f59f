// Adapters (LoRA) in the passes of a model: what they add, its gradients, and its bits.

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/random.h"
#include "core/model/adapter_files.h"
#include "core/model/model.h"
#include "core/model/parameters.h"
#include "tests/core/model/model_harness.h"

namespace tailrace {
namespace {

using enum LoraTarget;

const std::vector<LoraTarget> kAll = {kQ, kK, kV, kO, kGate, kUp, kDown};

ModelConfig with_lora(ModelConfig config, std::vector<LoraTarget> targets, int64_t rank = 3) {
  config.lora = {.rank = rank, .alpha = 4, .targets = std::move(targets), .base = ""};
  return config;
}

// As after some training: B is not 0 any more.
void randomise(Parameters& adapter, uint64_t seed) {
  Rng rng(seed);
  for (const ParameterInfo& info : adapter.layout().entries())
    for (float& value : adapter.vector(info.name)) value = static_cast<float>(0.15 * rng.normal());
}

class LoraModel : public ::testing::TestWithParam<std::pair<const char*, ModelConfig>> {
 protected:
  LoraModel()
      : rig(GetParam().second),
        adapter(rig.model.trained()),
        sequences(random_sequences(/*count=*/5, /*longest=*/24, rig.model.config().vocab_size,
                                   /*seed=*/3)) {
    std::erase_if(sequences, [](const Tokens& tokens) { return tokens.size() < 2; });
    randomise(adapter, /*seed=*/9);
    rig.adapt(adapter);
  }

  double loss() {
    rig.adapt(adapter);
    return cross_entropy(rig, sequences, {}, nullptr).loss;
  }

  Rig rig;
  Parameters adapter;
  std::vector<Tokens> sequences;
};

TEST_P(LoraModel, HasTheTensorsOfPeftAndNoOthers) {
  const ModelConfig& config = rig.model.config();
  for (const ParameterInfo& info : adapter.layout().entries()) {
    const bool is_a = info.name.ends_with(".lora_A.weight");
    EXPECT_TRUE(info.name.starts_with("base_model.model.model.layers.")) << info.name;
    EXPECT_TRUE(is_a || info.name.ends_with(".lora_B.weight")) << info.name;
    EXPECT_EQ(info.shape.at(is_a ? 0 : 1), config.lora.rank) << info.name;
  }
  EXPECT_EQ(adapter.layout().entries().size(),
            2 * config.lora.targets.size() * static_cast<size_t>(config.num_layers));
}

TEST_P(LoraModel, BeginsAsItsBase) {
  const std::vector<Tokens> whole = sequences;
  Rig base(GetParam().second);
  base.forward_whole(whole, Rig::Rows::kAll, false);
  Parameters fresh(rig.model.trained());
  init_parameters(rig.model.config(), /*seed=*/4, fresh);
  rig.adapt(fresh);
  rig.forward_whole(whole, Rig::Rows::kAll, false);
  EXPECT_EQ(rig.logits(), base.logits());
}

// The other form of the same policy: W + (alpha / rank) B A.
TEST_P(LoraModel, IsTheModelThatItMergesInto) {
  Rig merged(GetParam().second);
  merge_adapter(rig.model.config(), adapter, merged.parameters);
  merged.repack();
  rig.forward_whole(sequences, Rig::Rows::kAll, false);
  merged.forward_whole(sequences, Rig::Rows::kAll, false);
  const std::vector<float> got = rig.logits(), want = merged.logits();
  ASSERT_EQ(got.size(), want.size());
  double moved = 0;
  Rig base(GetParam().second);
  base.forward_whole(sequences, Rig::Rows::kAll, false);
  const std::vector<float> before = base.logits();
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], 2e-4 + 2e-4 * std::abs(want[i])) << i;
    moved = std::max<double>(moved, std::abs(got[i] - before[i]));
  }
  EXPECT_GT(moved, 0.05);
}

TEST_P(LoraModel, GradientsAgreeWithFiniteDifferences) {
  Parameters gradients(rig.model.trained());
  cross_entropy(rig, sequences, {}, &gradients);
  Rng rng(5);
  // As in gradient_test.cc; what the adapter multiplies makes a step four times as long.
  constexpr double kStep = 0.01, kNoise = 4e-4, kRelative = 2e-3;
  for (const ParameterInfo& info : adapter.layout().entries()) {
    const std::span<float> place = adapter.vector(info.name);
    const std::span<const float> gradient = std::as_const(gradients).vector(info.name);
    const std::vector<float> start(place.begin(), place.end());
    double norm = 0;
    for (const float g : gradient) norm += double{g} * g;
    norm = std::sqrt(norm);
    ASSERT_GT(norm, 10 * kNoise) << info.name << ": too small to be told from noise";
    // Along the gradient, tilted.
    std::vector<double> direction(gradient.size());
    double length = 0, along = 0;
    for (size_t i = 0; i < direction.size(); ++i) {
      direction[i] =
          gradient[i] / norm + rng.normal() / std::sqrt(static_cast<double>(direction.size()));
      length += direction[i] * direction[i];
    }
    for (size_t i = 0; i < direction.size(); ++i) {
      direction[i] /= std::sqrt(length);
      along += direction[i] * gradient[i];
    }
    const auto central = [&](double h) {
      const auto at = [&](double step) {
        for (size_t i = 0; i < place.size(); ++i)
          place[i] = static_cast<float>(start[i] + step * direction[i]);
        return loss();
      };
      return (at(h) - at(-h)) / (2 * h);
    };
    const double slope = (4 * central(kStep) - central(2 * kStep)) / 3;
    std::ranges::copy(start, place.begin());
    EXPECT_NEAR(along, slope, kNoise + kRelative * std::abs(slope)) << info.name;
  }
}

// Design rule 3: neither the batch nor the threads, nor how a prompt is cut, decide a bit.
TEST_P(LoraModel, ATokenHasTheSameBitsAloneAndInABatch) {
  rig.forward_whole(sequences, Rig::Rows::kAll, false);
  const std::vector<float> together = rig.logits();
  Rig other(GetParam().second, /*num_threads=*/3);
  other.adapt(adapter);
  std::vector<float> apart;
  for (const Tokens& tokens : sequences) {
    other.forward_whole({tokens}, Rig::Rows::kAll, false);
    const std::vector<float> alone = other.logits();
    apart.insert(apart.end(), alone.begin(), alone.end());
  }
  EXPECT_EQ(together, apart);
}

// Training keeps what backward needs, decoding keeps nothing: one arithmetic.
TEST_P(LoraModel, KeepingActivationsChangesNoBit) {
  rig.forward_whole(sequences, Rig::Rows::kAll, false);
  const std::vector<float> decoded = rig.logits();
  rig.forward_whole(sequences, Rig::Rows::kAll, true);
  EXPECT_EQ(rig.logits(), decoded);
}

TEST_P(LoraModel, WhatWasPackedIsReadBack) {
  const PackedWeights& packed = rig.weights();
  size_t count = 0;
  for (const PackedTensor& tensor : packed.tensors()) {
    EXPECT_EQ(tensor.name, adapter.layout().entries().at(count++).name);
    const std::span<const float> want = std::as_const(adapter).vector(tensor.name);
    std::vector<float> got(want.size());
    packed.read(rig.stream(), tensor, 0, {got.data(), tensor.rows, tensor.cols});
    EXPECT_TRUE(std::ranges::equal(got, want)) << tensor.name;
  }
  EXPECT_EQ(count, adapter.layout().entries().size());
}

ModelConfig plain_rich() {
  ModelConfig config = rich_config();
  config.scaled_embeddings = false;
  return config;
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, LoraModel,
    ::testing::Values(
        std::pair{"Untied", with_lora(awkward_config(false), kAll)},
        std::pair{"Tied", with_lora(awkward_config(true), kAll)},
        std::pair{"Rich", with_lora(plain_rich(), kAll)},
        std::pair{"QueriesAndValues", with_lora(awkward_config(false), {kQ, kV}, /*rank=*/1)},
        std::pair{"KeysUpAndOut", with_lora(awkward_config(false), {kK, kO, kUp}, /*rank=*/20)}),
    [](const auto& test) { return std::string(test.param.first); });

// LORA-1 of Hu et al.'s formula by hand: W = I, alpha / rank = 16.
TEST(Lora, MergesTheNumbersOfTheFormula) {
  ModelConfig config = awkward_config(false);
  config.lora = {.rank = 2, .alpha = 32, .targets = {kQ}, .base = ""};
  const ParameterLayout base_layout(config), layout = ParameterLayout::of_adapter(config);
  Parameters base(base_layout), adapter(layout);
  const std::string module = "model.layers.0.self_attn.q_proj";
  Matrix a = adapter.matrix("base_model.model." + module + ".lora_A.weight");
  Matrix b = adapter.matrix("base_model.model." + module + ".lora_B.weight");
  Matrix w = base.matrix(module + ".weight");
  w.row(0)[0] = w.row(1)[1] = 1;
  a.row(0)[0] = 0.1f, a.row(0)[1] = 0.2f, a.row(1)[1] = -0.1f;
  b.row(0)[0] = 0.5f, b.row(1)[1] = 1;
  merge_adapter(config, adapter, base);
  const double x[] = {1, 2};
  EXPECT_NEAR(w.row(0)[0] * x[0] + w.row(0)[1] * x[1], 5, 1e-5);
  EXPECT_NEAR(w.row(1)[0] * x[0] + w.row(1)[1] * x[1], -1.2, 1e-5);
}

}  // namespace
}  // namespace tailrace
