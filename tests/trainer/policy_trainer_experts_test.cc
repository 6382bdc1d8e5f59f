// What a trainer does about experts: numbers, loads, and the two ways to balance them.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <gtest/gtest.h>

#include "kernels/base/thread_pool.h"
#include "tests/trainer/fixtures.h"
#include "trainer/policy_trainer.h"

namespace tailrace {
namespace {

using testing::copy;
using testing::kStill;
using testing::loss_config;
using testing::make_batch;
using testing::metric;
using testing::recorded;
using testing::tiny_trainer;

// What a trainer of experts samples with, it trains on: the same bits in any packing, and the same
// update for any number of threads.
TEST(PolicyTrainerExperts, AreOfTheClassOfDenseLayers) {
  const auto step = [](int threads, int64_t microbatch_tokens) {
    ThreadPool pool(threads);
    const Stream stream{{}, &pool, nullptr};
    auto sampled_by = tiny_trainer({}, {}, {}, 1, testing::sparse_model());
    std::vector<Trajectory> trajectories = testing::random_trajectories(4, 2);
    testing::record_logprobs(*sampled_by, trajectories);
    TrainBatch batch = make_batch(trajectories);
    auto trainer = tiny_trainer({.minibatches_per_step = 2, .microbatch_tokens = microbatch_tokens},
                                {.lr = 1e-2}, stream, 1, testing::sparse_model());
    const std::vector<float> before = copy(trainer->parameters().flat());
    const MetricList metrics = trainer->policy_step(batch, 0, loss_config());
    EXPECT_EQ(metric(metrics, "mismatch/max_logprob_diff"), 0);
    EXPECT_GT(metric(metrics, "policy/grad_norm"), 0);
    // The router learns as well.
    EXPECT_GT(std::abs(trainer->gradients().matrix("model.layers.1.mlp.gate.weight").row(0)[0]), 0);
    EXPECT_NE(copy(trainer->parameters().flat()), before);
    return copy(trainer->parameters().flat());
  };
  const std::vector<float> one = step(1, 60);
  EXPECT_EQ(step(3, 60), one);
  // Cut elsewhere it agrees within rounding, which Adam's first steps make as large as lr where a
  // gradient is nearly 0.
  const std::vector<float> other = step(1, 4096);
  double difference = 0;
  for (size_t i = 0; i < one.size(); ++i) difference += std::abs(double{one[i]} - other[i]);
  EXPECT_LT(difference / static_cast<double>(one.size()), 1e-5);
}

ModelConfig biased_model() {
  ModelConfig config = testing::sparse_model();
  config.choice_bias = true;
  return config;
}
const std::string kChoiceBias = "model.layers.1.mlp.gate.e_score_correction_bias";

TEST(PolicyTrainerExperts, TheBiasOfAnExpertMovesAgainstItsLoad) {
  const TrainOptions train{.microbatch_tokens = 60, .gradient_slots = 2, .balance_bias_rate = 0.25};
  auto trainer = tiny_trainer(train, {.lr = 0}, {}, 1, biased_model());
  std::vector<Trajectory> trajectories = testing::random_trajectories(4, 2);
  testing::record_logprobs(*trainer, trajectories);
  TrainBatch batch = make_batch(trajectories);
  // The loads of the update, by a pass of our own.
  trainer->prepare_step(batch, 0, loss_config());
  std::vector<PackedSequence> views;
  for (const TrainSequence& s : batch.sequences) views.push_back(s.packed());
  PackedForward forward(trainer->model(), {.max_tokens = 4096, .max_sequences = 100},
                        testing::kMaxSequenceTokens, ForBackward::kActivations, /*num_threads=*/1);
  PackedWeights packed(Stream{}, trainer->model().config(), trainer->parameters());
  ExpertLoads loads(trainer->model().config());
  Parameters ignored(trainer->model().layout());
  const auto targets = forward.forward({}, packed, views, {.backward = true}).logprob.size();
  forward.backward({}, packed, std::vector<float>(targets), {}, ignored, {.loads = &loads});
  const std::span<const int64_t> choices = std::as_const(loads).choices_of(0);
  const int64_t all = std::accumulate(choices.begin(), choices.end(), int64_t{0});
  EXPECT_GT(loads.peak().worst, 1);

  const MetricList metrics = trainer->policy_step(batch, 0, loss_config());
  EXPECT_DOUBLE_EQ(metric(metrics, "experts/load_max"), loads.peak().mean);
  EXPECT_DOUBLE_EQ(metric(metrics, "experts/load_max_worst"), loads.peak().worst);
  EXPECT_DOUBLE_EQ(metric(metrics, "experts/idle_frac"), loads.idle_share());
  EXPECT_NEAR(metric(metrics, "experts/balance_loss"), loads.balance_loss(), 1e-9);
  EXPECT_EQ(metric(metrics, "experts/bias_max"), 0.25);
  const auto bias = trainer->parameters().vector(kChoiceBias);
  for (size_t e = 0; e < bias.size(); ++e) {
    const int64_t above = 5 * choices[e] - all;
    EXPECT_EQ(bias[e], above < 0 ? 0.25f : above > 0 ? -0.25f : 0.0f) << e;
  }
}

// Groups of a step that was given up have trained nothing, experts neither.
TEST(PolicyTrainerExperts, AStreamedStepThatIsGivenUpTakesItsLoadsAlong) {
  const std::vector<Trajectory> lost = testing::random_trajectories(8, 2),
                                kept = testing::random_trajectories(4, 3);
  std::vector<MetricList> metrics;
  std::vector<std::vector<float>> biases;
  for (const bool gives_up : {false, true}) {
    auto trainer = tiny_trainer({.balance_bias_rate = 0.25}, {.lr = 0}, {}, 1, biased_model());
    TrainStep step = trainer->begin_step(/*gathers=*/true);
    const auto add = [&](std::vector<Trajectory> trajectories) {
      testing::record_logprobs(*trainer, trajectories);
      step.add(make_batch(trajectories), 0, loss_config());
    };
    if (gives_up) {
      add(lost);
      step.clear();
    }
    add(kept);
    metrics.push_back(step.finish(0, loss_config()));
    biases.push_back(copy(trainer->parameters().vector(kChoiceBias)));
  }
  EXPECT_EQ(biases[1], biases[0]);
  for (const char* name : {"experts/load_max", "experts/idle_frac", "experts/balance_loss"})
    EXPECT_EQ(metric(metrics[1], name), metric(metrics[0], name)) << name;
}

// A router that likes few, and weights that do not move: the bias alone brings the others in.
TEST(PolicyTrainerExperts, TheBiasBalancesWhatTheRouterDoesNot) {
  auto trainer = tiny_trainer({.balance_bias_rate = 0.01}, {.lr = 0}, {}, 1, biased_model());
  Matrix router = trainer->parameters().matrix("model.layers.1.mlp.gate.weight");
  for (int64_t i = 0; i < router.cols; ++i) router.row(1)[i] = 2 * router.row(0)[i];
  trainer->weights_changed();
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    std::vector<Trajectory> trajectories = testing::random_trajectories(4, 2);
    testing::record_logprobs(*trainer, trajectories);
    TrainBatch batch = make_batch(trajectories);
    last = metric(trainer->policy_step(batch, 0, loss_config()), "experts/load_max");
    if (step == 0) first = last;
  }
  EXPECT_GT(first, 1.2);
  EXPECT_LT(last - 1, 0.5 * (first - 1)) << first << " -> " << last;
}

TEST(PolicyTrainerExperts, TheBalanceLossIsOfTheCoefficientOfTheRunOrTheFiles) {
  std::vector<Trajectory> trajectories = recorded(3, 1);
  const auto gradient_with = [&](const TrainOptions& train, double file_coef) {
    ModelConfig model = testing::sparse_model();
    model.balance_coef = file_coef;
    auto trainer = tiny_trainer(train, kStill, {}, 1, model);
    TrainBatch batch = make_batch(trajectories);
    trainer->prepare_step(batch, 0, loss_config());
    trainer->policy_update(batch, {0, batch.sequences.size()}, loss_config(), 0);
    return copy(trainer->gradients().flat());
  };
  const auto none = gradient_with({}, 0.5), some = gradient_with({.balance_coef = 0.5}, 0);
  EXPECT_NE(none, some);
  EXPECT_EQ(gradient_with({.balance_coef = -1}, 0.5), some);
  EXPECT_EQ(gradient_with({}, 0), none);
  // Over all tokens of the update: another cut into micro-batches has the same sum, but for
  // rounding.
  double largest = 0, difference = 0;
  const auto cut = gradient_with({.microbatch_tokens = 30, .balance_coef = 0.5}, 0);
  for (size_t i = 0; i < cut.size(); ++i) {
    largest = std::max(largest, std::abs(double{some[i]}));
    difference = std::max(difference, std::abs(double{some[i]} - cut[i]));
  }
  EXPECT_LT(difference, 1.2e-5 * largest);
}

// The experts of the weights of `trainer`, as an engine would have recorded them.
void record_choices(const PolicyTrainer& trainer, std::vector<Trajectory>& trajectories) {
  const Model& model = trainer.model();
  const ModelConfig& config = model.config();
  const PackedWeights packed(Stream{}, config, trainer.parameters());
  KvCache kv(config, /*num_blocks=*/1, testing::kMaxSequenceTokens);
  std::vector<float> hidden(static_cast<size_t>(config.hidden_size));
  for (Trajectory& t : trajectories) {
    t.experts = config.expert_shape();
    for (Segment& segment : t.segments) {
      const auto length = std::ssize(segment.tokens);
      const std::vector<int32_t> blocks = {0}, rows = {0};
      BatchBuilder builder(
          {.tokens = length, .sequences = 1, .vocab = config.vocab_size, .blocks = 1});
      builder.add(segment.tokens, 0, blocks, rows);
      Buffer memory(model.workspace_bytes(length, static_cast<int>(length), /*num_threads=*/1));
      Workspace workspace(memory);
      const int64_t layers = config.num_sparse_layers(), k = config.experts_per_token;
      std::vector<int32_t> chosen(static_cast<size_t>(layers * length * k));
      model.forward({}, workspace, packed, builder.batch(), kv,
                    Matrix(hidden.data(), 1, config.hidden_size), nullptr, chosen);
      for (int64_t i = 0; i < num_drawn_from(segment); ++i)
        for (int64_t layer = 0; layer < layers; ++layer)
          for (int64_t j = 0; j < k; ++j)
            segment.choices.push_back(
                static_cast<uint16_t>(chosen[static_cast<size_t>((layer * length + i) * k + j)]));
    }
  }
}

TrainBatch replayed(const std::vector<Trajectory>& trajectories) {
  BatchOptions options = testing::tiny_batch_options();
  options.experts = testing::sparse_model().expert_shape();
  return make_batch(trajectories, options);
}

// Sampled by weights of `seed`, in versions that the trainer does not hold where they are `stale`.
std::vector<Trajectory> routed(uint64_t seed, bool stale = false) {
  auto sampled_by = tiny_trainer({}, {}, {}, seed, testing::sparse_model());
  std::vector<Trajectory> trajectories = testing::random_trajectories(4, 2);
  testing::record_logprobs(*sampled_by, trajectories);
  record_choices(*sampled_by, trajectories);
  if (stale) testing::set_versions(trajectories, [](size_t, int64_t) { return 3; });
  return trajectories;
}

TEST(PolicyTrainerExperts, ReplayOfItsOwnChoicesCostsNoBit) {
  for (const bool stale : {false, true}) {
    const std::vector<Trajectory> trajectories = routed(/*seed=*/1, stale);
    std::vector<std::vector<float>> weights;
    for (const bool replays : {false, true}) {
      auto trainer = tiny_trainer({.microbatch_tokens = 60, .gradient_slots = 2}, {.lr = 1e-2}, {},
                                  1, testing::sparse_model());
      TrainBatch batch = replays ? replayed(trajectories) : make_batch(trajectories);
      const MetricList metrics = trainer->policy_step(batch, 0, loss_config());
      EXPECT_EQ(metric(metrics, "mismatch/max_logprob_diff"), 0);
      if (replays) {
        EXPECT_EQ(metric(metrics, "experts/route_mismatch_frac"), 0);
      }
      weights.push_back(copy(trainer->parameters().flat()));
    }
    EXPECT_EQ(weights[0], weights[1]);
  }
}

// Old scoring and the update take the recorded experts, and the reference its own.
TEST(PolicyTrainerExperts, ReplayTakesTheExpertsOfWhatSampled) {
  const std::vector<Trajectory> trajectories = routed(/*seed=*/2, /*stale=*/true);
  PolicyLossConfig loss = loss_config();
  loss.kl.coef = 0.1;
  loss.kl.target = KlTarget::kReference;
  std::vector<TrainBatch> batches;
  std::vector<std::vector<float>> weights;
  for (const bool replays : {false, true}) {
    auto trainer =
        tiny_trainer({.gradient_slots = 2}, {.lr = 1e-2}, {}, 1, testing::sparse_model());
    trainer->set_reference(trainer->parameters());
    TrainBatch batch = replays ? replayed(trajectories) : make_batch(trajectories);
    const MetricList metrics = trainer->policy_step(batch, 4, loss);
    // Both passes take the same experts: before the update nothing has moved.
    EXPECT_EQ(metric(metrics, "policy/ratio_min"), 1);
    EXPECT_EQ(metric(metrics, "policy/ratio_max"), 1);
    if (replays) {
      const double moved = metric(metrics, "experts/route_mismatch_frac");
      EXPECT_GT(moved, 0.1);
      EXPECT_LT(moved, 0.9);
    }
    weights.push_back(copy(trainer->parameters().flat()));
    batches.push_back(std::move(batch));
  }
  EXPECT_NE(weights[0], weights[1]);
  size_t other = 0;
  for (size_t i = 0; i < batches[0].sequences.size(); ++i) {
    const TrainSequence &chosen = batches[0].sequences[i], &given = batches[1].sequences[i];
    EXPECT_EQ(chosen.ref_logprobs, given.ref_logprobs);
    other += chosen.old_logprobs != given.old_logprobs;
  }
  EXPECT_GT(other, batches[0].sequences.size() / 2);
}

// What the newest version computed anew of a context did not take the recorded experts.
TEST(PolicyTrainerExperts, NothingIsFreshBehindTokensOfAnotherVersion) {
  std::vector<Trajectory> trajectories = routed(/*seed=*/2);
  testing::set_versions(trajectories, [](size_t t, int64_t i) { return t % 2 == 0 || i > 0; });
  auto trainer = tiny_trainer({}, {.lr = 0}, {}, 1, testing::sparse_model());
  TrainBatch batch = replayed(trajectories);
  trainer->prepare_step(batch, /*version=*/1, loss_config());
  size_t mixed = 0;
  for (const TrainSequence& s : batch.sequences) {
    const bool one = std::ranges::count(s.versions, s.versions.front()) == std::ssize(s.versions);
    EXPECT_EQ(s.mixed_choices, !one);
    mixed += !one;
    for (size_t k = 0; k < s.targets.size(); ++k)
      EXPECT_EQ(s.old_logprobs[k] == s.recorded_logprobs[k], one && s.versions[k] == 1) << k;
  }
  EXPECT_GT(mixed, 2u);
  EXPECT_LT(mixed, batch.sequences.size());
}

TEST(PolicyTrainerExperts, AnotherModelsChoicesAreRefused) {
  std::vector<Trajectory> trajectories = routed(/*seed=*/1);
  BatchOptions options = testing::tiny_batch_options();
  options.experts = testing::sparse_model().expert_shape();
  trajectories[1].segments[0].choices.clear();
  const auto refused = build_batch(trajectories, options);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.failure().message.find("does not say which experts its tokens went to; "
                                           "algo.router_replay = replay needs it"),
            std::string::npos)
      << refused.failure().message;
  options.experts.experts = 6;
  EXPECT_FALSE(build_batch(routed(1), options));
}

TEST(PolicyTrainerExperts, ADenseModelHasNoMetricsOfExperts) {
  TrainBatch batch = make_batch(recorded(4, 2));
  auto trainer = tiny_trainer({}, {.lr = 1e-2});
  for (const auto& [name, value] : trainer->policy_step(batch, 0, loss_config()))
    EXPECT_FALSE(name.starts_with("experts/")) << name;
}

}  // namespace
}  // namespace tailrace
