// What truncated sampling does to the trainer's ratios, on the whole way of a token: engine,
// episode, body, batch, update.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "core/wire/trajectory_codec.h"
#include "rollout/episode/episode.h"
#include "tests/rollout/engine/engine_harness.h"
#include "tests/rollout/engine/fake_tokenizer.h"
#include "tests/rollout/episode/played_episode.h"
#include "tests/trainer/fixtures.h"

namespace tailrace {
namespace {

using testing::metric;

constexpr int64_t kVocab = 61;

SamplingParams sampling(double temperature, int64_t top_k, double top_p = 1, double min_p = 0) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.min_p = min_p;
  return params;
}

// Two turns of one member over the engine, as its body would be read by the trainer.
Trajectory play(TestEngine& engine, const text::Tokenizer& tokenizer, const SamplingParams& params,
                int64_t prompt, int32_t member, bool keeps_sets) {
  EpisodeSpec spec;
  spec.lease.member = {.prompt = prompt, .member = member};
  spec.key = {static_cast<uint64_t>(100 * prompt + member)};
  spec.sampling = params;
  spec.limits = {.max_context_tokens = 60,
                 .max_prompt_tokens = 20,
                 .max_response_tokens = 50,
                 .max_action_tokens = 12,
                 .max_turns = 2};
  spec.numerics_class = testing::kNumericsClass;
  spec.keeps_sets = keeps_sets;
  const chat::PromptFormat format(tokenizer);
  PlayedEpisode episode(spec, "test", format);
  const auto session = static_cast<SessionId>(1000 * prompt + member);
  sandbox::StepResult result;
  result.observation.text = "GO";
  result.reward = member % 2;
  episode.observed(sandbox::Observation{"QUITE"}, 0);
  for (int turn = 0; turn < 2; ++turn) {
    engine->submit(episode.request(session));
    episode.answered(engine.finish()[session], 0);
    result.terminated = turn == 1;
    episode.stepped(result, 0);
  }
  engine->release(session);
  auto decoded = wire::decode_trajectory(wire::encode_trajectory(episode.trajectory()));
  EXPECT_TRUE(decoded) << decoded.failure().message;
  return std::move(decoded).value();
}

struct Step {
  MetricList metrics;
  TrainBatch batch;
};

// One step at learning rate 0 over what an engine with the same weights has sampled, as version 0.
Step train(const SamplingParams& params, SamplingMask mask, const PolicyLossConfig& loss = {},
           int64_t version = 0, const ModelConfig& config = tiny_config()) {
  TestModel model(config);
  TestEngine engine(model);
  const FakeTokenizer tokenizer = letters();
  std::vector<Trajectory> trajectories;
  for (int64_t prompt = 0; prompt < 3; ++prompt)
    for (int32_t member = 0; member < 4; ++member)
      trajectories.push_back(
          play(engine, tokenizer, params, prompt, member, mask == SamplingMask::kKeep));
  auto batch = build_batch(trajectories, {.algo = {.sampling_mask = mask},
                                          .numerics_class = testing::kNumericsClass,
                                          .vocab_size = config.num_ids(),
                                          .max_sequence_tokens = 64});
  EXPECT_TRUE(batch) << batch.failure().message;
  // Three updates: minibatches and a second pass, all on the weights that sampled.
  PolicyTrainer trainer({}, config,
                        {.minibatches_per_step = 3, .microbatch_tokens = 200, .ppo_epochs = 2}, 64);
  std::ranges::copy(model.parameters.flat(), trainer.parameters().flat().begin());
  trainer.weights_changed();
  trainer.reset_optimizer({.lr = 0});
  trainer.set_reference(trainer.parameters());
  Step step{{}, std::move(batch).value()};
  step.metrics = trainer.policy_step(step.batch, version, loss);
  return step;
}

const SamplingParams kTruncated[] = {sampling(0.7, 8), sampling(1.3, 20, 0.8),
                                     sampling(1.0, 30, 1, 0.05), sampling(1.5, 40, 0.9, 0.01)};

TEST(TruncatedSampling, WithKeptSetsEveryRatioIsExactlyOne) {
  PolicyLossConfig loss;
  loss.kl.coef = 0.1;
  loss.entropy_coef = 0.01;
  for (const SamplingParams& params : kTruncated) {
    const auto [metrics, batch] = train(params, SamplingMask::kKeep, loss);
    EXPECT_GT(metric(metrics, "rollout/cut_mass"), 0.01);
    EXPECT_EQ(metric(metrics, "policy/updates"), 6);
    EXPECT_EQ(metric(metrics, "policy/ratio_min"), 1);
    EXPECT_EQ(metric(metrics, "policy/ratio_max"), 1);
    EXPECT_EQ(metric(metrics, "mismatch/max_ratio"), 1);
    EXPECT_EQ(metric(metrics, "mismatch/mean_ratio"), 1);
    EXPECT_EQ(metric(metrics, "mismatch/kl"), 0);
    EXPECT_EQ(metric(metrics, "mismatch/max_logprob_diff"), 0);
    EXPECT_EQ(metric(metrics, "policy/kl_old"), 0);
    EXPECT_EQ(metric(metrics, "mismatch/ess_frac"), 1);
    // The reference is the policy itself, and is restricted like it.
    EXPECT_EQ(metric(metrics, "policy/kl_ref"), 0);
  }
}

// The sampler and the trainer leave out the same ids, with and without truncation.
TEST(TruncatedSampling, WithAPaddedVocabularyEveryRatioIsExactlyOne) {
  ModelConfig config = tiny_config();
  config.vocab_size = kVocab + 13;
  config.padded_ids = 13;
  PolicyLossConfig loss;
  loss.entropy_coef = 0.01;
  for (const SamplingParams& params : {sampling(1, -1), sampling(0.7, -1), kTruncated[1]}) {
    const auto [metrics, batch] = train(params, SamplingMask::kKeep, loss, /*version=*/0, config);
    EXPECT_EQ(metric(metrics, "policy/ratio_min"), 1);
    EXPECT_EQ(metric(metrics, "policy/ratio_max"), 1);
    EXPECT_EQ(metric(metrics, "mismatch/max_ratio"), 1);
    EXPECT_EQ(metric(metrics, "mismatch/max_logprob_diff"), 0);
  }
}

// Scored again, with the sets that they were drawn from: the weights are the same, and so are the
// bits.
TEST(TruncatedSampling, KeptSetsHoldForTokensOfAnOlderVersionToo) {
  const auto [metrics, batch] = train(kTruncated[1], SamplingMask::kKeep, {}, /*version=*/1);
  for (const TrainSequence& s : batch.sequences) EXPECT_EQ(s.old_logprobs, s.behaviour_logprobs);
  EXPECT_GT(metric(metrics, "rollout/cut_mass"), 0.01);
  EXPECT_EQ(metric(metrics, "mismatch/max_ratio"), 1);
  EXPECT_EQ(metric(metrics, "mismatch/mean_ratio"), 1);
  EXPECT_EQ(metric(metrics, "mismatch/kl"), 0);
}

// The whole distribution is trained, a part of it was sampled: the correction is the mass that was
// kept. The log-probability of rule 2 has no mismatch.
TEST(TruncatedSampling, WithoutThemItIsReportedAndCorrected) {
  for (const SamplingParams& params : kTruncated) {
    const auto [metrics, batch] = train(params, SamplingMask::kNone);
    double sum = 0, squares = 0, largest = 0, divergence = 0, tokens = 0;
    for (const TrainSequence& s : batch.sequences) {
      EXPECT_TRUE(s.kept_ids.empty());
      for (size_t k = 0; k < s.targets.size(); ++k) {
        const double ratio = std::exp(double{s.old_logprobs[k]} - s.behaviour_logprobs[k]);
        sum += ratio;
        squares += ratio * ratio;
        largest = std::max(largest, ratio);
        divergence += double{s.behaviour_logprobs[k]} - s.old_logprobs[k];
        ++tokens;
      }
    }
    EXPECT_NEAR(metric(metrics, "mismatch/mean_ratio"), sum / tokens, 1e-12);
    EXPECT_LT(metric(metrics, "mismatch/mean_ratio"), 0.99);
    EXPECT_EQ(metric(metrics, "mismatch/max_ratio"), largest);
    EXPECT_NEAR(metric(metrics, "mismatch/ess_frac"), sum * sum / (tokens * squares), 1e-12);
    EXPECT_LT(metric(metrics, "mismatch/ess_frac"), 1);
    // KL(p on the set, renormalised || p) is the mean of -log of the mass.
    EXPECT_NEAR(metric(metrics, "mismatch/kl"), divergence / tokens, 1e-6);
    EXPECT_GT(divergence / tokens, 0.01);
    // exp(l_old - l_inf) is exp(log_mass), but for the rounding of two floats below 8.
    EXPECT_NEAR(sum / tokens, 1 - metric(metrics, "rollout/cut_mass"), 2e-6);
    EXPECT_EQ(metric(metrics, "mismatch/max_logprob_diff"), 0);
    EXPECT_EQ(metric(metrics, "policy/ratio_max"), 1);
    EXPECT_EQ(metric(metrics, "policy/ratio_min"), 1);
  }
}

TEST(TruncatedSampling, ThatCutsNothingIsNoMismatchInEitherMode) {
  for (SamplingMask mask : {SamplingMask::kNone, SamplingMask::kKeep}) {
    for (const SamplingParams& params : {sampling(0.7, -1), sampling(0.7, kVocab)}) {
      const auto [metrics, batch] = train(params, mask);
      EXPECT_EQ(metric(metrics, "rollout/cut_mass"), 0);
      EXPECT_EQ(metric(metrics, "mismatch/mean_ratio"), 1);
      EXPECT_EQ(metric(metrics, "mismatch/kl"), 0);
    }
  }
}

}  // namespace
}  // namespace tailrace
