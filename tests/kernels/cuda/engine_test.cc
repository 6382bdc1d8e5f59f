// The decode engine on the GPU of this program: its log-probabilities are those of a whole pass
// over the sequence, bit for bit, whatever the batch, the cut of a prompt, the pages, preemption
// and the prefix cache (design rule 3).
#include "rollout/engine/engine.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/clock.h"
#include "tests/core/model/model_harness.h"

namespace tailrace {
namespace {

struct Setup {
  Dtype weights = Dtype::kBF16;
  int64_t block_tokens = 16, max_batch_tokens = 64, max_sequences = 8;
  int64_t kv_blocks = 64;
  int64_t logit_floats = 0;
  bool overlaps = true;
  bool stops = false;
};

ModelConfig small_config() {
  ModelConfig config;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_layers = 2;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.vocab_size = 600;
  config.max_positions = 512;
  config.qk_norm = true;
  return config;
}

std::vector<TokenId> prompt_of(int64_t length, int64_t seed) {
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < length; ++i)
    tokens.push_back(static_cast<TokenId>((seed * 97 + i * 31 + i * i) % 600));
  return tokens;
}

// Prompts that share their first 40 tokens, and one that stands alone.
std::vector<std::vector<TokenId>> prompts() {
  std::vector<std::vector<TokenId>> all;
  for (int64_t i = 0; i < 4; ++i) {
    all.push_back(prompt_of(40, 1));
    for (int64_t j = 0; j <= 3 * i; ++j) all.back().push_back(static_cast<TokenId>(50 * i + j));
  }
  all.push_back(prompt_of(100, 2));
  return all;
}

struct Answers {
  std::map<SessionId, Generation> by_session;
  EngineStats stats;
};

// Greedy, plain, top-k and nucleus by turns.
SamplingParams sampling_of(size_t i) {
  SamplingParams sampling;
  sampling.max_new_tokens = 12;
  if (i % 4 == 0) sampling.temperature = 0;
  if (i % 4 == 1) sampling.temperature = 0.8;
  if (i % 4 == 2) sampling.top_k = 20;
  if (i % 4 == 3) sampling.top_p = 0.9;
  return sampling;
}

Answers generate(Rig& rig, const Setup& setup, bool one_by_one) {
  EngineOptions options;
  options.block_tokens = setup.block_tokens;
  options.max_batch_tokens = setup.max_batch_tokens;
  options.max_sequences = setup.max_sequences;
  options.max_context_tokens = 256;
  options.kv_cache_blocks = setup.kv_blocks;
  options.logit_floats = setup.logit_floats;
  if (!setup.overlaps) options.overlaps = false;  // else what a GPU does by itself
  const SteadyClock clock;
  Engine engine(rig.model, nullptr, options, rig.stream(), clock);
  engine.install(std::make_shared<const PackedWeights>(rig.stream(), rig.model.config(),
                                                       rig.parameters, setup.weights),
                 0);
  Answers answers;
  const auto finish = [&] {
    while (!engine.idle())
      for (Generation& answer : engine.step()) {
        const SessionId session = answer.session;
        answers.by_session.emplace(session, std::move(answer));
        engine.release(session);
      }
  };
  const auto all = prompts();
  for (size_t i = 0; i < all.size(); ++i) {
    SamplingParams sampling = sampling_of(i);
    // One token of five: most answers end in a step that was not known to be their last.
    for (TokenId id = 0; setup.stops && id < 600; id += 5) sampling.stop_tokens.push_back(id);
    engine.submit({.session = static_cast<SessionId>(i),
                   .new_tokens = all[i],
                   .sampling = sampling,
                   .key = {.value = 1000 + i},
                   .wants_kept = true});
    if (one_by_one) finish();
  }
  finish();
  answers.stats = engine.stats();
  return answers;
}

void expect_same(const Answers& got, const Answers& want, const std::string& what) {
  ASSERT_EQ(got.by_session.size(), want.by_session.size()) << what;
  for (const auto& [session, answer] : want.by_session) {
    const auto& other = got.by_session.at(session).tokens;
    ASSERT_EQ(other.size(), answer.tokens.size()) << what;
    for (size_t i = 0; i < other.size(); ++i) {
      EXPECT_EQ(other[i].id, answer.tokens[i].id) << what << ", session " << session << ", " << i;
      EXPECT_EQ(std::memcmp(&other[i].logprob, &answer.tokens[i].logprob, sizeof(float)), 0)
          << what << ", session " << session << ", " << i;
      EXPECT_EQ(std::memcmp(&other[i].log_mass, &answer.tokens[i].log_mass, sizeof(float)), 0)
          << what << ", session " << session << ", " << i;
      EXPECT_EQ(other[i].kept, answer.tokens[i].kept)
          << what << ", session " << session << ", " << i;
    }
  }
}

class CudaEngine : public ::testing::TestWithParam<Dtype> {};

TEST_P(CudaEngine, SamplesWhatAWholePassGives) {
  Rig rig(small_config(), 1, 16, 512, GetParam());
  const Answers answers = generate(rig, {.weights = GetParam()}, /*one_by_one=*/false);
  EXPECT_EQ(answers.stats.sampled_tokens, 5 * 12);
  const auto all = prompts();
  for (size_t i = 0; i < all.size(); ++i) {
    Tokens whole(all[i].begin(), all[i].end());
    const auto& sampled = answers.by_session.at(static_cast<SessionId>(i)).tokens;
    for (const GeneratedToken& token : sampled) whole.push_back(token.id);
    const Tokens targets(whole.begin() + 1, whole.end());
    rig.forward_whole({whole}, Rig::Rows::kPredicting, /*keep=*/false);
    const float inv_temperature = i % 4 == 1 ? 1.0f / 0.8f : 1.0f;
    const auto logprobs = rig.head_rows(targets, inv_temperature).logprobs;
    for (size_t j = 0; j < sampled.size(); ++j) {
      EXPECT_EQ(std::memcmp(&sampled[j].logprob, &logprobs[all[i].size() - 1 + j], sizeof(float)),
                0)
          << "prompt " << i << ", token " << j << ": " << sampled[j].logprob << " and "
          << logprobs[all[i].size() - 1 + j];
      const auto& kept = sampled[j].kept;
      const bool truncated = i % 4 >= 2;
      EXPECT_EQ(kept.empty(), !truncated);
      EXPECT_EQ(sampled[j].log_mass < 0, truncated);
      if (!truncated) continue;
      EXPECT_TRUE(std::ranges::is_sorted(kept) && std::ranges::binary_search(kept, sampled[j].id));
      EXPECT_TRUE(i % 4 == 3 || kept.size() == 20) << kept.size();
    }
  }
}

TEST_P(CudaEngine, BatchesCutsPagesPreemptionAndThePrefixCacheChangeNoBit) {
  Rig rig(small_config(), 1, 16, 512, GetParam());
  const Dtype weights = GetParam();
  const Answers want = generate(rig, {.weights = weights}, /*one_by_one=*/true);
  EXPECT_GT(want.stats.planner.prefix_hit_tokens, 0);
  expect_same(generate(rig, {.weights = weights}, false), want, "together");
  expect_same(generate(rig, {.weights = weights, .max_batch_tokens = 9}, false), want, "cut");
  expect_same(generate(rig, {.weights = weights, .block_tokens = 64, .kv_blocks = 16}, false), want,
              "pages of 64");
  expect_same(generate(rig, {.weights = weights, .logit_floats = 2 * 600}, false), want,
              "two rows of logits at once");
  const Answers tight =
      generate(rig, {.weights = weights, .block_tokens = 8, .kv_blocks = 33}, false);
  EXPECT_GT(tight.stats.planner.preemptions, 0) << "nothing was pushed out";
  expect_same(tight, want, "preempted");
}

TEST_P(CudaEngine, TakesTheMemoryThatItSays) {
  Rig rig(small_config(), 1, 16, 512, GetParam());
  EngineOptions options;
  options.max_batch_tokens = 64;
  options.max_sequences = 8;
  options.max_context_tokens = 256;
  options.kv_cache_blocks = 64;
  const SteadyClock clock;
  const int64_t before = Buffer::total_bytes();
  const Engine engine(rig.model, nullptr, options, rig.stream(), clock);
  const PlacedMemory memory = engine_memory(rig.model.config(), options, 1, rig.model.placement());
  EXPECT_EQ(Buffer::total_bytes() - before, total_bytes(memory.host) + total_bytes(memory.device));
  EXPECT_GT(total_bytes(memory.device), total_bytes(memory.host));
}

// A step is planned while the one before is in flight, whose tokens the host has not seen; the host
// draws some of them.
TEST_P(CudaEngine, AStepInFlightChangesNoBit) {
  Rig rig(small_config(), 1, 16, 512, GetParam());
  for (const bool stops : {false, true}) {
    const auto answers_of = [&](bool overlaps) {
      return generate(rig,
                      {.weights = GetParam(),
                       .block_tokens = 8,
                       .kv_blocks = 33,
                       .overlaps = overlaps,
                       .stops = stops},
                      /*one_by_one=*/false);
    };
    const Answers in_flight = answers_of(true), one_by_one = answers_of(false);
    expect_same(in_flight, one_by_one, stops ? "with stop tokens" : "of known length");
    EXPECT_EQ(in_flight.stats.sampled_tokens, one_by_one.stats.sampled_tokens);
    EXPECT_EQ(in_flight.stats.sampled_tokens < 5 * 12, stops);
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, CudaEngine, ::testing::Values(Dtype::kF32, Dtype::kBF16),
                         [](const auto& test) {
                           return test.param == Dtype::kF32 ? "F32" : "Bf16";
                         });

}  // namespace
}  // namespace tailrace
