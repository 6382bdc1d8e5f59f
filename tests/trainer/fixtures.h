// What several trainer tests share: a tiny model, random sequences and trajectories, golden files.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/random.h"
#include "core/trajectory/trajectory.h"
#include "tests/core/base/temporary_directory.h"
#include "trainer/policy_trainer.h"

namespace tailrace::testing {

inline ModelConfig tiny_model() {
  ModelConfig config;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 4;
  config.vocab_size = 19;
  config.max_positions = 64;
  return config;
}

// The same with 5 experts in its second layer, of which a token takes 2.
inline ModelConfig sparse_model() {
  ModelConfig config = tiny_model();
  config.architecture = "Qwen3MoeForCausalLM";
  config.qk_norm = true;
  config.sparse = {false, true};
  config.num_experts = 5;
  config.experts_per_token = 2;
  config.expert_size = 12;
  config.normalised_experts = true;
  return config;
}

constexpr int64_t kMaxSequenceTokens = 64;
constexpr const char* kNumericsClass = "cpu-test";

// A trainer of the tiny model with weights of `seed` and an optimizer.
inline std::unique_ptr<PolicyTrainer> tiny_trainer(const TrainOptions& train,
                                                   const OptimOptions& optim = {},
                                                   Stream stream = {}, uint64_t seed = 1,
                                                   const ModelConfig& model = tiny_model()) {
  auto trainer = std::make_unique<PolicyTrainer>(stream, model, train, kMaxSequenceTokens);
  init_parameters(trainer->model().config(), seed, trainer->parameters());
  trainer->weights_changed();
  trainer->reset_optimizer(optim);
  return trainer;
}

// A one-segment trajectory: `prompt` tokens, then turns of sampled and observed tokens.
inline Trajectory random_trajectory(int64_t prompt_index, int32_t member, double reward, Rng& rng) {
  Trajectory t;
  t.lease.member = {.epoch = 0, .prompt = prompt_index, .launch = 0, .member = member};
  t.reward = reward;
  t.env = "test";
  t.numerics_classes = {kNumericsClass};
  Segment segment;
  auto append = [&](TokenRole role, int64_t count) {
    if (role == TokenRole::kSampled)
      segment.turn_begins.push_back(static_cast<int32_t>(segment.tokens.size()));
    for (int64_t i = 0; i < count; ++i) {
      segment.tokens.push_back(static_cast<TokenId>(rng.below(19)));
      segment.roles.push_back(role);
      segment.logprobs.push_back(role == TokenRole::kSampled ? -0.5f : 0.0f);
      segment.versions.push_back(role == TokenRole::kSampled ? 0 : -1);
      segment.classes.push_back(role == TokenRole::kSampled ? 0 : -1);
    }
  };
  append(TokenRole::kPrompt, 3 + rng.below(4));
  int64_t turns = 1 + rng.below(3);
  for (int64_t turn = 0; turn < turns; ++turn) {
    if (turn > 0) append(TokenRole::kObservation, 1 + rng.below(3));
    append(TokenRole::kSampled, 1 + rng.below(6));
  }
  t.turns = static_cast<int32_t>(turns);
  t.segments.push_back(std::move(segment));
  return t;
}

// Two turns of two and one sampled tokens with an observation between them.
inline Trajectory two_turns(int32_t member, double reward) {
  using enum TokenRole;
  Rng rng(1);
  Trajectory t = random_trajectory(0, member, reward, rng);
  t.turns = 2;
  t.segments = {{.tokens = {1, 2, 3, 4, 5},
                 .roles = {kPrompt, kSampled, kSampled, kObservation, kSampled},
                 .logprobs = {0, -1, -1, 0, -1},
                 .versions = {-1, 0, 0, -1, 0},
                 .classes = {-1, 0, 0, -1, 0},
                 .turn_begins = {1, 4}}};
  t.segments[0].turn_numbers = {0, 1};
  return t;
}

// Groups of 4 with two different rewards each.
inline std::vector<Trajectory> random_trajectories(int64_t groups, uint64_t seed) {
  Rng rng(seed);
  std::vector<Trajectory> result;
  for (int64_t g = 0; g < groups; ++g) {
    for (int32_t m = 0; m < 4; ++m)
      result.push_back(random_trajectory(g, m, m % 3 == 0 ? 1.0 : 0.0, rng));
  }
  return result;
}

// As sampling with top_k = 3 would have recorded them: sets about each sampled token, of three
// quarters of the probability.
inline void truncate(std::vector<Trajectory>& trajectories) {
  for (Trajectory& t : trajectories) {
    t.sampling.top_k = 3;
    for (Segment& segment : t.segments) {
      for (size_t i = 0; i < segment.tokens.size(); ++i) {
        const bool sampled = segment.roles[i] == TokenRole::kSampled;
        segment.log_masses.push_back(sampled ? std::log(0.75f) : 0.0f);
        segment.kept_counts.push_back(sampled ? 3 : 0);
        if (!sampled) continue;
        const TokenId first = std::clamp(segment.tokens[i] - 1, 0, 19 - 3);
        for (TokenId id = first; id < first + 3; ++id) segment.kept_ids.push_back(id);
      }
    }
  }
}

// Replaces the recorded log-probabilities by what `trainer` computes for each sequence alone, as an
// engine with the same weights would have recorded them.
inline void record_logprobs(PolicyTrainer& trainer, std::vector<Trajectory>& trajectories) {
  for (Trajectory& t : trajectories) {
    for (Segment& segment : t.segments) {
      std::vector<int32_t> targets;
      for (size_t i = 0; i < segment.tokens.size(); ++i) {
        if (segment.roles[i] == TokenRole::kSampled) targets.push_back(static_cast<int32_t>(i));
      }
      PackedSequence sequence{.tokens = segment.tokens, .targets = targets};
      std::vector<float> logprobs = trainer.score({&sequence, 1})[0];
      for (size_t k = 0; k < targets.size(); ++k)
        segment.logprobs[static_cast<size_t>(targets[k])] = logprobs[k];
    }
  }
}

inline BatchOptions tiny_batch_options() {
  return {.numerics_class = kNumericsClass,
          .vocab_size = 19,
          .max_sequence_tokens = kMaxSequenceTokens};
}

inline TrainBatch make_batch(const std::vector<Trajectory>& trajectories,
                             const BatchOptions& options) {
  return build_batch(trajectories, options).value();
}

inline TrainBatch make_batch(const std::vector<Trajectory>& trajectories,
                             AdvantageKind kind = AdvantageKind::kGroupMean, bool drop = true,
                             SamplingMask mask = SamplingMask::kNone) {
  BatchOptions options = tiny_batch_options();
  options.algo.advantage = kind;
  options.algo.filter_zero_signal = drop ? ZeroSignalFilter::kDrop : ZeroSignalFilter::kNone;
  options.algo.sampling_mask = mask;
  return make_batch(trajectories, options);
}

// Sampled token i of each trajectory becomes one of version `of(trajectory, i)`.
template <class VersionOf>
void set_versions(std::vector<Trajectory>& trajectories, VersionOf of) {
  for (size_t t = 0; t < trajectories.size(); ++t) {
    int64_t i = 0;
    for (Segment& segment : trajectories[t].segments)
      for (int64_t& version : segment.versions)
        if (version >= 0) version = of(t, i++);
  }
}

// What a critic is to say of each target: of the token in front of it and of its place.
inline void set_returns(TrainBatch& batch) {
  for (TrainSequence& s : batch.sequences) {
    s.returns.clear();
    for (const int32_t target : s.targets)
      s.returns.push_back(0.125f * static_cast<float>(s.tokens[static_cast<size_t>(target - 1)]) -
                          0.0625f * static_cast<float>(target));
  }
}

inline double metric(const MetricList& metrics, const std::string& name) {
  for (const auto& [key, value] : metrics) {
    if (key == name) return value;
  }
  throw std::runtime_error("no metric " + name);
}

inline std::filesystem::path data_dir() {
  return std::filesystem::path(TAILRACE_SOURCE_DIR) / "tests/data";
}

inline nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

// Updates that leave the weights alone: the gradient can be looked at.
inline const OptimOptions kStill{.lr = 0, .max_grad_norm = 0};

inline std::vector<float> copy(std::span<const float> x) { return {x.begin(), x.end()}; }

inline PolicyLossConfig loss_config() {
  PolicyLossConfig config;
  config.entropy_coef = .01;
  config.surrogate.clip_c = 3;
  return config;
}

// Of a trainer with the weights that tiny_trainer() makes.
inline std::vector<Trajectory> recorded(int64_t groups, uint64_t seed) {
  auto trainer = tiny_trainer({});
  std::vector<Trajectory> trajectories = random_trajectories(groups, seed);
  record_logprobs(*trainer, trajectories);
  return trajectories;
}

}  // namespace tailrace::testing
