// One filled-in message of every type, for the tests of this folder.
#pragma once

#include <string>
#include <vector>

#include "core/base/random.h"
#include "core/messages/message.h"
#include "core/wire/trajectory_codec.h"

namespace tailrace::wire::test {

inline LeaseId sample_lease() { return {{1, 2, 3, 4, 5, 6}, 7}; }

inline Trajectory sample_trajectory(int64_t num_tokens, uint64_t seed = 1) {
  Rng rng(seed);
  Trajectory t;
  t.lease = sample_lease();
  t.lane = Lane::kEval;
  t.env = "frozen_grid";
  t.numerics_classes = {"cpu-avx512-w32", "cpu-avx2-w32"};
  t.seed = 0xfedcba9876543210;
  Segment segment;
  for (int64_t i = 0; i < num_tokens; ++i) {
    const bool sampled = i % 8 == 7;
    segment.tokens.push_back(static_cast<TokenId>(rng.below(44)));
    segment.roles.push_back(sampled ? TokenRole::kSampled
                            : i < 7 ? TokenRole::kPrompt
                                    : TokenRole::kObservation);
    segment.logprobs.push_back(sampled ? static_cast<float>(-rng.uniform()) : 0.0f);
    segment.versions.push_back(sampled ? 3 + i / 16 : -1);
    segment.classes.push_back(sampled ? static_cast<int32_t>(i / 32 % 2) : -1);
    segment.log_masses.push_back(sampled ? static_cast<float>(-rng.uniform()) : 0.0f);
    segment.kept_counts.push_back(sampled ? 2 : 0);
    segment.teacher_logprobs.push_back(sampled ? static_cast<float>(-rng.uniform()) : 0.0f);
    if (sampled) {
      segment.teacher_top_ids.insert(segment.teacher_top_ids.end(), {7, 3});
      segment.teacher_top_logprobs.insert(segment.teacher_top_logprobs.end(), {-0.5f, -1.5f});
    }
    if (sampled) {
      const TokenId id = segment.tokens.back();
      segment.kept_ids.insert(segment.kept_ids.end(), {id, id + 1 + static_cast<TokenId>(i % 3)});
    }
    if (sampled) {
      segment.turn_numbers.push_back(static_cast<int32_t>(segment.turn_begins.size()));
      segment.turn_begins.push_back(static_cast<int32_t>(i));
    }
    // Two of nine experts in two layers.
    if (i + 1 < num_tokens)
      for (int layer = 0; layer < 2; ++layer) {
        const auto first = static_cast<uint16_t>(rng.below(8));
        segment.choices.insert(segment.choices.end(), {first, static_cast<uint16_t>(first + 1)});
      }
  }
  t.segments.push_back(segment);
  t.experts = {.sparse_layers = 2, .chosen = 2, .experts = 9};
  Segment child;
  child.parent = 0;
  child.parent_tokens = static_cast<int32_t>(num_tokens / 2);
  t.segments.push_back(child);
  t.outcome = Outcome::kTruncated;
  t.reward = -0.25;
  t.verifier = "countdown";
  t.evidence = R"({"text": "3 + 4"})";
  t.sampling.temperature = 0.7;
  t.sampling.top_k = 20;
  t.sampling.stop_tokens = {2, 5};
  t.sampling.stop_strings = {"\n", "stop"};
  // One more than it has answers with tokens.
  t.turns = static_cast<int32_t>(t.segments[0].turn_begins.size()) + 1;
  for (int32_t turn = 0; turn < t.turns; ++turn) {
    t.turn_rewards.push_back(rng.uniform() - 0.5);
    t.turn_anchors.push_back(anchor_of(std::to_string(turn)));
  }
  t.env_seconds = 0.5;
  t.generate_seconds = 1.5;
  t.env_waits = {0.25f, 0};
  t.metrics = {{"success", 1}, {"invalid_actions", 2}};
  return t;
}

inline std::vector<Message> one_of_each() {
  const MetricList metrics = {{"loss", 0.5}, {"kl", -1e-9}};
  Trajectory unrewarded = sample_trajectory(40);
  unrewarded.reward.reset();
  const std::vector<Batch::Item> items = {{sample_lease(), -0.5, 1234, 0xfedcba9876543210},
                                          {sample_lease(), 1, 5, 6}};
  return {Hello{Role::kTrainer, "trainer-0", 99, 1234, 64, "cpu-avx512-w32", true, "large", "cpu",
                "east", 3, "gpu-7.west.example"},
          Heartbeat{7, "the gateway: a call is being read for 12 s"},
          TrajectoryResult{encode_trajectory(unrewarded), true},
          Verdict{sample_lease(), Lane::kEval, 2, 0.0, metrics, ""},
          Staged{1, 7, "0123456789abcdef0123456789abcdef", metrics},
          Installed{1, 7, "0123456789abcdef0123456789abcdef", metrics},
          InstallFailed{1, 7, "9a0b", "tensor x block 3", InstallCause::kDigest},
          TrainerReady{1, 8, "0123456789abcdef0123456789abcdef", "v8.json", "fedc", metrics},
          TrainerWants{1, 8},
          Published{1, 8, "0123456789abcdef0123456789abcdef", "v8.json", "fedc", metrics},
          Durable{1, 8, 4, "checkpoints/8"},
          Progress{"sft", 10, 315, metrics, 2},
          WorkerFailed{"disk full"},
          Fetch{3, {{Lane::kTrain, sample_lease()}, {Lane::kEval, sample_lease()}}, 4096, 1 << 20},
          Welcome{77},
          Hold{{{Lane::kTrain, sample_lease()}}},
          Grant{sample_lease(), Lane::kTrain, 3, encode_trajectory(unrewarded)},
          Abort{sample_lease(), Lane::kEval},
          Verify{sample_lease(), Lane::kTrain, 1, "countdown", "{}"},
          Stage{1, 9, "0123456789abcdef0123456789abcdef", "v9.json"},
          Switch{1, 9, "0123456789abcdef0123456789abcdef"},
          Batch{1, 9, 3, false, items},
          Payload{3, encode_trajectory(sample_trajectory(3))},
          Save{1, 8},
          Shutdown{"done"},
          FormRanks{1, 0xfedcba9876543210, 3, 4},
          StageProgress{1, 9, "0123456789abcdef0123456789abcdef", 4 << 20, 500 << 20},
          ReleaseWeights{1, 7, 9, 8},
          TrainingStage{1, 2, 3, "preference"}};
}

}  // namespace tailrace::wire::test
