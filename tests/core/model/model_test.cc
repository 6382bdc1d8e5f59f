#include "core/model/model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "kernels/base/isa.h"
#include "kernels/ops/router.h"
#include "tests/core/model/allocation_counter.h"
#include "tests/core/model/model_harness.h"

namespace tailrace {
namespace {

// bf16 weights are another form of rounded ones: the same bits forward and backward, whole model.
// Other numbers, and a few hundredths away as vectors.
void expect_rounded(std::span<const float> got, std::span<const float> want) {
  ASSERT_EQ(got.size(), want.size());
  double distance = 0, length = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    distance += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    length += double{want[i]} * want[i];
  }
  EXPECT_GT(distance, 0);
  EXPECT_LT(std::sqrt(distance), 0.03 * std::sqrt(length));
}

TEST(Model, InBfloatIsTheModelOfTheRoundedMatrices) {
  for (ModelConfig config :
       {awkward_config(true), awkward_config(false), rich_config(), sparse_config()}) {
    config.scaled_embeddings = false;  // by a factor that is rounded too: the next test
    Rig bf16(config, /*num_threads=*/2), rounded(config);
    for (const ParameterInfo& info : rounded.model.layout().entries()) {
      if (info.shape.size() == 1) continue;
      for (float& weight : rounded.parameters.vector(info.name)) weight = to_float(to_bf16(weight));
    }
    rounded.repack();
    bf16.pack(Dtype::kBF16);
    EXPECT_LT(PackedWeights::bytes(config, Dtype::kBF16),
              PackedWeights::bytes(config, Dtype::kF32));
    const auto sequences = random_sequences(/*count=*/4, /*longest=*/40, config.vocab_size, 7);
    Parameters gradients(bf16.model.layout()), expected(rounded.model.layout());
    const CrossEntropy one = cross_entropy(bf16, sequences, {}, &gradients),
                       other = cross_entropy(rounded, sequences, {}, &expected);
    if (isa() == Isa::kAvx512Bf16 && rig_device().kind == DeviceKind::kCpu) {
      // What products read is rounded too, by 2^-9 at most.
      expect_rounded(one.logprobs, other.logprobs);
      expect_rounded(one.entropies, other.entropies);
      // A choice of experts that moves has a gradient of its own.
      if (config.num_experts == 0) expect_rounded(gradients.flat(), expected.flat());
      continue;
    }
    EXPECT_EQ(one.logprobs, other.logprobs);
    EXPECT_EQ(one.entropies, other.entropies);
    EXPECT_TRUE(std::ranges::equal(gradients.flat(), expected.flat()));
  }
}

// As transformers does, so that a checkpoint is the same model there.
TEST(Model, EmbeddingsAreScaledInTheDtypeThatComputes) {
  Rig rig(rich_config());
  EXPECT_EQ(rig.weights().embedding_scale(), std::sqrt(40.0f));
  rig.pack(Dtype::kBF16);
  EXPECT_EQ(rig.weights().embedding_scale(), 6.3125f);
}

TEST(Model, ItsOwnChoicesGivenBackCostNoBit) {
  Rig rig(sparse_config(), /*num_threads=*/2);
  const auto sequences = random_sequences(/*count=*/5, /*longest=*/40, 67, 12);
  Parameters chosen(rig.model.layout()), replayed(rig.model.layout());
  const CrossEntropy own = cross_entropy(rig, sequences, {}, &chosen);
  rig.given = rig.choices();
  const CrossEntropy given = cross_entropy(rig, sequences, {}, &replayed);
  EXPECT_EQ(own.logprobs, given.logprobs);
  EXPECT_EQ(own.entropies, given.entropies);
  EXPECT_TRUE(std::ranges::equal(chosen.flat(), replayed.flat()));
}

// Weights that have moved since the choices were made would choose others.
TEST(Model, GivenChoicesHoldForOtherWeights) {
  Rig rig(sparse_config(), /*num_threads=*/2);
  const auto sequences = random_sequences(/*count=*/5, /*longest=*/40, 67, 12);
  Parameters gradients(rig.model.layout());
  cross_entropy(rig, sequences, {}, &gradients);
  const std::vector<int32_t> recorded = rig.choices();
  rig.init(/*seed=*/2);
  const CrossEntropy own = cross_entropy(rig, sequences, {}, &gradients);
  ASSERT_NE(rig.choices(), recorded);
  rig.given = recorded;
  const CrossEntropy given = cross_entropy(rig, sequences, {}, &gradients);
  EXPECT_EQ(rig.choices(), recorded);
  EXPECT_NE(given.logprobs, own.logprobs);
  // A pass that keeps nothing takes them too.
  EXPECT_EQ(cross_entropy(rig, sequences, {}, nullptr).logprobs, given.logprobs);

  // Only the first two sequences are given theirs: they alone change, and the others choose.
  const int64_t per_token = 6, held = std::ssize(sequences[0]) + std::ssize(sequences[1]);
  std::fill(rig.given.begin() + held * per_token, rig.given.end(), kChoose);
  const CrossEntropy mixed = cross_entropy(rig, sequences, {}, nullptr);
  const auto cut = static_cast<size_t>(held - 2);  // predictions of both
  for (size_t i = 0; i < own.logprobs.size(); ++i)
    ASSERT_EQ(mixed.logprobs[i], i < cut ? given.logprobs[i] : own.logprobs[i]) << i;
}

TEST(ModelDeathTest, RefusesChoicesOfAnotherShape) {
  Rig dense(awkward_config(true));
  const Tokens tokens = {1, 2};
  const std::vector<int32_t> blocks = {0}, ids(4, kChoose);
  BatchBuilder builder(
      {.tokens = 2, .sequences = 1, .choices_per_token = 2, .vocab = 3, .blocks = 1});
  builder.add(tokens, 0, blocks, {}, {ids.data(), 2, 2});
  EXPECT_DEATH(dense.forward(builder), "choices .2, 2. for 2 tokens, 0 sparse layers");
}

TEST(Model, ForwardAllocatesNothing) {
  for (const auto& [config, threads] : {std::pair{awkward_config(true), 1},
                                        {awkward_config(true), 2},
                                        {rich_config(), 2},
                                        {sparse_config(), 2}}) {
    Rig rig(config, threads);
    const std::vector<Tokens> sequences = random_sequences(6, 60, 67, /*seed=*/1);
    for (const bool keep : {false, true}) {
      rig.forward_whole(sequences, Rig::Rows::kAll, keep);  // fills the builder
      const ForwardBatch batch = rig.builder.batch();
      Workspace workspace = rig.workspace();
      const auto activations = rig.model.make_activations(512);
      const int64_t before = num_allocations();
      rig.model.forward(rig.stream(), workspace, rig.weights(), batch, rig.kv, rig.hidden(),
                        keep ? activations.get() : nullptr);
      EXPECT_EQ(num_allocations() - before, 0) << threads << " threads, keep " << keep;
    }
  }
}

// Runs both passes of a full batch with exactly the memory that the model asks for; Workspace ends
// the process when that is too little.
TEST(Model, TheStatedWorkspaceIsEnough) {
  constexpr int kTokens = 96;
  for (const auto& [config, threads] : {std::pair{awkward_config(false), 1},
                                        {awkward_config(false), 3},
                                        {rich_config(), 1},
                                        {rich_config(), 3},
                                        {sparse_config(), 1},
                                        {sparse_config(), 3}}) {
    Rig rig(config, threads, /*block_tokens=*/16, /*max_tokens=*/kTokens);
    Buffer memory(rig.model.workspace_bytes(kTokens, kTokens, threads));
    Workspace workspace(memory);
    const std::vector<Tokens> sequences = {Tokens(kTokens, 3)};
    rig.forward_whole(sequences, Rig::Rows::kAll, /*keep=*/true);
    const ForwardBatch batch = rig.builder.batch();
    for (const bool keep : {false, true}) {
      auto activations = rig.model.make_activations(kTokens);
      rig.model.forward(rig.stream(), workspace, rig.weights(), batch, rig.kv, rig.hidden(),
                        keep ? activations.get() : nullptr);
    }
    Parameters gradients(rig.model.layout());
    const std::vector<float> dhidden(static_cast<size_t>(kTokens * config.hidden_size), 0.01f);
    ExpertLoads loads(config);
    rig.model.backward(rig.stream(), workspace, rig.weights(), batch, rig.kv, rig.activations(),
                       ConstMatrix(dhidden.data(), kTokens, config.hidden_size), gradients,
                       {.weight = 1, .loads = &loads});
    EXPECT_EQ(workspace.used(), 0u);
    EXPECT_GT(workspace.peak(), memory.size() / 2) << "the stated size is far too large";
  }
}

// Who plans memory asks for sizes and makes nothing.
TEST(Model, SaysWhatItAndItsPartsTake) {
  for (const ModelConfig& config :
       {awkward_config(true), awkward_config(false), rich_config(), sparse_config()}) {
    int64_t before = Buffer::total_bytes();
    const auto taken = [&] {
      return Buffer::total_bytes() - std::exchange(before, Buffer::total_bytes());
    };
    const Model model(config);
    EXPECT_EQ(taken(), Model::bytes(config));
    const Parameters parameters(model.layout());
    EXPECT_EQ(taken(), Parameters::bytes(model.layout()));
    const PackedWeights packed(Stream{}, config, parameters);
    EXPECT_EQ(taken(), PackedWeights::bytes(config));
    const KvCache kv(config, 3, 16);
    EXPECT_EQ(taken(), KvCache::bytes(config, 3, 16));
    const KvCache with_choices(config, 3, 16, /*keeps_choices=*/true);
    EXPECT_EQ(taken(), KvCache::bytes(config, 3, 16, true));
    const Activations activations(config, 7);
    EXPECT_EQ(taken(), Activations::bytes(config, 7));
  }
}

TEST(Model, KeepsPositionsForTheContextsThatComeAlone) {
  ModelConfig config = awkward_config(true);
  const int64_t all = Model::bytes(config);
  EXPECT_LT(Model::bytes(config, config.max_positions / 2), all);
  EXPECT_EQ(Model::bytes(config, 2 * config.max_positions), all) << "no more than it knows";
  Rig rig(config);
  const Model cut(config, /*max_context=*/40);
  const std::vector<Tokens> sequences = {Tokens(40, 3)};
  rig.forward_whole(sequences, Rig::Rows::kAll, /*keep=*/false);
  const std::vector<float> whole(rig.hidden().data,
                                 rig.hidden().data + rig.hidden().rows * rig.hidden().cols);
  Buffer memory(cut.workspace_bytes(40, 40, 1));
  Workspace workspace(memory);
  cut.forward(rig.stream(), workspace, rig.weights(), rig.builder.batch(), rig.kv, rig.hidden(),
              /*sink=*/nullptr);
  EXPECT_TRUE(std::equal(whole.begin(), whole.end(), rig.hidden().data)) << "other bits";
}

TEST(Model, APassOfNoTokensOrNoWantedRowsIsAllowed) {
  Rig rig(awkward_config(true));
  rig.builder.clear();
  rig.forward(rig.builder);
  const Tokens tokens = {1, 2, 3};
  rig.builder.add(tokens, 0, std::vector<int32_t>{0}, {});
  rig.forward(rig.builder, /*keep=*/true);
  EXPECT_EQ(rig.hidden().rows, 0);
  // Without wanted rows there is nothing to learn from.
  Parameters gradients(rig.model.layout());
  Workspace workspace = rig.workspace();
  rig.model.backward(rig.stream(), workspace, rig.weights(), rig.builder.batch(), rig.kv,
                     rig.activations(), ConstMatrix(nullptr, 0, 40), gradients);
  for (const float gradient : gradients.flat()) ASSERT_EQ(gradient, 0);
}

TEST(Model, NamesItsHead) {
  EXPECT_EQ(Model(awkward_config(true)).head_name(), "model.embed_tokens.weight");
  EXPECT_EQ(Model(awkward_config(false)).head_name(), "lm_head.weight");
}

TEST(Model, StatesTheBytesOfItsActivations) {
  const Model model(awkward_config(true));
  // The sum of the comment in activations.h, for 3 layers, plus the final rows and their logits;
  // arrays are aligned to 64 bytes.
  const int64_t floats = 3 * (2 * 40 + (2 * 6 + 2 * 2) * 10 + 2 * 52 + 6 + 2) + 40 + 1 + 67;
  EXPECT_EQ(model.activation_bytes(128), 128 * floats * 4);
}

TEST(Model, KeepsOnlyTheInputsOfLayersThatAreComputedAgain) {
  ModelConfig config = awkward_config(true);
  const int64_t one = Activations::bytes(config, 128, {}, /*recomputes=*/true);
  ++config.num_layers;
  EXPECT_EQ(Activations::bytes(config, 128, {}, /*recomputes=*/true) - one,
            128 * config.hidden_size * 4);
}

TEST(Model, KeepsLogitsWhereTheyFit) {
  ModelConfig config = awkward_config(true);
  config.vocab_size = 1 << 17;
  config.padded_ids = 1 << 16;
  // Ids that have no logits count for nothing: 512 MB are 2,048 rows of 2^16.
  EXPECT_TRUE(keeps_logits(config, 2048, {}, /*recomputes=*/false));
  EXPECT_FALSE(keeps_logits(config, 2049, {}, /*recomputes=*/false));
  EXPECT_FALSE(keeps_logits(config, 1, {}, /*recomputes=*/true));
  const int64_t with = Activations::bytes(config, 2048), without = Activations::bytes(config, 2049);
  EXPECT_GT(with, kMaxKeptLogitBytes);
  EXPECT_LT(without, kMaxKeptLogitBytes);
  Activations some(config, 16);
  some.begin(/*num_tokens=*/9, /*num_logit_rows=*/5);
  EXPECT_EQ(some.logits().rows, 5);
  EXPECT_EQ(some.logits().cols, 1 << 16);
  EXPECT_EQ(Activations(config, 16, {}, /*recomputes=*/true).logits().rows, 0);
}

TEST(Model, StatesTheBytesOfTheActivationsOfExperts) {
  ModelConfig config = sparse_config();
  const int64_t some = Model(config).activation_bytes(128);
  config.sparse[1] = true;
  // 3 of 7 experts of 21 for the MLP of 52.
  EXPECT_EQ(Model(config).activation_bytes(128) - some, 128 * 4 * (3 * 2 * (21 + 1) + 7 - 2 * 52));
}

TEST(Model, RefusesSizesThatDoNotFit) {
  ModelConfig config = awkward_config(true);
  config.num_kv_heads = 4;
  EXPECT_THROW(Model{config}, UserError);
}

}  // namespace
}  // namespace tailrace
